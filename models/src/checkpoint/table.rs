//! Which tensors a file of weights holds, and where in it.

use std::collections::BTreeMap;

/// Element types in which weights are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatType {
    F32,
    F16,
    Bf16,
}

impl FloatType {
    /// Bytes of one element.
    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// Element type of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredType {
    Float(FloatType),
    /// Any other type, by its name in the file.
    Other(String),
}

impl StoredType {
    /// Bytes of one element; `unknown` for a type that is not read.
    pub(super) fn bytes_or(&self, unknown: usize) -> usize {
        match self {
            Self::Float(float) => float.size(),
            Self::Other(_) => unknown,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Float(FloatType::F32) => "f32",
            Self::Float(FloatType::F16) => "f16",
            Self::Float(FloatType::Bf16) => "bf16",
            Self::Other(name) => name,
        }
    }
}

/// One tensor in a file. That the file holds all its bytes was checked when the table was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stored: StoredType,
    /// At most as many elements as the file has bytes.
    pub(super) shape: Vec<usize>,
    /// Elements between neighbours in each dimension; `None` when the tensor is contiguous.
    pub(super) strides: Option<Vec<usize>>,
    /// Byte offset of the first element in the file.
    pub(super) offset: u64,
}

impl Entry {
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of one file, by name.
pub(super) type Table = BTreeMap<String, Entry>;

/// What is wrong with a table; `tensor` is `None` when it is not about one tensor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableError {
    pub(super) tensor: Option<String>,
    pub(super) reason: String,
}

impl TableError {
    pub(super) fn file(reason: impl Into<String>) -> Self {
        Self { tensor: None, reason: reason.into() }
    }

    pub(super) fn tensor(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { tensor: Some(name.into()), reason: reason.into() }
    }
}
