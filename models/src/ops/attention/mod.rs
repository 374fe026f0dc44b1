//! Attention of single positions over keys that they share or do not share: prompts of any length, chains, trees.
//!
//! Every row names its keys and which of them it sees. There is no padding and no mask over a whole batch: a row cannot
//! see anything but its own keys, and its result cannot depend on what else is in the step.

mod batched;
mod groups;
mod heads;
mod rows;
mod slots;
#[cfg(test)]
mod tests;

use std::sync::RwLockReadGuard;

use candle_core::{DType, Layout, Result, Storage, Tensor, WithDType};
use half::bf16;
use ntl_kernels::{AttentionGroup, Float, Heads, KvSlices};

pub(crate) use batched::Plan;
pub(crate) use groups::KeyGroup;
pub(crate) use heads::HeadSource;
pub(crate) use rows::{AttentionRow, KeyValues, RelativeBias};
pub(crate) use slots::{KeyView, PassKeys};

use super::tensors::{slice, slice_of};

/// Softmax attention on the CPU; [`PassKeys`] and a [`Plan`] compute the same on devices.
///
/// Axes: `R` rows, `H` query heads, `G` key heads, `D` width of a head.
/// * `q` f32 `[R, H * D]`, one row per entry of `rows`, whose keys and values are `[N, G * D]`, all f32 or all bf16; returns f32
///   `[R, H * D]`
pub(crate) fn attend(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    match rows.first().map(|row| row.kv.keys.dtype()) {
        Some(DType::BF16) => attend_to::<bf16>(q, rows, heads, bias),
        _ => attend_to::<f32>(q, rows, heads, bias),
    }
}

/// The same with keys and values of this type.
fn attend_to<E: Float + WithDType>(
    q: &Tensor,
    rows: &[AttentionRow<'_>],
    heads: Heads,
    bias: Option<&RelativeBias>,
) -> Result<Tensor> {
    let (count, width) = q.dims2()?;
    debug_assert_eq!((count, width % heads.queries, heads.queries % heads.keys), (rows.len(), 0, 0));
    let (storage, layout) = q.storage_and_layout();
    let groups: Vec<&[AttentionRow<'_>]> = rows.chunk_by(AttentionRow::shares_keys).collect();
    let locked: Vec<_> = groups.iter().map(|rows| lock(&rows[0])).collect();
    let slices = groups.iter().zip(&locked).map(|(rows, (before, own))| {
        Ok(AttentionGroup::<E> {
            before: before.iter().map(Locked::slices).collect::<Result<_>>()?,
            own: own.slices()?,
            queries: rows.iter().map(|row| row.query).collect(),
        })
    });
    let slices = slices.collect::<Result<Vec<_>>>()?;
    let out = ntl_kernels::attend(slice(&storage, layout)?, &slices, heads, bias.map(|bias| &bias.values));
    Tensor::from_vec(out, (count, width), q.device())
}

/// Locks the keys and values that a row sees, those before its own first.
fn lock<'a>(row: &AttentionRow<'a>) -> (Vec<Locked<'a>>, Locked<'a>) {
    (row.before.iter().map(|kv| Locked::new(kv)).collect(), Locked::new(row.kv))
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
