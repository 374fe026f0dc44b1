//! BLEU (Papineni et al. 2002) as sacrebleu computes it: tokenizer 13a, n-grams up to 4, exponential
//! smoothing.
//!
//! In: a prediction and one reference each. Out: counts that add up over a corpus, and the score 0..100 of
//! their sum.

use std::sync::LazyLock;

use regex::Regex;

use crate::ngrams::overlap;
use crate::regex;

/// Maximum length of an n-gram.
const ORDERS: usize = 4;

/// N-gram counts and lengths of one sentence, or their sums over several sentences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NgramCounts {
    matches: [u64; ORDERS],
    totals: [u64; ORDERS],
    predicted: u64,
    referenced: u64,
}

impl NgramCounts {
    pub fn of(prediction: &str, reference: &str) -> Self {
        let prediction = tokenize_13a(prediction);
        let reference = tokenize_13a(reference);
        let orders = std::array::from_fn(|order| order + 1);
        Self {
            matches: orders.map(|n| overlap(prediction.windows(n), reference.windows(n)) as u64),
            totals: orders.map(|n| prediction.windows(n).count() as u64),
            predicted: prediction.len() as u64,
            referenced: reference.len() as u64,
        }
    }

    /// Adds up sentences, each multiplied by its count.
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

    /// Returns the score, 0 to 100. If an order has no n-grams, the score is 0: one-word answers score
    /// nothing.
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

/// Replacements of mteval-v13a: punctuation becomes a separate token, except points and commas inside
/// numbers.
static REPLACEMENTS_13A: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    [
        (r"([{-~\[-` -&(-+:-@/])", " $1 "),
        (r"([^0-9])([\.,])", "$1 $2 "),
        (r"([\.,])([^0-9])", " $1 $2"),
        (r"([0-9])(-)", "$1 $2 "),
    ]
    .map(|(pattern, by)| (regex(pattern), by))
});

fn tokenize_13a(text: &str) -> Vec<String> {
    let text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let text = text.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    let spaced = REPLACEMENTS_13A
        .iter()
        .fold(format!(" {text} "), |text, (pattern, by)| pattern.replace_all(&text, *by).into_owned());
    spaced.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_is_a_token_except_inside_numbers() {
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
    fn scores_match_sacrebleu() {
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
    fn corpus_counts_are_the_sum_of_sentence_counts() {
        let one = NgramCounts::of("a b c d", "a b c d");
        let two = NgramCounts::of("a x", "a y z");
        let twice = NgramCounts::sum([(&one, 2), (&two, 1)].into_iter());
        assert_eq!(twice, NgramCounts::sum([(&one, 1), (&two, 1), (&one, 1)].into_iter()));
        assert_eq!((twice.predicted, twice.referenced), (10, 11));
    }
}
