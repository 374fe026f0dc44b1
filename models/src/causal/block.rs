//! Blocks of a prompt, which later prompts may share.

use candle_core::{Result, Tensor};

use crate::kv_cache::{NodeStore, Positions};
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
    kv: Positions,
    len: usize,
    bytes: usize,
}

impl Block {
    /// Cuts a chain of `len` nodes into blocks; `slot_bytes` is the size of a slot. Tensors are copied, slots are passed on.
    pub(super) fn cut(chain: NodeStore, len: usize, slot_bytes: usize) -> Result<Vec<Self>> {
        let lengths = (0..len).step_by(BLOCK).map(|first| BLOCK.min(len - first));
        let mut left = chain.kv;
        let block = |(index, len): (usize, usize)| {
            let kv = match &mut left {
                Positions::Tensors(layers) => {
                    let layers = layers.iter().map(|kv| copied(kv, index * BLOCK, len));
                    Positions::Tensors(layers.collect::<Result<_>>()?)
                }
                Positions::Slots(slots) => {
                    let others = slots.split_off(len);
                    Positions::Slots(std::mem::replace(slots, others))
                }
            };
            let bytes = ENTRY + kv.tensors().iter().map(bytes).sum::<usize>() + kv.slots().len() * slot_bytes;
            Ok(Self { kv, len, bytes })
        };
        lengths.enumerate().map(block).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn kv(&self) -> &Positions {
        &self.kv
    }

    /// Size in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn copied(kv: &KeyValues, first: usize, len: usize) -> Result<KeyValues> {
    let some = |tensor: &Tensor| tensor.narrow(0, first, len)?.force_contiguous();
    Ok(KeyValues { keys: some(&kv.keys)?, values: some(&kv.values)? })
}

fn bytes(kv: &KeyValues) -> usize {
    let size = |tensor: &Tensor| TENSOR + tensor.elem_count() * tensor.dtype().size_in_bytes();
    size(&kv.keys) + size(&kv.values)
}
