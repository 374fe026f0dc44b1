//! Opens files of a run: regular files of limited size, so that a pipe cannot delay a run and a device or a
//! sparse file cannot use up its memory.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size of a file of a run, in bytes.
pub const RUN_BYTES_MAX: u64 = 4 << 30;

/// # Errors
/// If the file cannot be opened, is not a regular file, or is too large.
pub fn open(path: &Path, bytes_max: u64) -> Result<File> {
    // Opening a pipe would wait for its other end.
    if !path.metadata()?.is_file() {
        return Err(not_regular());
    }
    check(File::open(path)?, bytes_max)
}

/// Opens a file to read it and to append to it, and creates it if it does not exist.
///
/// # Errors
/// Like [`open`].
pub fn open_append(path: &Path, bytes_max: u64) -> Result<File> {
    check(OpenOptions::new().create(true).read(true).append(true).open(path)?, bytes_max)
}

/// # Errors
/// Like [`open`].
fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, bytes_max)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// # Errors
/// Like [`open`], or if the file is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    let not_utf8 = |_| Error::new(ErrorKind::InvalidData, "it is not valid UTF-8");
    String::from_utf8(read(path, bytes_max)?).map_err(not_utf8)
}

fn check(file: File, bytes_max: u64) -> Result<File> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(not_regular());
    }
    if found.len() > bytes_max {
        let message = format!("it has {} bytes; the limit is {bytes_max}", found.len());
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(file)
}

fn not_regular() -> Error {
    Error::new(ErrorKind::InvalidInput, "it is not a regular file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("text"), "é").unwrap();
        File::create(path("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/full", path("full")).unwrap();
        assert_eq!(read_text(&path("text"), 2).unwrap(), "é");
        assert_eq!(read_text(&path("text"), 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
        for name in ["sparse", "pipe", "full", "."] {
            assert!(open(&path(name), RUN_BYTES_MAX).is_err(), "{name}");
            assert!(open_append(&path(name), RUN_BYTES_MAX).is_err(), "{name}");
        }
        open_append(&path("new"), 0).unwrap();
        assert_eq!(open(&path("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
