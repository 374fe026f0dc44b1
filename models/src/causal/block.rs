//! Blocks of a prompt, which later prompts may share.

use std::sync::Arc;

use candle_core::Result;

use crate::kv_cache::{KvStore, Positions};

/// Number of positions between the ends of blocks. A block is shorter at the end of its prompt, and if it
/// begins after positions that an earlier prompt computed.
pub(super) const BLOCK: usize = 32;

/// Returns the number of positions from `start` to the end of its block.
pub(super) fn to_block_end(start: usize) -> usize {
    BLOCK - start % BLOCK
}

/// Size of the prefix cache's data in addition to the block itself: two keys with its token ids.
const ENTRY: usize = 2 * (BLOCK * size_of::<u32>() + 64);

/// Keys and values of consecutive positions, in every layer. Prompts that share a prefix share its blocks.
#[derive(Debug)]
pub(super) struct Block {
    positions: Positions,
    len: usize,
    bytes: usize,
}

impl Block {
    /// Divides `len` positions, which begin at position `start` of a prompt, into blocks.
    pub(super) fn cut(
        positions: Positions,
        start: usize,
        len: usize,
        store: &dyn KvStore,
    ) -> Result<Vec<Self>> {
        let mut lengths = Vec::new();
        let mut first = start;
        while first < start + len {
            let length = to_block_end(first).min(start + len - first);
            lengths.push(length);
            first += length;
        }
        let parts = store.split(positions, &lengths)?.into_iter().zip(lengths);
        Ok(parts.map(|(positions, len)| Self::new(positions, len, store)).collect())
    }

    /// Returns a block of the first `len` positions of consecutive parts, if the store copies positions.
    pub(super) fn first(parts: &[Arc<Self>], len: usize, store: &dyn KvStore) -> Result<Option<Self>> {
        let parts: Vec<_> = parts.iter().map(|part| &part.positions).collect();
        let positions = store.copy_first(&parts, len)?;
        Ok(positions.map(|positions| Self::new(positions, len, store)))
    }

    fn new(positions: Positions, len: usize, store: &dyn KvStore) -> Self {
        Self { positions, len, bytes: ENTRY + store.bytes(len) }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Returns the size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
