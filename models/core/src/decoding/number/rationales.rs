//! The average of the numbers after several texts. Texts without a number do not count, unless no text has
//! one.

use super::refused;
use crate::contract::{FinishReason, NumberOutcome, RefusedText};
use crate::numbers::{Distribution, SampledDistribution};

/// A text before a number.
#[derive(Debug, Clone, Copy)]
pub struct Rationale<'a> {
    /// Number of its tokens.
    pub tokens: usize,
    /// The number after it, or why it ended without the marker.
    pub number: Result<&'a NumberOutcome, FinishReason>,
}

/// Returns the average of the distributions, and the sums of tokens and nodes. The first rationale is the one
/// that is sent.
pub fn average_rationales<'a>(rationales: impl IntoIterator<Item = Rationale<'a>>) -> NumberOutcome {
    let rationales: Vec<Rationale<'_>> = rationales.into_iter().collect();
    let reached: Vec<&NumberOutcome> =
        rationales.iter().filter_map(|rationale| rationale.number.ok()).collect();
    let refused: Vec<&[RefusedText]> = reached.iter().map(|outcome| outcome.refused.as_slice()).collect();
    let distributions: Vec<&Distribution> = reached.iter().map(|outcome| &outcome.distribution).collect();
    let values: Vec<f64> = reached.iter().filter_map(|outcome| outcome.token_value).collect();
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let unreported: f64 = reached.iter().map(|outcome| outcome.unreported).sum();
    NumberOutcome {
        distribution: Distribution::average(&distributions),
        further: Vec::new(),
        sampled: average_sampled(&reached).into_iter().collect(),
        token_value: (!values.is_empty()).then_some(mean),
        nodes: reached.iter().map(|outcome| outcome.nodes).sum(),
        forward_passes: reached.iter().map(|outcome| outcome.forward_passes).sum(),
        text_tokens: rationales.iter().map(|rationale| rationale.tokens).sum(),
        truncated: reached.iter().any(|outcome| outcome.truncated),
        unreported: unreported / reached.len().max(1) as f64,
        refused: refused::average(&refused),
        reached: reached.len() as u32,
        missed: (rationales.len() - reached.len()) as u32,
        first_text_end: rationales.first().and_then(|rationale| rationale.number.err()),
        answers: None,
    }
}

/// `None` if no number was sampled.
fn average_sampled(outcomes: &[&NumberOutcome]) -> Option<SampledDistribution> {
    if outcomes.iter().all(|outcome| outcome.sampled.is_empty()) {
        return None;
    }
    let mut each = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        each.push(match outcome.sampled.first() {
            Some(sampled) => sampled.clone(),
            None => SampledDistribution::exact(&outcome.distribution),
        });
    }
    Some(SampledDistribution::average(&each))
}
