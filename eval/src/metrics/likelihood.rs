//! What a model says of the true answer: cross entropy, perplexity, number token losses; and how many of its tokens were
//! generated.

use super::Name;
use super::number::mean;

/// The figures, in the order of [`figures`].
pub const NAMES: [Name; 8] = [
    Name::TokenAccuracy,
    Name::Perplexity,
    Name::Ce,
    Name::NtlWas,
    Name::NtlWasCdf,
    Name::NtlMse,
    Name::NtlMae,
    Name::NtlHuber,
];

/// Of one item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likelihood {
    /// Tokens of the true answer that the generated one has in the same place, of how many; `None` where token ids are
    /// not known.
    pub tokens: Option<(usize, usize)>,
    /// Natural logarithms of the probabilities of the true answer's tokens.
    pub logprobs: Vec<f64>,
    /// Losses by the server's names.
    pub losses: Vec<(String, f64)>,
}

impl Likelihood {
    fn loss(&self, name: Name) -> Option<f64> {
        self.losses.iter().find(|(known, _)| known == name.as_str()).map(|(_, value)| *value)
    }
}

/// The figures, row `i` counted `times[i]` times. Token accuracy and perplexity are over all tokens, losses are means over
/// items.
pub fn figures(rows: &[&Likelihood], times: &[u32]) -> Vec<Option<f64>> {
    let (mut hits, mut tokens, mut nll, mut scored) = (0.0, 0.0, 0.0, 0.0);
    for (row, &times) in rows.iter().zip(times) {
        let times = f64::from(times);
        if let Some((hit, of)) = row.tokens {
            hits += hit as f64 * times;
            tokens += of as f64 * times;
        }
        nll -= row.logprobs.iter().sum::<f64>() * times;
        scored += row.logprobs.len() as f64 * times;
    }
    let mut figures =
        vec![(tokens > 0.0).then(|| hits / tokens), (scored > 0.0).then(|| (nll / scored).exp())];
    figures.extend(NAMES[2..].iter().map(|name| {
        let known = rows.iter().zip(times).filter_map(|(row, &times)| Some((row.loss(*name)?, times)));
        let (values, times): (Vec<f64>, Vec<u32>) = known.unzip();
        mean(&values, &times)
    }));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_pooled_and_losses_averaged() {
        let one = Likelihood {
            tokens: Some((3, 4)),
            logprobs: vec![-1.0, -2.0],
            losses: vec![("ce".to_owned(), 1.5), ("ntl-was".to_owned(), 0.25)],
        };
        let two =
            Likelihood { tokens: Some((0, 1)), logprobs: vec![0.0], losses: vec![("ce".to_owned(), 0.5)] };
        let found = figures(&[&one, &two], &[1, 1]);
        assert_eq!((found[0], found[2], found[3], found[4]), (Some(0.6), Some(1.0), Some(0.25), None));
        assert!((found[1].unwrap() - 1.0_f64.exp()).abs() < 1e-12);
        assert_eq!(figures(&[], &[]), [None; 8]);
    }
}
