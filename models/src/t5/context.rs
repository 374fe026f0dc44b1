//! What one request has in the model: its prompt's cross-attention keys and values, and its tree of nodes.
//!
//! A node's keys and values are computed and stored once, whatever paths run through it; a row sees its ancestors
//! and itself. Nothing is ever copied from path to path.

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::engine::NodeId;

use crate::ops::KeyValues;

/// Nodes that a context has room for at first; it doubles when they are used up.
const NODES_AT_FIRST: usize = 32;

pub(super) struct Context {
    /// Keys and values of the prompt for each decoder layer, `[S, H * D]`.
    pub(super) cross: Vec<KeyValues>,
    /// Number of prompt tokens, `S`.
    pub(super) prompt_len: usize,
    /// Keys and values of the nodes for each decoder layer, `[room, H * D]`.
    nodes: Vec<KeyValues>,
    parents: Vec<Option<NodeId>>,
    room: usize,
}

impl Context {
    pub(super) fn new(cross: Vec<KeyValues>, prompt_len: usize) -> Self {
        Self { cross, prompt_len, nodes: Vec::new(), parents: Vec::new(), room: 0 }
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.parents.len()
    }

    /// Adds a node; its keys and values follow by [`Context::store`].
    pub(super) fn push(&mut self, parent: Option<NodeId>) {
        self.parents.push(parent);
    }

    /// The nodes from the root of its path down to `node` itself.
    pub(super) fn path_to(&self, node: usize) -> Vec<u32> {
        let above = |&node: &NodeId| self.parents[node.index()];
        let mut path: Vec<u32> =
            std::iter::successors(Some(NodeId(node as u32)), above).map(|node| node.0).collect();
        path.reverse();
        path
    }

    /// Makes room for all nodes that were pushed, in every layer.
    pub(super) fn reserve(
        &mut self,
        layers: usize,
        width: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<()> {
        if self.parents.len() <= self.room {
            return Ok(());
        }
        let room = self.parents.len().next_power_of_two().max(NODES_AT_FIRST);
        let grown = |old: Option<&Tensor>| -> Result<Tensor> {
            let new = Tensor::zeros((room, width), dtype, device)?;
            if let Some(old) = old {
                new.slice_set(old, 0, 0)?;
            }
            Ok(new)
        };
        self.nodes = (0..layers)
            .map(|layer| {
                let old = self.nodes.get(layer);
                Ok(KeyValues {
                    keys: grown(old.map(|kv| &kv.keys))?,
                    values: grown(old.map(|kv| &kv.values))?,
                })
            })
            .collect::<Result<_>>()?;
        self.room = room;
        Ok(())
    }

    /// Writes keys and values `[n, H * D]` of the nodes from `first` on.
    pub(super) fn store(&self, layer: usize, first: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.nodes[layer].keys.slice_set(keys, 0, first)?;
        self.nodes[layer].values.slice_set(values, 0, first)
    }

    /// Keys and values of the nodes in one layer.
    pub(super) fn layer(&self, layer: usize) -> &KeyValues {
        &self.nodes[layer]
    }
}
