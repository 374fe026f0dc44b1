//! The table of a weight file: its tensors and their offsets.

use std::collections::BTreeMap;

use ntl_text::gguf::GgmlType;

/// Element types from which weights can be read.
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
    /// Blocks of a quantised type.
    Blocks(GgmlType),
    /// Any other type, by its name in the file.
    Other(String),
}

impl StoredType {
    /// Returns the size of an element in bytes, or `unknown` for a type that is not read.
    pub(super) fn bytes_or(&self, unknown: usize) -> usize {
        match self {
            Self::Float(float) => float.size(),
            Self::Blocks(_) | Self::Other(_) => unknown,
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Float(FloatType::F32) => "f32",
            Self::Float(FloatType::F16) => "f16",
            Self::Float(FloatType::Bf16) => "bf16",
            Self::Blocks(quantised) => quantised.name(),
            Self::Other(name) => name,
        }
    }
}

/// One tensor in a file. Reading the table has checked that the file contains all its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stored: StoredType,
    /// The tensor has at most eight times as many elements as the file has bytes.
    pub(super) shape: Vec<usize>,
    /// Distance between neighbours in each dimension, in elements, or `None` if the tensor is contiguous.
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

/// The reason why a table is invalid. `tensor` is `None` if the reason does not concern one tensor.
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
