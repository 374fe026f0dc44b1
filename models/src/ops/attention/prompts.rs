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
        let prompt = |&length: &usize| {
            (0..length).map(|position| prompt_query(position, length, window)).collect::<Vec<_>>()
        };
        let queries: Vec<_> = lengths.iter().map(prompt).collect();
        let mut plan = None;
        if !uses_kernels(x) {
            let mut first = 0;
            let group = |queries: &Vec<AttentionQuery<'static>>| {
                first += queries.len() as u32;
                SlotGroup::packed((first - queries.len() as u32..first).collect(), queries.clone())
            };
            plan = Some(Plan::new(queries.iter().map(group).collect(), bias, x.device())?);
        }
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
        let QkvInput { x, qkv, heads, head_norms, rope, rows } = *input;
        if head_norms.is_none() && rope.is_none() {
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
        let mut first = 0;
        let prompt = |queries: &Vec<AttentionQuery<'_>>| {
            let count = queries.len();
            let keys = keys.narrow(0, first, count)?;
            let values = values.narrow(0, first, count)?;
            first += count;
            Ok(KeyValues { keys, values })
        };
        let prompts = self.queries.iter().map(prompt).collect::<Result<Vec<_>>>()?;
        let phase = Phase::Prefill;
        let group = |(own, queries)| TensorGroup { before: Vec::new(), own, queries, phase };
        let groups: Vec<_> = prompts.iter().zip(self.queries.iter().map(Vec::as_slice)).map(group).collect();
        attend(&q, &groups, input.heads, self.bias)
    }
}
