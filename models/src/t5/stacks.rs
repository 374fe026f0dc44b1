//! Both stacks of a T5 with its open contexts, from prompts and rows to hidden states, for all kinds of T5.
//!
//! Not here: heads (`model`, `regression`), and numbers in embeddings (`xval`).

use candle_core::{DType, Result, Tensor};
use ntl_core::engine::{CacheCost, ContextId, ContextRequest, ModelError, OpenedContext};
use rayon::prelude::*;

use super::T5Config;
use super::decoder::{Decoder, PromptKv};
use super::encoder::Encoder;
use super::layers::Loader;
use crate::checkpoint::LoadResult;
use crate::gpu::ContextOnDrop;
use crate::kv_cache::{KvCache, NodeShape, RowGroup, TOKENS_AT_ONCE_ON_DEVICES};
use crate::ops::{ModelResult, Weight, compute_error, uses_kernels};

/// Tokens that are encoded together on the CPU, where their intermediate results should stay in the caches. A longer prompt goes
/// alone.
const TOKENS_AT_ONCE: usize = 256;

/// Embeddings, encoder, decoder and contexts.
pub(super) struct Stacks {
    _context: ContextOnDrop,
    pub(super) config: T5Config,
    /// `[vocab, d_model]`.
    embeddings: Weight,
    encoder: Encoder,
    decoder: Decoder,
    pub(super) kv_cache: KvCache<PromptKv>,
}

/// Encoder output.
pub(super) struct Encoded {
    /// All prompts, one behind the other, `[T, d_model]`.
    pub(super) packed: Tensor,
    /// Tokens of each.
    pub(super) lengths: Vec<usize>,
}

impl Stacks {
    pub(super) fn load(loader: &Loader<'_>, embeddings: Weight) -> LoadResult<Self> {
        let (encoder, decoder) = (Encoder::load(loader)?, Decoder::load(loader)?);
        let config = loader.config.clone();
        let node = NodeShape {
            layers: config.num_decoder_layers,
            width: config.inner(),
            dtype: loader.place.kv_dtype(),
            device: loader.place.device.clone(),
        };
        let kv_cache = KvCache::new(node, !loader.place.uses_kernels());
        Ok(Self {
            _context: ContextOnDrop::new(&loader.place.device),
            config,
            embeddings,
            encoder,
            decoder,
            kv_cache,
        })
    }

    /// f32 `[n, d_model]`.
    pub(super) fn embed(&self, tokens: impl Iterator<Item = u32>) -> ModelResult<Tensor> {
        let (tokens, vocab): (Vec<u32>, _) = (tokens.collect(), self.config.vocab_size);
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        self.embeddings.rows(&tokens).and_then(|x| x.to_dtype(DType::F32)).map_err(compute_error)
    }

    /// Embeddings of all prompts, one behind the other, `[T, d_model]`.
    pub(super) fn embed_prompts(&self, requests: &[ContextRequest<'_>]) -> ModelResult<Tensor> {
        self.embed(requests.iter().flat_map(|request| request.prompt.ids()))
    }

    /// Encoder output for embedded prompts.
    pub(super) fn encode(&self, x: Tensor, requests: &[ContextRequest<'_>]) -> ModelResult<Encoded> {
        let lengths: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let packed = self.encode_some(&x, &lengths).map_err(compute_error)?;
        Ok(Encoded { packed, lengths })
    }

    /// Encodes a few prompts at a time, on the CPU one such piece per thread, so that the work between products is parallel, too.
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

    /// Opens one context for each prompt.
    pub(super) fn open(&mut self, encoded: &Encoded) -> ModelResult<Vec<OpenedContext>> {
        let prompts = self.decoder.prompts(&encoded.packed, &encoded.lengths, &mut self.kv_cache);
        let prompts = prompts.map_err(compute_error)?;
        let first_token = self.config.decoder_start_token_id;
        let open = |prompt| {
            let context = self.kv_cache.open(prompt);
            OpenedContext { context, first_token, cached_tokens: 0 }
        };
        Ok(prompts.into_iter().map(open).collect())
    }

    /// A prompt keeps cross-attention keys and values, as wide as those of a node.
    pub(super) fn cache_cost(&self) -> CacheCost {
        self.kv_cache.cache_cost()
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.kv_cache.close(context);
    }

    /// Hidden states `[R, d_model]` of embedded rows that have been appended.
    pub(super) fn decode(&mut self, x: Tensor, groups: &[RowGroup]) -> ModelResult<Tensor> {
        self.decoder.forward(x, groups, &self.kv_cache).map_err(compute_error)
    }
}

impl Encoded {
    /// One `[T, d_model]` a prompt.
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

/// Cuts prompts into pieces of at most so many tokens, at least one prompt each.
fn pieces(lengths: &[usize], tokens_max: usize) -> Vec<&[usize]> {
    let (mut pieces, mut left) = (Vec::new(), lengths);
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

/// The token table, which files keep under different names.
pub(super) fn load_embeddings(loader: &Loader<'_>) -> LoadResult<Tensor> {
    let names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let name = names.into_iter().find(|name| loader.has(name)).unwrap_or(names[0]);
    loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_cut_into_pieces_of_the_same_order() {
        let lengths = [100, 150, 10, 300, 200, 60];
        assert_eq!(pieces(&lengths, TOKENS_AT_ONCE), [&lengths[..2], &[10], &[300], &[200], &[60]]);
        assert_eq!(pieces(&lengths, TOKENS_AT_ONCE_ON_DEVICES), [&lengths[..]], "one piece");
        assert!(pieces(&[], 256).is_empty());
    }
}
