//! Fills the cache: downloads from the official places, resumed where they broke off and checked where the original's
//! checksum is known.
//!
//! In: the files of a task. Out: the same in a folder, and what was done, line by line. A file is under its final name
//! only once it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use reqwest::header::RANGE;
use reqwest::{Client, StatusCode};
use sha2::{Digest, Sha256};

use super::DataError;
use super::unpack;

/// Tries of one file; each goes on where the one before broke off.
const TRIES: usize = 5;

/// A file to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// From where.
    pub url: &'static str,
    /// The checksum of the original, where it is known.
    pub sha256: Option<&'static str>,
    /// What of an archive is kept; nothing for a plain file.
    pub members: &'static [&'static str],
}

impl Source {
    /// A plain file with a known checksum.
    pub const fn pinned(url: &'static str, sha256: &'static str) -> Self {
        Self { url, sha256: Some(sha256), members: &[] }
    }

    fn name(&self) -> &'static str {
        self.url.rsplit('/').next().unwrap_or(self.url)
    }
}

/// Fetches what is not there yet. `mirror`: a URL under which the files are by their names.
///
/// # Errors
/// A file cannot be fetched, is not the original, or cannot be written.
pub async fn fetch(
    sources: &[Source],
    folder: &Path,
    mirror: Option<&str>,
    out: &mut (dyn Write + '_),
) -> Result<(), DataError> {
    let writing = |source| DataError::Write { file: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(writing)?;
    let client = Client::builder().build().map_err(|error| DataError::Download {
        file: folder.to_owned(),
        url: sources.first().map_or("", |source| source.url).to_owned(),
        problem: error.to_string(),
    })?;
    for source in sources {
        let file = folder.join(source.name());
        let url = mirror.map_or_else(
            || source.url.to_owned(),
            |base| format!("{}/{}", base.trim_end_matches('/'), source.name()),
        );
        if !file.exists() {
            writeln!(out, "downloading {url}").map_err(writing)?;
            download(&client, &url, &file).await?;
        }
        let found = sha256(&file)?;
        let known = check(source, &file, &found)?;
        writeln!(out, "{} sha256 {found} ({known})", file.display()).map_err(writing)?;
        for member in unpack::members(&file, source.members, folder)? {
            writeln!(out, "unpacked {}", member.display()).map_err(writing)?;
        }
    }
    Ok(())
}

/// Compares a file with what is known of it, or records what it is. Returns which of both, in words.
fn check(source: &Source, file: &Path, found: &str) -> Result<&'static str, DataError> {
    let record = PathBuf::from(format!("{}.sha256", file.display()));
    let recorded = fs::read_to_string(&record).ok();
    let (expected, words) = match (source.sha256, recorded) {
        (Some(expected), _) => (expected.to_owned(), "as published"),
        (None, Some(recorded)) => (recorded.trim().to_owned(), "as when it was downloaded"),
        (None, None) => {
            fs::write(&record, format!("{found}\n"))
                .map_err(|source| DataError::Write { file: record.clone(), source })?;
            return Ok("recorded; the original's is not known");
        }
    };
    if expected != found {
        // Left in place it would be taken for the original next time.
        fs::remove_file(file).map_err(|source| DataError::Write { file: file.to_owned(), source })?;
        return Err(DataError::Checksum { file: file.to_owned(), found: found.to_owned(), expected });
    }
    Ok(words)
}

async fn download(client: &Client, url: &str, file: &Path) -> Result<(), DataError> {
    let part = PathBuf::from(format!("{}.part", file.display()));
    let mut problem = String::new();
    for _ in 0..TRIES {
        match transfer(client, url, (file, &part)).await {
            Ok(()) => {
                return fs::rename(&part, file)
                    .map_err(|source| DataError::Write { file: file.to_owned(), source });
            }
            Err(Broken::ForGood(error)) => return Err(error),
            Err(Broken::Passing(reason)) => problem = reason,
        }
    }
    Err(DataError::Download { file: file.to_owned(), url: url.to_owned(), problem })
}

/// Why a transfer ended early.
enum Broken {
    /// Another try may go on.
    Passing(String),
    /// It makes no sense.
    ForGood(DataError),
}

/// Appends to what is there already, if the server can go on from there.
async fn transfer(client: &Client, url: &str, (file, part): (&Path, &Path)) -> Result<(), Broken> {
    let writing = |source| Broken::ForGood(DataError::Write { file: part.to_owned(), source });
    let have = fs::metadata(part).map_or(0, |found| found.len());
    let mut request = client.get(url);
    if have > 0 {
        request = request.header(RANGE, format!("bytes={have}-"));
    }
    let mut response = request.send().await.map_err(|error| Broken::Passing(chain(&error)))?;
    let mut written = match response.status() {
        StatusCode::PARTIAL_CONTENT => OpenOptions::new().append(true).open(part).map_err(writing)?,
        StatusCode::OK => File::create(part).map_err(writing)?,
        // Nothing is left behind what is there: it is complete.
        StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return Ok(()),
        status if status.is_server_error() => return Err(Broken::Passing(status.to_string())),
        status => {
            let problem = status.to_string();
            let (file, url) = (file.to_owned(), url.to_owned());
            return Err(Broken::ForGood(DataError::Download { file, url, problem }));
        }
    };
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => written.write_all(&bytes).map_err(writing)?,
            Ok(None) => return written.sync_all().map_err(writing),
            Err(error) => return Err(Broken::Passing(chain(&error))),
        }
    }
}

fn chain(error: &reqwest::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// It cannot be read.
pub fn sha256(file: &Path) -> Result<String, DataError> {
    let hash = || {
        let mut hasher = Sha256::new();
        io::copy(&mut File::open(file)?, &mut hasher)?;
        Ok(hex(&hasher.finalize()))
    };
    hash().map_err(|source| DataError::Read { file: file.to_owned(), source })
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
