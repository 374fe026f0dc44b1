//! The decoder: rows of any number of contexts in one pass, each of which attends to its path and its prompt.

use candle_core::{Result, Tensor};

use super::bias::{Direction, load_bias};
use super::encoder::split;
use super::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use crate::checkpoint::LoadResult;
use crate::kv_cache::{Context, KvCache, RowGroup};
use crate::ops::{AttentionPlans, AttentionRow, Heads, KeyValues, Norm, RelativeBias, Visible, attend};

/// Keys and values of a prompt of `length` tokens for each decoder layer, `[length, H * D]`.
pub(super) struct PromptKv {
    layers: Vec<KeyValues>,
    length: usize,
}

pub(super) struct Decoder {
    layers: Vec<DecoderLayer>,
    norm: Norm,
    bias: RelativeBias,
    heads: Heads,
}

struct DecoderLayer {
    self_attention: SelfAttention,
    cross_attention: CrossAttention,
    feed_forward: FeedForward,
}

impl Decoder {
    pub(super) fn load(loader: &Loader<'_>) -> LoadResult<Self> {
        let config = loader.config;
        let layer = |index| {
            let block = format!("decoder.block.{index}.layer");
            Ok(DecoderLayer {
                self_attention: loader.self_attention(&format!("{block}.0"))?,
                cross_attention: loader.cross_attention(&format!("{block}.1"))?,
                feed_forward: loader.feed_forward(&format!("{block}.2"))?,
            })
        };
        Ok(Self {
            layers: (0..config.num_decoder_layers).map(layer).collect::<LoadResult<_>>()?,
            norm: loader.norm("decoder.final_layer_norm")?,
            bias: load_bias(loader, "decoder", Direction::Causal)?,
            heads: Heads::unscaled(config.num_heads),
        })
    }

    /// Cross-attention keys and values of packed prompts, once for all their later rows.
    ///
    /// * `encoded` `[T, d_model]`: encoder output of all prompts  * `lengths`: tokens of each prompt
    pub(super) fn prompts(&self, encoded: &Tensor, lengths: &[usize]) -> Result<Vec<PromptKv>> {
        let prompt = |&length| PromptKv { layers: Vec::new(), length };
        let mut prompts: Vec<PromptKv> = lengths.iter().map(prompt).collect();
        for layer in &self.layers {
            let [keys, values] = layer.cross_attention.kv.parts(encoded)?;
            for (prompt, KeyValues { keys, values }) in
                prompts.iter_mut().zip(split(&keys, &values, lengths)?)
            {
                // Copies, so that a prompt that stays does not hold the memory of those it was opened with.
                let (keys, values) = (keys.force_contiguous()?, values.force_contiguous()?);
                prompt.layers.push(KeyValues { keys, values });
            }
        }
        Ok(prompts)
    }

    /// Hidden states of a step's rows.
    ///
    /// * `x` `[R, d_model]`: embeddings of the rows' tokens  * `groups`: the rows by context, in order
    ///
    /// Returns `[R, d_model]`, normalised. Writes the rows' keys and values to their contexts.
    pub(super) fn forward(
        &self,
        mut x: Tensor,
        groups: &[RowGroup],
        kv_cache: &KvCache<PromptKv>,
    ) -> Result<Tensor> {
        let groups: Vec<_> = groups.iter().map(|group| (group, kv_cache.context(group))).collect();
        let (path_plans, prompt_plans) = (AttentionPlans::default(), AttentionPlans::default());
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.attend_to_path(&layer.self_attention, index, &x, &groups, &path_plans)?;
            x = self.attend_to_prompt(&layer.cross_attention, index, &x, &groups, &prompt_plans)?;
            x = layer.feed_forward.forward(&x)?;
        }
        self.norm.forward(&x)
    }

    /// Attention of each row to its path, the residual included.
    fn attend_to_path(
        &self,
        layer: &SelfAttention,
        index: usize,
        x: &Tensor,
        groups: &[(&RowGroup, &Context<PromptKv>)],
        plans: &AttentionPlans,
    ) -> Result<Tensor> {
        let [q, k, v] = layer.qkv.parts(&layer.norm.forward(x)?)?;
        let mut rows = Vec::new();
        for (group, context) in groups {
            let (from, count) = (group.first_row, group.paths.len());
            let (keys, values) = (k.narrow(0, from, count)?, v.narrow(0, from, count)?);
            context.nodes.write_kv(index, group.first_node, &keys, &values)?;
            let kv = context.nodes.layer(index);
            let paths = group.paths.iter();
            rows.extend(paths.map(|path| AttentionRow::new(kv, Visible::Nodes(path), path.len() - 1)));
        }
        let attended = attend(&q, &rows, self.heads, Some(&self.bias), plans)?;
        layer.output.added(&attended, x)
    }

    /// Attention of each row to its prompt, the residual included.
    fn attend_to_prompt(
        &self,
        layer: &CrossAttention,
        index: usize,
        x: &Tensor,
        groups: &[(&RowGroup, &Context<PromptKv>)],
        plans: &AttentionPlans,
    ) -> Result<Tensor> {
        let q = layer.query.forward(&layer.norm.forward(x)?)?;
        let rows = groups.iter().flat_map(|(group, context)| {
            let visible = Visible::First(context.prompt.length);
            let row = AttentionRow::new(&context.prompt.layers[index], visible, 0);
            std::iter::repeat_n(row, group.paths.len())
        });
        let rows: Vec<_> = rows.collect();
        layer.output.added(&attend(&q, &rows, self.heads, None, plans)?, x)
    }
}
