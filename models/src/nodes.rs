//! The decoded positions of one request: keys and values of every node, and which node stands before which.
//!
//! A node's keys and values are computed and stored once, whatever paths run through it; a row sees its ancestors
//! and itself. Nothing is ever copied from path to path.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::engine::{ContextId, ModelError, NodeId, Row};

use crate::ops::KeyValues;

/// Nodes that a store has room for at first; it doubles when they are used up.
const NODES_AT_FIRST: usize = 32;

/// What every node of a model's requests takes.
#[derive(Debug, Clone)]
pub(crate) struct NodeShape {
    pub(crate) layers: usize,
    /// Width of the keys, and of the values, of one layer.
    pub(crate) width: usize,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

/// The nodes of one request.
#[derive(Debug, Default)]
pub(crate) struct NodeStore {
    /// Keys and values of the nodes for each layer, `[room, width]`.
    layers: Vec<KeyValues>,
    parents: Vec<Option<NodeId>>,
    room: usize,
}

impl NodeStore {
    /// A chain of `count` nodes, each after the one before it.
    pub(crate) fn chain(count: usize, shape: &NodeShape) -> Result<Self> {
        let parents = (0..count as u32).map(|node| node.checked_sub(1).map(NodeId)).collect();
        let mut store = Self { parents, ..Self::default() };
        store.reserve(shape)?;
        Ok(store)
    }

    fn len(&self) -> usize {
        self.parents.len()
    }

    /// The nodes from the root of its path down to `node` itself.
    fn path_to(&self, node: usize) -> Vec<u32> {
        let above = |&node: &NodeId| self.parents[node.index()];
        let mut path: Vec<u32> =
            std::iter::successors(Some(NodeId(node as u32)), above).map(|node| node.0).collect();
        path.reverse();
        path
    }

    /// Makes room for all nodes, in every layer.
    fn reserve(&mut self, shape: &NodeShape) -> Result<()> {
        if self.len() <= self.room {
            return Ok(());
        }
        let room = self.len().next_power_of_two().max(NODES_AT_FIRST);
        let grown = |old: Option<&Tensor>| -> Result<Tensor> {
            let new = Tensor::zeros((room, shape.width), shape.dtype, &shape.device)?;
            if let Some(old) = old {
                new.slice_set(old, 0, 0)?;
            }
            Ok(new)
        };
        let layers = (0..shape.layers).map(|layer| {
            let old = self.layers.get(layer);
            Ok(KeyValues { keys: grown(old.map(|kv| &kv.keys))?, values: grown(old.map(|kv| &kv.values))? })
        });
        self.layers = layers.collect::<Result<_>>()?;
        self.room = room;
        Ok(())
    }

    /// Writes keys and values `[n, width]` of the nodes from `first` on.
    pub(crate) fn store(&self, layer: usize, first: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.layers[layer].keys.slice_set(keys, 0, first)?;
        self.layers[layer].values.slice_set(values, 0, first)
    }

    /// Keys and values of the nodes in one layer.
    pub(crate) fn layer(&self, layer: usize) -> &KeyValues {
        &self.layers[layer]
    }
}

/// A context that decoded nodes hang under.
pub(crate) trait HasNodes {
    fn nodes_mut(&mut self) -> &mut NodeStore;
}

/// Rows of one context within a step; they became its nodes from `first_node` on.
pub(crate) struct Group {
    pub(crate) context: ContextId,
    pub(crate) first_row: usize,
    pub(crate) first_node: usize,
    /// For each row the nodes from the root down to itself.
    pub(crate) paths: Vec<Vec<u32>>,
}

/// Turns rows into nodes of their contexts, in order, with room for their keys and values.
///
/// # Errors
/// On a context that is not open and on a parent that does not exist.
pub(crate) fn grow<C: HasNodes>(
    contexts: &mut HashMap<ContextId, C>,
    rows: &[Row],
    shape: &NodeShape,
) -> std::result::Result<Vec<Group>, ModelError> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let unknown = ModelError::UnknownContext(row.context);
        let nodes = contexts.get_mut(&row.context).ok_or(unknown)?.nodes_mut();
        let node = nodes.len();
        if let Some(parent) = row.path.parent.filter(|parent| parent.index() >= node) {
            return Err(ModelError::UnknownNode { context: row.context, node: parent });
        }
        nodes.parents.push(row.path.parent);
        let path = nodes.path_to(node);
        match groups.last_mut().filter(|group| group.context == row.context) {
            Some(group) => group.paths.push(path),
            None => groups.push(Group {
                context: row.context,
                first_row: index,
                first_node: node,
                paths: vec![path],
            }),
        }
    }
    for group in &groups {
        if let Some(context) = contexts.get_mut(&group.context) {
            context.nodes_mut().reserve(shape).map_err(|error| ModelError::Compute(Box::new(error)))?;
        }
    }
    Ok(groups)
}
