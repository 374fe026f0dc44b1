//! The data on which a step's launches on a GPU depend.

use candle_core::Tensor;

/// The data of a step that its layers read, apart from its rows' embeddings.
pub(crate) struct StepInputs {
    /// Numbers that change the launches. Two steps of a model with the same numbers differ only in the
    /// contents of tensors.
    pub(crate) shape: Vec<usize>,
    /// Tensors with the other data. They have the same sizes if the shapes are equal.
    pub(crate) tables: Vec<Tensor>,
}
