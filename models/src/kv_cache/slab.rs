//! Keys and values of all positions of all contexts on a device: one tensor per layer.
//!
//! A position is a slot (`slots`), the same in every layer. A pass writes the positions of its rows with one
//! operation and reads the positions that it attends to with another (`ops::PassKeys`), regardless of the
//! number of contexts.

use candle_core::{Result, Tensor};
use ntl_core::contract::NodeCapacity;
use ntl_core::failpoint;

use super::TOKENS_AT_ONCE_ON_DEVICES;
use super::slots::{SlotPool, Slots};
use super::store::{
    KeyGroup, KeyView, KvPass, KvStore, Location, PositionShape, Positions, WrittenRows, not_here,
};
use crate::ops::{Heads, KvInput, PassKeys, QkvInput, SlotGroup, SlotView, StepInputs};

/// Minimum number of slots.
const SLOTS_MIN: usize = 1024;

/// The tensors grow by at least 1 / `GROWTH` of their size.
const GROWTH: usize = 4;

/// The failpoint before each tensor of a growth.
const GROWING: &str = "kv-cache-growth";

#[derive(Debug)]
pub(super) struct Slab {
    shape: PositionShape,
    /// For each layer, `[2 * capacity, width]`: the keys of all slots, then their values.
    layers: Vec<Tensor>,
    capacity: usize,
    /// Changes whenever a tensor of `layers`, or its values, moves. A growth that fails may have moved some
    /// of them.
    generation: usize,
    pool: SlotPool,
}

impl Slab {
    pub(super) fn new(shape: PositionShape) -> Self {
        Self { shape, layers: Vec::new(), capacity: 0, generation: 0, pool: SlotPool::default() }
    }

    /// Allocates `count` slots, and grows the tensors if necessary.
    fn take(&mut self, count: usize) -> Result<Slots> {
        self.reserve(count)?;
        self.pool.take(count).ok_or_else(|| candle_core::Error::Msg(format!("no room for {count} positions")))
    }

    /// Grows layer by layer, so that at most one layer exists twice. Values move to their place after all
    /// keys only once every layer has grown, so that the existing contents stay in place if memory runs out
    /// earlier.
    fn grow(
        &mut self,
        capacity: usize,
        mut allocate: impl FnMut([usize; 2]) -> Result<Tensor>,
    ) -> Result<()> {
        let before = self.capacity;
        let width = self.shape.width;
        let mut grown = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let larger = allocate([2 * capacity, width])?;
            if let Some(smaller) = self.layers.get_mut(layer) {
                larger.slice_set(smaller, 0, 0)?;
                self.generation += 1;
                *smaller = larger.narrow(0, 0, 2 * before)?;
            }
            grown.push(larger);
        }
        if before > 0 {
            let values = allocate([before, width])?;
            for layer in &grown {
                values.slice_set(&layer.narrow(0, before, before)?, 0, 0)?;
                layer.slice_set(&values, 0, capacity)?;
            }
        }
        self.layers = grown;
        self.generation += 1;
        self.pool.add(before as u32, capacity as u32);
        self.capacity = capacity;
        Ok(())
    }

    /// Returns `[2 * capacity, width]`, to which passes write the keys and values of their rows.
    fn layer(&self, layer: usize) -> &Tensor {
        &self.layers[layer]
    }
}

impl Positions {
    fn slots(&self) -> &[u32] {
        match &self.0 {
            Location::Tensors(_) => &[],
            Location::Slots(slots) => slots.numbers(),
        }
    }
}

impl KvStore for Slab {
    fn shape(&self) -> &PositionShape {
        &self.shape
    }

    fn capacity(&self) -> NodeCapacity {
        NodeCapacity::Exact
    }

    fn prefill_tokens_max(&self) -> usize {
        TOKENS_AT_ONCE_ON_DEVICES
    }

    fn reserve(&mut self, count: usize) -> Result<()> {
        let free = self.pool.free();
        if count <= free {
            return Ok(());
        }
        let needed = self.capacity + count - free;
        let capacity = needed.max(self.capacity + self.capacity / GROWTH).max(SLOTS_MIN);
        let dtype = self.shape.dtype;
        let device = self.shape.device.clone();
        self.grow(capacity, |shape| {
            failpoint::check(GROWING)?;
            Tensor::zeros(&shape[..], dtype, &device)
        })
    }

    fn none(&self) -> Positions {
        Positions(Location::Slots(self.pool.none()))
    }

    fn allocate(&mut self, count: usize) -> Result<Positions> {
        Ok(Positions(Location::Slots(self.take(count)?)))
    }

    fn extend(&mut self, positions: &mut Positions, count: usize) -> Result<()> {
        let Location::Slots(slots) = &mut positions.0 else { return not_here() };
        slots.append(self.take(count.saturating_sub(slots.numbers().len()))?);
        Ok(())
    }

    fn split(&self, positions: Positions, lengths: &[usize]) -> Result<Vec<Positions>> {
        let Location::Slots(mut left) = positions.0 else { return not_here() };
        let mut parts = Vec::with_capacity(lengths.len());
        for &length in lengths {
            let others = left.split_off(length);
            parts.push(Positions(Location::Slots(std::mem::replace(&mut left, others))));
        }
        Ok(parts)
    }

    fn bytes(&self, count: usize) -> usize {
        count * self.shape.bytes() as usize
    }

    fn pass<'a>(
        &'a self,
        written: &[WrittenRows<'a>],
        views: Vec<KeyView<'a>>,
    ) -> Result<Box<dyn KvPass + 'a>> {
        let written = written.iter().flat_map(|rows| &rows.positions.slots()[rows.first..][..rows.count]);
        let written: Vec<u32> = written.copied().collect();
        let views = views.into_iter().map(slot_view).collect();
        Ok(Box::new(SlabPass { slab: self, keys: PassKeys::new(&written, views, &self.shape.device)? }))
    }
}

fn slot_view(KeyView { groups, bias }: KeyView<'_>) -> SlotView<'_> {
    let mut slot_groups = Vec::with_capacity(groups.len());
    for KeyGroup { before, own, queries, .. } in groups {
        let before = before.iter().flat_map(|before| before.slots()).copied().collect();
        slot_groups.push(SlotGroup::new(before, own.slots(), queries));
    }
    SlotView { groups: slot_groups, bias }
}

struct SlabPass<'a> {
    slab: &'a Slab,
    keys: PassKeys<'a>,
}

impl KvPass for SlabPass<'_> {
    fn inputs(&self) -> Option<StepInputs> {
        let mut inputs = self.keys.inputs()?;
        // A graph has the addresses of the tensors.
        inputs.shape.push(self.slab.generation);
        Some(inputs)
    }

    fn write(&self, layer: usize, input: &QkvInput<'_>) -> Result<Tensor> {
        input.store_and_query(self.slab.layer(layer), &self.keys.written)
    }

    fn write_keys_and_values(&self, layer: usize, input: &KvInput<'_>) -> Result<()> {
        input.store(self.slab.layer(layer), &self.keys.written)
    }

    fn attend(&self, layer: usize, view: usize, q: &Tensor, heads: Heads) -> Result<Tensor> {
        self.keys.attentions[view].attend(q, self.slab.layer(layer), heads, self.slab.shape.results)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    fn slab() -> Slab {
        let (dtype, results, device) = (DType::F32, DType::F32, Device::Cpu);
        Slab::new(PositionShape { layers: 2, width: 3, dtype, results, device })
    }

    /// Writes a number to the key of a slot, and the number plus 50 to its value.
    fn write(slab: &Slab, layer: usize, slot: usize, number: u32) {
        for (from, number) in [(0, number), (slab.capacity, number + 50)] {
            let row = Tensor::full(number as f32, (1, 3), &Device::Cpu).unwrap();
            slab.layer(layer).slice_set(&row, 0, from + slot).unwrap();
        }
    }

    fn read(slab: &Slab, layer: usize, at: usize) -> f32 {
        slab.layer(layer).get(at).unwrap().get(2).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn contents_stay_intact_if_memory_runs_out_while_the_tensors_grow() {
        for failing in 0..3 {
            let mut slab = slab();
            let taken = slab.take(4).unwrap();
            for (layer, slot) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
                write(&slab, layer, slot, slot as u32);
            }
            let check = |slab: &Slab| {
                for (layer, slot) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
                    let got = [read(slab, layer, slot), read(slab, layer, slab.capacity + slot)];
                    assert_eq!(
                        got.map(|got| got as usize),
                        [slot, slot + 50],
                        "layer {layer}, tensor {failing}"
                    );
                }
            };
            let before = slab.generation;
            let mut allocated = 0;
            let grown = slab.grow(2000, |shape| {
                allocated += 1;
                if allocated > failing {
                    candle_core::bail!("out of memory");
                }
                Tensor::zeros(&shape[..], DType::F32, &Device::Cpu)
            });
            assert!(grown.is_err());
            assert_eq!(slab.capacity, SLOTS_MIN);
            // The first allocation is the larger tensor of the first layer.
            assert_eq!(
                slab.generation != before,
                failing > 0,
                "graphs must not read a tensor that has moved"
            );
            check(&slab);
            let more = slab.take(1500).unwrap();
            assert_eq!(slab.capacity, 1504);
            check(&slab);
            drop((taken, more));
        }
    }

    #[test]
    fn the_contents_of_slots_survive_the_growth_of_the_tensors() {
        let mut slab = slab();
        let mut taken = slab.take(12).unwrap();
        assert_eq!(slab.capacity, SLOTS_MIN);
        let written = [(0, 0), (0, 2), (0, 9), (1, 1), (1, 5), (1, 11)];
        for (layer, slot) in written {
            write(&slab, layer, slot, (slot + 100 * layer) as u32);
        }
        let check = |slab: &Slab| {
            for (layer, slot) in written {
                let want = (slot + 100 * layer) as f32;
                assert_eq!(read(slab, layer, slot).to_bits(), want.to_bits());
                assert_eq!(read(slab, layer, slab.capacity + slot).to_bits(), (want + 50.0).to_bits());
            }
        };
        check(&slab);
        taken.append(slab.take(2000).unwrap());
        assert_eq!(slab.capacity, 2012);
        check(&slab);
        taken.append(slab.take(1).unwrap());
        assert_eq!(slab.capacity, 2012 + 503, "by a quarter at least");
        check(&slab);
        drop(taken);
        drop(slab.take(2515).unwrap());
        assert_eq!(slab.capacity, 2515, "released slots are reused");
    }
}
