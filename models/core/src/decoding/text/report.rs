//! Log-probabilities of a token and its best alternatives, and the expected number.

use super::{RowResult, Vocabulary, not_a_distribution};
use crate::contract::{EngineError, TokenLogprob, TokenText};
use crate::decoding::beams::best_ids;
use crate::numbers::Softmax;

/// The tokens that are reported in addition to the one at a position.
#[derive(Debug, Clone, Copy)]
pub(super) enum Alternatives<'a> {
    /// This many of the most probable ones.
    Best(usize),
    Ids(&'a [u32]),
}

/// Returns the token `id` at the position of `row`, with alternatives.
pub(super) fn token_text(
    vocabulary: &Vocabulary,
    row: RowResult<'_>,
    id: u32,
    others: Alternatives<'_>,
) -> Result<TokenText, EngineError> {
    let logits = row.full()?;
    let known = vocabulary.known(logits);
    let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
    let logprob = |id| TokenLogprob { id, logprob: softmax.log_probability(id) };
    let ids = match others {
        Alternatives::Best(count) => best_ids(known, count),
        Alternatives::Ids(ids) => ids.to_vec(),
    };
    let number = vocabulary.number_at(&softmax, row.head_value);
    // In the order of `best_ids`.
    let chosen = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let mut rank = 1;
    for (other, logit) in known.iter().enumerate() {
        if logit.total_cmp(&chosen).then((id as usize).cmp(&other)).is_gt() {
            rank += 1;
        }
    }
    let top = ids.into_iter().map(logprob).collect();
    Ok(TokenText { token: logprob(id), top, rank: Some(rank), number })
}
