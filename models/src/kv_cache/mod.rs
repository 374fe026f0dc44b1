//! Keys and values of a model's open contexts. A context holds those of its prompt, and a tree of nodes: the decoded positions.
//!
//! A node's keys and values are computed and stored once, whatever paths run through it; a row sees its ancestors and
//! itself. Nothing is copied from path to path.

mod shape;
mod slab;
mod slots;

use std::collections::HashMap;

use candle_core::{Result, Tensor};
use ntl_core::engine::{CacheCost, ContextId, ModelError, NodeId, OPEN_TOKENS_MAX, Row};

pub(crate) use shape::NodeShape;
pub(crate) use slab::Slab;
pub(crate) use slots::Slots;

use crate::ops::{KeyValues, ModelResult, compute_error};
use shape::CAPACITY_MIN;

/// Prompt tokens that go through a device together: every other piece launches all kernels again.
pub(crate) const TOKENS_AT_ONCE_ON_DEVICES: usize = 8192;

/// Where the keys and values of some positions are.
#[derive(Debug)]
pub(crate) enum Positions {
    /// On the CPU: for each layer tensors of their own, `[capacity, width]`.
    Tensors(Vec<KeyValues>),
    /// On a device: slots of the cache's [`Slab`].
    Slots(Slots),
}

impl Positions {
    /// The tensors of each layer; none on a device.
    pub(crate) fn tensors(&self) -> &[KeyValues] {
        match self {
            Self::Tensors(layers) => layers,
            Self::Slots(_) => &[],
        }
    }

    /// The slots; none on the CPU.
    pub(crate) fn slots(&self) -> &[u32] {
        match self {
            Self::Tensors(_) => &[],
            Self::Slots(slots) => slots.numbers(),
        }
    }
}

/// The nodes of one request.
#[derive(Debug)]
pub(crate) struct NodeStore {
    pub(crate) kv: Positions,
    parents: Vec<Option<NodeId>>,
    /// Nodes that the tensors have room for.
    capacity: usize,
}

impl NodeStore {
    fn new(kv: Positions) -> Self {
        Self { kv, parents: Vec::new(), capacity: 0 }
    }

    /// A chain of `count` nodes, each after the one before it, with room for no more.
    fn chain(count: usize, shape: &NodeShape) -> Result<Self> {
        let parents = (0..count as u32).map(|node| node.checked_sub(1).map(NodeId)).collect();
        let mut store = Self { parents, ..Self::new(Positions::Tensors(Vec::new())) };
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

    /// Makes room for new nodes in tensors; slots are taken for all rows of a step together.
    fn reserve(&mut self, shape: &NodeShape) -> Result<()> {
        if self.len() <= self.capacity || matches!(self.kv, Positions::Slots(_)) {
            return Ok(());
        }
        self.grow(self.len().next_power_of_two().max(CAPACITY_MIN), shape)
    }

    /// Layer by layer, so that no more than one of them is there twice.
    fn grow(&mut self, capacity: usize, shape: &NodeShape) -> Result<()> {
        let Positions::Tensors(layers) = &mut self.kv else { return Ok(()) };
        let grown = |old: Option<Tensor>| -> Result<Tensor> {
            let new = Tensor::zeros((capacity, shape.width), shape.dtype, &shape.device)?;
            if let Some(old) = old {
                new.slice_set(&old, 0, 0)?;
            }
            Ok(new)
        };
        let mut old = std::mem::take(layers).into_iter();
        for _ in 0..shape.layers {
            let (keys, values) = old.next().map(|kv| (kv.keys, kv.values)).unzip();
            layers.push(KeyValues { keys: grown(keys)?, values: grown(values)? });
        }
        self.capacity = capacity;
        Ok(())
    }

    /// The slots of `count` nodes from `first` on, on a device.
    pub(crate) fn slots(&self, first: usize, count: usize) -> &[u32] {
        &self.kv.slots()[first..][..count]
    }

    /// Writes keys and values `[n, width]` of the nodes from `first` on to tensors, in their type.
    pub(crate) fn write_kv(&self, layer: usize, first: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        let kv = &self.kv.tensors()[layer];
        kv.keys.slice_set(&keys.to_dtype(kv.keys.dtype())?, 0, first)?;
        kv.values.slice_set(&values.to_dtype(kv.values.dtype())?, 0, first)
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

impl RowGroup {
    /// The slots of its rows on a device.
    pub(crate) fn slots<'a, P>(&self, context: &'a Context<P>) -> &'a [u32] {
        context.nodes.slots(self.first_node, self.paths.len())
    }
}

/// The open contexts of one model.
pub(crate) struct KvCache<P> {
    contexts: HashMap<ContextId, Context<P>>,
    opened: u64,
    shape: NodeShape,
    /// Of all contexts, on a device.
    slab: Option<Slab>,
}

impl<P> KvCache<P> {
    /// `has_slots`: whether contexts have slots of one slab, or tensors of their own.
    pub(crate) fn new(shape: NodeShape, has_slots: bool) -> Self {
        let slab = has_slots.then(|| Slab::new(shape.clone()));
        Self { contexts: HashMap::new(), opened: 0, shape, slab }
    }

    pub(crate) fn shape(&self) -> &NodeShape {
        &self.shape
    }

    pub(crate) fn cache_cost(&self) -> CacheCost {
        self.shape.cache_cost(self.slab.is_some())
    }

    /// Prompt tokens to open between two steps.
    pub(crate) fn open_tokens_max(&self) -> usize {
        if self.slab.is_some() { TOKENS_AT_ONCE_ON_DEVICES } else { OPEN_TOKENS_MAX }
    }

    pub(crate) fn slab(&self) -> Option<&Slab> {
        self.slab.as_ref()
    }

    pub(crate) fn slab_mut(&mut self) -> Option<&mut Slab> {
        self.slab.as_mut()
    }

    pub(crate) fn open(&mut self, prompt: P) -> ContextId {
        self.opened += 1;
        let context = ContextId(self.opened);
        let kv = match &self.slab {
            Some(slab) => Positions::Slots(slab.no_slots()),
            None => Positions::Tensors(Vec::new()),
        };
        self.contexts.insert(context, Context { prompt, nodes: NodeStore::new(kv) });
        context
    }

    pub(crate) fn close(&mut self, context: ContextId) {
        self.contexts.remove(&context);
    }

    /// The context of rows that were appended.
    pub(crate) fn context(&self, group: &RowGroup) -> &Context<P> {
        &self.contexts[&group.context]
    }

    /// Chains of so many nodes, which are not yet of any context.
    pub(crate) fn chains(&mut self, counts: &[usize]) -> Result<Vec<NodeStore>> {
        let Some(slab) = &mut self.slab else {
            return counts.iter().map(|&count| NodeStore::chain(count, &self.shape)).collect();
        };
        let slots = slab.take_each(counts)?.into_iter();
        Ok(slots.map(|slots| NodeStore::new(Positions::Slots(slots))).collect())
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
        let groups =
            rows.chunk_by(|a, b| a.context == b.context).map(append).collect::<ModelResult<Vec<_>>>()?;
        if let Some(slab) = &mut self.slab {
            let counts: Vec<usize> = groups.iter().map(|group| group.paths.len()).collect();
            let slots = slab.take_each(&counts).map_err(compute_error)?;
            for (group, more) in groups.iter().zip(slots) {
                if let Some(Context { nodes: NodeStore { kv: Positions::Slots(slots), .. }, .. }) =
                    self.contexts.get_mut(&group.context)
                {
                    slots.append(more);
                }
            }
        }
        Ok(groups)
    }
}
