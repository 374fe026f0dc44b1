//! Attention within concatenated prompts: every position attends to all positions of its prompt.

use candle_core::{Result, Tensor};
use ntl_kernels::{AttentionQuery, Heads, Phase, Visible};

use super::batched::Plan;
use super::bias::RelativeBias;
use super::heads::QkvSource;
use super::slot_groups::SlotGroup;
use super::{KeyValues, TensorGroup, attend};
use crate::ops::Linear;
use crate::ops::tensors::uses_kernels;

/// The attention of an encoder's layers to some prompts.
pub(crate) struct PromptAttention<'a> {
    /// The queries of each prompt.
    queries: Vec<Vec<AttentionQuery<'static>>>,
    /// The same on a device.
    plan: Option<Plan<'a>>,
    heads: Heads,
    bias: &'a RelativeBias,
}

impl<'a> PromptAttention<'a> {
    /// Creates the attention for hidden states `x` `[T, hidden]`. `lengths` are the numbers of tokens of the
    /// prompts; their sum is `T`.
    pub(crate) fn new(x: &Tensor, lengths: &[usize], heads: Heads, bias: &'a RelativeBias) -> Result<Self> {
        let prompt = |&length: &usize| {
            let query = |position| AttentionQuery { visible: Visible::First(length), hidden: 0, position };
            (0..length).map(query).collect::<Vec<_>>()
        };
        let queries: Vec<_> = lengths.iter().map(prompt).collect();
        let mut plan = None;
        if !uses_kernels(x) {
            let mut first = 0;
            let group = |queries: &Vec<AttentionQuery<'static>>| {
                first += queries.len() as u32;
                SlotGroup::packed((first - queries.len() as u32..first).collect(), queries.clone())
            };
            plan = Some(Plan::new(queries.iter().map(group).collect(), Some(bias), x.device())?);
        }
        Ok(Self { queries, plan, heads, bias })
    }

    /// Projects `x` `[T, hidden]` to queries, keys and values, and returns their attention `[T, H * D]`.
    pub(crate) fn attend(&self, x: &Tensor, qkv: &Linear<3>) -> Result<Tensor> {
        if let Some(plan) = &self.plan {
            let projections = qkv.together(x)?;
            return plan.attend(QkvSource::rows(&projections, self.heads, qkv.dtype())?, self.heads);
        }
        let [q, keys, values] = qkv.parts(x)?;
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
        attend(&q, &groups, self.heads, Some(self.bias))
    }
}
