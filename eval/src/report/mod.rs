//! Reports for people: tables on a terminal, and `report.md` and `report.html` of finished runs.
//!
//! A run becomes a [`document::Document`] of texts, tables and pictures (`run_page`, `index_page`).
//! [`markdown`] and [`html`] render any document. Reports only use the run's files, so the same directory
//! always gives the same report, and a report can be made at any time after a run.

pub mod chart;
pub mod console;
pub mod corrections;
mod decisions;
pub mod document;
mod histograms;
pub mod html;
pub mod index_page;
mod judgements;
pub mod junit;
pub mod markdown;
pub(crate) mod notes;
mod pictures;
mod published;
mod run_page;
pub mod tables;

use std::path::{Path, PathBuf};

use anyhow::bail;
use document::Document;

use crate::store::saved::{PAGES, Run, run_folders, write_page};

/// Writes the reports of all runs in a directory and returns the files. The first one is the one to open
/// first.
pub fn write(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folders = run_folders(folder)?;
    if folders.is_empty() {
        bail!("{} holds no report.json", folder.display());
    }
    let runs = folders.iter().map(|folder| Run::load(folder)).collect::<Result<Vec<_>, _>>()?;
    let mut files = Vec::new();
    if folders != [folder] {
        files.extend(write_document(folder, &index_page::document(folder, &runs))?);
    }
    for run in &runs {
        files.extend(write_document(&run.folder, &run_page::document(run))?);
    }
    Ok(files)
}

fn write_document(folder: &Path, document: &Document) -> anyhow::Result<[PathBuf; 2]> {
    write_pages(folder, PAGES, document)
}

/// Writes a document as the HTML page and as the Markdown page of these names.
pub fn write_pages(folder: &Path, names: [&str; 2], document: &Document) -> anyhow::Result<[PathBuf; 2]> {
    let files = names.map(|name| folder.join(name));
    let texts = [html::render(document), markdown::render(document)];
    for (file, text) in files.iter().zip(texts) {
        write_page(file.clone(), &text)?;
    }
    Ok(files)
}
