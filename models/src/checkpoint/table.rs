//! Which tensors the files of a checkpoint hold, and where in them: what reading their tables gives.

use std::collections::BTreeMap;

/// Element type of a tensor in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoredType {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, IEEE.
    F16,
    /// 16-bit floating point, the upper half of 32.
    Bf16,
    /// Anything else, by its name in the file: holds no weights that are served.
    Other(String),
}

impl StoredType {
    /// Bytes of one element; `None` for what is not read.
    pub(super) fn size(&self) -> Option<usize> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Other(_) => None,
        }
    }

    /// Its name as dtypes are usually called.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Other(name) => name,
        }
    }
}

/// One tensor in a file. Where it says, the file has its bytes; that was checked when the table was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) stored: StoredType,
    /// At most as many elements as the file has bytes.
    pub(super) shape: Vec<usize>,
    /// Elements between neighbours in each dimension, where they do not lie one behind the other.
    pub(super) strides: Option<Vec<usize>>,
    /// Where in the file its first element is.
    pub(super) offset: u64,
}

impl Entry {
    /// Number of elements.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of one file by name.
pub(super) type Table = BTreeMap<String, Entry>;

/// A table that cannot be used: what is wrong, and with which tensor if it is about one.
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
