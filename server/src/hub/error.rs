//! Why a repository cannot be downloaded. Messages are one line and name the repository and the file. None
//! contains a token or an address that a redirect leads to, which may be signed.

use std::path::{Path, PathBuf};

use reqwest::StatusCode;

use super::reference::HubReference;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("{variable}: {problem}")]
    Variable { variable: &'static str, problem: &'static str },
    #[error("the connection to the hub cannot be set up: {0}")]
    Client(String),
    #[error("cannot download {what}: {problem}")]
    Download { what: String, problem: Problem },
}

impl HubError {
    pub(super) fn of(reference: &HubReference, problem: Problem) -> Self {
        Self::Download { what: reference.to_string(), problem }
    }

    pub(super) fn of_file(reference: &HubReference, file: &str, problem: Problem) -> Self {
        Self::Download { what: format!("{file} of {reference}"), problem }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("the hub has no such repository, or HF_TOKEN has no access to it")]
    NoRepository,
    #[error("the repository has no revision `{0}`")]
    NoRevision(String),
    #[error("the repository has no such file")]
    NoFile,
    #[error(
        "the repository is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account"
    )]
    Gated { page: String },
    #[error("the hub does not accept the token of HF_TOKEN ({0})")]
    Token(StatusCode),
    #[error("the hub returned {0}")]
    Status(StatusCode),
    #[error("{0}")]
    Network(String),
    #[error("the response is not usable: {0}")]
    Response(String),
    #[error("it has {found} bytes instead of {expected}")]
    Size { expected: u64, found: u64 },
    #[error("its hash is {found} instead of {expected}; the download was deleted")]
    Hash { expected: String, found: String },
    #[error("it has {bytes} bytes; the limit for a file without weights is {max}")]
    TooLarge { bytes: u64, max: u64 },
    #[error("{needed} bytes are missing, and {} has room for {free}", .folder.display())]
    NoRoom { folder: PathBuf, needed: u64, free: u64 },
    #[error("HF_HUB_OFFLINE is set, and {} has no complete copy", .0.display())]
    Offline(PathBuf),
    #[error("the repository has GGUF files and no other weights; name a file, such as {0}")]
    OnlyGguf(String),
    #[error("`{0}` is not the name of a file of the repository")]
    Name(String),
    #[error("{}: {source}", .path.display())]
    Disk { path: PathBuf, source: std::io::Error },
}

impl Problem {
    pub(super) fn disk(path: &Path, source: std::io::Error) -> Self {
        Self::Disk { path: path.to_owned(), source }
    }

    /// Returns whether another attempt may succeed.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Network(_) => true,
            Self::Status(status) => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            _ => false,
        }
    }
}
