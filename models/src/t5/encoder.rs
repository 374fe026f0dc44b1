//! The encoder, over prompts packed one behind the other, without padding.

use candle_core::{Device, Result, Tensor};

use super::bias::{Direction, load_bias};
use super::layers::{FeedForward, Loader, SelfAttention};
use crate::checkpoint::LoadResult;
use crate::ops::{
    AttentionQuery, AttentionRow, HeadSource, Heads, KeyGroup, KeyValues, Norm, Plan, RelativeBias, Visible,
    attend, uses_kernels,
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

    /// Hidden states of all tokens.
    ///
    /// * `x` `[T, d_model]`: embeddings of all prompts, one behind the other, which nothing else reads afterwards
    /// * `lengths`: tokens of each prompt, at least one; their sum is `T`
    ///
    /// Returns `[T, d_model]` in the same order.
    pub(super) fn forward(&self, mut x: Tensor, lengths: &[usize]) -> Result<Tensor> {
        let plan = if uses_kernels(&x) { None } else { Some(self.plan(lengths, x.device())?) };
        for layer in &self.layers {
            let (normed, qkv) = (layer.attention.norm.forward(&x)?, &layer.attention.qkv);
            let attended = match &plan {
                Some(plan) => {
                    let projections = qkv.together(&normed)?;
                    plan.attend(HeadSource::rows(&projections, self.heads, qkv.dtype())?, self.heads)?
                }
                None => {
                    let [q, k, v] = qkv.parts(&normed)?;
                    self.attend(&q, &split(&k, &v, lengths)?, lengths)?
                }
            };
            x = layer.attention.output.added(&attended, x)?;
            x = layer.feed_forward.forward(x)?;
        }
        self.norm.forward(&x)
    }

    fn attend(&self, q: &Tensor, prompts: &[KeyValues], lengths: &[usize]) -> Result<Tensor> {
        let rows = prompts.iter().zip(lengths).flat_map(|(kv, &length)| {
            (0..length).map(move |position| AttentionRow::new(kv, Visible::First(length), position))
        });
        attend(q, &rows.collect::<Vec<_>>(), self.heads, Some(&self.bias))
    }

    fn plan(&self, lengths: &[usize], device: &Device) -> Result<Plan<'_>> {
        let mut first = 0;
        let prompts = lengths.iter().map(|&length| {
            let visible = Visible::First(length);
            let queries = (0..length).map(|position| AttentionQuery { visible, hidden: 0, position });
            first += length as u32;
            KeyGroup::packed((first - length as u32..first).collect(), queries.collect())
        });
        Plan::new(prompts.collect(), Some(&self.bias), device)
    }
}

/// Cuts packed keys and values `[T, H * D]` into those of each prompt.
pub(super) fn split(keys: &Tensor, values: &Tensor, lengths: &[usize]) -> Result<Vec<KeyValues>> {
    let mut from = 0;
    let cut = |&length: &usize| {
        let kv = KeyValues { keys: keys.narrow(0, from, length)?, values: values.narrow(0, from, length)? };
        from += length;
        Ok(kv)
    };
    lengths.iter().map(cut).collect()
}
