//! Why a command ends without a report.

use std::io;
use std::path::PathBuf;

use crate::compare::CompareError;
use crate::data::DataError;
use crate::run::client::ClientError;
use crate::run::gate::BaselineError;
use crate::run::runner::RunError;
use crate::store::journal::JournalError;
use crate::store::saved::SavedError;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Flags that do not go together.
    #[error("{0}")]
    Usage(String),
    /// Data that cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A server that cannot be used.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A run that ended early.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A journal or cache that cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An earlier report that cannot be used.
    #[error(transparent)]
    Baseline(#[from] BaselineError),
    /// A finished run that cannot be read back.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// Runs that cannot be compared.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// No runtime for concurrent requests.
    #[error("could not start the runtime")]
    Runtime(#[source] io::Error),
    /// Standard output or error is closed or full.
    #[error("could not write to the console")]
    Console(#[source] io::Error),
    /// A file of `--out`.
    #[error("could not write {}", .file.display())]
    Write {
        /// The file or folder.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
