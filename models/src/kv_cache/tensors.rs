//! Keys and values on the CPU: separate tensors for each context and layer, which the kernels read
//! sequentially and in place.

use candle_core::{Result, Tensor};
use ntl_core::contract::{NodeCapacity, PREFILL_TOKENS_MAX};
use rayon::prelude::*;

use super::store::{KeyView, KvPass, KvStore, Location, PositionShape, Positions, WrittenRows, not_here};
use crate::ops::{Heads, KeyValues, KvInput, QkvInput, TensorGroup, attend};

/// Initial capacity for the nodes of one context. It doubles when it is full.
const CAPACITY_MIN: usize = 32;

/// Number of rows from which their keys and values are copied in parallel.
const PARALLEL_MIN: usize = 32;

/// Size of a tensor without its elements: the tensor, its storage and its shape, in bytes.
const TENSOR: usize = 384;

pub(super) struct TensorStore {
    shape: PositionShape,
}

impl TensorStore {
    pub(super) fn new(shape: PositionShape) -> Self {
        Self { shape }
    }

    /// Returns keys or values of one layer.
    fn zeros(&self, capacity: usize) -> Result<Tensor> {
        Tensor::zeros((capacity, self.shape.width), self.shape.dtype, &self.shape.device)
    }

    /// Grows layer by layer, so that at most one layer exists twice.
    fn grow(&self, layers: &mut Vec<KeyValues>, capacity: usize) -> Result<()> {
        let mut old = std::mem::take(layers).into_iter();
        for _ in 0..self.shape.layers {
            let (keys, values) = old.next().map(|kv| (kv.keys, kv.values)).unzip();
            let keys = self.grown(keys, capacity)?;
            let values = self.grown(values, capacity)?;
            layers.push(KeyValues { keys, values });
        }
        Ok(())
    }

    fn grown(&self, old: Option<Tensor>, capacity: usize) -> Result<Tensor> {
        let new = self.zeros(capacity)?;
        if let Some(old) = old {
            new.slice_set(&old, 0, 0)?;
        }
        Ok(new)
    }
}

impl Positions {
    fn tensors(&self) -> &[KeyValues] {
        match &self.0 {
            Location::Tensors(layers) => layers,
            Location::Slots(_) => &[],
        }
    }

    fn copy(&self, first: usize, count: usize) -> Result<Self> {
        let mut layers = Vec::with_capacity(self.tensors().len());
        for KeyValues { keys, values } in self.tensors() {
            layers.push(KeyValues {
                keys: keys.narrow(0, first, count)?.force_contiguous()?,
                values: values.narrow(0, first, count)?.force_contiguous()?,
            });
        }
        Ok(Self(Location::Tensors(layers)))
    }
}

/// Returns a copy of the first `count` rows of consecutive parts.
fn first_rows(parts: &[&Tensor], count: usize) -> Result<Tensor> {
    let mut copied = Vec::with_capacity(parts.len());
    let mut left = count;
    for part in parts {
        let rows = left.min(part.dim(0)?);
        copied.push(part.narrow(0, 0, rows)?);
        left -= rows;
    }
    Tensor::cat(&copied, 0)?.force_contiguous()
}

impl KvStore for TensorStore {
    fn shape(&self) -> &PositionShape {
        &self.shape
    }

    fn capacity(&self) -> NodeCapacity {
        NodeCapacity::PowerOfTwo { min: CAPACITY_MIN }
    }

    fn prefill_tokens_max(&self) -> usize {
        PREFILL_TOKENS_MAX
    }

    fn reserve(&mut self, _count: usize) -> Result<()> {
        Ok(())
    }

    fn none(&self) -> Positions {
        Positions(Location::Tensors(Vec::new()))
    }

    fn allocate(&mut self, count: usize) -> Result<Positions> {
        // Clearing the memory of long prompts takes as long as some layers.
        let layers = (0..self.shape.layers)
            .into_par_iter()
            .map(|_| Ok(KeyValues { keys: self.zeros(count)?, values: self.zeros(count)? }))
            .collect::<Result<_>>()?;
        Ok(Positions(Location::Tensors(layers)))
    }

    fn extend(&mut self, positions: &mut Positions, count: usize) -> Result<()> {
        let Location::Tensors(layers) = &mut positions.0 else { return not_here() };
        let capacity = layers.first().map_or(Ok(0), |kv| kv.keys.dim(0))?;
        if count <= capacity {
            return Ok(());
        }
        self.grow(layers, count.next_power_of_two().max(CAPACITY_MIN))
    }

    /// Copies every part.
    fn split(&self, positions: Positions, lengths: &[usize]) -> Result<Vec<Positions>> {
        let mut parts = Vec::with_capacity(lengths.len());
        let mut first = 0;
        for &length in lengths {
            parts.push(positions.copy(first, length)?);
            first += length;
        }
        Ok(parts)
    }

    fn copy_first(&self, parts: &[&Positions], count: usize) -> Result<Option<Positions>> {
        let mut layers = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let parts = parts.iter().filter_map(|part| part.tensors().get(layer));
            let (keys, values): (Vec<_>, Vec<_>) = parts.map(|kv| (&kv.keys, &kv.values)).unzip();
            layers.push(KeyValues { keys: first_rows(&keys, count)?, values: first_rows(&values, count)? });
        }
        Ok(Some(Positions(Location::Tensors(layers))))
    }

    fn bytes(&self, count: usize) -> usize {
        2 * self.shape.layers * TENSOR + count * self.shape.bytes() as usize
    }

    fn pass<'a>(
        &'a self,
        written: &[WrittenRows<'a>],
        views: Vec<KeyView<'a>>,
    ) -> Result<Box<dyn KvPass + 'a>> {
        Ok(Box::new(TensorPass { written: written.to_vec(), views }))
    }
}

struct TensorPass<'a> {
    written: Vec<WrittenRows<'a>>,
    views: Vec<KeyView<'a>>,
}

impl TensorPass<'_> {
    /// Writes keys and values `[R, width]` in the type of the store.
    fn store(&self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        let mut first_row = 0;
        for rows in &self.written {
            let kv = &rows.positions.tensors()[layer];
            if rows.count < PARALLEL_MIN {
                copy_rows(keys, first_row, &kv.keys, rows)?;
                copy_rows(values, first_row, &kv.values, rows)?;
            } else {
                let (keys, values) = rayon::join(
                    || copy_rows(keys, first_row, &kv.keys, rows),
                    || copy_rows(values, first_row, &kv.values, rows),
                );
                keys.and(values)?;
            }
            first_row += rows.count;
        }
        Ok(())
    }
}

/// Copies rows of `from`, which begin at `first_row`, to their positions in `to`.
fn copy_rows(from: &Tensor, first_row: usize, to: &Tensor, rows: &WrittenRows<'_>) -> Result<()> {
    let from = from.narrow(0, first_row, rows.count)?.to_dtype(to.dtype())?;
    to.slice_set(&from, 0, rows.first)
}

impl KvPass for TensorPass<'_> {
    fn write(&self, layer: usize, input: &QkvInput<'_>) -> Result<Tensor> {
        let [q, keys, values] = input.parts()?;
        self.store(layer, &keys, &values)?;
        Ok(q)
    }

    fn write_keys_and_values(&self, layer: usize, input: &KvInput<'_>) -> Result<()> {
        let [keys, values] = input.parts()?;
        self.store(layer, &keys, &values)
    }

    fn attend(&self, layer: usize, view: usize, q: &Tensor, heads: Heads) -> Result<Tensor> {
        let KeyView { groups, bias } = &self.views[view];
        let groups = groups.iter().map(|group| TensorGroup {
            before: group.before.iter().map(|before| &before.tensors()[layer]).collect(),
            own: &group.own.tensors()[layer],
            queries: &group.queries,
            phase: group.phase,
        });
        attend(q, &groups.collect::<Vec<_>>(), heads, *bias)
    }
}
