//! Blocks of a prompt, which later prompts may share.

use candle_core::Result;

use crate::kv_cache::{KvStore, Positions};

/// Number of positions in a block; the last block of a prompt may be shorter.
pub(super) const BLOCK: usize = 32;

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
    /// Divides `len` positions into blocks.
    pub(super) fn cut(positions: Positions, len: usize, store: &dyn KvStore) -> Result<Vec<Self>> {
        let lengths: Vec<usize> = (0..len).step_by(BLOCK).map(|first| BLOCK.min(len - first)).collect();
        let parts = store.split(positions, &lengths)?.into_iter().zip(lengths);
        Ok(parts.map(|(positions, len)| Self { positions, len, bytes: ENTRY + store.bytes(len) }).collect())
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
