//! Attention within concatenated prompts: every position attends to the positions of its prompt, or to those
//! in a window around it.

use candle_core::{Result, Tensor};
use ntl_kernels::{AttentionQuery, Phase, Visible};

use super::batched::Plan;
use super::bias::RelativeBias;
use super::heads::QkvSource;
use super::slot_groups::SlotGroup;
use super::{KeyValues, TensorGroup, attend};
use crate::ops::QkvInput;
use crate::ops::tensors::uses_kernels;

/// The nearest positions that a position sees in addition to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

impl Window {
    /// Returns the number of positions in a window.
    pub(crate) fn positions(self) -> usize {
        self.before + 1 + self.after
    }
}

/// Returns the query of a position in a prompt of `length` tokens.
pub(crate) fn prompt_query(
    position: usize,
    length: usize,
    window: Option<Window>,
) -> AttentionQuery<'static> {
    let end = window.map_or(length, |window| length.min(position + window.after + 1));
    let hidden = window.map_or(0, |window| position.saturating_sub(window.before));
    AttentionQuery { visible: Visible::First(end), hidden, position }
}

/// The attention of some of an encoder's layers to some prompts.
pub(crate) struct PromptAttention<'a> {
    /// The queries of each prompt.
    queries: Vec<Vec<AttentionQuery<'static>>>,
    /// The same on a device.
    plan: Option<Plan<'a>>,
    bias: Option<&'a RelativeBias>,
}

impl<'a> PromptAttention<'a> {
    /// Creates the attention for hidden states `x` `[T, hidden]`. `lengths` are the numbers of tokens of the
    /// prompts; their sum is `T`.
    pub(crate) fn new(
        x: &Tensor,
        lengths: &[usize],
        window: Option<Window>,
        bias: Option<&'a RelativeBias>,
    ) -> Result<Self> {
        let mut queries = Vec::with_capacity(lengths.len());
        for &length in lengths {
            let positions = 0..length;
            queries.push(positions.map(|position| prompt_query(position, length, window)).collect());
        }
        let plan =
            if uses_kernels(x) { None } else { Some(Plan::new(slot_groups(&queries), bias, x.device())?) };
        Ok(Self { queries, plan, bias })
    }

    /// Computes queries, keys and values, and returns their attention `[T, H * D]`.
    pub(crate) fn attend(&self, input: &QkvInput<'_>) -> Result<Tensor> {
        match &self.plan {
            Some(plan) => Self::attend_on_device(plan, input),
            None => self.attend_on_cpu(input),
        }
    }

    fn attend_on_device(plan: &Plan<'_>, input: &QkvInput<'_>) -> Result<Tensor> {
        let QkvInput { x, qkv, heads, qk_norms, rope, rows } = *input;
        if qk_norms.is_none() && rope.is_none() {
            let projections = qkv.together(x, rows)?;
            return plan.attend(QkvSource::rows(&projections, heads, qkv.dtype())?, heads);
        }
        let count = x.dim(0)?;
        let [_, key_width, _] = qkv.widths();
        let slab = Tensor::zeros((2 * count, key_width), qkv.dtype(), x.device())?;
        let slots = Tensor::arange(0, count as u32, x.device())?;
        let q = input.store_and_query(&slab, &slots)?;
        plan.attend(QkvSource::cached(&q, &slab, heads, slab.dtype())?, heads)
    }

    fn attend_on_cpu(&self, input: &QkvInput<'_>) -> Result<Tensor> {
        let [q, keys, values] = input.parts()?;
        let mut prompts = Vec::with_capacity(self.queries.len());
        let mut first = 0;
        for queries in &self.queries {
            let count = queries.len();
            prompts.push(KeyValues {
                keys: keys.narrow(0, first, count)?,
                values: values.narrow(0, first, count)?,
            });
            first += count;
        }
        let mut groups = Vec::with_capacity(prompts.len());
        for (own, queries) in prompts.iter().zip(&self.queries) {
            groups.push(TensorGroup { before: Vec::new(), own, queries, phase: Phase::Prefill });
        }
        attend(&q, &groups, input.heads, self.bias)
    }
}

/// Returns a group for each prompt. The slot of a token is its index among the tokens of all prompts.
fn slot_groups(prompts: &[Vec<AttentionQuery<'static>>]) -> Vec<SlotGroup<'static>> {
    let mut groups = Vec::with_capacity(prompts.len());
    let mut first = 0;
    for queries in prompts {
        let end = first + queries.len() as u32;
        groups.push(SlotGroup::packed((first..end).collect(), queries.clone()));
        first = end;
    }
    groups
}
