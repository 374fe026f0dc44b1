//! The encoder. It runs on concatenated prompts, without padding, or on parts of one long prompt.

use candle_core::{Result, Tensor};

use super::bias::{Direction, load_bias};
use super::layers::{FeedForward, Loader, SelfAttention};
use crate::checkpoint::LoadResult;
use crate::ops::{
    AttentionQuery, Heads, KeyValues, Norm, Phase, PromptAttention, RelativeBias, TensorGroup, Visible,
    attend,
};

pub(super) struct Encoder {
    layers: Vec<EncoderLayer>,
    norm: Norm,
    bias: RelativeBias,
    heads: Heads,
}

struct EncoderLayer {
    attention: SelfAttention,
    feed_forward: FeedForward,
}

impl Encoder {
    pub(super) fn load(loader: &Loader<'_>) -> LoadResult<Self> {
        let config = loader.config;
        let layer = |index| {
            let block = format!("encoder.block.{index}.layer");
            Ok(EncoderLayer {
                attention: loader.self_attention(&format!("{block}.0"))?,
                feed_forward: loader.feed_forward(&format!("{block}.1"))?,
            })
        };
        Ok(Self {
            layers: (0..config.num_layers).map(layer).collect::<LoadResult<_>>()?,
            norm: loader.norm("encoder.final_layer_norm")?,
            bias: load_bias(loader, "encoder", Direction::Bidirectional)?,
            heads: Heads::unscaled(config.num_heads),
        })
    }

    /// Computes the hidden states of all tokens.
    ///
    /// * `x` `[T, d_model]`: concatenated embeddings of all prompts, which nothing else reads afterwards
    /// * `lengths`: number of tokens of each prompt, at least one; their sum is `T`
    ///
    /// Returns `[T, d_model]` in the same order.
    pub(super) fn forward(&self, mut x: Tensor, lengths: &[usize]) -> Result<Tensor> {
        let attention = PromptAttention::new(&x, lengths, self.heads, &self.bias)?;
        for layer in &self.layers {
            let SelfAttention { norm, qkv, .. } = &layer.attention;
            x = layer.rest(&attention.attend(&norm.forward(&x)?, qkv)?, x)?;
        }
        self.norm.forward(&x)
    }
}

/// A long prompt on the CPU, between two parts of its computation.
///
/// A layer's attention needs the keys and values of all tokens; the rest of a layer needs only one token.
/// Stage `s` therefore computes, for some rows at a time, the rest of layer `s - 1` after its keys and values,
/// and the queries, keys and values of layer `s`.
pub(super) struct Encoding {
    /// `[T, d_model]`: hidden states before layer `stage`, for the first `row` rows, and before the layer
    /// before it for the others.
    x: Tensor,
    /// `[T, H * D]`: queries in the layer of the same row's hidden states.
    q: Tensor,
    /// Keys and values of layer `stage - 1`.
    seen: KeyValues,
    /// Keys and values of layer `stage`, of the first `row` rows.
    next: KeyValues,
    stage: usize,
    row: usize,
}

impl Encoding {
    /// Begins with the embeddings `[T, d_model]` of a prompt, whose storage no other tensor may share.
    pub(super) fn new(x: Tensor, heads_width: usize) -> Result<Self> {
        let zeros = || Tensor::zeros((x.dim(0)?, heads_width), x.dtype(), x.device());
        let kv = || Ok::<_, candle_core::Error>(KeyValues { keys: zeros()?, values: zeros()? });
        Ok(Self { q: zeros()?, seen: kv()?, next: kv()?, x, stage: 0, row: 0 })
    }

    /// Returns its memory per token of the prompt, in bytes: hidden states, queries, and the keys and values of
    /// two layers.
    pub(super) fn token_bytes(d_model: usize, heads_width: usize) -> usize {
        (d_model + 5 * heads_width) * size_of::<f32>()
    }

    pub(super) fn stage(&self) -> usize {
        self.stage
    }

    pub(super) fn row(&self) -> usize {
        self.row
    }
}

impl Encoder {
    /// Returns the number of stages of an [`Encoding`].
    pub(super) fn stages(&self) -> usize {
        self.layers.len() + 1
    }

    /// Computes the next `count` rows of a stage. Returns their outputs `[count, d_model]` in the last stage.
    pub(super) fn advance(&self, state: &mut Encoding, count: usize) -> Result<Option<Tensor>> {
        let Encoding { x: all, q: queries, seen, next, stage, row } = state;
        let first = *row;
        let mut x = all.narrow(0, first, count)?;
        if let Some(layer) = stage.checked_sub(1).map(|before| &self.layers[before]) {
            let visible = Visible::First(all.dim(0)?);
            let query = |position| AttentionQuery { visible, hidden: 0, position };
            let rows: Vec<_> = (first..first + count).map(query).collect();
            let group = TensorGroup { before: Vec::new(), own: seen, queries: &rows, phase: Phase::Prefill };
            let q = queries.narrow(0, first, count)?;
            x = layer.rest(&attend(&q, &[group], self.heads, Some(&self.bias))?, x)?;
            all.slice_set(&x, 0, first)?;
        }
        let output = match self.layers.get(*stage) {
            Some(layer) => {
                let projections = layer.attention.qkv.parts(&layer.attention.norm.forward(&x)?)?;
                for (all, some) in [&*queries, &next.keys, &next.values].into_iter().zip(&projections) {
                    all.slice_set(some, 0, first)?;
                }
                None
            }
            None => Some(self.norm.forward(&x)?),
        };
        *row += count;
        if *row == all.dim(0)? {
            std::mem::swap(seen, next);
            *row = 0;
            *stage += 1;
        }
        Ok(output)
    }
}

impl EncoderLayer {
    /// Computes the layer after its attention. `x` are the hidden states before the layer, whose storage no
    /// other tensor may share on a device.
    fn rest(&self, attended: &Tensor, x: Tensor) -> Result<Tensor> {
        self.feed_forward.forward(self.attention.output.added(attended, x)?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_partly_encoded_prompt_holds_the_memory_that_is_reserved_for_its_tokens() {
        let (tokens, d_model, heads_width) = (7, 12, 8);
        let x = Tensor::zeros((tokens, d_model), DType::F32, &Device::Cpu).unwrap();
        let Encoding { x, q, seen, next, .. } = Encoding::new(x, heads_width).unwrap();
        let all = [x, q, seen.keys, seen.values, next.keys, next.values];
        let bytes = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let held: usize = all.iter().map(bytes).sum();
        assert_eq!(held, tokens * Encoding::token_bytes(d_model, heads_width));
    }
}
