//! Attention of single positions over shared or separate keys: prompts of any length, chains, trees.
//!
//! Every row names its keys and which of them it sees. There is no padding, and no mask over a whole batch: a
//! row cannot see anything but its own keys, and its result cannot depend on the rest of the step.

mod batched;
mod bias;
mod heads;
mod prompts;
mod slot_groups;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::RwLockReadGuard;

use candle_core::{DType, Layout, Result, Storage, Tensor, WithDType};
use float8::F8E4M3;
use half::bf16;
use ntl_kernels::{AttentionGroup, AttentionQuery, Float, Heads, KvSlices, Phase};

#[cfg(feature = "cuda")]
pub(crate) use batched::Plan;
pub(crate) use bias::RelativeBias;
#[cfg(feature = "cuda")]
pub(crate) use heads::QkvSource;
pub(crate) use prompts::{PromptAttention, Window, prompt_query};
pub(crate) use slot_groups::SlotGroup;
pub(crate) use slots::{PassKeys, SlotView};

use super::tensors::{slice, slice_of};

/// Keys and values of one layer for one context: both `[N, H * D]`, position-major.
#[derive(Debug, Clone)]
pub(crate) struct KeyValues {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// Consecutive queries that attend to the same tensors.
#[derive(Debug, Clone)]
pub(crate) struct TensorGroup<'a> {
    /// Positions before `own`, all of them visible.
    pub(crate) before: Vec<&'a KeyValues>,
    pub(crate) own: &'a KeyValues,
    pub(crate) queries: &'a [AttentionQuery<'a>],
    pub(crate) phase: Phase,
}

/// Computes softmax attention on the CPU. [`PassKeys`] and [`PromptAttention`] compute the same on devices.
///
/// Axes: `R` rows, `H` query heads, `G` key heads, `D` width of a head.
/// * `q` is f32 `[R, H * D]`, one row per query of `groups`. Keys and values are `[N, G * D]`, all f32, all
///   bf16 or all fp8. Returns f32 `[R, H * D]`.
pub(crate) fn attend(
    q: &Tensor,
    groups: &[TensorGroup<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    match groups.first().map(|group| group.own.keys.dtype()) {
        Some(DType::BF16) => attend_to::<bf16>(q, groups, heads, bias),
        Some(DType::F8E4M3) => attend_to::<F8E4M3>(q, groups, heads, bias),
        _ => attend_to::<f32>(q, groups, heads, bias),
    }
}

/// Like [`attend`], with keys and values of type `E`.
fn attend_to<E: Float + WithDType>(
    q: &Tensor,
    groups: &[TensorGroup<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    let (count, width) = q.dims2()?;
    debug_assert_eq!(count, groups.iter().map(|group| group.queries.len()).sum::<usize>());
    debug_assert_eq!((width % heads.queries, heads.queries % heads.keys), (0, 0));
    let (storage, layout) = q.storage_and_layout();
    let locked: Vec<(Vec<Locked<'_>>, Locked<'_>)> = groups
        .iter()
        .map(|group| (group.before.iter().map(|kv| Locked::new(kv)).collect(), Locked::new(group.own)))
        .collect();
    let slices = groups.iter().zip(&locked).map(|(group, (before, own))| {
        Ok(AttentionGroup::<E> {
            before: before.iter().map(Locked::slices).collect::<Result<_>>()?,
            own: own.slices()?,
            queries: group.queries.to_vec(),
            phase: group.phase,
        })
    });
    let slices = slices.collect::<Result<Vec<_>>>()?;
    let out = ntl_kernels::attend(slice(&storage, layout)?, &slices, heads, bias.map(|bias| &bias.values));
    Tensor::from_vec(out, (count, width), q.device())
}

/// Read locks on the storage of keys and values.
struct Locked<'a> {
    keys: (RwLockReadGuard<'a, Storage>, &'a Layout),
    values: (RwLockReadGuard<'a, Storage>, &'a Layout),
}

impl<'a> Locked<'a> {
    fn new(kv: &'a KeyValues) -> Self {
        Self { keys: kv.keys.storage_and_layout(), values: kv.values.storage_and_layout() }
    }

    fn slices<E: WithDType>(&self) -> Result<KvSlices<'_, E>> {
        Ok(KvSlices {
            keys: slice_of(&self.keys.0, self.keys.1)?,
            values: slice_of(&self.values.0, self.values.1)?,
        })
    }
}
