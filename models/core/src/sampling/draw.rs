//! One draw from a softmax that is cut off: at a share of the best (`min_p`), at a number (`top_k`), at a
//! mass (`top_p`).

use std::cmp::Ordering;

use super::SamplingParams;
use crate::maximum::largest;

/// A token's index with its weight: its probability divided by the probability of the most probable token.
type Weighted = (usize, f64);

/// Returns the token at `point` (in [0, 1)) of the distribution after the cut-offs. `max` is the largest
/// logit. `None` only when rounding leaves nothing.
pub(super) fn draw(logits: &[f32], max: f32, sampling: &SamplingParams, point: f64) -> Option<usize> {
    let weights = candidates(logits, max, sampling);
    let mut left = point * total(&weights);
    weights.into_iter().find_map(|(index, weight)| {
        left -= weight;
        (left < 0.0).then_some(index)
    })
}

/// Returns the ids that may be drawn and their weights, in any order.
pub(crate) fn drawn_candidates(logits: &[f32], sampling: &SamplingParams) -> Vec<(u32, f64)> {
    let weights = candidates(logits, largest(logits), sampling);
    weights.into_iter().map(|(index, weight)| (index as u32, weight)).collect()
}

fn total(weights: &[Weighted]) -> f64 {
    weights.iter().map(|&(_, weight)| weight).sum()
}

/// Returns the tokens that may be drawn. They are sorted by probability if a cut-off is by rank, and by id
/// otherwise.
fn candidates(logits: &[f32], max: f32, sampling: &SamplingParams) -> Vec<Weighted> {
    let mut weights = Vec::new();
    for (index, &logit) in logits.iter().enumerate() {
        let weight = (f64::from(logit - max) / sampling.temperature).exp();
        if weight > 0.0 && weight >= sampling.min_p {
            weights.push((index, weight));
        }
    }
    if sampling.top_k > 0 && sampling.top_k < weights.len() {
        weights.select_nth_unstable_by(sampling.top_k - 1, best_first);
        weights.truncate(sampling.top_k);
        weights.sort_unstable_by(best_first);
    }
    if sampling.top_p < 1.0 { nucleus(weights, sampling.top_p) } else { weights }
}

/// The fewest of the most probable tokens that have `top_p` of the mass. Sorts no more than it must.
fn nucleus(mut weights: Vec<Weighted>, top_p: f64) -> Vec<Weighted> {
    let wanted = top_p * total(&weights);
    let (mut mass, mut sorted, mut more) = (0.0, 0, 64);
    while sorted < weights.len() {
        let end = weights.len().min(sorted + more);
        if end < weights.len() {
            weights[sorted..].select_nth_unstable_by(end - sorted - 1, best_first);
        }
        weights[sorted..end].sort_unstable_by(best_first);
        for index in sorted..end {
            mass += weights[index].1;
            if mass >= wanted {
                weights.truncate(index + 1);
                return weights;
            }
        }
        (sorted, more) = (end, more * 4);
    }
    weights
}

fn best_first(a: &Weighted, b: &Weighted) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}
