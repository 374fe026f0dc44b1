//! The slots of a llama.cpp. Each keeps the last prompt that it computed, and all slots compute together.
//!
//! A tree has a home slot. If no other tree runs, it divides its rows among several slots, if that saves more
//! time than the other slots need for the part of the prompt that they lack.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::row::Row;

/// A pass through the model with one more token costs at most 1 of this many passes. On GPUs it costs less.
const TOKENS_PER_PASS: usize = 8;

pub(super) struct Slots {
    /// The last row of each slot. Other clients of the engine may have used the slot since.
    last: Mutex<Vec<Option<Row>>>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self { last: Mutex::new(vec![None; count.max(1)]) }
    }

    pub(super) fn len(&self) -> usize {
        self.last().len()
    }

    /// Returns the slots for equal shares of `rows`, which have a common prefix. The first one is `home`.
    pub(super) fn divide(&self, home: usize, rows: &[Row]) -> Vec<usize> {
        let Some(row) = rows.first() else { return Vec::new() };
        let last = self.last();
        let slots = (home..home + last.len()).map(|slot| slot % last.len());
        let mut best = (0, 1);
        let mut lacking = 0;
        for (others, slot) in slots.clone().enumerate().take(rows.len()).skip(1) {
            let kept = last[slot].as_ref().map_or(0, |last| last.common_prefix(row));
            lacking += row.len() - kept;
            let saved = rows.len() - rows.len().div_ceil(others + 1);
            best = best.max(((saved * TOKENS_PER_PASS).saturating_sub(lacking), others + 1));
        }
        slots.take(if best.0 > 0 { best.1 } else { 1 }).collect()
    }

    /// Remembers the last row that a slot computes.
    pub(super) fn set_last(&self, slot: usize, row: &Row) {
        if let Some(last) = self.last().get_mut(slot) {
            *last = Some(row.clone());
        }
    }

    fn last(&self) -> MutexGuard<'_, Vec<Option<Row>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_divided_if_other_slots_have_most_of_the_prompt() {
        let slots = Slots::new(4);
        let row = |prompt: u32, next: u32| Row::new([prompt; 40].into(), vec![next]);
        let rows: Vec<Row> = (0..12).map(|next| row(7, next)).collect();
        assert_eq!(slots.divide(2, &rows[..1]), [2]);
        assert_eq!(slots.divide(2, &rows), [2, 3], "6 passes are worth more than the 41 tokens of slot 3");
        assert_eq!(slots.divide(2, &rows[..6]), [2], "3 passes are not");
        (0..4).for_each(|slot| slots.set_last(slot, &row(7, 1)));
        assert_eq!(slots.divide(2, &rows), [2, 3, 0, 1]);
        assert_eq!(slots.divide(1, &rows[..2]), [1, 2]);
        slots.set_last(3, &row(8, 1));
        assert_eq!(slots.divide(2, &rows[..6]), [2], "the next slot has another prompt");
        assert_eq!(slots.divide(0, &rows[..6]), [0, 1, 2]);
    }
}
