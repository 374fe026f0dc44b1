//! Downloads one file into the cache. An interrupted download is resumed, also by a later process.
//!
//! Invariant: a blob has its name only once its size and its hash are those that the hub has promised.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};

use super::cache::{RepositoryCache, create_parent};
use super::client::{FileFacts, HubClient, TRIES, network};
use super::error::{HubError, Problem};
use super::progress::Progress;
use super::reference::HubReference;

/// Downloads files of a repository at a commit.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a HubClient,
    pub(super) cache: &'a RepositoryCache,
    pub(super) reference: &'a HubReference,
    pub(super) commit: &'a str,
}

impl Transfer<'_> {
    /// Makes a file a part of the snapshot unless it is. Rejects one of more than `bytes_max` bytes.
    pub(super) async fn run(&self, file: &str, bytes_max: u64) -> Result<(), HubError> {
        let fetched = self.fetch(file, bytes_max).await;
        fetched.map_err(|problem| HubError::of_file(self.reference, file, problem))
    }

    async fn fetch(&self, file: &str, bytes_max: u64) -> Result<(), Problem> {
        let Self { client, cache, reference, commit } = *self;
        if cache.snapshot(commit).join(file).is_file() {
            return Ok(());
        }
        let facts = client.facts(reference, commit, file).await?;
        if facts.bytes > bytes_max {
            return Err(Problem::TooLarge { bytes: facts.bytes, max: bytes_max });
        }
        let blob = cache.blob(&facts.hash);
        create_parent(&blob).map_err(|source| Problem::disk(&blob, source))?;
        let _lock = cache.lock(&facts.hash).map_err(|source| Problem::disk(&cache.folder, source))?;
        if !blob.metadata().is_ok_and(|found| found.len() == facts.bytes) {
            self.download(file, &facts, &blob).await?;
        }
        cache.link(commit, file, &facts.hash).map_err(|source| Problem::disk(&cache.folder, source))
    }

    async fn download(&self, name: &str, facts: &FileFacts, blob: &Path) -> Result<(), Problem> {
        let part = PathBuf::from(format!("{}.incomplete", blob.display()));
        let disk = |source| Problem::disk(&part, source);
        let mut progress = Progress::new(name, facts.bytes);
        let mut failed = 0;
        loop {
            let before = part.metadata().map_or(0, |found| found.len());
            match self.append(name, facts, &part, &mut progress).await {
                Ok(()) => break,
                Err(problem) if problem.is_transient() => {
                    let after = part.metadata().map_or(0, |found| found.len());
                    failed = if after > before { 1 } else { failed + 1 };
                    if failed >= TRIES {
                        return Err(problem);
                    }
                    self.client.pause(failed).await;
                }
                Err(problem) => return Err(problem),
            }
        }
        let found = facts.hash.of_file(&part).map_err(disk)?;
        if found != facts.hash.text() {
            fs::remove_file(&part).map_err(disk)?;
            return Err(Problem::Hash { expected: facts.hash.to_string(), found });
        }
        fs::rename(&part, blob).map_err(disk)
    }

    /// Downloads what `part` lacks.
    async fn append(
        &self,
        name: &str,
        facts: &FileFacts,
        part: &Path,
        progress: &mut Progress,
    ) -> Result<(), Problem> {
        let disk = |source| Problem::disk(part, source);
        let mut file = OpenOptions::new().create(true).append(true).open(part).map_err(disk)?;
        let mut written = file.metadata().map_err(disk)?.len();
        if written > facts.bytes {
            written = restart(&file).map_err(disk)?;
        }
        if written == facts.bytes {
            return Ok(());
        }
        check_room(part, facts.bytes - written)?;
        let mut response = self.client.bytes(self.reference, self.commit, name, written).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT if first_byte(&response) == Some(written) => {}
            StatusCode::OK => written = restart(&file).map_err(disk)?,
            status => {
                restart(&file).map_err(disk)?;
                return Err(Problem::Network(format!("the download cannot be resumed ({status})")));
            }
        }
        if let Some(rest) = response.content_length().filter(|&rest| rest != facts.bytes - written) {
            return Err(Problem::Size { expected: facts.bytes, found: written.saturating_add(rest) });
        }
        while let Some(chunk) = response.chunk().await.map_err(network)? {
            written += chunk.len() as u64;
            if written > facts.bytes {
                restart(&file).map_err(disk)?;
                return Err(Problem::Size { expected: facts.bytes, found: written });
            }
            file.write_all(&chunk).map_err(disk)?;
            progress.set(written);
        }
        if written < facts.bytes {
            return Err(Problem::Network(format!("it ended after {written} of {} bytes", facts.bytes)));
        }
        file.sync_all().map_err(disk)
    }
}

/// Empties a file. Returns its new size.
fn restart(file: &File) -> std::io::Result<u64> {
    file.set_len(0)?;
    Ok(0)
}

/// Returns the first byte of a partial response.
fn first_byte(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// Rejects a download that does not fit on the disk.
fn check_room(part: &Path, needed: u64) -> Result<(), Problem> {
    let folder = part.parent().unwrap_or(part);
    let found = rustix::fs::statvfs(folder).map_err(|error| Problem::disk(folder, error.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if needed > free {
        return Err(Problem::NoRoom { folder: folder.to_owned(), needed, free });
    }
    Ok(())
}
