//! Tokens and n-grams that a prediction shares with its reference.

use std::collections::HashMap;
use std::hash::Hash;

/// Counts the predicted tokens or n-grams that are in the reference, each at most as often as in the
/// reference.
pub fn overlap<T: Eq + Hash>(
    predicted: impl Iterator<Item = T>,
    reference: impl Iterator<Item = T>,
) -> usize {
    let mut left: HashMap<T, usize> = HashMap::new();
    for token in reference {
        *left.entry(token).or_default() += 1;
    }
    let mut shared = 0;
    for token in predicted {
        if let Some(count) = left.get_mut(&token)
            && *count > 0
        {
            *count -= 1;
            shared += 1;
        }
    }
    shared
}

/// Returns the harmonic mean of precision and recall, or 0 if nothing is shared.
pub fn f_measure(common: usize, predicted: usize, referenced: usize) -> f64 {
    if common == 0 {
        return 0.0;
    }
    let precision = common as f64 / predicted as f64;
    let recall = common as f64 / referenced as f64;
    2.0 * precision * recall / (precision + recall)
}
