//! Which bytes of an allocation something has written: a bit for each.

use std::cell::Cell;
use std::mem::ManuallyDrop;

const BITS: usize = u64::BITS as usize;

pub(crate) struct Written(Vec<Cell<u64>>);

impl Written {
    /// No byte has a value yet. The system provides pages when they are first accessed.
    pub(crate) fn new(bytes: usize) -> Self {
        let mut words = ManuallyDrop::new(vec![0u64; bytes.div_ceil(BITS)]);
        let (length, capacity) = (words.len(), words.capacity());
        // SAFETY: a cell has the layout of its value, and nothing else frees the vector.
        Self(unsafe { Vec::from_raw_parts(words.as_mut_ptr().cast(), length, capacity) })
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
        if at % BITS != source % BITS {
            let values: Vec<bool> = (source..source + bytes).map(|byte| from.all(byte, 1)).collect();
            (at..).zip(values).for_each(|(byte, is_written)| self.set(byte, 1, is_written));
            return;
        }
        for ((word, mask), (source, _)) in masks(at, bytes).zip(masks(source, bytes)) {
            self.0[word].set(self.0[word].get() & !mask | from.0[source].get() & mask);
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
