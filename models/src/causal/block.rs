//! Blocks of a prompt, which later prompts may share.

use candle_core::{Result, Tensor};

use crate::kv_cache::NodeStore;
use crate::ops::KeyValues;

/// Positions of a block; the last block of a prompt may be shorter.
pub(super) const BLOCK: usize = 32;

/// Size of a tensor without its elements: the tensor, its storage and its shape.
const TENSOR: usize = 384;

/// Size of what the prefix cache keeps beside a block: two keys with its token ids.
const ENTRY: usize = 2 * (BLOCK * size_of::<u32>() + 64);

/// Keys and values of some consecutive positions, in every layer. Prompts that begin alike share blocks.
#[derive(Debug)]
pub(super) struct Block {
    layers: Vec<KeyValues>,
    len: usize,
}

impl Block {
    /// Copies `len` nodes of a chain, from `first` on.
    pub(super) fn of(chain: &NodeStore, layers: usize, first: usize, len: usize) -> Result<Self> {
        let layer = |index| {
            let kv: &KeyValues = chain.layer(index);
            let some = |tensor: &Tensor| tensor.narrow(0, first, len)?.force_contiguous();
            Ok(KeyValues { keys: some(&kv.keys)?, values: some(&kv.values)? })
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_>>()?, len })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn layer(&self, index: usize) -> &KeyValues {
        &self.layers[index]
    }

    /// Size in memory.
    pub(super) fn bytes(&self) -> usize {
        let size = |tensor: &Tensor| TENSOR + tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.layers.iter().map(|kv| size(&kv.keys) + size(&kv.values)).sum::<usize>() + ENTRY
    }
}
