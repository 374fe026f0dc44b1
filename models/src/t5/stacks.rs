//! Both stacks of a T5 with its open contexts: what all kinds of T5 have in common.
//!
//! In: prompts and rows. Out: hidden states. Not here: what is made of these (`model`, `regression`), and how numbers
//! get into embeddings (`xval`).

use std::collections::HashMap;

use candle_core::{DType, Result, Tensor};
use ntl_core::engine::{CacheCost, ContextId, ContextRequest, ModelError, Row};
use rayon::prelude::*;

use super::T5Config;
use super::context::Context;
use super::decoder::Decoder;
use super::encoder::Encoder;
use super::layers::Loader;
use crate::checkpoint::LoadError;
use crate::nodes::{Group, NodeShape, NodeStore, grow};
use crate::ops::Weight;

/// Tokens of the prompts that go through the encoder together, but for a longer prompt.
const TOKENS_AT_ONCE: usize = 256;

/// Embeddings, encoder, decoder and contexts.
pub(super) struct Stacks {
    pub(super) config: T5Config,
    /// What tokens become at the bottom of both stacks, `[vocab, d_model]`.
    embeddings: Weight,
    encoder: Encoder,
    decoder: Decoder,
    node: NodeShape,
    contexts: HashMap<ContextId, Context>,
    opened: u64,
}

/// Prompts through the encoder.
pub(super) struct Encoded {
    /// All of them, one behind the other, `[T, d_model]`.
    pub(super) packed: Tensor,
    /// Tokens of each.
    pub(super) lengths: Vec<usize>,
}

impl Stacks {
    pub(super) fn load(loader: &Loader<'_>, embeddings: Weight) -> std::result::Result<Self, LoadError> {
        let (encoder, decoder) = (Encoder::load(loader)?, Decoder::load(loader)?);
        let config = loader.config.clone();
        let node = NodeShape {
            layers: config.num_decoder_layers,
            width: config.inner(),
            dtype: loader.place.dtype,
            device: loader.place.device.clone(),
        };
        Ok(Self { config, embeddings, encoder, decoder, node, contexts: HashMap::new(), opened: 0 })
    }

    /// f32 `[n, d_model]`, as the sums of all layers are.
    pub(super) fn embed(&self, tokens: impl Iterator<Item = u32>) -> std::result::Result<Tensor, ModelError> {
        let (tokens, vocab): (Vec<u32>, _) = (tokens.collect(), self.config.vocab_size);
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(ModelError::TokenOutOfRange { id, vocab });
        }
        self.embeddings.rows(&tokens).and_then(|x| x.to_dtype(DType::F32)).map_err(compute)
    }

    /// Embeddings of all prompts, one behind the other, `[T, d_model]`.
    pub(super) fn embed_prompts(
        &self,
        requests: &[ContextRequest<'_>],
    ) -> std::result::Result<Tensor, ModelError> {
        self.embed(requests.iter().flat_map(|request| request.prompt.ids()))
    }

    /// Encoder output for embedded prompts.
    pub(super) fn encode(
        &self,
        x: Tensor,
        requests: &[ContextRequest<'_>],
    ) -> std::result::Result<Encoded, ModelError> {
        let lengths: Vec<usize> = requests.iter().map(|request| request.prompt.len()).collect();
        let packed = self.encode_some(&x, &lengths).map_err(compute)?;
        Ok(Encoded { packed, lengths })
    }

    /// A few prompts at a time: what is computed of many tokens at once leaves the caches before it is used. And each few
    /// on a thread of their own as far as there are threads: then all that is done between products is shared out, too.
    fn encode_some(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let (mut some, mut from, mut left) = (Vec::new(), 0, lengths);
        while !left.is_empty() {
            let mut tokens = 0;
            let fits = |length: &&usize| {
                tokens += **length;
                tokens <= TOKENS_AT_ONCE
            };
            let (these, others) = left.split_at(left.iter().take_while(fits).count().max(1));
            let tokens = these.iter().sum();
            some.push((x.narrow(0, from, tokens)?, these));
            (from, left) = (from + tokens, others);
        }
        let encode = |(x, lengths)| self.encoder.forward(x, lengths);
        let parts = if x.device().is_cpu() {
            some.into_par_iter().map(encode).collect::<Result<Vec<_>>>()?
        } else {
            some.into_iter().map(encode).collect::<Result<Vec<_>>>()?
        };
        Tensor::cat(&parts, 0)
    }

    /// Opens one context a prompt.
    pub(super) fn open(&mut self, encoded: &Encoded) -> std::result::Result<Vec<ContextId>, ModelError> {
        let contexts = self.decoder.contexts(&encoded.packed, &encoded.lengths).map_err(compute)?;
        let open = |(cross, &prompt_len)| {
            self.opened += 1;
            let context = ContextId(self.opened);
            let nodes = NodeStore::default();
            self.contexts.insert(context, Context { cross, prompt_len, nodes });
            context
        };
        Ok(contexts.into_iter().zip(&encoded.lengths).map(open).collect())
    }

    /// Keys and values of every decoder layer; nodes have room for up to twice their number.
    pub(super) fn cache_cost(&self) -> CacheCost {
        let layer = 2 * self.config.inner() * self.node.dtype.size_in_bytes();
        let prompt_token = (layer * self.config.num_decoder_layers) as u64;
        CacheCost { prompt_token, node: 2 * prompt_token }
    }

    pub(super) fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }

    /// Turns rows into nodes of their contexts, in order.
    pub(super) fn grow(&mut self, rows: &[Row]) -> std::result::Result<Vec<Group>, ModelError> {
        grow(&mut self.contexts, rows, &self.node)
    }

    /// Hidden states `[R, d_model]` of embedded rows that have become nodes.
    pub(super) fn decode(&self, x: Tensor, groups: &[Group]) -> std::result::Result<Tensor, ModelError> {
        self.decoder.forward(x, groups, &self.contexts).map_err(compute)
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

/// The token table under whichever of its names the file kept.
pub(super) fn load_embeddings(loader: &Loader<'_>) -> std::result::Result<Tensor, LoadError> {
    let names = ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"];
    let name = names.into_iter().find(|name| loader.has(name)).unwrap_or(names[0]);
    loader.tensor(name, &[loader.config.vocab_size, loader.config.d_model])
}

pub(super) fn compute(error: candle_core::Error) -> ModelError {
    ModelError::Compute(Box::new(error))
}
