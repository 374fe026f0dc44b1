//! Why a checkpoint cannot be served: always names the file, and the tensor or field where there is one.

use std::path::PathBuf;

/// A checkpoint that does not load. Messages are one line, for whoever starts the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The folder itself is not there.
    #[error("checkpoint folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    /// A file that every checkpoint needs is not there.
    #[error("{place} has no {file}{hint}")]
    MissingFile {
        /// The checkpoint.
        place: String,
        /// Its missing file.
        file: String,
        /// What would do instead, empty or starting with a semicolon.
        hint: String,
    },
    /// A file cannot be read.
    #[error("{file} cannot be read")]
    Read {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file does not hold what its name says.
    #[error("{file} is not usable: {reason}")]
    Malformed {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration field is missing or has a value that cannot be served.
    #[error("{file}: field `{field}`: {reason}")]
    Field {
        /// The file.
        file: String,
        /// Its field.
        field: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor is not in the weights.
    #[error("{file}: tensor `{name}` is missing")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
    },
    /// A tensor is there but not as the configuration says.
    #[error("{file}: tensor `{name}`: {reason}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The machine cannot run it as asked.
    #[error("device: {0}")]
    Device(String),
}

impl LoadError {
    /// A [`LoadError::Malformed`].
    pub fn malformed(file: impl Into<String>, reason: impl ToString) -> Self {
        Self::Malformed { file: file.into(), reason: reason.to_string() }
    }

    /// A [`LoadError::Field`].
    pub fn field(file: impl Into<String>, field: impl Into<String>, reason: impl ToString) -> Self {
        Self::Field { file: file.into(), field: field.into(), reason: reason.to_string() }
    }
}
