//! Folders of finished runs: written by a run, read by reports, comparisons and gates.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::report::Report;
use super::sample::Sample;

pub const REPORT: &str = "report.json";
const SAMPLES: &str = "samples.jsonl";

/// One finished run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub folder: PathBuf,
    pub report: Report,
    /// In the order of their `doc_id`.
    pub samples: Vec<Sample>,
}

/// Why a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    #[error("could not read {}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("could not write {}", .file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("{} is no report", .file.display())]
    Report { file: PathBuf, source: serde_json::Error },
    /// `line`: from 1.
    #[error("{} line {line} is no sample", .file.display())]
    Sample { file: PathBuf, line: usize, source: serde_json::Error },
    /// `below`: folders inside that hold a run.
    #[error("{} holds no {REPORT}{}", .folder.display(), hint(.below))]
    NoRun { folder: PathBuf, below: Vec<PathBuf> },
}

fn hint(below: &[PathBuf]) -> String {
    let names: Vec<String> = below.iter().map(|folder| folder.display().to_string()).collect();
    if names.is_empty() { String::new() } else { format!("; there is one in {}", names.join(", ")) }
}

impl Run {
    /// Reads the run in a folder, named by itself or by its `report.json`.
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

/// Writes `report.json` last: a folder that holds it is complete.
pub fn write(
    folder: &Path,
    report: &Report,
    samples: impl Iterator<Item = Sample>,
) -> Result<(), SavedError> {
    write_file(folder.join(SAMPLES), |out| {
        for sample in samples {
            serde_json::to_writer(&mut *out, &sample)?;
            writeln!(out)?;
        }
        Ok(())
    })?;
    write_file(folder.join(REPORT), |out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        writeln!(out)
    })
}

fn write_file(
    file: PathBuf,
    fill: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), SavedError> {
    let write = || {
        let mut out = BufWriter::new(File::create(&file)?);
        fill(&mut out)?;
        out.flush()
    };
    write().map_err(|source| SavedError::Write { file, source })
}

pub fn read_report(file: &Path) -> Result<Report, SavedError> {
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
