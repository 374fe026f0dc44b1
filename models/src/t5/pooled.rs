//! An encoder with a head: predicts the values of labels from the mean of its output, or from its first
//! output.
//!
//! In: prompts. Out: one row of values per prompt, which the prefill computes. The encoders are BERT's
//! (`crate::encoders`) and RegressLM's.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Interruption, Logits, ModelError, ModelInfo,
    NodeCapacity, OpenedContext, PREFILL_TOKENS_MAX, PrefillChunk, PrefillProgress, Row, Uninterrupted,
};

use super::embeddings::Embeddings;
use super::encoder::Encoder;
use super::pools::{Pooling, Pools};
use super::prefill::{StackSizes, StageWork};
use super::prompts::PromptEncoder;
use super::regression::label_values;
use crate::adapter::{AdaptableLayers, AdapterReader, ModelAdapters};
use crate::gpu::ContextOnDrop;
use crate::kv_cache::TOKENS_AT_ONCE_ON_DEVICES;
use crate::ops::{Activation, AdaptedRows, Linear, ModelResult, Norm, Placement, compute_error};

/// An encoder with a head, and its open contexts.
pub(crate) struct PooledEncoder {
    _context: ContextOnDrop,
    info: ModelInfo,
    prompts: PromptEncoder,
    adapters: ModelAdapters,
    input: Option<InputLayer>,
    device: Device,
    prefill_tokens_max: usize,
    head: PooledHead,
    opened: u64,
    /// The part of the output that the head reads.
    pooling: Pooling,
    /// For contexts without values.
    pools: Pools,
    /// The adapter of the head's row, for contexts that get values.
    head_rows: HashMap<ContextId, AdaptedRows>,
    values: HashMap<ContextId, Vec<f32>>,
}

/// The loaded parts of an encoder with a head.
pub(crate) struct PooledParts {
    pub(crate) info: ModelInfo,
    pub(crate) embeddings: Embeddings,
    pub(crate) input: Option<InputLayer>,
    pub(crate) encoder: Encoder,
    pub(crate) sizes: StackSizes,
    pub(crate) pooling: Pooling,
    pub(crate) head: PooledHead,
}

/// The computation between the embeddings of tokens and the first layer (BERT).
pub(crate) struct InputLayer {
    pub(crate) positions: Option<LearnedPositions>,
    pub(crate) norm: Norm,
}

/// Vectors that are added to the embeddings of tokens.
pub(crate) struct LearnedPositions {
    /// f32 `[positions, hidden]`.
    pub(crate) table: Tensor,
    /// The vectors of one or two segments: f32 `[segments, hidden]`.
    pub(crate) segments: Tensor,
    /// Padding, whose id is also its position. Other tokens are counted from the position after it (RoBERTa).
    pub(crate) pad_id: Option<u32>,
}

/// Predicts the values of labels from pooled output.
pub(crate) struct PooledHead {
    pub(crate) hidden: Option<HiddenLayer>,
    /// `[labels, hidden]`.
    pub(crate) out: Linear,
}

/// The layer of a head before its last one.
pub(crate) struct HiddenLayer {
    pub(crate) dense: Linear,
    pub(crate) activation: HeadActivation,
    pub(crate) norm: Option<Norm>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadActivation {
    Tanh,
    /// One that feed-forward layers have, too.
    Of(Activation),
}

impl LearnedPositions {
    fn of(&self, prompt: impl Iterator<Item = u32>) -> Vec<u32> {
        let mut next = self.pad_id.map_or(0, |pad| pad + 1);
        let mut positions = Vec::new();
        for id in prompt {
            if Some(id) == self.pad_id {
                positions.push(id);
            } else {
                positions.push(next);
                next += 1;
            }
        }
        positions
    }

    fn added(&self, x: &Tensor, requests: &[ContextRequest<'_>]) -> Result<Tensor> {
        let has_second = self.segments.dim(0)? > 1;
        let mut positions = Vec::new();
        let mut segments = Vec::new();
        for ContextRequest { prompt, .. } in requests {
            positions.extend(self.of(prompt.ids()));
            let second = prompt.second_segment.unwrap_or(usize::MAX);
            segments.extend((0..prompt.len()).map(|index| u32::from(has_second && index >= second)));
        }
        let device = self.table.device();
        let positions = Tensor::from_slice(&positions, positions.len(), device)?;
        let segments = Tensor::from_slice(&segments, segments.len(), device)?;
        (x + self.segments.index_select(&segments, 0)?)? + self.table.index_select(&positions, 0)?
    }
}

impl InputLayer {
    fn forward(&self, mut x: Tensor, requests: &[ContextRequest<'_>]) -> Result<Tensor> {
        if let Some(positions) = &self.positions {
            x = positions.added(&x, requests)?;
        }
        self.norm.forward(&x)
    }
}

impl PooledHead {
    /// Maps pooled output f32 `[1, hidden]` to the values of all labels.
    fn values(&self, mut x: Tensor, rows: &AdaptedRows) -> Result<Vec<f32>> {
        if let Some(HiddenLayer { dense, activation, norm }) = &self.hidden {
            x = dense.replaceable(&x, rows)?;
            x = match activation {
                HeadActivation::Tanh => x.tanh()?,
                HeadActivation::Of(activation) => activation.apply(&x)?,
            };
            x = norm.as_ref().map_or(Ok(x.clone()), |norm| norm.forward(&x))?;
        }
        self.out.replaceable(&x, rows)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }
}

impl PooledEncoder {
    pub(crate) fn new(parts: PooledParts, adaptable: AdaptableLayers, place: &Placement) -> Self {
        let PooledParts { mut info, embeddings, input, encoder, sizes, pooling, head } = parts;
        let work = StageWork::new(&sizes, &StackSizes { windows: Vec::new(), ..sizes.clone() }, place);
        let prompts = PromptEncoder::new(embeddings, encoder, work, place);
        info.hidden_states = Some(prompts.hidden_states());
        Self {
            _context: ContextOnDrop::new(&place.device),
            info,
            prompts,
            adapters: ModelAdapters::new(adaptable, place),
            input,
            device: place.device.clone(),
            prefill_tokens_max: if place.uses_kernels() {
                PREFILL_TOKENS_MAX
            } else {
                TOKENS_AT_ONCE_ON_DEVICES
            },
            head,
            opened: 0,
            pooling,
            pools: Pools::default(),
            head_rows: HashMap::new(),
            values: HashMap::new(),
        }
    }

    /// Returns the reader of its adapters.
    pub(crate) fn adapters(&self) -> &AdapterReader {
        self.adapters.reader()
    }

    fn compute(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let input = self.input.as_ref();
        let progress = self.prompts.prefill(
            chunks,
            |prompts, requests| embed(prompts, input, requests),
            &mut self.pools,
            interruption,
        )?;
        for PrefillChunk { context, .. } in chunks {
            if self.prompts.is_complete(*context)
                && let Some(rows) = self.head_rows.remove(context)
                && let Some(pooled) = self.pools.vector(*context)
            {
                self.pools.close(*context);
                let width = pooled.len();
                let pooled = Tensor::from_vec(pooled, (1, width), &self.device);
                let values = pooled.and_then(|pooled| self.head.values(pooled, &rows));
                self.values.insert(*context, values.map_err(compute_error)?);
            }
        }
        Ok(progress)
    }
}

/// Returns the hidden states f32 `[T, hidden]` before the first layer.
fn embed(
    prompts: &PromptEncoder,
    input: Option<&InputLayer>,
    requests: &[ContextRequest<'_>],
) -> ModelResult<Tensor> {
    let x = prompts.embed(requests)?;
    match input {
        Some(input) => input.forward(x, requests).map_err(compute_error),
        None => Ok(x),
    }
}

impl BatchModel for PooledEncoder {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn uses_pool(&self) -> bool {
        self.prompts.is_on_cpu()
    }

    fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        self.prompts.check(request)?;
        let adapter = self.adapters.weights(request.adapter)?;
        self.opened += 1;
        let context = ContextId(self.opened);
        match request.pooling {
            Some(pooling) => self.pools.begin(context, pooling.into()),
            None => {
                self.pools.begin(context, self.pooling);
                self.head_rows.insert(context, AdaptedRows::new([(adapter.as_ref(), 1)]));
            }
        }
        let prefill = self.prompts.begin(context, request, adapter);
        Ok(OpenedContext { context, first_token: 0, prefill })
    }

    fn prefill(&mut self, chunks: &[PrefillChunk]) -> ModelResult<Vec<PrefillProgress>> {
        self.prefill_interruptibly(chunks, &mut Uninterrupted)
    }

    fn prefill_interruptibly(
        &mut self,
        chunks: &[PrefillChunk],
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let computed = self.compute(chunks, interruption);
        if computed.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        computed
    }

    /// Returns the prompt's values for every row, or its pooled output.
    fn step(&mut self, rows: &[Row]) -> ModelResult<Logits> {
        if let Some(row) = rows.iter().find(|row| !self.prompts.is_complete(row.context)) {
            return Err(ModelError::NotPrefilled(row.context));
        }
        let [labels] = self.head.out.widths();
        label_values(rows, labels, &self.pools, |context| {
            self.values.get(&context).map(Vec::as_slice).ok_or(ModelError::UnknownContext(context))
        })
    }

    /// A prompt needs memory only while it is encoded.
    fn cache_cost(&self) -> CacheCost {
        CacheCost { prompt_token: self.prompts.token_bytes(), node: 0, capacity: NodeCapacity::Exact }
    }

    fn prefill_tokens_max(&self) -> usize {
        self.prefill_tokens_max
    }

    fn close(&mut self, context: ContextId) {
        self.prompts.close(context);
        self.pools.close(context);
        self.head_rows.remove(&context);
        self.values.remove(&context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_does_not_count_as_a_position_of_roberta() {
        let positions = |pad_id| {
            let table = Tensor::zeros((1, 1), DType::F32, &Device::Cpu).unwrap();
            LearnedPositions { segments: table.clone(), table, pad_id }.of([0, 7, 1, 9].into_iter())
        };
        assert_eq!(positions(None), [0, 1, 2, 3]);
        assert_eq!(positions(Some(1)), [2, 3, 1, 4]);
    }
}
