//! The decoder. One pass computes rows of any number of contexts. Each row attends to its path and its
//! prompt.

use candle_core::{Result, Tensor};

use super::bias::{Direction, load_bias};
use super::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use crate::checkpoint::LoadResult;
use crate::kv_cache::{
    Context, KeyGroup, KeyView, KvCache, KvPass, Positions, QkvInput, RowGroup, WrittenRows,
};
use crate::ops::{AttentionQuery, Heads, Norm, Phase, RelativeBias, Visible};

/// Keys and values of a prompt of `length` tokens.
pub(super) struct PromptKv {
    positions: Positions,
    length: usize,
}

impl PromptKv {
    /// A prompt that is not computed yet.
    pub(super) fn none(kv_cache: &KvCache<Self>) -> Self {
        Self { positions: kv_cache.store().none(), length: 0 }
    }

    /// Returns the places of `count` tokens, the first at `first`.
    pub(super) fn written(&self, first: usize, count: usize) -> WrittenRows<'_> {
        WrittenRows { positions: &self.positions, first, count }
    }
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
            norm: loader.norm("decoder.final_layer_norm")?.exact(),
            bias: load_bias(loader, "decoder", Direction::Causal)?,
            heads: Heads::unscaled(config.num_heads),
        })
    }

    /// Computes the cross-attention keys and values of concatenated prompts, once for all later rows.
    ///
    /// * `encoded` `[T, d_model]`: encoder output of all prompts
    /// * `lengths`: number of tokens of each prompt
    pub(super) fn prompts(
        &self,
        encoded: &Tensor,
        lengths: &[usize],
        kv_cache: &mut KvCache<PromptKv>,
    ) -> Result<Vec<PromptKv>> {
        let prompts = Self::empty_prompts(lengths, kv_cache)?;
        let written = prompts.iter().map(|prompt| prompt.written(0, prompt.length));
        self.write(&written.collect::<Vec<_>>(), encoded, kv_cache)?;
        Ok(prompts)
    }

    /// Returns prompts whose keys and values [`Decoder::write`] computes.
    pub(super) fn empty_prompts(
        lengths: &[usize],
        kv_cache: &mut KvCache<PromptKv>,
    ) -> Result<Vec<PromptKv>> {
        let prompts = kv_cache.allocate(lengths)?.into_iter().zip(lengths);
        Ok(prompts.map(|(positions, &length)| PromptKv { positions, length }).collect())
    }

    /// Computes the cross-attention keys and values of some tokens from their encoder output `[n, d_model]`.
    pub(super) fn write(
        &self,
        written: &[WrittenRows<'_>],
        encoded: &Tensor,
        kv_cache: &KvCache<PromptKv>,
    ) -> Result<()> {
        let pass = kv_cache.store().pass(written, Vec::new())?;
        for (index, layer) in self.layers.iter().enumerate() {
            pass.write_keys_and_values(index, encoded, &layer.cross_attention.kv, self.heads)?;
        }
        Ok(())
    }

    /// Computes the hidden states of a step's rows.
    ///
    /// * `x` `[R, d_model]`: embeddings of the rows' tokens
    /// * `groups`: the rows by context, in order
    ///
    /// Returns `[R, d_model]`, normalised. Writes the rows' keys and values to their contexts.
    pub(super) fn forward(
        &self,
        mut x: Tensor,
        groups: &[RowGroup],
        kv_cache: &KvCache<PromptKv>,
    ) -> Result<Tensor> {
        let groups: Vec<_> = groups.iter().map(|group| (group, kv_cache.context(group))).collect();
        let pass = self.pass(&groups, kv_cache)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.attend_to_path(&layer.self_attention, index, x, pass.as_ref())?;
            x = self.attend_to_prompt(&layer.cross_attention, index, x, pass.as_ref())?;
            x = layer.feed_forward.forward(x)?;
        }
        self.norm.forward(&x)
    }

    fn pass<'a>(
        &'a self,
        groups: &[StepGroup<'a>],
        kv_cache: &'a KvCache<PromptKv>,
    ) -> Result<Box<dyn KvPass + 'a>> {
        let written: Vec<_> = groups.iter().map(|(group, context)| group.written(context)).collect();
        let paths = groups.iter().map(|(group, context)| {
            let query = |path: &'a Vec<u32>| AttentionQuery {
                visible: Visible::Nodes(path),
                hidden: 0,
                position: path.len() - 1,
            };
            let queries = group.paths.iter().map(query).collect();
            KeyGroup { before: Vec::new(), own: &context.nodes.positions, queries, phase: Phase::Decode }
        });
        let prompts = groups.iter().map(|(group, context)| {
            let PromptKv { positions, length } = &context.prompt;
            let query = AttentionQuery { visible: Visible::First(*length), hidden: 0, position: 0 };
            let queries = vec![query; group.paths.len()];
            KeyGroup { before: Vec::new(), own: positions, queries, phase: Phase::Decode }
        });
        let views = vec![
            KeyView { groups: paths.collect(), bias: Some(&self.bias) },
            KeyView { groups: prompts.collect(), bias: None },
        ];
        kv_cache.store().pass(&written, views)
    }

    /// Computes each row's attention to its path, and adds the residual.
    fn attend_to_path(
        &self,
        layer: &SelfAttention,
        index: usize,
        x: Tensor,
        pass: &dyn KvPass,
    ) -> Result<Tensor> {
        let normed = layer.norm.forward(&x)?;
        let input = QkvInput { x: &normed, qkv: &layer.qkv, heads: self.heads, head_norms: None, rope: None };
        let q = pass.write(index, &input)?;
        layer.output.added(&pass.attend(index, PATHS, &q, self.heads)?, x)
    }

    /// Computes each row's attention to its prompt, and adds the residual.
    fn attend_to_prompt(
        &self,
        layer: &CrossAttention,
        index: usize,
        x: Tensor,
        pass: &dyn KvPass,
    ) -> Result<Tensor> {
        let q = layer.query.together(&layer.norm.forward(&x)?)?;
        layer.output.added(&pass.attend(index, PROMPTS, &q, self.heads)?, x)
    }
}

/// Rows of a step with their context.
type StepGroup<'a> = (&'a RowGroup, &'a Context<PromptKv>);

/// Indices of the two views of a step's keys: the rows' own paths, and their prompts.
const PATHS: usize = 0;
const PROMPTS: usize = 1;
