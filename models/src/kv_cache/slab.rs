//! Keys and values of all positions of all contexts on a device: one tensor a layer.
//!
//! A position is a slot (`slots`), the same in every layer. A pass writes those of its rows by one operation and reads those that it
//! attends to by another, however many contexts there are. On the CPU the loops read a context's positions one behind the other
//! and in place, so there every context has tensors of its own (`kv_cache`).

use candle_core::{Device, Result, Tensor};

use super::shape::NodeShape;
use super::slots::{SlotPool, Slots};

/// Slots that there are at least.
const SLOTS_MIN: usize = 1024;

/// The tensors grow by at least one part in so many.
const GROWTH: usize = 4;

/// Runs of slots that are written one by one, and for how many rows there may be one more: the one operation for all of many rows
/// goes through them one after the other.
const RUNS_MAX: usize = 2;
const ROWS_A_RUN: usize = 64;

#[derive(Debug)]
pub(crate) struct Slab {
    shape: NodeShape,
    /// For each layer `[2 * capacity, width]`: the keys of all slots, then their values.
    layers: Vec<Tensor>,
    capacity: usize,
    pool: SlotPool,
}

/// Where the keys and values of a pass's rows go.
pub(crate) struct SlotWrite {
    runs: Vec<Run>,
    /// The places of keys, then those of values, u32 `[2 * rows, width]`; none where the runs are few.
    places: Option<Tensor>,
}

/// Where rows go whose keys and values are beside each other.
pub(crate) struct RowWrite {
    /// The places of each row's keys and of its values, u32 `[2 * rows, width]`.
    places: Tensor,
}

/// Rows whose slots follow each other.
#[derive(Debug, Clone, Copy)]
struct Run {
    first_row: usize,
    rows: usize,
    slot: usize,
}

impl Slab {
    pub(crate) fn new(shape: NodeShape) -> Self {
        Self { shape, layers: Vec::new(), capacity: 0, pool: SlotPool::default() }
    }

    /// Slots that there are; values are so many rows behind keys.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
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

    /// A pass whose rows have these slots.
    pub(crate) fn plan_write(&self, slots: &[u32]) -> Result<SlotWrite> {
        let mut first_row = 0;
        let run = |slots: &[u32]| {
            first_row += slots.len();
            Run { first_row: first_row - slots.len(), rows: slots.len(), slot: slots[0] as usize }
        };
        let runs: Vec<Run> = slots.chunk_by(|a, b| a + 1 == *b).map(run).collect();
        if runs.len() <= RUNS_MAX + slots.len() / ROWS_A_RUN {
            return Ok(SlotWrite { runs, places: None });
        }
        let values = slots.iter().map(|&slot| self.place_of_values(slot));
        let places = self.places(slots.iter().copied().chain(values).collect())?;
        Ok(SlotWrite { runs, places: Some(places) })
    }

    /// A step whose rows have these slots.
    pub(crate) fn plan_rows(&self, slots: &[u32]) -> Result<RowWrite> {
        let places = slots.iter().flat_map(|&slot| [slot, self.place_of_values(slot)]);
        Ok(RowWrite { places: self.places(places.collect())? })
    }

    fn place_of_values(&self, slot: u32) -> u32 {
        slot + self.capacity as u32
    }

    /// `[rows, width]`, the same across a row.
    fn places(&self, places: Vec<u32>) -> Result<Tensor> {
        let (rows, width) = (places.len(), self.shape.width);
        let places = Tensor::from_vec(places, (rows, 1), &self.shape.device)?;
        places.broadcast_as((rows, width))?.contiguous()
    }

    /// Writes the keys and values `[rows, 2 * width]` of a step's rows in one layer.
    pub(crate) fn write_rows(&self, layer: usize, at: &RowWrite, both: &Tensor) -> Result<()> {
        let both = both.to_dtype(self.shape.dtype)?.reshape(((), self.shape.width))?;
        self.layers[layer].scatter_set(&at.places, &both, 0)
    }

    /// Writes the keys and values `[rows, width]` of a pass's rows in one layer.
    pub(crate) fn write(&self, layer: usize, at: &SlotWrite, keys: &Tensor, values: &Tensor) -> Result<()> {
        let slab = &self.layers[layer];
        let rows = keys.dim(0)?;
        for (part, from) in [(keys, 0), (values, 1)] {
            let part = part.to_dtype(self.shape.dtype)?;
            match &at.places {
                Some(places) => slab.scatter_set(&places.narrow(0, from * rows, rows)?, &part, 0)?,
                None => {
                    for run in &at.runs {
                        let part = part.narrow(0, run.first_row, run.rows)?;
                        slab.slice_set(&part, 0, from * self.capacity + run.slot)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// `[2 * capacity, width]`.
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

    /// Rows of these numbers.
    fn rows(numbers: &[u32]) -> Tensor {
        let values: Vec<f32> = numbers.iter().flat_map(|&number| [number as f32; 3]).collect();
        Tensor::from_vec(values, (numbers.len(), 3), &Device::Cpu).unwrap()
    }

    fn read(slab: &Slab, layer: usize, at: usize) -> f32 {
        slab.layer(layer).get(at).unwrap().get(2).unwrap().to_scalar().unwrap()
    }

    #[test]
    fn what_was_written_stays_where_memory_runs_out_while_the_tensors_grow() {
        for failing in 0..3 {
            let mut slab = slab();
            let taken = slab.take(4).unwrap();
            let write = slab.plan_write(&[1, 3]).unwrap();
            for layer in 0..2 {
                slab.write(layer, &write, &rows(&[1, 3]), &rows(&[51, 53])).unwrap();
            }
            let check = |slab: &Slab| {
                for (layer, slot) in [(0, 1), (0, 3), (1, 1), (1, 3)] {
                    let got = [read(slab, layer, slot), read(slab, layer, slab.capacity() + slot)];
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
            assert_eq!(slab.capacity(), SLOTS_MIN);
            check(&slab);
            let more = slab.take(1500).unwrap();
            assert_eq!(slab.capacity(), 1504);
            check(&slab);
            drop((taken, more));
        }
    }

    #[test]
    fn rows_are_written_to_their_slots_in_few_runs_or_many_and_stay_when_the_tensors_grow() {
        let mut slab = slab();
        let mut taken = slab.take(12).unwrap();
        assert_eq!(slab.capacity(), SLOTS_MIN);
        for slots in [&[0, 1, 2][..], &[9, 3, 7, 5, 11]] {
            let write = slab.plan_write(slots).unwrap();
            assert_eq!(write.places.is_some(), slots.len() == 5);
            for layer in 0..2 {
                let keys: Vec<u32> = slots.iter().map(|slot| slot + 100 * layer as u32).collect();
                let values: Vec<u32> = keys.iter().map(|key| key + 50).collect();
                slab.write(layer, &write, &rows(&keys), &rows(&values)).unwrap();
            }
        }
        let check = |slab: &Slab| {
            for (layer, slot) in [(0, 0), (0, 2), (0, 9), (1, 1), (1, 5), (1, 11)] {
                let want = (slot + 100 * layer) as f32;
                assert_eq!(read(slab, layer, slot).to_bits(), want.to_bits());
                assert_eq!(read(slab, layer, slab.capacity() + slot).to_bits(), (want + 50.0).to_bits());
            }
        };
        check(&slab);
        let write = slab.plan_rows(&[9, 0]).unwrap();
        slab.write_rows(0, &write, &Tensor::cat(&[rows(&[9, 0]), rows(&[59, 50])], 1).unwrap()).unwrap();
        check(&slab);
        taken.append(slab.take(2000).unwrap());
        assert_eq!(slab.capacity(), 2012);
        check(&slab);
        taken.append(slab.take(1).unwrap());
        assert_eq!(slab.capacity(), 2012 + 503, "by a quarter at least");
        check(&slab);
        drop(taken);
        drop(slab.take(2515).unwrap());
        assert_eq!(slab.capacity(), 2515, "what was given back is used again");
    }
}
