//! The decoder: rows of any number of contexts in one pass, each of which attends to its path and its prompt.

use candle_core::{DType, Result, Tensor};

use super::bias::{Direction, load_bias};
use super::encoder::split;
use super::layers::{CrossAttention, FeedForward, Loader, SelfAttention};
use crate::checkpoint::LoadResult;
use crate::kv_cache::{Context, KvCache, Positions, RowGroup, Slab, Slots};
use crate::ops::{
    AttentionQuery, AttentionRow, Heads, KeyGroup, KeyValues, KeyView, Norm, PassKeys, Projections,
    RelativeBias, Visible, attend,
};

/// Keys and values of a prompt of `length` tokens.
pub(super) struct PromptKv {
    kv: Positions,
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
            norm: loader.norm("decoder.final_layer_norm")?.exact(),
            bias: load_bias(loader, "decoder", Direction::Causal)?,
            heads: Heads::unscaled(config.num_heads),
        })
    }

    /// Cross-attention keys and values of packed prompts, once for all their later rows.
    ///
    /// * `encoded` `[T, d_model]`: encoder output of all prompts  * `lengths`: tokens of each prompt
    pub(super) fn prompts(
        &self,
        encoded: &Tensor,
        lengths: &[usize],
        kv_cache: &mut KvCache<PromptKv>,
    ) -> Result<Vec<PromptKv>> {
        let kv = match kv_cache.slab_mut() {
            Some(slab) => {
                self.prompt_slots(encoded, lengths, slab)?.into_iter().map(Positions::Slots).collect()
            }
            None => self.prompt_tensors(encoded, lengths, kv_cache.shape().dtype)?,
        };
        Ok(kv.into_iter().zip(lengths).map(|(kv, &length)| PromptKv { kv, length }).collect())
    }

    fn prompt_tensors(&self, encoded: &Tensor, lengths: &[usize], dtype: DType) -> Result<Vec<Positions>> {
        let mut prompts = vec![Vec::new(); lengths.len()];
        for layer in &self.layers {
            let [keys, values] = layer.cross_attention.kv.parts(encoded)?;
            let (keys, values) = (keys.to_dtype(dtype)?, values.to_dtype(dtype)?);
            for (prompt, KeyValues { keys, values }) in
                prompts.iter_mut().zip(split(&keys, &values, lengths)?)
            {
                // Copies, so that a prompt that stays does not hold the memory of those it was opened with.
                let (keys, values) = (keys.force_contiguous()?, values.force_contiguous()?);
                prompt.push(KeyValues { keys, values });
            }
        }
        Ok(prompts.into_iter().map(Positions::Tensors).collect())
    }

    fn prompt_slots(&self, encoded: &Tensor, lengths: &[usize], slab: &mut Slab) -> Result<Vec<Slots>> {
        let prompts = slab.take_each(lengths)?;
        let slots: Vec<u32> = prompts.iter().flat_map(Slots::numbers).copied().collect();
        let slots = Tensor::from_slice(&slots, slots.len(), slab.device())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let kv = layer.cross_attention.kv.together(encoded)?;
            Projections { queries: 0, ..Projections::plain(&kv, self.heads) }
                .store(slab.layer(index), &slots)?;
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
        let cached = match kv_cache.slab() {
            Some(slab) => Cached::Slots(self.step_slots(&groups, slab)?),
            None => Cached::Tensors(&groups),
        };
        for (index, layer) in self.layers.iter().enumerate() {
            x = self.attend_to_path(&layer.self_attention, index, x, &cached)?;
            x = self.attend_to_prompt(&layer.cross_attention, index, x, &cached)?;
            x = layer.feed_forward.forward(x)?;
        }
        self.norm.forward(&x)
    }

    fn step_slots<'a>(&'a self, groups: &[StepGroup<'a>], slab: &'a Slab) -> Result<StepSlots<'a>> {
        let slots: Vec<u32> =
            groups.iter().flat_map(|(group, context)| group.slots(context)).copied().collect();
        let paths = groups.iter().map(|(group, context)| {
            let query =
                |path| AttentionQuery { visible: Visible::Nodes(path), hidden: 0, position: path.len() - 1 };
            let queries = group.paths.iter().map(|path| query(path)).collect();
            KeyGroup::new(Vec::new(), context.nodes.kv.slots(), queries)
        });
        let prompts = groups.iter().map(|(group, context)| {
            let PromptKv { kv, length } = &context.prompt;
            let query = AttentionQuery { visible: Visible::First(*length), hidden: 0, position: 0 };
            KeyGroup::packed(kv.slots().to_vec(), vec![query; group.paths.len()])
        });
        let views = vec![
            KeyView { groups: paths.collect(), bias: Some(&self.bias) },
            KeyView { groups: prompts.collect(), bias: None },
        ];
        let keys = PassKeys::new(&slots, views, slab.device())?;
        Ok(StepSlots { slab, keys })
    }

    /// Attention of each row to its path, the residual included.
    fn attend_to_path(
        &self,
        layer: &SelfAttention,
        index: usize,
        x: Tensor,
        cached: &Cached<'_>,
    ) -> Result<Tensor> {
        let normed = layer.norm.forward(&x)?;
        let attended = match cached {
            Cached::Slots(step) => {
                let (qkv, slab) = (layer.qkv.together(&normed)?, step.slab.layer(index));
                let q = Projections::plain(&qkv, self.heads).store_and_query(slab, &step.keys.written)?;
                step.keys.attentions[PATHS].attend(&q, slab, self.heads)?
            }
            Cached::Tensors(groups) => {
                let [q, k, v] = layer.qkv.parts(&normed)?;
                let mut rows = Vec::new();
                for (group, context) in *groups {
                    let (from, count) = (group.first_row, group.paths.len());
                    let (keys, values) = (k.narrow(0, from, count)?, v.narrow(0, from, count)?);
                    context.nodes.write_kv(index, group.first_node, &keys, &values)?;
                    let kv = &context.nodes.kv.tensors()[index];
                    let paths = group.paths.iter();
                    rows.extend(
                        paths.map(|path| AttentionRow::new(kv, Visible::Nodes(path), path.len() - 1)),
                    );
                }
                attend(&q, &rows, self.heads, Some(&self.bias))?
            }
        };
        layer.output.added(&attended, x)
    }

    /// Attention of each row to its prompt, the residual included.
    fn attend_to_prompt(
        &self,
        layer: &CrossAttention,
        index: usize,
        x: Tensor,
        cached: &Cached<'_>,
    ) -> Result<Tensor> {
        let q = layer.query.together(&layer.norm.forward(&x)?)?;
        let attended = match cached {
            Cached::Slots(step) => {
                step.keys.attentions[PROMPTS].attend(&q, step.slab.layer(index), self.heads)?
            }
            Cached::Tensors(groups) => {
                let rows = groups.iter().flat_map(|(group, context)| {
                    let visible = Visible::First(context.prompt.length);
                    let row = AttentionRow::new(&context.prompt.kv.tensors()[index], visible, 0);
                    std::iter::repeat_n(row, group.paths.len())
                });
                let rows: Vec<_> = rows.collect();
                attend(&q, &rows, self.heads, None)?
            }
        };
        layer.output.added(&attended, x)
    }
}

/// Rows of a step with their context.
type StepGroup<'a> = (&'a RowGroup, &'a Context<PromptKv>);

/// The cached keys and values of a step's contexts.
enum Cached<'a> {
    Tensors(&'a [StepGroup<'a>]),
    Slots(StepSlots<'a>),
}

/// How a step reads and writes the slots of its contexts.
struct StepSlots<'a> {
    slab: &'a Slab,
    /// Of [`PATHS`] and [`PROMPTS`].
    keys: PassKeys<'a>,
}

/// The views of a step's keys: what rows attend to of their own paths, and of their prompts.
const PATHS: usize = 0;
const PROMPTS: usize = 1;
