//! Questions with their answers, and where they come from.
//!
//! In: files of the original data sets (`read`), found in `--data` or in the cache (`place`) that `ntl-eval data` fills
//! (`fetch`). Out: [`Item`]s in file order. Invariant: every truth is finite.

pub mod fetch;
pub mod place;
pub mod read;
mod unpack;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::figures::shortened;

/// A question with its answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The question as the data set has it.
    pub question: String,
    /// The answer as written.
    pub answer: String,
    /// The answer's value, where it is a number.
    pub truth: Option<f64>,
    /// The part of the data set that it belongs to, where there are several.
    pub module: Option<String>,
    /// The text that the model sees, where it is not the question alone.
    pub prompt: Option<String>,
}

impl Item {
    /// The text that the model sees.
    pub fn prompt(&self) -> &str {
        self.prompt.as_deref().unwrap_or(&self.question)
    }
}

/// Why data could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Not there, not readable, or not UTF-8.
    #[error("could not read {}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Nothing in it.
    #[error("{} holds no questions", .file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A question without an answer.
    #[error("{} has {lines} lines; expected pairs of a question and its answer", .file.display())]
    OddLines {
        /// The file.
        file: PathBuf,
        /// How many there are, blank ones at the end left out.
        lines: usize,
    },
    /// An answer that is no finite number.
    #[error("{} line {line}: the answer {:?} is not a number", .file.display(), shortened(.answer, 60))]
    Answer {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        answer: String,
    },
    /// A line that is not in the format of the data set.
    #[error("{} line {line}: {problem}", .file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// No data at hand.
    #[error("there is no data for {task} in {}: {advice}", .folder.display())]
    Missing {
        /// The task.
        task: &'static str,
        /// Where it was looked for.
        folder: PathBuf,
        /// What to do.
        advice: String,
    },
    /// A download that did not work out.
    #[error("could not download {url}: {problem}; without a network, put the file there by hand: {}", .file.display())]
    Download {
        /// Where it belongs.
        file: PathBuf,
        /// From where.
        url: String,
        /// Why.
        problem: String,
    },
    /// A download that is not what it should be.
    #[error("{} has sha256 {found}, expected {expected}; it was deleted", .file.display())]
    Checksum {
        /// The file.
        file: PathBuf,
        /// What was computed.
        found: String,
        /// What is known of the original, or was recorded when it was downloaded.
        expected: String,
    },
    /// A file or folder that could not be written.
    #[error("could not write {}", .file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
