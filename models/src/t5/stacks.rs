//! Both stacks of a T5 with its open contexts, for all kinds of T5. In: prompts and rows. Out: hidden states.
//!
//! Heads are in `model` and `regression`, numbers in embeddings in `xval`.

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::contract::{
    CacheCost, ContextId, ContextRequest, ModelError, OpenedContext, PrefillChunk, PrefillProgress, Row,
};
use rayon::prelude::*;

use super::T5Config;
use super::decoder::{Decoder, PromptKv};
use super::encoder::{Encoder, Encoding};
use super::layers::Loader;
use super::prefill::{Prefill, StageWork};
use crate::checkpoint::LoadResult;
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KvCache, RowGroup, TOKENS_AT_ONCE_ON_DEVICES};
use crate::ops::{ModelResult, Weight, compute_error, uses_kernels};

/// Maximum number of tokens that are encoded together on the CPU, so that their intermediate results stay in
/// its caches. A longer prompt is encoded alone.
const TOKENS_AT_ONCE: usize = 256;

/// Embeddings, encoder, decoder and contexts.
pub(super) struct Stacks {
    _context: ContextOnDrop,
    on_cpu: bool,
    pub(super) config: T5Config,
    /// `[vocab, d_model]`.
    embeddings: Weight,
    encoder: Encoder,
    decoder: Decoder,
    work: StageWork,
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
    pub(super) fn load(loader: &Loader<'_>, embeddings: Weight) -> LoadResult<Self> {
        let encoder = Encoder::load(loader)?;
        let decoder = Decoder::load(loader)?;
        let config = loader.config.clone();
        let kv_cache = KvCache::new(config.num_decoder_layers, config.inner(), loader.place);
        Ok(Self {
            _context: ContextOnDrop::new(&loader.place.device),
            on_cpu: loader.place.uses_kernels(),
            work: StageWork::new(&config),
            config,
            embeddings,
            encoder,
            decoder,
            prefills: HashMap::new(),
            kv_cache,
        })
    }

    /// Checks that the tokens have embeddings.
    fn check(&self, mut tokens: impl Iterator<Item = u32>) -> ModelResult<()> {
        let vocab = self.config.vocab_size;
        let outside = tokens.find(|&id| id as usize >= vocab);
        outside.map_or(Ok(()), |id| Err(ModelError::TokenOutOfRange { id, vocab }))
    }

    /// Returns embeddings, f32 `[n, d_model]`.
    pub(super) fn embed(&self, tokens: impl Iterator<Item = u32>) -> ModelResult<Tensor> {
        let tokens: Vec<u32> = tokens.collect();
        self.check(tokens.iter().copied())?;
        self.embeddings.rows(&tokens).and_then(|x| x.to_dtype(DType::F32)).map_err(compute_error)
    }

    /// Returns the concatenated embeddings of all prompts, `[T, d_model]`.
    pub(super) fn embed_prompts(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        self.embed(requests.iter().flat_map(|request| request.prompt.ids()))
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
        let encoder = &self.encoder;
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
        self.check(request.prompt.ids())?;
        let context = self.kv_cache.open(PromptKv::none(&self.kv_cache));
        let prefill = Prefill::new(request.prompt.clone());
        let progress = prefill.progress(&self.work, 0.0);
        self.prefills.insert(context, prefill);
        let first_token = self.config.decoder_start_token_id;
        Ok(OpenedContext { context, first_token, prefill: progress })
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
            if !self.on_cpu || prefill.is_whole(&self.work, work) {
                let work_done = prefill.progress(&self.work, 0.0).work_left;
                progress.push(PrefillProgress { work_done, ..PrefillProgress::default() });
                together.push((context, prefill));
                continue;
            }
            if prefill.encoding.is_none() {
                let x = embed(self, &[prefill.request()])?;
                prefill.encoding = Some(Encoding::new(x, self.config.inner()).map_err(compute_error)?);
                let prompts = Decoder::empty_prompts(&[prefill.prompt.len()], &mut self.kv_cache);
                prompts.map_err(compute_error)?.into_iter().for_each(|prompt| self.put(context, prompt));
            }
            let done = self.encode_part(context, &mut prefill, work).map_err(compute_error)?;
            progress.push(prefill.progress(&self.work, done));
            if !prefill.is_complete(&self.work) {
                self.prefills.insert(context, prefill);
            }
        }
        if !together.is_empty() {
            let requests: Vec<_> = together.iter().map(|(_, prefill)| prefill.request()).collect();
            let encoded = self.encode(embed(self, &requests)?, &requests)?;
            let prompts = self.decoder.prompts(&encoded.packed, &encoded.lengths, &mut self.kv_cache);
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
        while encoding.stage() < self.encoder.stages() {
            let of_row = self.work.of_row(encoding.stage(), length);
            let rows = ((work as f64 - done) / of_row) as usize;
            if rows == 0 && done > 0.0 {
                break;
            }
            let first = encoding.row();
            let rows = rows.clamp(1, length - first);
            if let Some(encoded) = self.encoder.advance(encoding, rows)?
                && let Some(prompt) = self.kv_cache.prompt(context)
            {
                self.decoder.write(&[prompt.written(first, rows)], &encoded, &self.kv_cache)?;
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
        self.work.of_decoded_row(positions)
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
        let encoding = Encoding::token_bytes(self.config.d_model, self.config.inner());
        let encoding = if self.on_cpu { encoding as u64 } else { 0 };
        CacheCost { prompt_token: cost.prompt_token + encoding, ..cost }
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.prefills.remove(&context);
        self.kv_cache.close(context);
    }

    /// Returns the hidden states `[R, d_model]` of embedded rows, which must already be appended to the
    /// cache.
    pub(super) fn decode(&mut self, x: Tensor, groups: &[RowGroup]) -> ModelResult<Tensor> {
        self.decoder.forward(x, groups, &self.kv_cache).map_err(compute_error)
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

/// Loads the token table, which has different names in different checkpoints.
pub(super) fn load_embeddings(loader: &Loader<'_>) -> LoadResult<Tensor> {
    let names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let name = names.into_iter().find(|name| loader.has(name)).unwrap_or(names[0]);
    loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])
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
