//! The reasons why a checkpoint does not load. Every error names the file, and the tensor or field if it
//! concerns one.

use std::path::{Path, PathBuf};

use ntl_core::contract::ModelError;

/// Why a checkpoint does not load. Messages are one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("checkpoint folder {} does not exist{}", .0.display(), hub_hint(.0))]
    NoFolder(PathBuf),
    #[error("adapter folder {} does not exist{}", .0.display(), hub_hint(.0))]
    NoAdapterFolder(PathBuf),
    #[error("{} is a file; give the checkpoint folder that holds it", .0.display())]
    NotAFolder(PathBuf),
    /// The small text that Git stores in place of a large file.
    #[error("{file} is a Git LFS pointer and not the file itself; fetch the file with `git lfs pull`")]
    LfsPointer { file: String },
    /// A file that every checkpoint needs; `hint` is empty or starts with a semicolon.
    #[error("{place} has no {file}{hint}")]
    MissingFile { place: String, file: String, hint: String },
    #[error("{file} cannot be read")]
    Read {
        file: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{file} is not usable: {reason}")]
    Malformed { file: String, reason: String },
    /// A configuration field that is missing or has a value that cannot be served.
    #[error("{file}: field `{field}`: {reason}")]
    Field { file: String, field: String, reason: String },
    #[error("{file}: tensor `{name}` is missing")]
    MissingTensor { file: String, name: String },
    /// A tensor that contradicts the configuration or the table.
    #[error("{file}: tensor `{name}`: {reason}")]
    Tensor { file: String, name: String, reason: String },
    #[error("{file} has {bytes} bytes; the limit is {max}")]
    TooLarge { file: String, bytes: u64, max: u64 },
    #[error(
        "{file} is a link to {}, which is outside of the checkpoint; give the folder with the files themselves, or a copy \
         without links: `cp -rL FOLDER COPY`",
        .target.display()
    )]
    Outside { file: String, target: PathBuf },
    /// A setting without a default that no file of the checkpoint contains.
    #[error(
        "{place} does not say `{choice}`: give --{flag} true or --{flag} false, the value that the trainer used (its default is \
         false), or write it to its ntl.json",
        flag = .choice.replace('_', "-")
    )]
    Undecided { place: String, choice: &'static str },
    /// The device does not exist or has no room for the model.
    #[error("device: {0}")]
    Device(String),
    /// The first steps of the model failed, for example because memory ran out.
    #[error("the model does not run on this device")]
    DoesNotRun(#[source] ModelError),
}

pub type LoadResult<T> = Result<T, LoadError>;

impl LoadError {
    pub(super) fn unreadable(file: impl Into<String>, source: std::io::Error) -> Self {
        Self::Read { file: file.into(), source }
    }

    pub fn malformed(file: impl Into<String>, reason: impl ToString) -> Self {
        Self::Malformed { file: file.into(), reason: one_line(&reason.to_string()) }
    }

    pub fn field(file: impl Into<String>, field: impl Into<String>, reason: impl ToString) -> Self {
        Self::Field { file: file.into(), field: field.into(), reason: one_line(&reason.to_string()) }
    }

    /// A device that cannot hold or run the model.
    pub fn device(reason: impl ToString) -> Self {
        Self::Device(one_line(&reason.to_string()))
    }

    pub fn tensor(file: impl Into<String>, name: &str, reason: impl ToString) -> Self {
        Self::Tensor { file: file.into(), name: one_line(name), reason: one_line(&reason.to_string()) }
    }
}

/// Returns a hint if a path looks like the name of a model on the Hugging Face hub, otherwise an empty
/// string.
fn hub_hint(path: &Path) -> String {
    let name = path.to_string_lossy();
    let mut words = name.split('/');
    let is_hub_name = words.clone().count() <= 2 && words.all(is_hub_word);
    if !is_hub_name {
        return String::new();
    }
    let repository = if name.contains('/') { &*name } else { "ORG/NAME" };
    format!("; ntl-server downloads from the Hugging Face hub what is written as hf:{repository}")
}

fn is_hub_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with('.')
        && word.chars().all(|character| character.is_ascii_alphanumeric() || "-_.".contains(character))
}

/// Shortens a text from a file to one line of limited length.
fn one_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 1000;
    let mut characters =
        text.chars().map(|character| if ntl_core::is_unprintable(character) { ' ' } else { character });
    let mut line: String = characters.by_ref().take(CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}
