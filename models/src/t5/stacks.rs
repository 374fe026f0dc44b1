//! Both stacks of an encoder-decoder with its open contexts. In: prompts and rows. Out: hidden states.
//!
//! Heads are in `model` and `regression`, numbers in embeddings in `xval`.

use candle_core::{Result, Tensor};
use ntl_core::contract::{
    BatchModel, CacheCost, ContextId, ContextRequest, Interruption, ModelError, OpenedContext, PrefillChunk,
    PrefillProgress, Row,
};

use super::decoder::{Decoder, PartialStep, PromptKv, StepProgress};
use super::embeddings::Embeddings;
use super::encoder::Encoder;
use super::pools::Pools;
use super::prefill::StageWork;
use super::prompts::{EncodedRows, EncodedSink, PromptEncoder};
use crate::adapter::{AdapterReader, ModelAdapters};
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KvCache, RowGroup};
use crate::ops::{AdaptedRows, ModelResult, Placement, compute_error};
use crate::step_graphs::StepGraphs;

/// The loaded parts of both stacks.
pub(super) struct Parts {
    pub(super) prompt_embeddings: Embeddings,
    /// Embeddings of decoded tokens.
    pub(super) row_embeddings: Embeddings,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) work: StageWork,
    /// First token of every decoder sequence.
    pub(super) start_id: u32,
}

/// Embeddings, encoder, decoder and contexts.
pub(super) struct Stacks {
    _context: ContextOnDrop,
    pub(super) prompts: PromptEncoder,
    row_embeddings: Embeddings,
    decoder: Decoder,
    start_id: u32,
    adapters: ModelAdapters,
    pub(super) kv_cache: KvCache<PromptKv>,
    pub(super) pools: Pools,
    graphs: StepGraphs,
}

impl Stacks {
    pub(super) fn new(parts: Parts, adapters: ModelAdapters, place: &Placement) -> Self {
        let Parts { prompt_embeddings, row_embeddings, encoder, decoder, work, start_id } = parts;
        Self {
            _context: ContextOnDrop::new(&place.device),
            prompts: PromptEncoder::new(prompt_embeddings, encoder, work, place),
            row_embeddings,
            kv_cache: KvCache::new(decoder.layers.len(), decoder.key_width(), place),
            decoder,
            start_id,
            adapters,
            pools: Pools::default(),
            graphs: StepGraphs::new(place),
        }
    }

    pub(super) fn adapters(&self) -> &AdapterReader {
        self.adapters.reader()
    }

    /// Returns the first token of every decoder sequence.
    pub(super) fn start_id(&self) -> u32 {
        self.start_id
    }

    /// Returns the embeddings of decoded tokens, f32 `[n, d_model]`.
    pub(super) fn embed_rows(&self, tokens: impl Iterator<Item = u32>) -> ModelResult<Tensor> {
        self.row_embeddings.embed(tokens)
    }

    /// Opens a context without computing its prompt.
    pub(super) fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        self.prompts.check(request)?;
        let adapter = self.adapters.weights(request.adapter)?;
        let context = self.kv_cache.open(PromptKv::none(&self.kv_cache), adapter.clone());
        let prefill = self.prompts.begin(context, request, adapter);
        if let Some(pooling) = request.pooling {
            self.pools.begin(context, pooling.into());
        }
        Ok(OpenedContext { context, first_token: self.start_id, prefill })
    }

    /// Computes parts of prompts, with the embeddings of complete prompts that `embed` returns. Returns early
    /// if `interruption` is due.
    pub(super) fn prefill(
        &mut self,
        chunks: &[PrefillChunk],
        embed: impl Fn(&PromptEncoder, &[ContextRequest<'_>]) -> ModelResult<Tensor>,
        interruption: &mut dyn Interruption,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let Self { decoder, kv_cache, pools, .. } = self;
        let mut sink = KeysAndValues { decoder, kv_cache, pools };
        let computed = self.prompts.prefill(chunks, embed, &mut sink, interruption);
        if computed.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        computed
    }

    /// Returns an error if the prompt of a row is not computed completely.
    pub(super) fn check_prefilled(&self, rows: &[Row]) -> ModelResult<()> {
        let row = rows.iter().find(|row| !self.prompts.is_complete(row.context));
        row.map_or(Ok(()), |row| Err(ModelError::NotPrefilled(row.context)))
    }

    /// A prompt token needs as much memory as a node, because its cross-attention keys and values have the
    /// same width. On the CPU it also needs the memory of a partly encoded prompt.
    pub(super) fn cache_cost(&self) -> CacheCost {
        let cost = self.kv_cache.cache_cost();
        CacheCost { prompt_token: cost.prompt_token + self.prompts.token_bytes(), ..cost }
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.prompts.close(context);
        self.kv_cache.close(context);
        self.pools.close(context);
    }

    /// Returns the rows of a step that have adapters.
    pub(super) fn adapted(&self, groups: &[RowGroup]) -> AdaptedRows {
        AdaptedRows::new(
            groups.iter().map(|group| (self.kv_cache.context(group).adapter.as_ref(), group.paths.len())),
        )
    }

    /// Continues until the step is complete, or on the CPU until `is_due` returns `true` between two layers.
    fn advance(
        &self,
        step: PartialStep,
        groups: &[RowGroup],
        is_due: &mut dyn FnMut() -> bool,
    ) -> ModelResult<StepProgress> {
        let is_due = if self.prompts.is_on_cpu() { Some(is_due) } else { None };
        let rows = self.adapted(groups);
        self.decoder.advance(step, groups, &self.kv_cache, &rows, &self.graphs, is_due).map_err(compute_error)
    }
}

/// Returns the hidden states `[R, d_model]` of embedded rows `x` `[R, d_model]`, which must already be
/// appended to the cache of the model's `stacks`. On the CPU, serves `interruption` between two layers.
pub(super) fn decode<M: BatchModel>(
    model: &mut M,
    stacks: fn(&M) -> &Stacks,
    x: Tensor,
    groups: &[RowGroup],
    interruption: &mut dyn Interruption,
) -> ModelResult<Tensor> {
    let mut step = stacks(model).decoder.begin(x, groups).map_err(compute_error)?;
    loop {
        match stacks(model).advance(step, groups, &mut || interruption.is_due())? {
            StepProgress::Complete(hidden) => return Ok(hidden),
            StepProgress::Partial(partial) => step = partial,
        }
        interruption.serve(model);
    }
}

/// Writes the decoder's keys and values of prompts to their contexts, and pools output that is requested.
struct KeysAndValues<'a> {
    decoder: &'a Decoder,
    kv_cache: &'a mut KvCache<PromptKv>,
    pools: &'a mut Pools,
}

impl EncodedSink for KeysAndValues<'_> {
    fn open(&mut self, prompts: &[(ContextId, usize)]) -> Result<()> {
        let lengths: Vec<usize> = prompts.iter().map(|(_, length)| *length).collect();
        let empty = PromptKv::empty(&lengths, self.kv_cache)?;
        for ((context, _), prompt) in prompts.iter().zip(empty) {
            if let Some(kept) = self.kv_cache.prompt_mut(*context) {
                *kept = prompt;
            }
        }
        Ok(())
    }

    fn write(&mut self, rows: &[EncodedRows], encoded: &Tensor) -> Result<()> {
        self.pools.write(rows, encoded)?;
        let mut written = Vec::with_capacity(rows.len());
        for rows in rows {
            let Some(prompt) = self.kv_cache.prompt(rows.context) else {
                return Err(candle_core::Error::Msg("the context of a prompt is closed".to_owned()));
            };
            written.push(prompt.written(rows.first, rows.count));
        }
        let adapters = rows.iter().map(|rows| (self.kv_cache.adapter(rows.context), rows.count));
        let adapted = AdaptedRows::new(adapters);
        self.decoder.write(&written, encoded, &adapted, self.kv_cache)
    }
}
