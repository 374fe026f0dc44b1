//! The directory of a run, which no other run can use at the same time.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::settings::OnExisting;
use crate::store::journal::{JournalError, JournalFile};
use crate::store::saved::{REPORT, read_report};
use crate::tasks::Suite;

const JOURNAL: &str = "journal.jsonl";

/// Returns the directory of one suite: `--out` itself if there is only one suite.
pub fn suite_folder(out: &Path, suite: &Suite, suites: &[Suite]) -> PathBuf {
    if suites.len() > 1 { out.join(&suite.split) } else { out.to_owned() }
}

pub(super) fn writing(file: &Path) -> String {
    format!("could not write {}", file.display())
}

pub(super) struct RunFolder {
    pub(super) folder: PathBuf,
    /// Locked until the report is written.
    pub(super) journal: JournalFile,
}

impl RunFolder {
    /// Creates the directory, or rejects a directory whose result or journal this run would lose.
    pub(super) fn open(folder: PathBuf, on_existing: OnExisting) -> anyhow::Result<Self> {
        ensure!(!folder.is_file(), "--out: {} is a file, not a directory", folder.display());
        fs::create_dir_all(&folder).with_context(|| writing(&folder))?;
        let file = folder.join(JOURNAL);
        // A directory that is rejected for its other files gets no journal.
        let existing = if file.exists() { Some(JournalFile::open(&file)?.lock()?) } else { None };
        Self::check(&folder, on_existing)?;
        let journal = match existing {
            Some(journal) => journal,
            None => JournalFile::open(&file)?.lock()?,
        };
        Ok(Self { folder, journal })
    }

    /// Checks that the run may write to the directory. A run counts as finished if its report can be read.
    fn check(folder: &Path, on_existing: OnExisting) -> Result<(), JournalError> {
        let report = folder.join(REPORT);
        let journal = folder.join(JOURNAL);
        let is_finished = report.exists().then(|| read_report(&report).is_ok());
        let has_journal = fs::metadata(&journal).is_ok_and(|found| found.len() > 0);
        let folder = folder.to_owned();
        match (is_finished, has_journal) {
            _ if on_existing == OnExisting::Overwrite => Ok(()),
            (_, true) if on_existing == OnExisting::Resume => Ok(()),
            (Some(true), true) => Err(JournalError::Finished { folder }),
            (Some(true), false) => Err(JournalError::FinishedWithoutJournal { folder }),
            (Some(false), false) => Err(JournalError::DamagedReport { folder }),
            (Some(false) | None, true) => Err(JournalError::Unfinished { file: journal }),
            (None, false) => Ok(()),
        }
    }
}
