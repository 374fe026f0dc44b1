//! Models, tokenizers and adapters from the Hugging Face hub.
//!
//! In: a [`HubReference`]. Out: a [`Snapshot`], a directory in the Hugging Face cache with the files of one
//! commit, which transformers shares. Only files that the server reads are downloaded. The commit of a
//! revision is written to the cache once all its files are there.

mod cache;
mod client;
mod content_hash;
mod environment;
mod error;
mod progress;
mod reference;
mod selection;
mod transfer;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use cache::RepositoryCache;
use client::{HubClient, Listing};
use environment::HubSettings;
pub use error::{HubError, Problem};
pub use reference::{HubReference, InvalidReference, Location};
pub use selection::Contents;
use selection::DESCRIPTION_BYTES_MAX;
use transfer::Transfer;

/// The files of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The directory, or the GGUF file if the reference names one.
    pub path: PathBuf,
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
}

impl HubReference {
    /// Downloads the files that the cache lacks, as the environment variables of Hugging Face say.
    pub async fn download(&self, contents: Contents) -> Result<Snapshot, HubError> {
        let settings = HubSettings::from_variables(&|name| std::env::var_os(name))?;
        Hub::new(settings)?.download(self, contents).await
    }
}

/// A directory on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: PathBuf,
    /// The commit of its repository, if it is from the hub.
    pub commit: Option<String>,
}

impl Location {
    /// Returns the directory, after its download if it is on the hub.
    pub async fn directory(&self, contents: Contents) -> Result<Directory, HubError> {
        match self {
            Self::Path(path) => Ok(Directory { path: path.clone(), commit: None }),
            Self::Hub(reference) => {
                let Snapshot { path, commit } = reference.download(contents).await?;
                Ok(Directory { path, commit: Some(commit) })
            }
        }
    }
}

struct Hub {
    client: HubClient,
    cache: PathBuf,
    is_offline: bool,
}

impl Hub {
    fn new(settings: HubSettings) -> Result<Self, HubError> {
        let HubSettings { cache, is_offline, .. } = settings.clone();
        Ok(Self { client: HubClient::new(settings)?, cache, is_offline })
    }

    async fn download(&self, reference: &HubReference, contents: Contents) -> Result<Snapshot, HubError> {
        let cache = RepositoryCache::new(&self.cache, reference);
        let cached = cached(&cache, reference, contents);
        if self.is_offline {
            return cached.ok_or_else(|| HubError::of(reference, Problem::Offline(cache.folder)));
        }
        // A commit never changes.
        if let Some(found) = &cached
            && found.commit == reference.revision()
        {
            return Ok(found.clone());
        }
        let listing = match (self.client.listing(reference).await, cached) {
            (Ok(listing), _) => listing,
            (Err(problem), Some(found)) if problem.is_transient() => {
                let repository = reference.to_string();
                let commit = &found.commit;
                tracing::warn!(repository, commit, %problem, "the hub is down; the cached copy is used");
                return Ok(found);
            }
            (Err(problem), _) => return Err(HubError::of(reference, problem)),
        };
        self.fetch(&cache, reference, contents, &listing).await?;
        let Listing { commit, .. } = listing;
        let written = cache.write_ref(reference.revision(), &commit);
        written.map_err(|source| HubError::of(reference, Problem::disk(&cache.folder, source)))?;
        let path = path(&cache, reference, &commit);
        let repository = reference.to_string();
        tracing::info!(repository, commit, path = %path.display(), "the cache has the repository");
        Ok(Snapshot { path, commit })
    }

    /// Downloads the files of a listing, those with weights last.
    async fn fetch(
        &self,
        cache: &RepositoryCache,
        reference: &HubReference,
        contents: Contents,
        listing: &Listing,
    ) -> Result<(), HubError> {
        let Listing { commit, names } = listing;
        let transfer = Transfer { client: &self.client, cache, reference, commit };
        if let Some(file) = &reference.file {
            return transfer.run(file, u64::MAX).await;
        }
        for file in selection::descriptions(contents, names) {
            transfer.run(&file, DESCRIPTION_BYTES_MAX).await?;
        }
        let weights = selection::weights(contents, names, &cache.snapshot(commit));
        for file in weights.map_err(|problem| HubError::of(reference, problem))? {
            transfer.run(&file, u64::MAX).await?;
        }
        Ok(())
    }
}

/// Returns the copy in the cache, if it is complete.
fn cached(cache: &RepositoryCache, reference: &HubReference, contents: Contents) -> Option<Snapshot> {
    let commit = cache.commit(reference.revision())?;
    let path = path(cache, reference, &commit);
    let is_complete = match reference.file {
        Some(_) => path.is_file(),
        None => selection::is_complete(contents, &cache.names(&commit), &path),
    };
    is_complete.then_some(Snapshot { path, commit })
}

fn path(cache: &RepositoryCache, reference: &HubReference, commit: &str) -> PathBuf {
    let snapshot = cache.snapshot(commit);
    match &reference.file {
        Some(file) => snapshot.join(file),
        None => snapshot,
    }
}
