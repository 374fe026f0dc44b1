//! Keys and values of a model's open contexts. A context holds those of its prompt, and a tree of nodes: the decoded positions.
//!
//! A node's keys and values are computed and stored once, whatever paths run through it; a row sees its ancestors and
//! itself. Nothing is copied from path to path.

use std::collections::HashMap;

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::engine::{CacheCost, ContextId, ModelError, NodeCapacity, NodeId, Row};

use crate::ops::{KeyValues, ModelResult, compute_error};

/// Initial capacity of a store, which doubles when it is full.
const CAPACITY_MIN: usize = 32;

/// Keys and values of one node.
#[derive(Debug, Clone)]
pub(crate) struct NodeShape {
    pub(crate) layers: usize,
    /// Width of the keys of one layer, and of the values.
    pub(crate) width: usize,
    pub(crate) dtype: DType,
    pub(crate) device: Device,
}

impl NodeShape {
    /// What contexts cost whose prompts keep keys and values of the same size.
    pub(crate) fn cache_cost(&self) -> CacheCost {
        let node = (2 * self.layers * self.width * self.dtype.size_in_bytes()) as u64;
        CacheCost { prompt_token: node, node, capacity: NodeCapacity::PowerOfTwo { min: CAPACITY_MIN } }
    }
}

/// The nodes of one request.
#[derive(Debug, Default)]
pub(crate) struct NodeStore {
    /// For each layer, `[capacity, width]`.
    layers: Vec<KeyValues>,
    parents: Vec<Option<NodeId>>,
    capacity: usize,
}

impl NodeStore {
    /// A chain of `count` nodes, each after the one before it, with room for no more.
    pub(crate) fn chain(count: usize, shape: &NodeShape) -> Result<Self> {
        let parents = (0..count as u32).map(|node| node.checked_sub(1).map(NodeId)).collect();
        let mut store = Self { parents, ..Self::default() };
        store.grow(count, shape)?;
        Ok(store)
    }

    fn len(&self) -> usize {
        self.parents.len()
    }

    /// Appends a row without its keys and values; returns its path, the nodes from the root down to itself.
    fn append(&mut self, row: &Row) -> ModelResult<Vec<u32>> {
        let node = self.len();
        if let Some(parent) = row.path.parent.filter(|parent| parent.index() >= node) {
            return Err(ModelError::UnknownNode { context: row.context, node: parent });
        }
        self.parents.push(row.path.parent);
        let parent_of = |&node: &NodeId| self.parents[node.index()];
        let path = std::iter::successors(Some(NodeId(node as u32)), parent_of);
        let mut path: Vec<u32> = path.map(|node| node.0).collect();
        path.reverse();
        Ok(path)
    }

    fn reserve(&mut self, shape: &NodeShape) -> Result<()> {
        if self.len() <= self.capacity {
            return Ok(());
        }
        self.grow(self.len().next_power_of_two().max(CAPACITY_MIN), shape)
    }

    /// Layer by layer, so that no more than one of them is there twice.
    fn grow(&mut self, capacity: usize, shape: &NodeShape) -> Result<()> {
        let grown = |old: Option<Tensor>| -> Result<Tensor> {
            let new = Tensor::zeros((capacity, shape.width), shape.dtype, &shape.device)?;
            if let Some(old) = old {
                new.slice_set(&old, 0, 0)?;
            }
            Ok(new)
        };
        let mut old = std::mem::take(&mut self.layers).into_iter();
        for _ in 0..shape.layers {
            let (keys, values) = old.next().map(|kv| (kv.keys, kv.values)).unzip();
            self.layers.push(KeyValues { keys: grown(keys)?, values: grown(values)? });
        }
        self.capacity = capacity;
        Ok(())
    }

    /// Writes keys and values `[n, width]` of the nodes from `first` on.
    pub(crate) fn write_kv(&self, layer: usize, first: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.layers[layer].keys.slice_set(keys, 0, first)?;
        self.layers[layer].values.slice_set(values, 0, first)
    }

    pub(crate) fn layer(&self, layer: usize) -> &KeyValues {
        &self.layers[layer]
    }
}

/// One request: `P` is what it keeps of its prompt.
pub(crate) struct Context<P> {
    pub(crate) prompt: P,
    pub(crate) nodes: NodeStore,
}

/// Consecutive rows of one context within a step; they are its nodes from `first_node` on.
pub(crate) struct RowGroup {
    pub(crate) context: ContextId,
    pub(crate) first_row: usize,
    pub(crate) first_node: usize,
    /// For each row the nodes from the root down to itself.
    pub(crate) paths: Vec<Vec<u32>>,
}

/// The open contexts of one model.
pub(crate) struct KvCache<P> {
    contexts: HashMap<ContextId, Context<P>>,
    opened: u64,
    shape: NodeShape,
}

impl<P> KvCache<P> {
    pub(crate) fn new(shape: NodeShape) -> Self {
        Self { contexts: HashMap::new(), opened: 0, shape }
    }

    pub(crate) fn shape(&self) -> &NodeShape {
        &self.shape
    }

    pub(crate) fn open(&mut self, prompt: P) -> ContextId {
        self.opened += 1;
        let context = ContextId(self.opened);
        self.contexts.insert(context, Context { prompt, nodes: NodeStore::default() });
        context
    }

    pub(crate) fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }

    /// The context of rows that were appended.
    pub(crate) fn context(&self, group: &RowGroup) -> &Context<P> {
        &self.contexts[&group.context]
    }

    /// Appends rows to the nodes of their contexts, in order, with room for their keys and values.
    ///
    /// # Errors
    /// On a context that is not open and on a parent that does not exist.
    pub(crate) fn append_rows(&mut self, rows: &[Row]) -> ModelResult<Vec<RowGroup>> {
        let mut first_row = 0;
        let append = |rows: &[Row]| {
            let context = rows[0].context;
            let nodes =
                &mut self.contexts.get_mut(&context).ok_or(ModelError::UnknownContext(context))?.nodes;
            let first_node = nodes.len();
            let paths = rows.iter().map(|row| nodes.append(row)).collect::<ModelResult<_>>()?;
            nodes.reserve(&self.shape).map_err(compute_error)?;
            first_row += rows.len();
            Ok(RowGroup { context, first_row: first_row - rows.len(), first_node, paths })
        };
        rows.chunk_by(|a, b| a.context == b.context).map(append).collect()
    }
}
