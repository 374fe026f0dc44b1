//! Keys and values of a model's open contexts. A context contains those of its prompt, and a tree of nodes:
//! the decoded positions.
//!
//! A node's keys and values are computed and stored once, regardless of how many paths contain it. A row sees
//! its ancestors and itself. Nothing is copied from path to path.
//!
//! [`KvStore`] is the memory of a device. Models see only this interface: `tensors` implements it for the
//! CPU, `slab` for GPUs and, in tests, for their operations on the CPU.

mod slab;
mod slots;
mod store;
mod tensors;

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::Result;
use ntl_core::contract::{CacheCost, ContextId, ModelError, NodeId, Row};

pub(crate) use store::{KeyGroup, KeyView, KvPass, KvStore, Positions, WrittenRows, step_inputs};

use crate::ops::{AdapterWeights, ModelResult, Placement, compute_error};
use slab::Slab;
use store::PositionShape;
use tensors::TensorStore;

/// Maximum number of prompt tokens in one pass on a device. Every further pass launches all kernels again.
pub(crate) const TOKENS_AT_ONCE_ON_DEVICES: usize = 8192;

/// The nodes of one request.
pub(crate) struct Nodes {
    pub(crate) positions: Positions,
    parents: Vec<Option<NodeId>>,
}

impl Nodes {
    /// Appends a row without its keys and values. Returns its path: the nodes from the root down to itself.
    fn append(&mut self, row: &Row) -> ModelResult<Vec<u32>> {
        let node = self.parents.len();
        if let Some(parent) = row.path.parent.filter(|parent| parent.index() >= node) {
            return Err(ModelError::UnknownNode { context: row.context, node: parent });
        }
        self.parents.push(row.path.parent);
        let nodes = std::iter::successors(Some(NodeId(node as u32)), |node| self.parents[node.index()]);
        let mut path: Vec<u32> = nodes.map(|node| node.0).collect();
        path.reverse();
        Ok(path)
    }
}

/// One request. `P` is the data that it keeps for its prompt.
pub(crate) struct Context<P> {
    pub(crate) prompt: P,
    pub(crate) adapter: Option<Arc<AdapterWeights>>,
    pub(crate) nodes: Nodes,
}

/// Consecutive rows of one context within a step. They are its nodes starting at `first_node`.
pub(crate) struct RowGroup {
    pub(crate) context: ContextId,
    pub(crate) first_row: usize,
    pub(crate) first_node: usize,
    /// For each row, the nodes from the root down to itself.
    pub(crate) paths: Vec<Vec<u32>>,
}

impl RowGroup {
    /// Returns the nodes that get the rows' keys and values.
    pub(crate) fn written<'a, P>(&self, context: &'a Context<P>) -> WrittenRows<'a> {
        WrittenRows { positions: &context.nodes.positions, first: self.first_node, count: self.paths.len() }
    }
}

/// The open contexts of one model.
pub(crate) struct KvCache<P> {
    contexts: HashMap<ContextId, Context<P>>,
    opened: u64,
    store: Box<dyn KvStore>,
}

impl<P> KvCache<P> {
    /// Creates a cache for a model with this many layers. `width` is the width of the keys of one layer.
    pub(crate) fn new(layers: usize, width: usize, place: &Placement) -> Self {
        let (dtype, results, device) = (place.kv_dtype(), place.dtype, place.device.clone());
        let shape = PositionShape { layers, width, dtype, results, device };
        let store: Box<dyn KvStore> =
            if place.uses_kernels() { Box::new(TensorStore::new(shape)) } else { Box::new(Slab::new(shape)) };
        Self { contexts: HashMap::new(), opened: 0, store }
    }

    pub(crate) fn store(&self) -> &dyn KvStore {
        self.store.as_ref()
    }

    /// Returns the cost of contexts whose prompts keep keys and values of the same size as nodes.
    pub(crate) fn cache_cost(&self) -> CacheCost {
        let node = self.store.shape().bytes();
        CacheCost { prompt_token: node, node, capacity: self.store.capacity() }
    }

    pub(crate) fn prefill_tokens_max(&self) -> usize {
        self.store.prefill_tokens_max()
    }

    /// Allocates positions for prompts with these numbers of tokens.
    pub(crate) fn allocate(&mut self, counts: &[usize]) -> Result<Vec<Positions>> {
        self.store.reserve(counts.iter().sum())?;
        counts.iter().map(|&count| self.store.allocate(count)).collect()
    }

    pub(crate) fn open(&mut self, prompt: P, adapter: Option<Arc<AdapterWeights>>) -> ContextId {
        self.opened += 1;
        let context = ContextId(self.opened);
        let nodes = Nodes { positions: self.store.none(), parents: Vec::new() };
        self.contexts.insert(context, Context { prompt, adapter, nodes });
        context
    }

    /// Returns the data that an open context keeps for its prompt.
    pub(crate) fn prompt(&self, context: ContextId) -> Option<&P> {
        self.contexts.get(&context).map(|context| &context.prompt)
    }

    /// Returns the adapter of an open context.
    pub(crate) fn adapter(&self, context: ContextId) -> Option<&Arc<AdapterWeights>> {
        self.contexts.get(&context)?.adapter.as_ref()
    }

    /// Returns the data that an open context keeps for its prompt.
    pub(crate) fn prompt_mut(&mut self, context: ContextId) -> Option<&mut P> {
        self.contexts.get_mut(&context).map(|context| &mut context.prompt)
    }

    /// Frees the nodes of an open context.
    pub(crate) fn discard_nodes(&mut self, context: ContextId) {
        if let Some(context) = self.contexts.get_mut(&context) {
            context.nodes = Nodes { positions: self.store.none(), parents: Vec::new() };
        }
    }

    pub(crate) fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }

    /// Returns the context of appended rows.
    pub(crate) fn context(&self, group: &RowGroup) -> &Context<P> {
        &self.contexts[&group.context]
    }

    /// Appends rows to the nodes of their contexts, in order, with space for their keys and values.
    ///
    /// # Errors
    /// If a context is not open or a parent does not exist.
    pub(crate) fn append_rows(&mut self, rows: &[Row]) -> ModelResult<Vec<RowGroup>> {
        self.store.reserve(rows.len()).map_err(compute_error)?;
        let mut groups = Vec::new();
        let mut first_row = 0;
        for rows in rows.chunk_by(|a, b| a.context == b.context) {
            let context = rows[0].context;
            let nodes =
                &mut self.contexts.get_mut(&context).ok_or(ModelError::UnknownContext(context))?.nodes;
            let first_node = nodes.parents.len();
            let paths = rows.iter().map(|row| nodes.append(row)).collect::<ModelResult<_>>()?;
            self.store.extend(&mut nodes.positions, nodes.parents.len()).map_err(compute_error)?;
            groups.push(RowGroup { context, first_row, first_node, paths });
            first_row += rows.len();
        }
        Ok(groups)
    }
}
