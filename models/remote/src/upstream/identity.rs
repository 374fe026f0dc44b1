//! The identity of the weights that an engine computes with: an engine with other ones may take over its URL.
//!
//! An engine that names a fingerprint, as ntl-server does, is believed. Otherwise the log-probabilities after
//! fixed prompts are compared, up to the rounding of engines. Invariant: the fingerprint of a model changes
//! whenever other weights are found, and returns to its former value with the former weights.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ntl_text::tokenizer::Tokenizer;

use super::EngineFacts;
use super::detect::{Description, describe};
use super::request::RowRequest;
use super::row::Row;
use crate::client::{BaseUrl, Client, UpstreamError};
use crate::engine::Ahead;
use crate::wire::texts::TokenTexts;
use crate::wire::{Alternatives, Batch, Position};

/// The fixed prompts. Each is about something else, so that few changes of weights leave all of them as they
/// are.
const PROMPTS: [&str; 4] = [
    "The answer is",
    "Q: What is 12 + 30?\nA: 42\nQ: What is 7 * 8?\nA:",
    "On a scale from 1 to 9, the film was a",
    "def main():\n    x =",
];

/// Maximum number of the most probable tokens that are compared after each prompt.
const ALTERNATIVES_MAX: usize = 20;

/// Maximum mean difference of the log-probabilities of the same weights, also in half precision and if the
/// engine computes the prompts together with others.
const ROUNDING_MAX: f64 = 0.1;

/// A token is part of the fingerprint if its logarithm of probability is larger by this than that of every
/// other one.
const SURE: f64 = 0.5;

/// Maximum number of different weights that are remembered.
const KNOWN_MAX: usize = 16;

/// The responses that distinguish the weights of an engine from others.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub(super) described: Description,
    /// The most probable tokens after each prompt, unless the engine names a fingerprint or answers chats
    /// only.
    probed: Vec<Position>,
}

impl Evidence {
    /// Describes the model of a replica, and computes the prompts if that is needed.
    pub(super) async fn collect(
        client: &Client,
        base: &BaseUrl,
        facts: &EngineFacts,
        tokenizer: &Tokenizer,
        texts: &TokenTexts,
    ) -> Result<Self, UpstreamError> {
        let described = describe(client, base, facts).await?;
        let mut probed = Vec::new();
        if described.fingerprint.is_none() && facts.chat.is_none() {
            for prompt in PROMPTS {
                probed.extend(probe(client, base, facts, tokenizer, texts, prompt).await?);
            }
        }
        Ok(Self { described, probed })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.described == other.described
            && self.probed.len() == other.probed.len()
            && mean_difference(&self.probed, &other.probed) <= ROUNDING_MAX
    }

    /// Returns the engine's fingerprint, or the tokens that are surely the most probable ones after the
    /// prompts with the mean log-probability. Rounding rarely changes it. `None` if the engine reported
    /// nothing.
    fn fingerprint(&self) -> Option<String> {
        if let Some(fingerprint) = &self.described.fingerprint {
            return Some(fingerprint.clone());
        }
        let mut parts = Vec::new();
        let (mut sum, mut count) = (0.0, 0_usize);
        for position in &self.probed {
            let logprobs = position.best_first();
            parts.push(match &*logprobs {
                [best, second, ..] if best.logprob - second.logprob > SURE => best.id.to_string(),
                _ => "x".to_owned(),
            });
            for token in logprobs.iter().filter(|token| token.logprob.is_finite()) {
                sum += token.logprob;
                count += 1;
            }
        }
        (count > 0).then(|| format!("probe-{}-{:.0}", parts.join("."), -5.0 * sum / count as f64))
    }
}

/// The mean difference of the log-probabilities of all tokens that both sides report, and of bounds for the
/// others. Infinite if only one side reports any after a prompt, and if fewer than half of the tokens are
/// reported by both sides: the most probable tokens of other weights can have nearly the same probabilities.
fn mean_difference(a: &[Position], b: &[Position]) -> f64 {
    let (mut sum, mut count, mut shared) = (0.0, 0_usize, 0_usize);
    for (a, b) in a.iter().zip(b) {
        if a.best_first().is_empty() != b.best_first().is_empty() {
            return f64::INFINITY;
        }
        for (one, other) in [(a, b), (b, a)] {
            for token in one.best_first().iter().filter(|token| token.logprob.is_finite()) {
                let reported = other.logprob(token.id);
                shared += usize::from(reported.is_some());
                let least = match reported {
                    Some(logprob) => (token.logprob - logprob).abs(),
                    // A token that is not reported has at most the probability of the least probable reported
                    // one.
                    None => other.cut().map_or(0.0, |cut| (token.logprob - cut).max(0.0)),
                };
                // One token that became impossible must not make the mean infinite.
                sum += least.min(10.0);
                count += 1;
            }
        }
    }
    match count {
        0 => 0.0,
        _ if 2 * shared < count => f64::INFINITY,
        _ => sum / count as f64,
    }
}

/// Returns the most probable tokens after a prompt. Empty if the engine takes texts only and none stands for
/// the prompt.
async fn probe(
    client: &Client,
    base: &BaseUrl,
    facts: &EngineFacts,
    tokenizer: &Tokenizer,
    texts: &TokenTexts,
    prompt: &str,
) -> Result<Option<Position>, UpstreamError> {
    let Ok(ids) = tokenizer.encode(prompt, true) else { return Ok(None) };
    let row = Row::new(ids.into(), Vec::new());
    if !facts.accepts_ids && row.text(tokenizer).is_none() {
        return Ok(None);
    }
    let alternatives = Alternatives::Best(facts.best_max.clamp(1, ALTERNATIVES_MAX));
    let ahead = &Ahead::NONE;
    let batch = Batch { rows: 1, alternatives, ahead, cache_salt: 0, vocab: tokenizer.len() };
    let request = RowRequest::new(facts, tokenizer, batch, &[row], None);
    let (rows, _) = request.send(client, base, texts).await?;
    Ok(rows.into_iter().flatten().next())
}

/// The weights that the replicas of a model had so far.
#[derive(Default)]
pub(super) struct Identity {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The weights in use are the last ones.
    known: Vec<Known>,
    /// How often the weights changed.
    changes: u64,
}

struct Known {
    evidence: Evidence,
    fingerprint: Option<Arc<str>>,
}

impl Identity {
    /// The fingerprint of the weights in use.
    pub(super) fn fingerprint(&self) -> Option<Arc<str>> {
        self.state().known.last().and_then(|known| known.fingerprint.clone())
    }

    /// How often the weights changed.
    pub(super) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The description of the weights in use.
    pub(super) fn described(&self) -> Option<Description> {
        self.state().known.last().map(|known| known.evidence.described.clone())
    }

    /// Returns whether this is evidence of the weights in use.
    pub(super) fn matches(&self, evidence: &Evidence) -> bool {
        self.state().known.last().is_some_and(|known| known.evidence.is_same(evidence))
    }

    /// Uses the weights with this evidence from now on.
    pub(super) fn adopt(&self, evidence: Evidence) {
        let mut state = self.state();
        let State { known, changes } = &mut *state;
        *changes += u64::from(!known.is_empty());
        let fingerprint = match known.iter().position(|known| known.evidence.is_same(&evidence)) {
            Some(index) => known.remove(index).fingerprint,
            None => evidence.fingerprint().map(|fingerprint| unused(&fingerprint, known)),
        };
        if known.len() == KNOWN_MAX {
            known.remove(0);
        }
        known.push(Known { evidence, fingerprint });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers a fingerprint that other weights have too.
fn unused(fingerprint: &str, known: &[Known]) -> Arc<str> {
    let mut name = fingerprint.to_owned();
    let mut number = 1;
    while known.iter().any(|known| known.fingerprint.as_deref() == Some(name.as_str())) {
        number += 1;
        name = format!("{fingerprint}.{number}");
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(fingerprint: Option<&str>, logprobs: &[(u32, f64)]) -> Evidence {
        let entries = logprobs.iter().map(|&(id, logprob)| (Some(id), logprob));
        let position = Position::new(Some(1), entries, Alternatives::Best(logprobs.len()));
        let described = Description { fingerprint: fingerprint.map(str::to_owned), ..Description::default() };
        Evidence { described, probed: vec![position] }
    }

    #[test]
    fn rounding_is_not_another_model_and_a_changed_order_or_probability_is() {
        let base = evidence(None, &[(1, -0.5), (2, -1.5), (3, -3.0)]);
        let is_same = |other: &[(u32, f64)]| base.is_same(&evidence(None, other));
        assert!(is_same(&[(1, -0.53), (2, -1.45), (3, -3.05)]));
        assert!(is_same(&[(1, -0.5), (2, -1.5), (4, -2.98)]), "the third and the fourth are near each other");
        assert!(!is_same(&[(1, -0.5), (2, -1.5), (4, -2.0)]));
        assert!(!is_same(&[(2, -0.5), (1, -1.5), (3, -3.0)]));
        assert!(!is_same(&[(1, -0.9), (2, -1.1), (3, -3.0)]));
        assert!(!is_same(&[(4, -0.5), (5, -1.5), (6, -3.0)]));
        assert!(!is_same(&[]));
        assert!(!base.is_same(&evidence(Some("a"), &[(1, -0.5), (2, -1.5), (3, -3.0)])));
    }

    #[test]
    fn other_weights_have_another_fingerprint_and_the_former_ones_get_theirs_again() {
        let identity = Identity::default();
        let adopt = |evidence: &Evidence| {
            identity.adopt(evidence.clone());
            assert!(identity.matches(evidence));
            identity.fingerprint().map(|name| name.to_string())
        };
        let first = evidence(None, &[(1, -0.5), (2, -1.5)]);
        assert!(!identity.matches(&first) && identity.fingerprint().is_none());
        assert_eq!((adopt(&first).as_deref(), identity.changes()), (Some("probe-1-5"), 0));
        // The most probable token and the mean are the same.
        let similar = evidence(None, &[(1, -0.2), (2, -1.8)]);
        assert!(!identity.matches(&similar));
        assert_eq!(adopt(&similar).as_deref(), Some("probe-1-5.2"));
        assert_eq!((adopt(&first).as_deref(), identity.changes()), (Some("probe-1-5"), 2));
        assert_eq!(adopt(&evidence(Some("f00d"), &[])).as_deref(), Some("f00d"));
        assert_eq!(adopt(&evidence(None, &[])), None);
    }

    #[test]
    fn an_engine_that_always_names_another_fingerprint_needs_bounded_memory() {
        let identity = Identity::default();
        for number in 0..100 {
            identity.adopt(evidence(Some(&number.to_string()), &[]));
        }
        assert_eq!(identity.fingerprint().as_deref(), Some("99"));
        assert_eq!(identity.state().known.len(), KNOWN_MAX);
    }
}
