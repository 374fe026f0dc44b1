//! Numbers in the embeddings of a T5, and a head that predicts them: xVal (arXiv 2310.02989), as implemented
//! by the Number Token Loss paper's `T5RegressionModelXval`.
//!
//! The embedding of `[NUM]` is multiplied by its scaled number, and learned positions are added to the
//! embeddings of both stacks. With [`ContextRequest::paper_decoding`] decoding has the bugs of the reference
//! implementation's `generate`: every row has position 0, and every number that it reads is 1.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::{ContextId, ContextRequest, ModelError, NodeId, Prompt, Row, Token};
use ntl_text::checkpoint::LoadResult;

use super::head::WIDE;
use super::layers::Loader;
use crate::kv_cache::RowGroup;
use crate::ops::{Linear, ModelResult, compute_error};

/// Number of positions that the reference implementation learns.
pub(super) const POSITIONS: usize = 512;

/// The number that scales to 10.
const V_MAX: f32 = 3e9;

/// How numbers become factors of embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberScaling {
    /// The token whose embedding is multiplied.
    pub number_id: u32,
    /// Whether the factor is logarithmic instead of `number + 1`.
    pub log_scale: bool,
}

/// The parts of xVal that a plain T5 does not have.
pub(super) struct Xval {
    scaling: NumberScaling,
    encoder_positions: Tensor,
    decoder_positions: Tensor,
    /// `[WIDE, d_model]` and `[1, WIDE]`, with a GELU between them.
    number_head: [Linear; 2],
    contexts: HashMap<ContextId, PredictedNumbers>,
}

/// The number head's predictions in one context.
struct PredictedNumbers {
    paper_decoding: bool,
    /// One number per node.
    numbers: Vec<f32>,
}

impl Xval {
    pub(super) fn load(loader: &Loader<'_>, scaling: NumberScaling) -> LoadResult<Self> {
        let d_model = loader.config.d_model;
        let place = loader.place.exact();
        let exact = Loader { place: &place, ..*loader };
        Ok(Self {
            scaling,
            encoder_positions: loader.tensor("encoder_position_embed.weight", &[POSITIONS, d_model])?,
            decoder_positions: loader.tensor("decoder_position_embed.weight", &[POSITIONS, d_model])?,
            number_head: [
                exact.biased("num_head.0", [WIDE, d_model])?,
                exact.biased("num_head.2", [1, WIDE])?,
            ],
            contexts: HashMap::new(),
        })
    }

    /// Checks that all numbers of a prompt have values, and all its tokens positions.
    pub(super) fn check(&self, prompt: &Prompt) -> ModelResult<()> {
        let length = prompt.len();
        if length > POSITIONS {
            return Err(ModelError::PositionOutOfRange { position: length - 1, max: POSITIONS });
        }
        prompt.tokens.iter().try_for_each(|&token| self.factor(token).map(drop))
    }

    /// Multiplies the embeddings `[T, d_model]` of prompts by their numbers and adds positions.
    pub(super) fn embed_prompts(&self, x: &Tensor, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        let mut factors = Vec::new();
        let mut positions = Vec::new();
        for request in requests {
            for (position, &token) in (0u32..).zip(&request.prompt.tokens) {
                factors.push(self.factor(token)?);
                positions.push(position);
            }
        }
        combined(x, factors, &self.encoder_positions, positions).map_err(compute_error)
    }

    /// Multiplies the embeddings `[R, d_model]` of rows by their numbers and adds positions. A position
    /// beyond the learned ones becomes the last of them.
    pub(super) fn embed_rows(&self, x: &Tensor, rows: &[Row], groups: &[RowGroup]) -> ModelResult<Tensor> {
        let mut factors = Vec::new();
        let mut positions = Vec::new();
        for group in groups {
            let context = &self.contexts[&group.context];
            for (row, path) in rows[group.first_row..].iter().zip(&group.paths) {
                let (value, position) = if context.paper_decoding {
                    (Some(1.0), 0)
                } else {
                    (row.path.token.value.or_else(|| context.after(row.path.parent)), path.len() - 1)
                };
                factors.push(self.factor(Token { value, ..row.path.token })?);
                // A number after the longest possible text is a little beyond the learned positions.
                positions.push(position.min(POSITIONS - 1) as u32);
            }
        }
        combined(x, factors, &self.decoder_positions, positions).map_err(compute_error)
    }

    /// Returns the factor of a token's embedding.
    fn factor(&self, token: Token) -> ModelResult<f32> {
        if token.id != self.scaling.number_id {
            return Ok(1.0);
        }
        let value = token.value.ok_or(ModelError::NumberMissing { id: token.id })?;
        Ok(self.scaling.factor(value))
    }

    /// Predicts a number from each of the scaled hidden states `[R, d_model]`, and keeps the predictions for
    /// later rows.
    pub(super) fn predict(&mut self, scaled: &Tensor, groups: &[RowGroup]) -> ModelResult<Vec<f32>> {
        let predicted = self.number_head_values(scaled).map_err(compute_error)?;
        for group in groups {
            let context =
                self.contexts.get_mut(&group.context).ok_or(ModelError::UnknownContext(group.context))?;
            context.numbers.extend(&predicted[group.first_row..][..group.paths.len()]);
        }
        Ok(predicted)
    }

    fn number_head_values(&self, scaled: &Tensor) -> Result<Vec<f32>> {
        let [inner, outer] = &self.number_head;
        let values = outer.forward(&inner.forward(scaled)?.gelu_erf()?)?.flatten_all()?;
        values.to_dtype(DType::F32)?.to_vec1()
    }

    pub(super) fn open(&mut self, context: ContextId, paper_decoding: bool) {
        let predicted = PredictedNumbers { paper_decoding, numbers: Vec::new() };
        self.contexts.insert(context, predicted);
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }
}

impl PredictedNumbers {
    /// Returns the number that was predicted after a node.
    fn after(&self, node: Option<NodeId>) -> Option<f32> {
        self.numbers.get(node?.index()).copied()
    }
}

impl NumberScaling {
    fn factor(self, number: f32) -> f32 {
        if !self.log_scale {
            return number + 1.0;
        }
        let sign = if number == 0.0 { 0.0 } else { number.signum() };
        sign * (number.abs() + 1.0).log10() / (V_MAX.log10() / 10.0)
    }
}

/// Computes `x * factors + table[positions]`.
fn combined(x: &Tensor, factors: Vec<f32>, table: &Tensor, positions: Vec<u32>) -> Result<Tensor> {
    let count = factors.len();
    let factors = Tensor::from_vec(factors, (count, 1), x.device())?.to_dtype(x.dtype())?;
    let positions = Tensor::from_vec(positions, count, x.device())?;
    x.broadcast_mul(&factors)? + table.index_select(&positions, 0)?.to_dtype(x.dtype())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_scaled_by_their_logarithm_or_not_at_all() {
        let scaling = |log_scale| NumberScaling { number_id: 7, log_scale };
        // Values of the reference implementation: log10(x + 1) / 0.9477121.
        for (number, want) in [(0.0, 0.0), (1.0, 0.317_638), (10.0, 1.098_85), (-10.0, -1.098_85)] {
            assert!((scaling(true).factor(number) - want).abs() < 1e-5, "{number}");
        }
        for (number, want) in [(0.0, 1.0), (336.0, 337.0), (-5.0, -4.0)] {
            assert!((scaling(false).factor(number) - want).abs() < 1e-6, "{number}");
        }
    }
}
