//! Keys and values of all positions of all contexts on a device: one tensor a layer.
//!
//! A position is a slot (`slots`), the same in every layer. A pass writes those of its rows by one operation and reads those that it
//! attends to by another (`ops::PassKeys`), however many contexts there are. On the CPU the loops read a context's positions one behind the other
//! and in place, so there every context has tensors of its own (`kv_cache`).

use candle_core::{Device, Result, Tensor};

use super::shape::NodeShape;
use super::slots::{SlotPool, Slots};

/// Slots that there are at least.
const SLOTS_MIN: usize = 1024;

/// The tensors grow by at least one part in so many.
const GROWTH: usize = 4;

#[derive(Debug)]
pub(crate) struct Slab {
    shape: NodeShape,
    /// For each layer `[2 * capacity, width]`: the keys of all slots, then their values.
    layers: Vec<Tensor>,
    capacity: usize,
    pool: SlotPool,
}

impl Slab {
    pub(crate) fn new(shape: NodeShape) -> Self {
        Self { shape, layers: Vec::new(), capacity: 0, pool: SlotPool::default() }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.shape.device
    }

    /// A place for slots that are taken later.
    pub(crate) fn no_slots(&self) -> Slots {
        self.pool.none()
    }

    /// Takes so many slots, and makes room for them.
    pub(crate) fn take(&mut self, count: usize) -> Result<Slots> {
        if let Some(slots) = self.pool.take(count) {
            return Ok(slots);
        }
        let needed = self.capacity + count - self.pool.free();
        let (dtype, device) = (self.shape.dtype, self.shape.device.clone());
        let capacity = needed.max(self.capacity + self.capacity / GROWTH).max(SLOTS_MIN);
        self.grow(capacity, |shape| Tensor::zeros(&shape[..], dtype, &device))?;
        self.pool.take(count).ok_or_else(|| candle_core::Error::Msg(format!("no room for {count} positions")))
    }

    /// Takes slots for several holders, all of them one behind the other where a range has room.
    pub(crate) fn take_each(&mut self, counts: &[usize]) -> Result<Vec<Slots>> {
        let mut left = self.take(counts.iter().sum())?;
        let cut = |&count: &usize| {
            let others = left.split_off(count);
            std::mem::replace(&mut left, others)
        };
        Ok(counts.iter().map(cut).collect())
    }

    /// Layer by layer, so that no more than one of them is there twice. Values move behind all keys once every layer has room, so that
    /// where memory runs out before, what was written stays where it is.
    fn grow(
        &mut self,
        capacity: usize,
        mut allocate: impl FnMut([usize; 2]) -> Result<Tensor>,
    ) -> Result<()> {
        let (before, width) = (self.capacity, self.shape.width);
        let mut grown = Vec::with_capacity(self.shape.layers);
        for layer in 0..self.shape.layers {
            let larger = allocate([2 * capacity, width])?;
            if let Some(smaller) = self.layers.get_mut(layer) {
                larger.slice_set(smaller, 0, 0)?;
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
        self.pool.add(before as u32, capacity as u32);
        self.capacity = capacity;
        Ok(())
    }

    /// `[2 * capacity, width]`, to which passes write the keys and values of their rows.
    pub(crate) fn layer(&self, layer: usize) -> &Tensor {
        &self.layers[layer]
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    fn slab() -> Slab {
        Slab::new(NodeShape { layers: 2, width: 3, dtype: DType::F32, device: Device::Cpu })
    }

    /// Writes a number to the key of a slot, and 50 more to its value.
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
    fn what_was_written_stays_where_memory_runs_out_while_the_tensors_grow() {
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
            check(&slab);
            let more = slab.take(1500).unwrap();
            assert_eq!(slab.capacity, 1504);
            check(&slab);
            drop((taken, more));
        }
    }

    #[test]
    fn what_is_in_slots_stays_when_the_tensors_grow() {
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
        assert_eq!(slab.capacity, 2515, "what was given back is used again");
    }
}
