//! Folders of finished runs: written by a run, read by reports, comparisons and gates.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

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

impl Run {
    /// Reads the run in a folder, named by itself or by its `report.json`.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let folder = match path.file_name() {
            Some(name) if name == REPORT && path.is_file() => path.parent().unwrap_or(path),
            _ => path,
        };
        if folder.is_dir() && !folder.join(REPORT).is_file() {
            let below: Vec<String> =
                run_folders(folder)?.iter().map(|folder| folder.display().to_string()).collect();
            let hint = if below.is_empty() { "" } else { "; there is one in " };
            bail!("{} holds no {REPORT}{hint}{}", folder.display(), below.join(", "));
        }
        let mut samples = read_samples(&folder.join(SAMPLES))?;
        samples.sort_by_key(|sample| sample.doc_id);
        Ok(Self { folder: folder.to_owned(), report: read_report(&folder.join(REPORT))?, samples })
    }
}

/// The folders that hold a run: `folder` itself, or those right below it, by name.
pub fn run_folders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if folder.join(REPORT).is_file() {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = fs::read_dir(folder).with_context(|| reading(folder))?;
    let entries = entries.collect::<Result<Vec<_>, _>>().with_context(|| reading(folder))?;
    let mut found: Vec<PathBuf> =
        entries.into_iter().map(|entry| entry.path()).filter(|path| path.join(REPORT).is_file()).collect();
    found.sort();
    Ok(found)
}

/// Writes `report.json` last: a folder that holds it is complete.
pub fn write(folder: &Path, report: &Report, samples: impl Iterator<Item = Sample>) -> anyhow::Result<()> {
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
) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        let mut out = BufWriter::new(File::create(&file)?);
        fill(&mut out)?;
        out.flush()
    };
    write().with_context(|| format!("could not write {}", file.display()))
}

fn reading(file: &Path) -> String {
    format!("could not read {}", file.display())
}

pub fn read_report(file: &Path) -> anyhow::Result<Report> {
    let text = fs::read_to_string(file).with_context(|| reading(file))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no report", file.display()))
}

fn read_samples(file: &Path) -> anyhow::Result<Vec<Sample>> {
    let lines = BufReader::new(File::open(file).with_context(|| reading(file))?).lines();
    let mut samples = Vec::new();
    for (line, number) in lines.zip(1..) {
        let line = line.with_context(|| reading(file))?;
        if !line.trim().is_empty() {
            let wrong = || format!("{} line {number} is no sample", file.display());
            samples.push(serde_json::from_str(&line).with_context(wrong)?);
        }
    }
    Ok(samples)
}

#[cfg(test)]
pub(crate) mod tests;
