//! Low-rank changes of linear layers (LoRA, arXiv 2106.09685): for the rows of an adapter, the output of a
//! layer is `W x + B A x`.
//!
//! One pass may contain rows of several adapters and rows without one. The matmul with `W` is computed for
//! all rows together, and the changes adapter by adapter. Everything of an adapter is f32. On the CPU a row's
//! change is bit-identical alone and with other rows, and added after the complete matmul, so the sum is,
//! too.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use ntl_kernels::{Format, Matrix};
use rayon::prelude::*;

use super::tensors::slice;
use super::{Placement, Replacement, Weight};

/// A linear layer among those of a model that adapters can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site(pub(crate) usize);

/// The change of some consecutive outputs: `b * a`.
pub(crate) struct Change {
    /// Index of the first output.
    pub(crate) first: usize,
    /// f32 `[r, in]`.
    pub(crate) a: Tensor,
    /// f32 `[outputs, r]`, with the scale of the adapter.
    pub(crate) b: Tensor,
}

/// The changes of one layer.
struct LowRank {
    /// All `A` of the layer, one after the other, `[R, in]`.
    down: Weight,
    ups: Vec<Up>,
}

/// The rows of a `B` whose outputs are in one part of the layer.
struct Up {
    /// Index of the first output.
    first: usize,
    outputs: usize,
    /// The outputs of `down` that it reads.
    ranks: Range<usize>,
    /// `[outputs, r]`.
    weight: Weight,
}

/// The change of a layer by an adapter, on the CPU.
pub(crate) enum SiteChange {
    /// Low-rank changes, maybe none.
    LowRank(Vec<Change>),
    /// Another layer, f32 `[outputs, inputs]` and `[outputs]`.
    Replacement { weight: Tensor, bias: Option<Tensor> },
}

/// The weights of one adapter.
pub(crate) struct AdapterWeights {
    /// The changes of each layer, by site.
    layers: Vec<Option<LayerChange>>,
}

enum LayerChange {
    LowRank(LowRank),
    Replacement(Replacement),
}

/// The rows of a pass that have adapters.
#[derive(Default)]
pub(crate) struct AdaptedRows(Vec<AdapterRows>);

/// The rows of a pass that have the same adapter.
struct AdapterRows {
    weights: Arc<AdapterWeights>,
    rows: Vec<u32>,
    /// Whether these are all rows of the pass.
    are_all: bool,
}

impl LowRank {
    /// Combines the changes of a layer, at least one, whose outputs have parts of these widths.
    fn new(changes: &[Change], widths: &[usize], place: &Placement) -> Result<Self> {
        let place = Placement { dtype: DType::F32, format: Format::F32, ..place.clone() };
        let mut ups = Vec::new();
        let mut rank = 0;
        for Change { first, a, b } in changes {
            let ranks = rank..rank + a.dim(0)?;
            rank = ranks.end;
            let mut part_end = 0;
            for width in widths {
                let part = part_end..part_end + width;
                part_end = part.end;
                let from = part.start.max(*first);
                let outputs = part.end.min(first + b.dim(0)?).saturating_sub(from);
                if outputs > 0 {
                    let weight = b.narrow(0, from - first, outputs)?.contiguous()?;
                    let weight = Weight::new(weight.to_device(&place.device)?, &place)?;
                    ups.push(Up { first: from, outputs, ranks: ranks.clone(), weight });
                }
            }
        }
        let a: Vec<&Tensor> = changes.iter().map(|change| &change.a).collect();
        let down = Weight::new(Tensor::cat(&a, 0)?.to_device(&place.device)?, &place)?;
        Ok(Self { down, ups })
    }

    /// Adds the change of rows `x`, `[rows, in]`, to the parts of their outputs, on the CPU.
    fn add<const P: usize>(&self, x: &[f32], rows: &mut [[&mut [f32]; P]]) -> Result<()> {
        let down = packed(&self.down)?;
        let rank = down.outputs();
        let inner = down.product(x, rows.len());
        for Up { first, outputs, ranks, weight } in &self.ups {
            let inner: Cow<'_, [f32]> = if ranks.len() == rank {
                Cow::Borrowed(&inner)
            } else {
                inner.chunks_exact(rank).flat_map(|row| &row[ranks.clone()]).copied().collect()
            };
            let values = packed(weight)?.product(&inner, rows.len());
            for (parts, values) in rows.iter_mut().zip(values.chunks_exact(*outputs)) {
                let mut start = 0;
                for part in parts {
                    let end = start + part.len();
                    if (start..end).contains(first) {
                        ntl_kernels::add(&mut part[first - start..][..*outputs], values);
                    }
                    start = end;
                }
            }
        }
        Ok(())
    }

    /// Returns the change of rows `x`, `[rows, in]`, as f32 `[rows, outputs]`, with candle's operations.
    fn composed(&self, x: &Tensor, outputs: usize) -> Result<Tensor> {
        let inner = self.down.forward(x)?;
        let sum = Tensor::zeros((x.dim(0)?, outputs), DType::F32, x.device())?;
        for Up { first, ranks, weight, .. } in &self.ups {
            let inner = inner.narrow(1, ranks.start, ranks.len())?.contiguous()?;
            sum.slice_set(&weight.forward(&inner)?.contiguous()?, 1, *first)?;
        }
        Ok(sum)
    }
}

fn packed(weight: &Weight) -> Result<&Matrix> {
    match weight {
        Weight::Packed(matrix) => Ok(matrix),
        Weight::Whole(_) => candle_core::bail!("an adapter is not on the device of its model"),
    }
}

impl AdapterWeights {
    /// Creates the weights from the change of every site, and the widths of its parts.
    pub(crate) fn new<'a>(
        sites: impl Iterator<Item = (&'a SiteChange, &'a [usize])>,
        place: &Placement,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        for (change, widths) in sites {
            layers.push(match change {
                SiteChange::LowRank(changes) if changes.is_empty() => None,
                SiteChange::LowRank(changes) => {
                    Some(LayerChange::LowRank(LowRank::new(changes, widths, place)?))
                }
                SiteChange::Replacement { weight, bias } => {
                    Some(LayerChange::Replacement(Replacement::new(weight, bias.as_ref(), place)?))
                }
            });
        }
        Ok(Self { layers })
    }

    fn at(&self, site: Site) -> Option<&LayerChange> {
        self.layers.get(site.0)?.as_ref()
    }
}

impl AdaptedRows {
    /// Creates the rows of a pass from consecutive groups: the adapter of a group and its number of rows.
    pub(crate) fn new<'a>(
        groups: impl IntoIterator<Item = (Option<&'a Arc<AdapterWeights>>, usize)>,
    ) -> Self {
        let mut adapters: Vec<AdapterRows> = Vec::new();
        let mut index = HashMap::new();
        let mut end = 0;
        for (weights, count) in groups {
            let rows = end..end + count as u32;
            end = rows.end;
            let Some(weights) = weights else { continue };
            let at = *index.entry(Arc::as_ptr(weights)).or_insert_with(|| {
                adapters.push(AdapterRows { weights: Arc::clone(weights), rows: Vec::new(), are_all: false });
                adapters.len() - 1
            });
            adapters[at].rows.extend(rows);
        }
        for adapter in &mut adapters {
            adapter.are_all = adapter.rows.len() == end as usize;
        }
        Self(adapters)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the groups that change a layer.
    fn at(&self, site: Option<Site>) -> Vec<(&AdapterRows, &LowRank)> {
        let Some(site) = site else { return Vec::new() };
        let changes = self.0.iter().filter_map(|group| match group.weights.at(site)? {
            LayerChange::LowRank(low_rank) => Some((group, low_rank)),
            LayerChange::Replacement(_) => None,
        });
        changes.collect()
    }

    /// Returns the rows of the groups that replace a layer.
    fn replacing(&self, site: Option<Site>) -> Vec<(&[u32], &Replacement)> {
        let Some(site) = site else { return Vec::new() };
        let layers = self.0.iter().filter_map(|group| match group.weights.at(site)? {
            LayerChange::LowRank(_) => None,
            LayerChange::Replacement(layer) => Some((group.rows.as_slice(), layer)),
        });
        layers.collect()
    }

    /// Returns the output `y` `[R, outputs]` of a layer with the input `x` `[R, inputs]`, with the rows of
    /// the adapters that replace the layer.
    pub(super) fn replaced(&self, site: Option<Site>, x: &Tensor, y: Tensor) -> Result<Tensor> {
        let groups = self.replacing(site);
        if groups.is_empty() {
            return Ok(y);
        }
        let count = y.dim(0)?;
        let (dtype, device) = (y.dtype(), y.device().clone());
        let mut sources: Vec<u32> = (0..count as u32).collect();
        let mut outputs = vec![y];
        let mut end = count as u32;
        for (rows, replacement) in groups {
            for &row in rows {
                sources[row as usize] = end;
                end += 1;
            }
            let rows = Tensor::from_slice(rows, rows.len(), &device)?;
            outputs.push(replacement.forward(&x.index_select(&rows, 0)?)?.to_dtype(dtype)?);
        }
        Tensor::cat(&outputs, 0)?.index_select(&Tensor::from_vec(sources, count, &device)?, 0)
    }

    /// Adds the changes of a layer with the input `x` `[R, in]` to the parts `[R, width]` of its output, on
    /// the CPU.
    pub(super) fn add<const P: usize>(
        &self,
        site: Option<Site>,
        x: &Tensor,
        parts: &mut [Vec<f32>; P],
        widths: [usize; P],
    ) -> Result<()> {
        let groups = self.at(site);
        if groups.is_empty() {
            return Ok(());
        }
        let (storage, layout) = x.storage_and_layout();
        let (x, inputs) = (slice(&storage, layout)?, x.dim(1)?);
        let mut rows = rows_of(parts, widths);
        // A row has at most one adapter, so the adapters change disjoint rows.
        let mut changes: Vec<_> = groups
            .into_iter()
            .map(|(group, low_rank)| {
                let own_rows = group.rows.iter().filter_map(|&row| rows[row as usize].take());
                (group, low_rank, own_rows.collect::<Vec<_>>())
            })
            .collect();
        changes
            .par_iter_mut()
            .try_for_each(|(group, low_rank, rows)| low_rank.add(&group.gathered(x, inputs), rows))
    }

    /// Returns the changes of a layer with the input `x` `[R, in]` as f32 `[R, outputs]`, composed of
    /// candle's operations; `None` if no adapter changes the layer.
    pub(super) fn change(&self, site: Option<Site>, x: &Tensor, outputs: usize) -> Result<Option<Tensor>> {
        let groups = self.at(site);
        if groups.is_empty() {
            return Ok(None);
        }
        let x = x.to_dtype(DType::F32)?;
        if let [(group, low_rank)] = groups[..]
            && group.are_all
        {
            return low_rank.composed(&x, outputs).map(Some);
        }
        let mut sum = Tensor::zeros((x.dim(0)?, outputs), DType::F32, x.device())?;
        for (group, low_rank) in groups {
            let rows = Tensor::from_slice(&group.rows, group.rows.len(), x.device())?;
            let change = low_rank.composed(&x.index_select(&rows, 0)?, outputs)?;
            sum = sum.index_add(&rows, &change, 0)?;
        }
        Ok(Some(sum))
    }
}

/// Returns the rows of parts `[R, width]`, each with its place in every part.
fn rows_of<const P: usize>(parts: &mut [Vec<f32>; P], widths: [usize; P]) -> Vec<Option<[&mut [f32]; P]>> {
    let count = parts[0].len() / widths[0];
    let mut parts = parts.each_mut().map(|part| part.as_mut_slice());
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let row = std::array::from_fn(|part| parts[part].split_off_mut(..widths[part]).unwrap_or_default());
        rows.push(Some(row));
    }
    rows
}

impl AdapterRows {
    /// Returns its rows of `x`, `[R, inputs]`.
    fn gathered<'a>(&self, x: &'a [f32], inputs: usize) -> Cow<'a, [f32]> {
        if self.are_all {
            return Cow::Borrowed(x);
        }
        let mut gathered = Vec::with_capacity(self.rows.len() * inputs);
        for &row in &self.rows {
            gathered.extend_from_slice(&x[row as usize * inputs..][..inputs]);
        }
        Cow::Owned(gathered)
    }
}
