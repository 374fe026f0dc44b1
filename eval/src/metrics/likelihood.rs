//! Metrics of the true answer under the model (cross-entropy, perplexity and number token losses), and how
//! many of its tokens the model generated.

use crate::stats::weighted::mean;

/// Likelihood of the true answer of one item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Likelihood {
    /// Number of tokens that the generated answer and the true answer have at the same positions, and the
    /// number of tokens of the true answer. `None` if the token ids are not known.
    pub tokens: Option<(usize, usize)>,
    /// Natural logarithms of the probabilities of the true answer's tokens.
    pub logprobs: Vec<f64>,
    /// Losses by the server's names.
    pub losses: Vec<(String, f64)>,
}

/// Token accuracy over all tokens of all items.
pub(super) fn token_accuracy(items: &[&Likelihood], weights: &[f64]) -> Option<f64> {
    let (mut hits, mut tokens) = (0.0, 0.0);
    for (item, weight) in items.iter().zip(weights) {
        if let Some((hit, of)) = item.tokens {
            hits += hit as f64 * weight;
            tokens += of as f64 * weight;
        }
    }
    (tokens > 0.0).then(|| hits / tokens)
}

/// Perplexity over all tokens of all items.
pub(super) fn perplexity(items: &[&Likelihood], weights: &[f64]) -> Option<f64> {
    let (mut nll, mut tokens) = (0.0, 0.0);
    for (item, weight) in items.iter().zip(weights) {
        nll -= item.logprobs.iter().sum::<f64>() * weight;
        tokens += item.logprobs.len() as f64 * weight;
    }
    (tokens > 0.0).then(|| (nll / tokens).exp())
}

/// Mean of a loss over the items that have it.
pub(super) fn mean_loss(items: &[&Likelihood], weights: &[f64], name: &str) -> Option<f64> {
    let loss =
        |item: &Likelihood| item.losses.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    mean(items.iter().zip(weights).filter_map(|(item, &weight)| Some((loss(item)?, weight))))
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
        let items = [&one, &two];
        let weights = [1.0, 1.0];
        let losses = ["ce", "ntl-was", "ntl-was-cdf"].map(|name| mean_loss(&items, &weights, name));
        assert_eq!(losses, [Some(1.0), Some(0.25), None]);
        assert_eq!(token_accuracy(&items, &weights), Some(0.6));
        assert!((perplexity(&items, &weights).unwrap() - 1.0_f64.exp()).abs() < 1e-12);
        assert_eq!(
            (token_accuracy(&[], &[]), perplexity(&[], &[]), mean_loss(&[], &[], "ce")),
            (None, None, None)
        );
    }
}
