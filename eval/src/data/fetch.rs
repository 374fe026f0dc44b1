//! Downloads data sets from their official places into the cache. A download that broke off is resumed, and
//! checked where the published checksum is known. A file has its final name only once it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ntl_common::trust;
use reqwest::header::RANGE;
use reqwest::{Client, StatusCode};
use sha2::{Digest, Sha256};

use super::DataError;
use super::unpack;
use crate::error::OutputError;

/// Attempts for one file; each resumes the one before.
const TRIES: usize = 5;

/// Maximum size of a downloaded file, in bytes. The largest archive of the tasks has 2.3 GB.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// How long a server may take to connect, and to send more.
const SILENCE_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    pub url: &'static str,
    /// The published checksum, where it is known.
    pub sha256: Option<&'static str>,
    /// Members of an archive to unpack; empty for a plain file.
    pub members: &'static [&'static str],
}

impl Source {
    pub const fn pinned(url: &'static str, sha256: &'static str) -> Self {
        Self { url, sha256: Some(sha256), members: &[] }
    }

    fn name(&self) -> &'static str {
        self.url.rsplit('/').next().unwrap_or(self.url)
    }
}

/// Fetches the files that `folder` lacks. `mirror`: a URL under which the files are by their names.
/// `ca_file`: more certificates to trust.
pub async fn fetch(
    sources: &[Source],
    folder: &Path,
    mirror: Option<&str>,
    ca_file: Option<&Path>,
    out: &mut (dyn Write + '_),
) -> Result<(), DataError> {
    fs::create_dir_all(folder).map_err(|source| DataError::Write { file: folder.to_owned(), source })?;
    let builder = trust::client_builder(ca_file)?;
    let client = builder.connect_timeout(SILENCE_MAX).read_timeout(SILENCE_MAX).build();
    let client = client.map_err(|error| DataError::Download {
        file: folder.to_owned(),
        url: sources.first().map_or("", |source| source.url).to_owned(),
        problem: cause(error),
    })?;
    for source in sources {
        let file = folder.join(source.name());
        let url = mirror.map_or_else(
            || source.url.to_owned(),
            |base| format!("{}/{}", base.trim_end_matches('/'), source.name()),
        );
        if !file.exists() {
            writeln!(out, "downloading {url}").map_err(OutputError)?;
            download(&client, &url, &file, FILE_BYTES_MAX).await?;
        }
        let found = sha256(&file)?;
        let known = check(source, &file, &found)?;
        writeln!(out, "{} sha256 {found} ({known})", file.display()).map_err(OutputError)?;
        for member in unpack::members(&file, source.members, folder)? {
            writeln!(out, "unpacked {}", member.display()).map_err(OutputError)?;
        }
    }
    Ok(())
}

/// Compares a file's checksum with the published or recorded one, and records it if neither is known. Returns
/// in words which one it was.
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
        // The next run would take it for the original.
        fs::remove_file(file).map_err(|source| DataError::Write { file: file.to_owned(), source })?;
        return Err(DataError::Checksum { file: file.to_owned(), found: found.to_owned(), expected });
    }
    Ok(words)
}

async fn download(client: &Client, url: &str, file: &Path, bytes_max: u64) -> Result<(), DataError> {
    let part = PathBuf::from(format!("{}.part", file.display()));
    let mut problem = String::new();
    for _ in 0..TRIES {
        match transfer(client, url, file, &part, bytes_max).await {
            Ok(()) => {
                return fs::rename(&part, file)
                    .map_err(|source| DataError::Write { file: file.to_owned(), source });
            }
            Err(Broken::Permanent(error)) => return Err(error),
            Err(Broken::Transient(reason)) => problem = reason,
        }
    }
    Err(DataError::Download { file: file.to_owned(), url: url.to_owned(), problem })
}

enum Broken {
    Transient(String),
    Permanent(DataError),
}

/// Appends to `part`, which gets at most `bytes_max`, if the server can resume. `file`: for errors.
async fn transfer(
    client: &Client,
    url: &str,
    file: &Path,
    part: &Path,
    bytes_max: u64,
) -> Result<(), Broken> {
    let writing = |source| Broken::Permanent(DataError::Write { file: part.to_owned(), source });
    let have = fs::metadata(part).map_or(0, |found| found.len());
    let mut request = client.get(url);
    if have > 0 {
        request = request.header(RANGE, format!("bytes={have}-"));
    }
    let mut response = request.send().await.map_err(|error| Broken::Transient(cause(error)))?;
    let mut written = match response.status() {
        StatusCode::PARTIAL_CONTENT => OpenOptions::new().append(true).open(part).map_err(writing)?,
        StatusCode::OK => File::create(part).map_err(writing)?,
        // The part is complete already.
        StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return Ok(()),
        status if status.is_server_error() => return Err(Broken::Transient(status.to_string())),
        status => {
            let problem = status.to_string();
            let file = file.to_owned();
            let url = url.to_owned();
            return Err(Broken::Permanent(DataError::Download { file, url, problem }));
        }
    };
    let resumed = if response.status() == StatusCode::PARTIAL_CONTENT { have } else { 0 };
    let mut room = bytes_max.saturating_sub(resumed);
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) if bytes.len() as u64 > room => {
                let problem = format!("it is larger than {bytes_max} bytes");
                let file = file.to_owned();
                let url = url.to_owned();
                return Err(Broken::Permanent(DataError::Download { file, url, problem }));
            }
            Ok(Some(bytes)) => {
                room -= bytes.len() as u64;
                written.write_all(&bytes).map_err(writing)?;
            }
            Ok(None) => return written.sync_all().map_err(writing),
            Err(error) => return Err(Broken::Transient(cause(error))),
        }
    }
}

/// Returns all causes on one line, without the URL, which the error around them names.
fn cause(error: reqwest::Error) -> String {
    format!("{:#}", anyhow::Error::from(error.without_url()))
}

/// In hexadecimal.
pub fn sha256(file: &Path) -> Result<String, DataError> {
    let mut hasher = Sha256::new();
    File::open(file)
        .and_then(|mut open| io::copy(&mut open, &mut hasher))
        .map_err(|source| DataError::Read { file: file.to_owned(), source })?;
    Ok(format!("{:x}", hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Starts a server that sends ten bytes of a hundred and breaks off, for any request. Returns its URL.
    fn breaking_off() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file", listener.local_addr().unwrap());
        thread::spawn(move || {
            for connection in listener.incoming() {
                let mut connection = BufReader::new(connection.unwrap());
                let mut line = String::new();
                let mut status = "200 OK";
                while connection.read_line(&mut line).unwrap() > 2 {
                    if line.to_ascii_lowercase().starts_with("range:") {
                        status = "206 Partial Content";
                    }
                    line.clear();
                }
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 100\r\n\r\n0123456789");
                connection.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn all_attempts_of_a_download_together_stay_within_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let url = breaking_off();
        let file = folder.path().join("data");
        let part = folder.path().join("data.part");
        let fetched = async |bytes_max| {
            let error = download(&Client::new(), &url, &file, bytes_max).await.unwrap_err().to_string();
            (error, fs::metadata(&part).unwrap().len())
        };
        let (error, bytes) = fetched(25).await;
        assert!(error.contains("it is larger than 25 bytes"), "{error}");
        assert_eq!(bytes, 20, "the third attempt has room for five bytes");
        // The bytes that an earlier run left count as well.
        let (error, bytes) = fetched(39).await;
        assert!(error.contains("it is larger than 39 bytes"), "{error}");
        assert_eq!(bytes, 30);
        // Within the limit each of the attempts is made.
        let (error, bytes) = fetched(1000).await;
        assert!(!error.contains("larger"), "{error}");
        assert_eq!(bytes, 30 + 10 * TRIES as u64);
    }
}
