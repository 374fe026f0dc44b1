//! The free slots of a device's cache.
//!
//! A slot stores the keys and values of one position in every layer. Positions that prompts share use the
//! same slots. Slots are released when their last holder is dropped, on any thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The free slots of one cache. Clones refer to the same slots.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotPool(Arc<Mutex<FreeSlots>>);

#[derive(Debug, Default)]
struct FreeSlots {
    /// The first slot of each range, and the slot after its last. Ranges neither overlap nor touch.
    ranges: BTreeMap<u32, u32>,
    count: usize,
}

/// The slots of some positions, in their order.
#[derive(Debug)]
pub(super) struct Slots {
    numbers: Vec<u32>,
    pool: SlotPool,
}

impl SlotPool {
    fn lock(&self) -> MutexGuard<'_, FreeSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn free(&self) -> usize {
        self.lock().count
    }

    /// Adds new slots.
    pub(super) fn add(&self, from: u32, to: u32) {
        self.lock().give_back(from, to);
    }

    /// Allocates `count` slots: contiguous if a range has space for all, otherwise in a few pieces. Returns
    /// `None` if fewer are free.
    pub(super) fn take(&self, count: usize) -> Option<Slots> {
        let numbers = self.lock().take(count)?;
        Some(Slots { numbers, pool: self.clone() })
    }

    /// Returns an empty list of slots.
    pub(super) fn none(&self) -> Slots {
        Slots { numbers: Vec::new(), pool: self.clone() }
    }
}

impl FreeSlots {
    fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.count {
            return None;
        }
        let pieces = match self.first_range_of(count) {
            Some(range) => vec![range],
            None => self.ranges_by_size(),
        };
        let mut taken = Vec::with_capacity(count);
        for (from, to) in pieces {
            let end = to.min(from + (count - taken.len()) as u32);
            if end == from {
                break;
            }
            taken.extend(from..end);
            self.ranges.remove(&from);
            if end < to {
                self.ranges.insert(end, to);
            }
        }
        self.count -= taken.len();
        Some(taken)
    }

    /// Returns the first range of at least `count` slots.
    fn first_range_of(&self, count: usize) -> Option<(u32, u32)> {
        let mut ranges = self.ranges.iter().map(|(&from, &to)| (from, to));
        ranges.find(|(from, to)| (to - from) as usize >= count)
    }

    /// Returns all ranges, the largest one first.
    fn ranges_by_size(&self) -> Vec<(u32, u32)> {
        let mut ranges: Vec<_> = self.ranges.iter().map(|(&from, &to)| (from, to)).collect();
        ranges.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
        ranges
    }

    /// Releases a range and joins it with adjacent ranges.
    fn give_back(&mut self, mut from: u32, mut to: u32) {
        self.count += (to - from) as usize;
        if let Some((&before, &end)) = self.ranges.range(..from).next_back()
            && end == from
        {
            self.ranges.remove(&before);
            from = before;
        }
        if let Some(end) = self.ranges.remove(&to) {
            to = end;
        }
        self.ranges.insert(from, to);
    }
}

impl Slots {
    pub(super) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Splits off the slots from index `at` on.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self { numbers: self.numbers.split_off(at), pool: self.pool.clone() }
    }

    /// Appends slots of the same pool.
    pub(super) fn append(&mut self, mut more: Self) {
        self.numbers.append(&mut more.numbers);
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let mut free = self.pool.lock();
        for run in self.numbers.chunk_by(|a, b| a + 1 == *b) {
            free.give_back(run[0], run[run.len() - 1] + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: u32) -> SlotPool {
        let pool = SlotPool::default();
        pool.add(0, count);
        pool
    }

    #[test]
    fn slots_are_released_when_their_last_holder_is_dropped() {
        let pool = pool(10);
        let shared = Arc::new(pool.take(4).unwrap());
        let other = Arc::clone(&shared);
        drop(shared);
        assert_eq!((pool.free(), pool.take(7).is_some()), (6, false));
        drop(other);
        assert_eq!(pool.take(10).unwrap().numbers(), (0..10).collect::<Vec<_>>());
        assert_eq!(pool.free(), 10);
    }

    #[test]
    fn slots_are_contiguous_if_a_range_has_space_and_otherwise_in_pieces() {
        let pool = pool(12);
        let mut all = pool.take(12).unwrap();
        let last = all.split_off(9);
        let mut middle = all.split_off(3);
        let kept = middle.split_off(4);
        drop(middle);
        drop(last);
        // 3..7 and 9..12 are free; the larger range is used first.
        assert_eq!(pool.take(3).unwrap().numbers(), [3, 4, 5]);
        let mut some = pool.take(6).unwrap();
        assert_eq!(some.numbers(), [3, 4, 5, 6, 9, 10]);
        some.append(kept);
        drop(some);
        assert_eq!(pool.take(9).unwrap().numbers(), [3, 4, 5, 6, 7, 8, 9, 10, 11], "ranges are joined");
        drop(all);
        assert_eq!(pool.0.lock().unwrap().ranges, BTreeMap::from([(0, 12)]));
    }
}
