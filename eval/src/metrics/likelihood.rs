//! Metrics of the true answer under the model (cross-entropy, perplexity and number token losses), and how
//! many of its tokens the model generated.

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

/// Returns the loss with the server's name `name`.
pub(super) fn loss(item: &Likelihood, name: &str) -> Option<f64> {
    item.losses.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_all_items_are_pooled() {
        let one = Likelihood {
            tokens: Some((3, 4)),
            logprobs: vec![-1.0, -2.0],
            losses: vec![("ce".to_owned(), 1.5), ("ntl-was".to_owned(), 0.25)],
        };
        let two =
            Likelihood { tokens: Some((0, 1)), logprobs: vec![0.0], losses: vec![("ce".to_owned(), 0.5)] };
        let items = [&one, &two];
        let weights = [1.0, 1.0];
        let losses = ["ce", "ntl-was", "ntl-was-cdf"].map(|name| loss(&one, name));
        assert_eq!(losses, [Some(1.5), Some(0.25), None]);
        assert_eq!(token_accuracy(&items, &weights), Some(0.6));
        assert!((perplexity(&items, &weights).unwrap() - 1.0_f64.exp()).abs() < 1e-12);
        assert_eq!((token_accuracy(&[], &[]), perplexity(&[], &[])), (None, None));
    }
}
