//! What is reported of a token: its log-probability by the model itself, the best alternatives, what numbers say.

use super::{Vocabulary, not_a_distribution};
use crate::decoding::beams::best_ids;
use crate::engine::{EngineError, TokenLogprob, TokenText};
use crate::numbers::Softmax;

/// A token at the position of these logits, with some of the most probable ones: `chosen` holds its id and how many. `head`: the
/// value of the model's number head there, where it has one.
pub(super) fn token_text(
    vocabulary: &Vocabulary,
    (logits, head): (&[f32], Option<f32>),
    chosen: (u32, usize),
) -> Result<TokenText, EngineError> {
    let (id, count) = chosen;
    let known = vocabulary.known(logits);
    let softmax = Softmax::new(logits).ok_or_else(not_a_distribution)?;
    let logprob = |id| TokenLogprob { id, logprob: softmax.log_probability(id) };
    let ids = best_ids(known, count);
    let number = vocabulary.number_at(&softmax, head);
    Ok(TokenText { token: logprob(id), top: ids.into_iter().map(logprob).collect(), number })
}
