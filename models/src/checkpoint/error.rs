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
    /// A file that is larger than any of its name should be.
    #[error("{file} is {bytes} bytes, at most {max} make sense")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A link that leads out of the folder.
    #[error("{file} is a link to {}, which is outside of the checkpoint", .target.display())]
    Outside {
        /// The link.
        file: String,
        /// Where it leads.
        target: PathBuf,
    },
    /// Something that has to be known, that no file of a checkpoint need say, and that none says.
    #[error("{place} does not say `{choice}`: give --{} or write it to its ntl.json", .choice.replace('_', "-"))]
    Undecided {
        /// The checkpoint.
        place: String,
        /// What is not known.
        choice: &'static str,
    },
    /// The machine cannot run it as asked.
    #[error("device: {0}")]
    Device(String),
}

impl LoadError {
    /// A [`LoadError::Malformed`].
    pub fn malformed(file: impl Into<String>, reason: impl ToString) -> Self {
        Self::Malformed { file: file.into(), reason: one_line(&reason.to_string()) }
    }

    /// A [`LoadError::Field`].
    pub fn field(file: impl Into<String>, field: impl Into<String>, reason: impl ToString) -> Self {
        Self::Field { file: file.into(), field: field.into(), reason: one_line(&reason.to_string()) }
    }

    /// A [`LoadError::Tensor`].
    pub fn tensor(file: impl Into<String>, name: &str, reason: impl ToString) -> Self {
        Self::Tensor { file: file.into(), name: one_line(name), reason: one_line(&reason.to_string()) }
    }
}

/// A text out of a file as messages show it: one line, not too long.
fn one_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    let mut characters = text.chars().map(|character| if character.is_control() { ' ' } else { character });
    let mut line: String = characters.by_ref().take(CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        line.push('…');
    }
    line
}
