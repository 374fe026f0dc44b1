//! The decoder. One pass computes rows of any number of contexts. Each row attends to its path and its
//! prompt.

use candle_core::{Result, Tensor};

use super::attention::AttentionKind;
use super::layers::{CrossAttention, FeedForward, SelfAttention};
use crate::kv_cache::{
    Context, KeyGroup, KeyView, KvCache, KvPass, Positions, RowGroup, WrittenRows, step_inputs,
};
use crate::ops::{
    AdaptedRows, AttentionQuery, Heads, KvInput, Linear, Norm, PassRope, Phase, Scratch, Visible,
};
use crate::step_graphs::StepGraphs;

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

    /// Returns prompts of these lengths, whose keys and values [`Decoder::write`] computes.
    pub(super) fn empty(lengths: &[usize], kv_cache: &mut KvCache<Self>) -> Result<Vec<Self>> {
        let prompts = kv_cache.allocate(lengths)?.into_iter().zip(lengths);
        Ok(prompts.map(|(positions, &length)| Self { positions, length }).collect())
    }

    /// Returns the places of `count` tokens, the first at `first`.
    pub(super) fn written(&self, first: usize, count: usize) -> WrittenRows<'_> {
        WrittenRows { positions: &self.positions, first, count }
    }
}

/// A stack that decodes rows. It has at least one layer.
pub(super) struct Decoder {
    pub(super) layers: Vec<DecoderLayer>,
    /// Normalises the output of the last layer; `None` if the head reads it as it is.
    pub(super) norm: Option<Norm>,
    /// The kinds of self-attention in its layers.
    pub(super) kinds: Vec<AttentionKind>,
    pub(super) heads: Heads,
    /// Vectors f32 `[positions, d_model]` that are added to embeddings.
    pub(super) positions: Option<Tensor>,
}

pub(super) struct DecoderLayer {
    pub(super) self_attention: SelfAttention,
    /// Projects encoder output to keys and values.
    pub(super) prompt_kv: Linear<2>,
    /// `None` if self-attention also attends to the prompt, in all layers. The prompt's keys are then
    /// normalised as the other keys are, but not rotated, and no window hides them.
    pub(super) cross_attention: Option<CrossAttention>,
    pub(super) feed_forward: FeedForward,
}

/// The hidden states `[R, d_model]` of a step's rows between two layers.
pub(super) struct PartialStep {
    x: Tensor,
    /// Number of computed layers.
    layers: usize,
}

pub(super) enum StepProgress {
    Partial(PartialStep),
    /// The hidden states `[R, d_model]` after all layers, normalised if the decoder normalises them.
    Complete(Tensor),
}

/// Data shared by all layers of one pass.
struct Pass<'a> {
    /// Has a view for each kind of self-attention, then one of the prompts if that attention is separate.
    kv: Box<dyn KvPass + 'a>,
    /// The rotation of each kind.
    ropes: Vec<Option<PassRope>>,
    rows: &'a AdaptedRows,
}

impl Decoder {
    /// Returns the width of all key heads.
    pub(super) fn key_width(&self) -> usize {
        self.layers.first().map_or(0, |layer| layer.prompt_kv.widths()[0])
    }

    /// Computes the keys and values of some tokens of prompts from their encoder output `[n, d_model]`, some
    /// of which may have adapters.
    pub(super) fn write(
        &self,
        written: &[WrittenRows<'_>],
        encoded: &Tensor,
        rows: &AdaptedRows,
        kv_cache: &KvCache<PromptKv>,
    ) -> Result<()> {
        let pass = kv_cache.store().pass(written, Vec::new())?;
        for (index, layer) in self.layers.iter().enumerate() {
            let qk_norms = match layer.cross_attention {
                Some(_) => None,
                None => layer.self_attention.qk_norms.as_ref(),
            };
            let input = KvInput { x: encoded, kv: &layer.prompt_kv, heads: self.heads, qk_norms, rows };
            pass.write_keys_and_values(index, &input)?;
        }
        Ok(())
    }

    /// Begins to compute the hidden states of a step's rows, which are grouped by context, from the
    /// embeddings `[R, d_model]` of their tokens.
    pub(super) fn begin(&self, x: Tensor, groups: &[RowGroup]) -> Result<PartialStep> {
        let x = match &self.positions {
            Some(table) => (x + positioned(table, groups)?)?,
            None => x,
        };
        Ok(PartialStep { x, layers: 0 })
    }

    /// Computes the hidden states of a step's rows. Writes the rows' keys and values to their contexts.
    ///
    /// * `groups`: the rows by context, in order
    /// * `rows`: the rows that have adapters
    /// * `graphs`: repeats the layers, without `is_due`
    ///
    /// Returns early if `is_due` returns `true` between two layers.
    pub(super) fn advance(
        &self,
        step: PartialStep,
        groups: &[RowGroup],
        kv_cache: &KvCache<PromptKv>,
        rows: &AdaptedRows,
        graphs: &StepGraphs,
        is_due: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<StepProgress> {
        let groups: Vec<_> = groups.iter().map(|group| (group, kv_cache.context(group))).collect();
        let pass = self.pass(&groups, kv_cache, rows)?;
        if let Some(is_due) = is_due {
            let step = self.layers(step, &pass, is_due)?;
            let is_complete = step.layers == self.layers.len();
            return Ok(if is_complete {
                StepProgress::Complete(step.x)
            } else {
                StepProgress::Partial(step)
            });
        }
        let hidden = graphs.compute(
            step.x,
            || step_inputs(pass.kv.as_ref(), pass.ropes.iter().flatten(), rows),
            |x| Ok(self.layers(PartialStep { x, layers: 0 }, &pass, &mut || false)?.x),
        )?;
        Ok(StepProgress::Complete(hidden))
    }

    /// Computes the hidden states after the next layers; after the last one they are normalised if the
    /// decoder is.
    fn layers(
        &self,
        step: PartialStep,
        pass: &Pass<'_>,
        is_due: &mut dyn FnMut() -> bool,
    ) -> Result<PartialStep> {
        let PartialStep { mut x, mut layers } = step;
        for (index, layer) in self.layers.iter().enumerate().skip(layers) {
            x = self.attend_to_path(&layer.self_attention, index, x, pass)?;
            if let Some(attention) = &layer.cross_attention {
                x = self.attend_to_prompt(attention, index, x, pass)?;
            }
            x = layer.feed_forward.forward(x, pass.rows)?;
            layers = index + 1;
            if layers < self.layers.len() && is_due() {
                return Ok(PartialStep { x, layers });
            }
        }
        let x = match &self.norm {
            Some(norm) => norm.forward(&x)?,
            None => x,
        };
        Ok(PartialStep { x, layers })
    }

    fn pass<'a>(
        &'a self,
        groups: &[StepGroup<'a>],
        kv_cache: &'a KvCache<PromptKv>,
        rows: &'a AdaptedRows,
    ) -> Result<Pass<'a>> {
        let is_merged = self.layers.iter().all(|layer| layer.cross_attention.is_none());
        let written: Vec<_> = groups.iter().map(|(group, context)| group.written(context)).collect();
        let mut views: Vec<_> =
            self.kinds.iter().map(|kind| Self::path_view(kind, groups, is_merged)).collect();
        if !is_merged {
            views.push(Self::prompt_view(groups));
        }
        let mut ropes = Vec::with_capacity(self.kinds.len());
        for kind in &self.kinds {
            let paths = groups.iter().flat_map(|(group, _)| &group.paths);
            ropes.push(kind.rope(paths.map(|path| path.len() - 1)));
        }
        Ok(Pass { kv: kv_cache.store().pass(&written, views)?, ropes, rows })
    }

    /// Returns the view of the rows' paths, which are after their prompts if `is_merged`.
    fn path_view<'a>(kind: &'a AttentionKind, groups: &[StepGroup<'a>], is_merged: bool) -> KeyView<'a> {
        let mut key_groups = Vec::with_capacity(groups.len());
        for &(group, context) in groups {
            let queries = group.paths.iter().map(|path| AttentionQuery {
                visible: Visible::Nodes(kind.seen(path)),
                hidden: 0,
                position: path.len() - 1,
            });
            key_groups.push(KeyGroup {
                before: if is_merged { vec![&context.prompt.positions] } else { Vec::new() },
                own: &context.nodes.positions,
                queries: queries.collect(),
                phase: Phase::Decode,
            });
        }
        KeyView { groups: key_groups, bias: kind.bias.as_ref() }
    }

    fn prompt_view<'a>(groups: &[StepGroup<'a>]) -> KeyView<'a> {
        let mut key_groups = Vec::with_capacity(groups.len());
        for &(group, context) in groups {
            let PromptKv { positions, length } = &context.prompt;
            let query = AttentionQuery { visible: Visible::First(*length), hidden: 0, position: 0 };
            let queries = vec![query; group.paths.len()];
            key_groups.push(KeyGroup { before: Vec::new(), own: positions, queries, phase: Phase::Decode });
        }
        KeyView { groups: key_groups, bias: None }
    }

    /// Computes each row's self-attention, and adds the residual.
    fn attend_to_path(
        &self,
        layer: &SelfAttention,
        index: usize,
        x: Tensor,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let normed = layer.normed(&x)?;
        let normed = normed.as_deref().unwrap_or(&x);
        let input = layer.input(normed, self.heads, pass.ropes[layer.kind].as_ref(), pass.rows);
        let q = Scratch(pass.kv.write(index, &input)?);
        let attended = Scratch(pass.kv.attend(index, layer.kind, &q, self.heads)?);
        layer.output.added(&attended, x, pass.rows)
    }

    /// Computes each row's separate attention to its prompt, and adds the residual.
    fn attend_to_prompt(
        &self,
        layer: &CrossAttention,
        index: usize,
        x: Tensor,
        pass: &Pass<'_>,
    ) -> Result<Tensor> {
        let normed = Scratch(layer.norm.forward(&x)?);
        let q = Scratch(layer.query.together(&normed, pass.rows)?);
        let attended = Scratch(pass.kv.attend(index, self.kinds.len(), &q, self.heads)?);
        layer.output.added(&attended, x, pass.rows)
    }
}

/// Returns the vectors of the rows' positions, `[R, d_model]`. A position beyond the table becomes its last
/// one.
fn positioned(table: &Tensor, groups: &[RowGroup]) -> Result<Tensor> {
    let last = table.dim(0)?.saturating_sub(1);
    let mut rows = Vec::new();
    for path in groups.iter().flat_map(|group| &group.paths) {
        rows.push((path.len() - 1).min(last) as u32);
    }
    let count = rows.len();
    table.index_select(&Tensor::from_vec(rows, count, table.device())?, 0)
}

/// Rows of a step with their context.
type StepGroup<'a> = (&'a RowGroup, &'a Context<PromptKv>);
