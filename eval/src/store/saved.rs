//! Finished runs, read back from their folders.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::report::Report;
use super::sample::Sample;

const REPORT: &str = "report.json";
const SAMPLES: &str = "samples.jsonl";

/// One finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub folder: PathBuf,
    pub report: Report,
    /// In the order of their `doc_id`.
    pub samples: Vec<Sample>,
}

/// Why a run cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    #[error("could not read {}", .file.display())]
    Read {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no report", .file.display())]
    Report {
        file: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} line {line} is no sample", .file.display())]
    Sample {
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} holds no {REPORT}{}", .folder.display(), hint(.below))]
    NoRun {
        folder: PathBuf,
        /// Folders in it that hold one.
        below: Vec<PathBuf>,
    },
}

fn hint(below: &[PathBuf]) -> String {
    let names: Vec<String> = below.iter().map(|folder| folder.display().to_string()).collect();
    if names.is_empty() { String::new() } else { format!("; there is one in {}", names.join(", ")) }
}

impl Run {
    /// Reads the run in a folder, named by itself or by its `report.json`.
    ///
    /// # Errors
    /// A file is missing or is not what its name says.
    pub fn load(path: &Path) -> Result<Self, SavedError> {
        let folder = match path.file_name() {
            Some(name) if name == REPORT && path.is_file() => path.parent().unwrap_or(path),
            _ => path,
        };
        if folder.is_dir() && !folder.join(REPORT).is_file() {
            return Err(SavedError::NoRun { folder: folder.to_owned(), below: run_folders(folder)? });
        }
        let mut samples = read_samples(&folder.join(SAMPLES))?;
        samples.sort_by_key(|sample| sample.doc_id);
        Ok(Self { folder: folder.to_owned(), report: read_report(&folder.join(REPORT))?, samples })
    }
}

/// The folders that hold a run: `folder` itself, or those right below it, by name.
///
/// # Errors
/// `folder` cannot be listed.
pub fn run_folders(folder: &Path) -> Result<Vec<PathBuf>, SavedError> {
    if folder.join(REPORT).is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let failed = |source| SavedError::Read { file: folder.to_owned(), source };
    let entries = fs::read_dir(folder).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let mut found: Vec<PathBuf> =
        entries.into_iter().map(|entry| entry.path()).filter(|path| path.join(REPORT).is_file()).collect();
    found.sort();
    Ok(found)
}

fn read_report(file: &Path) -> Result<Report, SavedError> {
    let text =
        fs::read_to_string(file).map_err(|source| SavedError::Read { file: file.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|source| SavedError::Report { file: file.to_owned(), source })
}

fn read_samples(file: &Path) -> Result<Vec<Sample>, SavedError> {
    let failed = |source| SavedError::Read { file: file.to_owned(), source };
    let lines = BufReader::new(File::open(file).map_err(failed)?).lines();
    let mut samples = Vec::new();
    for (index, line) in lines.enumerate() {
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let sample = serde_json::from_str(&line);
        samples.push(sample.map_err(|source| SavedError::Sample {
            file: file.to_owned(),
            line: index + 1,
            source,
        })?);
    }
    Ok(samples)
}

#[cfg(test)]
pub(crate) mod tests;
