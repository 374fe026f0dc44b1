//! Which bytes of an allocation something has written: a bit for each.

use std::cell::Cell;

const BITS: usize = u64::BITS as usize;

pub(crate) struct Written(Vec<Cell<u64>>);

impl Written {
    /// No byte has a value yet.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(vec![Cell::new(0); bytes.div_ceil(BITS)])
    }

    pub(crate) fn set(&self, at: usize, bytes: usize, is_written: bool) {
        for (word, mask) in masks(at, bytes) {
            let before = self.0[word].get();
            self.0[word].set(if is_written { before | mask } else { before & !mask });
        }
    }

    pub(crate) fn all(&self, at: usize, bytes: usize) -> bool {
        masks(at, bytes).all(|(word, mask)| self.0[word].get() & mask == mask)
    }

    pub(crate) fn copy(&self, at: usize, from: &Self, source: usize, bytes: usize) {
        let values: Vec<bool> = (source..source + bytes).map(|byte| from.all(byte, 1)).collect();
        for (byte, is_written) in (at..).zip(values) {
            self.set(byte, 1, is_written);
        }
    }
}

/// The words that have bits of these bytes, and which.
fn masks(at: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = at + bytes;
    (at / BITS..end.div_ceil(BITS)).map(move |word| {
        let from = at.saturating_sub(word * BITS);
        let unused = ((word + 1) * BITS).saturating_sub(end);
        (word, u64::MAX << from & u64::MAX >> unused)
    })
}
