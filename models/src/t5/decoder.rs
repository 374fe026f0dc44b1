//! The decoder: rows of any number of contexts in one pass, each seeing its ancestors and its prompt.

use std::collections::HashMap;

use candle_core::{Result, Tensor};
use ntl_core::engine::ContextId;

use super::bias::{Direction, relative_bias};
use super::context::Context;
use super::encoder::split;
use super::layers::{CrossAttention, FeedForward, Loader, Norm, SelfAttention};
use crate::checkpoint::LoadError;
use crate::nodes::Group;
use crate::ops::{AttentionPlans, AttentionRow, Heads, KeyValues, RelativeBias, Visible, attend};

pub(super) struct Decoder {
    layers: Vec<DecoderLayer>,
    norm: Norm,
    bias: RelativeBias,
    heads: Heads,
}

struct DecoderLayer {
    self_norm: Norm,
    self_attention: SelfAttention,
    cross_norm: Norm,
    cross_attention: CrossAttention,
    feed_forward: FeedForward,
}

impl Decoder {
    pub(super) fn load(loader: &Loader<'_>) -> std::result::Result<Self, LoadError> {
        let config = loader.config;
        let layer = |index| {
            let block = format!("decoder.block.{index}.layer");
            Ok(DecoderLayer {
                self_norm: loader.norm(&format!("{block}.0.layer_norm"))?,
                self_attention: loader.self_attention(&format!("{block}.0.SelfAttention"))?,
                cross_norm: loader.norm(&format!("{block}.1.layer_norm"))?,
                cross_attention: loader.cross_attention(&format!("{block}.1.EncDecAttention"))?,
                feed_forward: loader.feed_forward(&format!("{block}.2"))?,
            })
        };
        let name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
        let table = loader.tensor(name, &[config.num_buckets, config.num_heads])?;
        Ok(Self {
            layers: (0..config.num_decoder_layers)
                .map(layer)
                .collect::<std::result::Result<_, LoadError>>()?,
            norm: loader.norm("decoder.final_layer_norm")?,
            bias: relative_bias(&table, Direction::Causal, config)
                .map_err(|error| LoadError::Device(error.to_string()))?,
            heads: Heads::unscaled(config.num_heads),
        })
    }

    /// Cross-attention keys and values of packed prompts, once for all their later rows.
    ///
    /// * `encoded` `[T, d_model]`: encoder output of all prompts  * `lengths`: tokens of each prompt
    ///
    /// Returns one list per prompt with one entry per layer.
    pub(super) fn contexts(&self, encoded: &Tensor, lengths: &[usize]) -> Result<Vec<Vec<KeyValues>>> {
        let mut prompts: Vec<Vec<KeyValues>> = lengths.iter().map(|_| Vec::new()).collect();
        for layer in &self.layers {
            let [keys, values] = layer.cross_attention.keys_and_values(encoded)?;
            for (prompt, kv) in prompts.iter_mut().zip(split(&keys, &values, lengths)?) {
                prompt.push(kv);
            }
        }
        Ok(prompts)
    }

    /// Hidden states of a step's rows.
    ///
    /// * `x` `[R, d_model]`: embeddings of the rows' tokens  * `groups`: the rows by context, in order
    ///
    /// Returns `[R, d_model]`, normalised. Stores the rows' keys and values in their contexts.
    pub(super) fn forward(
        &self,
        mut x: Tensor,
        groups: &[Group],
        contexts: &HashMap<ContextId, Context>,
    ) -> Result<Tensor> {
        let groups: Vec<(&Group, &Context)> =
            groups.iter().filter_map(|group| Some((group, contexts.get(&group.context)?))).collect();
        let (path_plans, prompt_plans) = (AttentionPlans::default(), AttentionPlans::default());
        for (index, layer) in self.layers.iter().enumerate() {
            let path = (self.heads, &self.bias, &path_plans);
            x = layer.attend_to_path(&x, index, &groups, path)?;
            let prompt = (self.heads, &prompt_plans);
            x = layer.attend_to_prompt(&x, index, &groups, prompt)?;
            x = layer.feed_forward.forward(&x)?;
        }
        self.norm.forward(&x)
    }
}

impl DecoderLayer {
    fn attend_to_path(
        &self,
        x: &Tensor,
        index: usize,
        groups: &[(&Group, &Context)],
        (heads, bias, plans): (Heads, &RelativeBias, &AttentionPlans),
    ) -> Result<Tensor> {
        let (normed, weights) = (self.self_norm.forward(x)?, &self.self_attention);
        let [q, k, v] = weights.inputs(&normed)?;
        for (group, context) in groups {
            let (from, count) = (group.first_row, group.paths.len());
            let (keys, values) = (k.narrow(0, from, count)?, v.narrow(0, from, count)?);
            context.nodes.store(index, group.first_node, &keys, &values)?;
        }
        let rows: Vec<_> = groups
            .iter()
            .flat_map(|(group, context)| {
                let kv = context.nodes.layer(index);
                group
                    .paths
                    .iter()
                    .map(move |path| AttentionRow::new(kv, Visible::Nodes(path), path.len() - 1))
            })
            .collect();
        weights.output.added(&attend(&q, &rows, heads, Some(bias), plans)?, x)
    }

    fn attend_to_prompt(
        &self,
        x: &Tensor,
        index: usize,
        groups: &[(&Group, &Context)],
        (heads, plans): (Heads, &AttentionPlans),
    ) -> Result<Tensor> {
        let q = self.cross_attention.query.forward(&self.cross_norm.forward(x)?)?;
        let rows: Vec<_> = groups
            .iter()
            .flat_map(|(group, context)| {
                let visible = Visible::First(context.prompt_len);
                let row = AttentionRow::new(&context.cross[index], visible, 0);
                std::iter::repeat_n(row, group.paths.len())
            })
            .collect();
        self.cross_attention.output.added(&attend(&q, &rows, heads, None, plans)?, x)
    }
}
