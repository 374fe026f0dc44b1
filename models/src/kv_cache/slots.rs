//! Which slots of a device's cache are free.
//!
//! A slot is a place for the keys and values of one position in every layer. Positions that prompts share are in the same slots. Slots
//! are given back when their last holder is dropped, on whatever thread that is.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The free slots of one cache. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlotPool(Arc<Mutex<FreeSlots>>);

#[derive(Debug, Default)]
struct FreeSlots {
    /// The first slot of each range, and the one behind its last. Ranges neither overlap nor touch.
    ranges: BTreeMap<u32, u32>,
    count: usize,
}

/// The slots of some positions, in their order.
#[derive(Debug)]
pub(crate) struct Slots {
    numbers: Vec<u32>,
    pool: SlotPool,
}

impl SlotPool {
    fn lock(&self) -> MutexGuard<'_, FreeSlots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free(&self) -> usize {
        self.lock().count
    }

    /// Adds new slots.
    pub(crate) fn add(&self, from: u32, to: u32) {
        self.lock().give_back(from, to);
    }

    /// So many slots, one behind the other where a range has room for all, else in few pieces; `None` if fewer are free.
    pub(crate) fn take(&self, count: usize) -> Option<Slots> {
        let numbers = self.lock().take(count)?;
        Some(Slots { numbers, pool: self.clone() })
    }

    /// No slots yet.
    pub(crate) fn none(&self) -> Slots {
        Slots { numbers: Vec::new(), pool: self.clone() }
    }
}

impl FreeSlots {
    fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if count > self.count {
            return None;
        }
        let ranges = || self.ranges.iter().map(|(&from, &to)| (from, to));
        let pieces = match ranges().find(|(from, to)| (to - from) as usize >= count) {
            Some(holds_all) => vec![holds_all],
            None => {
                let mut largest_first: Vec<_> = ranges().collect();
                largest_first.sort_by_key(|(from, to)| std::cmp::Reverse(to - from));
                largest_first
            }
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

    /// Gives back a range, and joins it with those that it touches.
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
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Cuts off the slots from `at` on.
    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        Self { numbers: self.numbers.split_off(at), pool: self.pool.clone() }
    }

    /// Appends slots of the same pool.
    pub(crate) fn append(&mut self, mut more: Self) {
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
    fn slots_are_given_back_once_their_last_holder_goes() {
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
    fn slots_are_one_behind_the_other_where_there_is_room_and_in_pieces_elsewhere() {
        let pool = pool(12);
        let mut all = pool.take(12).unwrap();
        let (last, mut middle) = (all.split_off(9), all.split_off(3));
        let kept = middle.split_off(4);
        drop(middle);
        drop(last);
        // 3..7 and 9..12 are free, the larger one first.
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
