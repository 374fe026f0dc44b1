//! What one request has in the model: its prompt in blocks of positions, and its tree of nodes.

use std::sync::Arc;

use candle_core::Result;

use crate::nodes::{HasNodes, NodeStore};
use crate::ops::KeyValues;

/// Positions of a block; a prompt's last one may be shorter.
pub(super) const BLOCK: usize = 32;

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
            let some = |tensor: &candle_core::Tensor| tensor.narrow(0, first, len)?.force_contiguous();
            Ok(KeyValues { keys: some(&kv.keys)?, values: some(&kv.values)? })
        };
        Ok(Self { layers: (0..layers).map(layer).collect::<Result<_>>()?, len })
    }

    /// Number of positions.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn layer(&self, index: usize) -> &KeyValues {
        &self.layers[index]
    }

    /// Memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        let size = |tensor: &candle_core::Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        self.layers.iter().map(|kv| size(&kv.keys) + size(&kv.values)).sum()
    }
}

pub(super) struct Context {
    /// All of the prompt but its last token, which is the first node.
    pub(super) blocks: Vec<Arc<Block>>,
    pub(super) nodes: NodeStore,
}

impl Context {
    /// Position of the first node.
    pub(super) fn start(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum()
    }
}

impl HasNodes for Context {
    fn nodes_mut(&mut self) -> &mut NodeStore {
        &mut self.nodes
    }
}
