//! A T5 with a regression head (`T5ForSequenceClassification` with one label): one number a prompt and no text.
//!
//! The decoder is fed the prompt itself, shifted by one; the head reads its hidden state at the prompt's last end of
//! sequence. All of this is computed when a prompt is opened. Where the model was trained on signed logarithms of the
//! targets, sign(y) ln(|y| + 1), predictions are converted back.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::engine::{
    BatchModel, CacheCost, ContextId, ContextRequest, Logits, ModelError, ModelInfo, ModelKind, NodeCapacity,
    NodeId, OpenedContext, PathRow, Row,
};

use super::layers::Loader;
use super::model::TokenizerFacts;
use super::stacks::{Stacks, load_embeddings};
use crate::checkpoint::{CheckpointFiles, LoadResult, Weights};
use crate::ops::{Linear, ModelResult, Placement, Weight, compute_error};

/// A T5 that predicts one number for each prompt.
pub struct RegressionHead {
    info: ModelInfo,
    stacks: Stacks,
    /// `[d_model, d_model]` and `[1, d_model]`, with a tanh between them.
    head: [Linear; 2],
    log_scale: bool,
    values: HashMap<ContextId, f32>,
}

impl RegressionHead {
    /// `log_scale`: whether the model was trained on logarithms.
    pub fn load(
        files: &CheckpointFiles,
        facts: TokenizerFacts,
        log_scale: bool,
        place: &Placement,
    ) -> LoadResult<Self> {
        let config = facts.config(files)?;
        let weights = Weights::open(files)?;
        let whole = Loader { weights: &weights, config: &config, place, prefix: "" };
        let loader = Loader { prefix: "transformer.", ..whole };
        let stacks = Stacks::load(&loader, Weight::new(load_embeddings(&loader)?, place)?)?;
        let d_model = config.d_model;
        let exact_place = place.exact();
        let exact = Loader { place: &exact_place, ..whole };
        let head = [
            exact.biased("classification_head.dense", [d_model, d_model])?,
            exact.biased("classification_head.out_proj", [1, d_model])?,
        ];
        let info = facts.info(ModelKind::T5RegressionHead, &config, place, weights.parameters());
        Ok(Self { info, stacks, head, log_scale, values: HashMap::new() })
    }

    fn predict(
        &mut self,
        requests: &[ContextRequest<'_>],
        opened: &[OpenedContext],
    ) -> ModelResult<Vec<f32>> {
        let (mut rows, mut read) = (Vec::new(), Vec::new());
        for (request, opened) in requests.iter().zip(opened) {
            let prompt = request.prompt;
            let ends = prompt.ids().rposition(|id| self.info.eos_ids.contains(&id));
            read.push((rows.len() + ends.unwrap_or(prompt.len().saturating_sub(1))) as u32);
            let start = self.stacks.config.decoder_start_token_id;
            let shifted = std::iter::once(start).chain(prompt.ids()).take(prompt.len());
            rows.extend((0u32..).zip(shifted).map(|(depth, token)| {
                let path = PathRow::new(depth.checked_sub(1).map(NodeId), token);
                Row { context: opened.context, path }
            }));
        }
        let groups = self.stacks.kv_cache.append_rows(&rows)?;
        let x = self.stacks.embed(rows.iter().map(|row| row.path.token.id))?;
        let hidden = self.stacks.decode(x, &groups)?;
        self.values_at(&hidden, read).map_err(compute_error)
    }

    fn values_at(&self, hidden: &Tensor, read: Vec<u32>) -> Result<Vec<f32>> {
        let [dense, out] = &self.head;
        let count = read.len();
        let read = hidden.index_select(&Tensor::from_vec(read, count, hidden.device())?, 0)?;
        let values = out.forward(&dense.forward(&read)?.tanh()?)?.flatten_all()?;
        let values: Vec<f32> = values.to_dtype(DType::F32)?.to_vec1()?;
        Ok(if self.log_scale { values.into_iter().map(unlogged).collect() } else { values })
    }
}

/// The inverse of sign(x) ln(|x| + 1).
fn unlogged(value: f32) -> f32 {
    value.signum() * (value.abs().exp() - 1.0)
}

impl BatchModel for RegressionHead {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, requests: &[ContextRequest<'_>]) -> ModelResult<Vec<OpenedContext>> {
        let encoded = self.stacks.encode(self.stacks.embed_prompts(requests)?, requests)?;
        let opened = self.stacks.open(&encoded)?;
        let values = self.predict(requests, &opened);
        // Only the value is needed from here on.
        opened.iter().for_each(|opened| self.stacks.close(opened.context));
        self.values.extend(opened.iter().map(|opened| opened.context).zip(values?));
        Ok(opened)
    }

    /// Tokens have no logits: returns one column of zeros, and the value of the prompt for every row.
    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        let value =
            |row: &Row| self.values.get(&row.context).copied().ok_or(ModelError::UnknownContext(row.context));
        let values = rows.iter().map(value).collect::<ModelResult<Vec<f32>>>()?;
        Ok(Logits::new(vec![0.0; rows.len()], 1)?.with_head_values(values)?)
    }

    /// Keys and values of prompt and shifted prompt while a batch is opened; then only the value.
    fn cache_cost(&self) -> CacheCost {
        let CacheCost { prompt_token, .. } = self.stacks.kv_cache.cache_cost();
        CacheCost { prompt_token: 3 * prompt_token, node: 0, capacity: NodeCapacity::Exact }
    }

    fn open_tokens_max(&self) -> usize {
        self.stacks.kv_cache.open_tokens_max()
    }

    fn close(&mut self, context: ContextId) {
        self.values.remove(&context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_logarithms_are_turned_back() {
        for (value, want) in
            [(0.0, 0.0), (std::f32::consts::LN_2, 1.0), (-1.0, -1.718_282), (6.910_75, 1002.0)]
        {
            assert!((unlogged(value) - want).abs() < want.abs() * 1e-4 + 1e-6, "{value}");
        }
    }
}
