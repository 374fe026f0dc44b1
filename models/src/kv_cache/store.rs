//! The memory of a device for keys and values, and the passes that write and read it.

use candle_core::{DType, Device, Result, Tensor};
use ntl_core::contract::NodeCapacity;

use super::slots::Slots;
use crate::ops::{
    AdaptedRows, AttentionQuery, Heads, KeyValues, KvInput, PassRope, Phase, QkvInput, RelativeBias,
    StepInputs,
};

/// Size of the keys and values of one position.
#[derive(Debug, Clone)]
pub(crate) struct PositionShape {
    pub(crate) layers: usize,
    /// Width of the keys of one layer, and of its values.
    pub(crate) width: usize,
    pub(crate) dtype: DType,
    /// Element type of attention's results on devices; on the CPU they are f32.
    pub(crate) results: DType,
    pub(crate) device: Device,
}

impl PositionShape {
    /// Returns the size of one position, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (2 * self.layers * self.width * self.dtype.size_in_bytes()) as u64
    }
}

/// Keys and values of some positions in every layer. Only the store that allocated them can access them.
#[derive(Debug)]
pub(crate) struct Positions(pub(super) Location);

#[derive(Debug)]
pub(super) enum Location {
    /// For each layer, tensors `[capacity, width]`.
    Tensors(Vec<KeyValues>),
    Slots(Slots),
}

/// The error for positions that another store allocated.
pub(super) fn not_here<T>() -> Result<T> {
    candle_core::bail!("these positions belong to another store")
}

/// Memory for keys and values.
pub(crate) trait KvStore: Send {
    fn shape(&self) -> &PositionShape;

    /// Returns the number of nodes for which [`KvStore::extend`] allocates memory.
    fn capacity(&self) -> NodeCapacity;

    /// Returns the maximum number of prompt tokens to prefill between two steps.
    fn prefill_tokens_max(&self) -> usize;

    /// Grows the memory so that the next allocations of up to `count` positions together need not.
    fn reserve(&mut self, count: usize) -> Result<()>;

    /// Returns no positions, which can be extended.
    fn none(&self) -> Positions;

    /// Allocates exactly `count` positions.
    fn allocate(&mut self, count: usize) -> Result<Positions>;

    /// Makes room for `count` positions in total. Existing positions keep their contents.
    fn extend(&mut self, positions: &mut Positions, count: usize) -> Result<()>;

    /// Divides positions into parts of these lengths, which can be dropped separately.
    fn split(&self, positions: Positions, lengths: &[usize]) -> Result<Vec<Positions>>;

    /// Returns a copy of the first `count` positions of consecutive parts, or `None` if this store does not
    /// copy positions.
    fn copy_first(&self, _parts: &[&Positions], _count: usize) -> Result<Option<Positions>> {
        Ok(None)
    }

    /// Returns the memory of `count` positions that were split off, in bytes.
    fn bytes(&self, count: usize) -> usize;

    /// Begins a pass over rows whose keys and values go to `written`, in order, and whose queries attend to
    /// `views`.
    fn pass<'a>(
        &'a self,
        written: &[WrittenRows<'a>],
        views: Vec<KeyView<'a>>,
    ) -> Result<Box<dyn KvPass + 'a>>;
}

/// One pass of rows through the layers of a model.
pub(crate) trait KvPass {
    /// Returns the data of the pass for CUDA graphs, or `None` if a graph cannot repeat it.
    fn inputs(&self) -> Option<StepInputs> {
        None
    }

    /// Computes queries, keys and values of all rows in a layer, and writes keys and values. Returns the
    /// queries `[R, H * D]`.
    fn write(&self, layer: usize, input: &QkvInput<'_>) -> Result<Tensor>;

    /// Computes only keys and values of all rows in a layer, and writes them.
    fn write_keys_and_values(&self, layer: usize, input: &KvInput<'_>) -> Result<()>;

    /// Computes softmax attention of queries `[R, H * D]` to the keys and values of a view, given by its
    /// index. Returns `[R, H * D]`.
    fn attend(&self, layer: usize, view: usize, q: &Tensor, heads: Heads) -> Result<Tensor>;
}

/// Returns the data of a step with these rotations and adapters for CUDA graphs, or `None` if a graph cannot
/// repeat it.
pub(crate) fn step_inputs<'a>(
    kv: &dyn KvPass,
    ropes: impl Iterator<Item = &'a PassRope>,
    rows: &AdaptedRows,
) -> Result<Option<StepInputs>> {
    if !rows.is_empty() {
        return Ok(None);
    }
    let Some(mut inputs) = kv.inputs() else { return Ok(None) };
    for rope in ropes {
        let table = rope.table(inputs.tables[0].device())?.clone();
        inputs.tables.push(table);
    }
    Ok(Some(inputs))
}

/// Consecutive rows of a pass, and the positions that get their keys and values.
#[derive(Clone, Copy)]
pub(crate) struct WrittenRows<'a> {
    pub(crate) positions: &'a Positions,
    /// Index of the first row's position among them.
    pub(crate) first: usize,
    pub(crate) count: usize,
}

/// All queries of a pass, in order, and the keys that they attend to.
pub(crate) struct KeyView<'a> {
    pub(crate) groups: Vec<KeyGroup<'a>>,
    pub(crate) bias: Option<&'a RelativeBias>,
}

/// Consecutive queries that attend to the same positions. Each query sees all positions `before`, and its
/// visible positions of `own`.
pub(crate) struct KeyGroup<'a> {
    pub(crate) before: Vec<&'a Positions>,
    pub(crate) own: &'a Positions,
    pub(crate) queries: Vec<AttentionQuery<'a>>,
    pub(crate) phase: Phase,
}
