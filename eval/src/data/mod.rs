//! Data sets: questions with their answers.
//!
//! [`place`] finds files in `--data` or in the cache, which [`fetch`] fills for `ntl-eval data`; [`read`]
//! turns them into [`Item`]s in file order, [`records`] into named fields, [`mod@decisions`] into questions.
//! Every truth is finite.

pub mod decisions;
pub mod fetch;
pub mod place;
pub mod read;
pub mod records;
mod unpack;

use std::io;
use std::path::PathBuf;

use ntl_common::trust::TrustError;
use serde::{Deserialize, Serialize};

use self::decisions::Question;
use crate::error::OutputError;
use crate::metrics::forms::Form;
use crate::metrics::judgement::{HumanScore, Preference};
use crate::metrics::law::Law;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// The question as the data set has it.
    pub question: String,
    /// The answer as written.
    pub answer: String,
    /// The answer's value, if it is a number.
    pub truth: Option<f64>,
    /// The part of the data set that the item belongs to, if there are several.
    pub module: Option<String>,
    /// The text that the model gets, if it is not the question alone.
    pub prompt: Option<String>,
    /// The prompt with the answers of a pair in the other order. Journals know items by their hash: what
    /// other items do not have does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped_prompt: Option<String>,
    /// Which answer of a pair people prefer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<Preference>,
    /// The form that the question prescribes for the answer, whose digits are then scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Form>,
    /// The distribution that the true answer was drawn from, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub law: Option<Law>,
    /// The question for a decision model, whose prompt the server words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Question>,
    /// The predictions of simple methods, by their names, which reports compare with those of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub baselines: Vec<(String, Law)>,
    /// People's score from a file of labels. Journals do not contain it, so that labels may be added to a
    /// finished run.
    #[serde(skip)]
    pub label: Option<HumanScore>,
    /// The input that an answer to judge replies to: the same for the answers of two systems.
    #[serde(skip)]
    pub input: Option<String>,
}

impl Item {
    pub fn prompt(&self) -> &str {
        self.prompt.as_deref().unwrap_or(&self.question)
    }

    /// Returns the true number, from the data or from a file of labels.
    pub fn true_number(&self) -> Option<f64> {
        self.label.map_or(self.truth, |label| label.truth)
    }

    /// Returns which answer of a pair people prefer, from the data or from a file of labels.
    pub fn preference(&self) -> Option<Preference> {
        self.label.map_or(self.preferred, |label| label.preferred)
    }
}

/// Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("could not read {}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{} is a folder; name a file in it", .file.display())]
    IsFolder { file: PathBuf },
    #[error("{} is larger than {} MiB{}", .file.display(), .bytes_max >> 20, if *.packed { " when it is unpacked" } else { "" })]
    TooLarge { file: PathBuf, bytes_max: u64, packed: bool },
    #[error("{} is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`", .file.display())]
    LfsPointer { file: PathBuf },
    #[error("{} is {format}", .file.display())]
    OtherFormat { file: PathBuf, format: &'static str },
    #[error(
        "{} holds neither JSON lines nor a JSON array; it may also be CSV or TSV, with a header and a name that ends in .csv or \
         .tsv; questions and answers on alternating lines are only read by arithmetic, mathematics and multiplication",
        .file.display()
    )]
    NoRecords { file: PathBuf },
    #[error("{} holds no questions", .file.display())]
    Empty { file: PathBuf },
    #[error("{} has no complete item: {skipped}", .file.display())]
    NoneComplete { file: PathBuf, skipped: String },
    /// `lines` leaves out blank lines at the end.
    #[error("{} holds JSON; this task reads questions and answers in turn, each on a separate line", file.display())]
    NotPairs { file: PathBuf },
    #[error("{} has {lines} lines; expected pairs of a question and its answer", .file.display())]
    OddLines { file: PathBuf, lines: usize },
    #[error("{} line {line}: {problem}", .file.display())]
    Line { file: PathBuf, line: usize, problem: String },
    #[error("there is no data for {task} in {}: {advice}", .folder.display())]
    Missing { task: &'static str, folder: PathBuf, advice: String },
    #[error("could not download {url}: {problem}; you can also put the file there by hand: {}", .file.display())]
    Download { file: PathBuf, url: String, problem: String },
    /// `expected` is the published checksum, or the one that the first download recorded.
    #[error("{} has sha256 {found}, expected {expected}; it was deleted", .file.display())]
    Checksum { file: PathBuf, found: String, expected: String },
    #[error("could not write {}", .file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error(transparent)]
    Output(#[from] OutputError),
}
