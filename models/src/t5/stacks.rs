//! Both stacks of an encoder-decoder with its open contexts. In: prompts and rows. Out: hidden states.
//!
//! Heads are in `model` and `regression`, numbers in embeddings in `xval`.

use std::collections::HashMap;

use candle_core::{Result, Tensor};
use ntl_core::contract::{
    CacheCost, ContextId, ContextRequest, ModelError, OpenedContext, PrefillChunk, PrefillProgress, Row,
};
use rayon::prelude::*;

use super::decoder::{Decoder, PromptKv};
use super::embeddings::Embeddings;
use super::encoder::{Encoder, Encoding};
use super::prefill::{Prefill, StageWork};
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KvCache, RowGroup, TOKENS_AT_ONCE_ON_DEVICES};
use crate::ops::{ModelResult, Placement, compute_error, uses_kernels};

/// Maximum number of tokens that are encoded together on the CPU, so that their intermediate results stay in
/// its caches. A longer prompt is encoded alone.
const TOKENS_AT_ONCE: usize = 256;

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
    on_cpu: bool,
    parts: Parts,
    /// Contexts whose prompts are not computed completely.
    prefills: HashMap<ContextId, Prefill>,
    pub(super) kv_cache: KvCache<PromptKv>,
}

/// Encoder output.
pub(super) struct Encoded {
    /// All prompts, concatenated, `[T, d_model]`.
    pub(super) packed: Tensor,
    /// Number of tokens of each prompt.
    pub(super) lengths: Vec<usize>,
}

impl Stacks {
    pub(super) fn new(parts: Parts, place: &Placement) -> Self {
        let kv_cache = KvCache::new(parts.decoder.layers.len(), parts.decoder.key_width(), place);
        Self {
            _context: ContextOnDrop::new(&place.device),
            on_cpu: place.uses_kernels(),
            parts,
            prefills: HashMap::new(),
            kv_cache,
        }
    }

    /// Returns the first token of every decoder sequence.
    pub(super) fn start_id(&self) -> u32 {
        self.parts.start_id
    }

    /// Returns the embeddings of decoded tokens, f32 `[n, d_model]`.
    pub(super) fn embed_rows(&self, tokens: impl Iterator<Item = u32>) -> ModelResult<Tensor> {
        self.parts.row_embeddings.embed(tokens)
    }

    /// Returns the concatenated embeddings of all prompts, f32 `[T, d_model]`.
    pub(super) fn embed_prompts(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        self.parts.prompt_embeddings.embed(requests.iter().flat_map(|request| request.prompt.ids()))
    }

    /// Encodes embedded prompts.
    pub(super) fn encode(&self, x: Tensor, requests: &[ContextRequest<'_>]) -> ModelResult<Encoded> {
        let lengths: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let packed = self.encode_some(&x, &lengths).map_err(compute_error)?;
        Ok(Encoded { packed, lengths })
    }

    /// Encodes a few prompts at a time. On the CPU each thread encodes one such group, so that the operations
    /// between matmuls run in parallel, too.
    fn encode_some(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let on_cpu = uses_kernels(x);
        let pieces = pieces(lengths, if on_cpu { TOKENS_AT_ONCE } else { TOKENS_AT_ONCE_ON_DEVICES });
        let mut from = 0;
        let mut cut = |lengths: &[usize]| {
            let tokens = lengths.iter().sum();
            from += tokens;
            x.narrow(0, from - tokens, tokens)
        };
        let inputs = pieces.iter().map(|lengths| cut(lengths)).collect::<Result<Vec<_>>>()?;
        let encoder = &self.parts.encoder;
        let encode = |(x, lengths): (Tensor, &[usize])| encoder.forward(x, lengths);
        let parts = if on_cpu {
            inputs.into_par_iter().zip(pieces).map(encode).collect::<Result<Vec<_>>>()?
        } else {
            inputs.into_iter().zip(pieces).map(encode).collect::<Result<Vec<_>>>()?
        };
        Tensor::cat(&parts, 0)
    }

    /// Opens a context without computing its prompt.
    pub(super) fn begin(&mut self, request: ContextRequest<'_>) -> ModelResult<OpenedContext> {
        self.parts.prompt_embeddings.check(request.prompt.ids())?;
        let context = self.kv_cache.open(PromptKv::none(&self.kv_cache));
        let prefill = Prefill::new(request.prompt.clone());
        let progress = prefill.progress(&self.parts.work, 0.0);
        self.prefills.insert(context, prefill);
        Ok(OpenedContext { context, first_token: self.start_id(), prefill: progress })
    }

    /// Computes parts of prompts, with the embeddings of complete prompts that `embed` returns.
    ///
    /// Prompts for which there is enough work are encoded together. A longer one is encoded in parts on the
    /// CPU, and as a whole on a device.
    pub(super) fn prefill(
        &mut self,
        chunks: &[PrefillChunk],
        embed: impl Fn(&Self, &[ContextRequest<'_>]) -> ModelResult<Tensor>,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let computed = self.compute(chunks, embed);
        if computed.is_err() {
            chunks.iter().for_each(|chunk| self.close(chunk.context));
        }
        computed
    }

    fn compute(
        &mut self,
        chunks: &[PrefillChunk],
        embed: impl Fn(&Self, &[ContextRequest<'_>]) -> ModelResult<Tensor>,
    ) -> ModelResult<Vec<PrefillProgress>> {
        let mut progress = Vec::with_capacity(chunks.len());
        let mut together = Vec::new();
        for &PrefillChunk { context, work } in chunks {
            let mut prefill = self.prefills.remove(&context).ok_or(ModelError::UnknownContext(context))?;
            if !self.on_cpu || prefill.is_whole(&self.parts.work, work) {
                let work_done = prefill.progress(&self.parts.work, 0.0).work_left;
                progress.push(PrefillProgress { work_done, ..PrefillProgress::default() });
                together.push((context, prefill));
                continue;
            }
            if prefill.encoding.is_none() {
                let x = embed(self, &[prefill.request()])?;
                prefill.encoding =
                    Some(Encoding::new(x, self.parts.encoder.head_widths()).map_err(compute_error)?);
                let prompts = Decoder::empty_prompts(&[prefill.prompt.len()], &mut self.kv_cache);
                prompts.map_err(compute_error)?.into_iter().for_each(|prompt| self.put(context, prompt));
            }
            let done = self.encode_part(context, &mut prefill, work).map_err(compute_error)?;
            progress.push(prefill.progress(&self.parts.work, done));
            if !prefill.is_complete(&self.parts.work) {
                self.prefills.insert(context, prefill);
            }
        }
        if !together.is_empty() {
            let requests: Vec<_> = together.iter().map(|(_, prefill)| prefill.request()).collect();
            let encoded = self.encode(embed(self, &requests)?, &requests)?;
            let prompts = self.parts.decoder.prompts(&encoded.packed, &encoded.lengths, &mut self.kv_cache);
            for ((context, _), prompt) in together.iter().zip(prompts.map_err(compute_error)?) {
                self.put(*context, prompt);
            }
        }
        Ok(progress)
    }

    fn put(&mut self, context: ContextId, prompt: PromptKv) {
        if let Some(place) = self.kv_cache.prompt_mut(context) {
            *place = prompt;
        }
    }

    /// Encodes a part of a prompt. Returns the work that was done.
    fn encode_part(&mut self, context: ContextId, prefill: &mut Prefill, work: usize) -> Result<f64> {
        let length = prefill.prompt.len();
        let Some(encoding) = &mut prefill.encoding else { return Ok(0.0) };
        let mut done = 0.0;
        while encoding.stage() < self.parts.encoder.stages() {
            let of_row = self.parts.work.of_row(encoding.stage(), length);
            let rows = ((work as f64 - done) / of_row) as usize;
            if rows == 0 && done > 0.0 {
                break;
            }
            let first = encoding.row();
            let rows = rows.clamp(1, length - first);
            if let Some(encoded) = self.parts.encoder.advance(encoding, rows)?
                && let Some(prompt) = self.kv_cache.prompt(context)
            {
                self.parts.decoder.write(&[prompt.written(first, rows)], &encoded, &self.kv_cache)?;
            }
            done += rows as f64 * of_row;
        }
        Ok(done)
    }

    pub(super) fn is_prefilled(&self, context: ContextId) -> bool {
        !self.prefills.contains_key(&context)
    }

    /// Returns the work for one row of the decoder that sees `positions` positions of its path and its prompt.
    pub(super) fn work_of_decoded_row(&self, positions: usize) -> f64 {
        self.parts.work.of_decoded_row(positions)
    }

    /// Returns an error if the prompt of a row is not computed completely.
    pub(super) fn check_prefilled(&self, rows: &[Row]) -> ModelResult<()> {
        let row = rows.iter().find(|row| !self.is_prefilled(row.context));
        row.map_or(Ok(()), |row| Err(ModelError::NotPrefilled(row.context)))
    }

    /// A prompt token needs as much memory as a node, because its cross-attention keys and values have the same
    /// width. On the CPU it also needs the memory of a partly encoded prompt.
    pub(super) fn cache_cost(&self) -> CacheCost {
        let cost = self.kv_cache.cache_cost();
        let encoding = if self.on_cpu { self.parts.encoder.encoding_token_bytes() as u64 } else { 0 };
        CacheCost { prompt_token: cost.prompt_token + encoding, ..cost }
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.prefills.remove(&context);
        self.kv_cache.close(context);
    }

    /// Returns the hidden states `[R, d_model]` of embedded rows, which must already be appended to the
    /// cache.
    pub(super) fn decode(&mut self, x: Tensor, groups: &[RowGroup]) -> ModelResult<Tensor> {
        self.parts.decoder.forward(x, groups, &self.kv_cache).map_err(compute_error)
    }
}

impl Encoded {
    /// Returns one `[T, d_model]` per prompt.
    pub(super) fn split(&self) -> Result<Vec<Tensor>> {
        let mut from = 0;
        let cut = |&length: &usize| {
            let one = self.packed.narrow(0, from, length);
            from += length;
            one
        };
        self.lengths.iter().map(cut).collect()
    }
}

/// Groups prompts, in order, so that each group has at most `tokens_max` tokens or is a single longer prompt.
fn pieces(lengths: &[usize], tokens_max: usize) -> Vec<&[usize]> {
    let mut pieces = Vec::new();
    let mut left = lengths;
    while !left.is_empty() {
        let mut tokens = 0;
        let fits = |length: &&usize| {
            tokens += **length;
            tokens <= tokens_max
        };
        let (piece, others) = left.split_at(left.iter().take_while(fits).count().max(1));
        pieces.push(piece);
        left = others;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_grouped_in_order() {
        let lengths = [100, 150, 10, 300, 200, 60];
        assert_eq!(pieces(&lengths, TOKENS_AT_ONCE), [&lengths[..2], &[10], &[300], &[200], &[60]]);
        assert_eq!(pieces(&lengths, TOKENS_AT_ONCE_ON_DEVICES), [&lengths[..]], "one piece");
        assert!(pieces(&[], 256).is_empty());
    }
}
