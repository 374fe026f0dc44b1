//! BLEU (Papineni et al. 2002) as sacrebleu computes it: tokenizer 13a, n-grams up to 4, exponential smoothing.
//!
//! In: a prediction and one reference each. Out: counts that add up over a corpus, and the score 0..100 of their
//! sum. Not here: averaging over batches (`paper`).

use std::collections::HashMap;

/// Longest n-gram.
const ORDERS: usize = 4;

/// What one sentence, or the sum of many, contributes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NgramCounts {
    matches: [u64; ORDERS],
    totals: [u64; ORDERS],
    predicted: u64,
    referenced: u64,
}

impl NgramCounts {
    pub fn of(prediction: &str, reference: &str) -> Self {
        let (prediction, reference) = (tokenize_13a(prediction), tokenize_13a(reference));
        let mut counts = Self {
            predicted: prediction.len() as u64,
            referenced: reference.len() as u64,
            ..Self::default()
        };
        for (order, (matches, totals)) in counts.matches.iter_mut().zip(&mut counts.totals).enumerate() {
            let known = n_grams(&reference, order + 1);
            for (n_gram, count) in n_grams(&prediction, order + 1) {
                *matches += count.min(known.get(n_gram).copied().unwrap_or(0));
                *totals += count;
            }
        }
        counts
    }

    /// Sums sentences, each so many times.
    pub fn sum<'a>(sentences: impl Iterator<Item = (&'a Self, u64)>) -> Self {
        let mut sum = Self::default();
        for (sentence, times) in sentences {
            for order in 0..ORDERS {
                sum.matches[order] += sentence.matches[order] * times;
                sum.totals[order] += sentence.totals[order] * times;
            }
            sum.predicted += sentence.predicted * times;
            sum.referenced += sentence.referenced * times;
        }
        sum
    }

    /// The score, 0 to 100. An order without any n-gram makes it 0: one-word answers score nothing.
    pub fn score(&self) -> f64 {
        if self.matches.iter().all(|&count| count == 0) {
            return 0.0;
        }
        let mut smoothing = 1.0;
        let mut logarithms = 0.0;
        for (&matches, &total) in self.matches.iter().zip(&self.totals) {
            if total == 0 {
                return 0.0;
            }
            logarithms += if matches > 0 {
                (100.0 * matches as f64 / total as f64).ln()
            } else {
                smoothing *= 2.0;
                (100.0 / (smoothing * total as f64)).ln()
            };
        }
        self.brevity_penalty() * (logarithms / ORDERS as f64).exp()
    }

    fn brevity_penalty(&self) -> f64 {
        if self.predicted >= self.referenced {
            1.0
        } else if self.predicted == 0 {
            0.0
        } else {
            (1.0 - self.referenced as f64 / self.predicted as f64).exp()
        }
    }
}

fn n_grams(tokens: &[String], order: usize) -> HashMap<&[String], u64> {
    let mut counts = HashMap::new();
    for n_gram in tokens.windows(order) {
        *counts.entry(n_gram).or_insert(0) += 1;
    }
    counts
}

/// The tokens of mteval-v13a: punctuation apart, but not points and commas inside numbers.
fn tokenize_13a(text: &str) -> Vec<String> {
    let text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let text = text.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    let mut spaced = String::from(" ");
    for c in text.chars() {
        if is_symbol(c) { spaced.extend([' ', c, ' ']) } else { spaced.push(c) }
    }
    spaced.push(' ');
    let digit = |c: char| c.is_ascii_digit();
    let stop = |c: char| c == '.' || c == ',';
    let spaced = replace_pairs(&spaced, |a, b| !digit(a) && stop(b), |a, b| [a, ' ', b, ' ']);
    let spaced = replace_pairs(&spaced, |a, b| stop(a) && !digit(b), |a, b| [' ', a, ' ', b]);
    let spaced = replace_pairs(&spaced, |a, b| digit(a) && b == '-', |a, b| [a, ' ', b, ' ']);
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// Symbols that are tokens wherever they stand.
fn is_symbol(c: char) -> bool {
    matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/')
}

/// Replaces pairs of neighbours from left to right; what was replaced is not looked at again.
fn replace_pairs(
    text: &str,
    wanted: impl Fn(char, char) -> bool,
    by: impl Fn(char, char) -> [char; 4],
) -> String {
    let mut replaced = String::with_capacity(text.len() * 2);
    let mut chars = text.chars().peekable();
    while let Some(first) = chars.next() {
        match chars.peek() {
            Some(&second) if wanted(first, second) => {
                chars.next();
                replaced.extend(by(first, second));
            }
            _ => replaced.push(first),
        }
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_is_a_token_but_not_inside_numbers() {
        for (text, want) in [
            ("#### 1,234.50", "# # # # 1,234.50"),
            ("It's $5.", "It's $ 5 ."),
            ("a,b 3, 4", "a , b 3 , 4"),
            ("10-3 well-known", "10 - 3 well-known"),
            ("x &amp; y\nend", "x & y end"),
            ("..", ". ."),
        ] {
            assert_eq!(tokenize_13a(text).join(" "), want, "{text:?}");
        }
    }

    #[test]
    fn scores_are_those_of_sacrebleu() {
        for (prediction, reference, want) in [
            ("The answer is 18", "18", 15.973_577_606_156_81),
            ("#### 18", "#### 18", 100.0),
            ("#### 1,234", "#### 1234", 66.874_030_497_642_18),
            ("5", "5", 0.0),
            ("", "7", 0.0),
            ("The cats are sleeping on the mats 5", "A cat sleeps on a mat 5", 6.567_274_736_060_395),
        ] {
            let got = NgramCounts::of(prediction, reference).score();
            assert!((got - want).abs() < 1e-9, "{prediction:?}: {got}");
        }
    }

    #[test]
    fn a_corpus_is_the_sum_of_its_sentences() {
        let (one, two) = (NgramCounts::of("a b c d", "a b c d"), NgramCounts::of("a x", "a y z"));
        let twice = NgramCounts::sum([(&one, 2), (&two, 1)].into_iter());
        assert_eq!(twice, NgramCounts::sum([(&one, 1), (&two, 1), (&one, 1)].into_iter()));
        assert_eq!((twice.predicted, twice.referenced), (10, 11));
    }
}
