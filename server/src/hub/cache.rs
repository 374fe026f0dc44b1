//! The Hugging Face cache on disk, which transformers and `hf` share: `models--ORG--NAME/blobs/HASH` is the
//! contents of a file, `snapshots/COMMIT/FILE` a link to it, and `refs/REVISION` the commit of a revision.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use ntl_common::regular_file::read_text;

use super::content_hash::ContentHash;
use super::reference::HubReference;

const COMMIT_DIGITS: usize = 40;

/// The part of the cache that belongs to one repository.
#[derive(Debug)]
pub(super) struct RepositoryCache {
    pub(super) folder: PathBuf,
    /// Directory of the lock files, also those of Hugging Face's libraries.
    locks: PathBuf,
}

impl RepositoryCache {
    pub(super) fn new(cache: &Path, reference: &HubReference) -> Self {
        let name = format!("models--{}--{}", reference.organisation, reference.name);
        Self { locks: cache.join(".locks").join(&name), folder: cache.join(name) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, hash: &ContentHash) -> PathBuf {
        self.folder.join("blobs").join(hash.text())
    }

    /// Returns the commit of a revision when it was downloaded last. A commit is its own revision.
    pub(super) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let stored = read_text(&self.folder.join("refs").join(revision), 1 << 10).ok()?;
        Some(stored.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> io::Result<()> {
        if is_commit(revision) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        create_parent(&path)?;
        fs::write(path, commit)
    }

    /// Waits until no other process downloads the file. The lock ends when the file is dropped.
    pub(super) fn lock(&self, hash: &ContentHash) -> io::Result<File> {
        fs::create_dir_all(&self.locks)?;
        let file = File::create(self.locks.join(format!("{}.lock", hash.text())))?;
        match file.lock() {
            // A network volume. Two downloads of one file would fail at its hash.
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(file),
            locked => locked.map(|()| file),
        }
    }

    /// Makes `file` of a snapshot a link to its blob.
    pub(super) fn link(&self, commit: &str, file: &str, hash: &ContentHash) -> io::Result<()> {
        let link = self.snapshot(commit).join(file);
        create_parent(&link)?;
        // From snapshots/COMMIT, and one more for each directory of the file.
        let above = "../".repeat(2 + file.matches('/').count());
        let target = format!("{above}blobs/{}", hash.text());
        match std::os::unix::fs::symlink(&target, &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if fs::read_link(&link).is_ok_and(|found| found == Path::new(&target)) {
                    return Ok(());
                }
                fs::remove_file(&link)?;
                std::os::unix::fs::symlink(target, link)
            }
            linked => linked,
        }
    }

    /// Returns the names of the files of a snapshot, without those in inner directories.
    pub(super) fn names(&self, commit: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let entries = fs::read_dir(self.snapshot(commit)).into_iter().flatten();
        for entry in entries.flatten() {
            if entry.path().is_file() {
                names.extend(entry.file_name().into_string());
            }
        }
        names
    }
}

pub(super) fn is_commit(revision: &str) -> bool {
    revision.len() == COMMIT_DIGITS
        && revision.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

pub(super) fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}
