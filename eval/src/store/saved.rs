//! Folders of finished runs: written by a run, read by reports, comparisons and gates.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use ntl_common::regular_file;

use crate::json;

use super::RUN_BYTES_MAX;
use super::disk::{self, DiskFile};
use super::report::Report;
use super::sample::Sample;

pub const REPORT: &str = "report.json";
const SAMPLES: &str = "samples.jsonl";
/// The pages that `ntl-eval report` writes, the main one first.
pub const PAGES: [&str; 2] = ["report.html", "report.md"];

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

/// The folders that hold a run: `folder` itself, or those at most `LEVELS_MAX` levels below it, by path.
/// Folders inside that of a run are not searched.
pub fn run_folders(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(!folder.is_file(), "{} is a file; name the folder of a run or of several", folder.display());
    let mut found = Vec::new();
    find_runs(folder, LEVELS_MAX, &mut found)?;
    found.sort();
    Ok(found)
}

/// `TASK/MODE/SPLIT`, or `MODE/SPLIT` of two models.
const LEVELS_MAX: usize = 3;

fn find_runs(folder: &Path, levels: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if folder.join(REPORT).is_file() {
        found.push(folder.to_owned());
    } else {
        for entry in fs::read_dir(folder).with_context(|| reading(folder))? {
            let path = entry.with_context(|| reading(folder))?.path();
            if levels > 0 && path.is_dir() {
                find_runs(&path, levels - 1, found)?;
            }
        }
    }
    Ok(())
}

/// Replaces the result in a directory. Both new files are on disk before the old ones are touched.
/// `report.json` is removed first and written last, so a directory that holds it is complete. Pages of an
/// earlier result are removed.
pub fn write(folder: &Path, report: &Report, samples: impl Iterator<Item = Sample>) -> anyhow::Result<()> {
    let samples = PendingFile::write(folder.join(SAMPLES), |out| {
        for sample in samples {
            serde_json::to_writer(&mut *out, &sample)?;
            writeln!(out)?;
        }
        Ok(())
    })?;
    let report = PendingFile::write(folder.join(REPORT), |out| {
        serde_json::to_writer_pretty(&mut *out, report)?;
        writeln!(out)
    })?;
    // From here to the end there is no report: the directory never holds samples of one run and the report of
    // another.
    [REPORT].iter().chain(&PAGES).try_for_each(|name| remove(&folder.join(name)))?;
    samples.rename()?;
    report.rename()?;
    // The names are on disk once their folder is; platforms that cannot open a folder have no such call.
    if let Ok(open) = File::open(folder) {
        DiskFile(open).sync().with_context(|| writing(folder))?;
    }
    Ok(())
}

/// Removes the result in a folder, with the pages that show it.
pub fn remove_result(folder: &Path) -> anyhow::Result<()> {
    [REPORT, SAMPLES].iter().chain(&PAGES).try_for_each(|name| remove(&folder.join(name)))
}

/// Replaces a page. If there is a link in its place, the page replaces the link and not what it points to.
pub fn write_page(file: PathBuf, text: &str) -> anyhow::Result<()> {
    PendingFile::write(file, |out| out.write_all(text.as_bytes()))?.rename()
}

/// A complete file, next to the file that it is about to replace.
struct PendingFile {
    temporary: PathBuf,
    file: PathBuf,
}

impl PendingFile {
    fn write(
        file: PathBuf,
        fill: impl FnOnce(&mut BufWriter<DiskFile>) -> io::Result<()>,
    ) -> anyhow::Result<Self> {
        let temporary = file.with_added_extension("tmp");
        if let Err(error) = create_filled(&temporary, fill) {
            // The rest of a file on a full disk only uses space. The first error is the one to report.
            let _ = disk::remove(&temporary);
            return Err(error).with_context(|| writing(&temporary));
        }
        Ok(Self { temporary, file })
    }

    fn rename(self) -> anyhow::Result<()> {
        disk::rename(&self.temporary, &self.file).with_context(|| writing(&self.file))
    }
}

fn create_filled(
    file: &Path,
    fill: impl FnOnce(&mut BufWriter<DiskFile>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(DiskFile::create(file)?);
    fill(&mut out)?;
    out.into_inner()?.sync()
}

/// Removes a file if it is there.
fn remove(file: &Path) -> anyhow::Result<()> {
    disk::remove(file).with_context(|| writing(file))
}

fn writing(file: &Path) -> String {
    format!("could not write {}", file.display())
}

fn reading(file: &Path) -> String {
    format!("could not read {}", file.display())
}

pub fn read_report(file: &Path) -> anyhow::Result<Report> {
    let text = regular_file::read_text(file, RUN_BYTES_MAX).with_context(|| reading(file))?;
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("{} is no report: {}", file.display(), json::problem(&error)))
}

fn read_samples(file: &Path) -> anyhow::Result<Vec<Sample>> {
    let lines =
        BufReader::new(regular_file::open(file, RUN_BYTES_MAX).with_context(|| reading(file))?).lines();
    let mut samples = Vec::new();
    for (line, number) in lines.zip(1..) {
        let line = line.with_context(|| reading(file))?;
        if !line.trim().is_empty() {
            match serde_json::from_str(&line) {
                Ok(sample) => samples.push(sample),
                Err(error) => {
                    let problem = json::problem(&error);
                    bail!("{} line {number} is no sample: {problem}", file.display());
                }
            }
        }
    }
    Ok(samples)
}

#[cfg(test)]
pub(crate) mod tests;
