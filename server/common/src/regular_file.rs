//! Opens regular files of limited size, so that a pipe cannot delay the program and a device or a sparse file
//! cannot use up its memory.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size of a file that a flag names, such as a configuration, keys or a calibration, in bytes.
pub const SMALL_BYTES_MAX: u64 = 16 << 20;

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
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // Some regular files, such as those of /proc, have more bytes than they state.
    open(path, bytes_max)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    check_size(bytes.len() as u64, bytes_max)?;
    Ok(bytes)
}

/// # Errors
/// Like [`open`], or if the file is not UTF-8. Errors have no text of the file.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    String::from_utf8(read(path, bytes_max)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is not valid UTF-8"))
}

fn check(file: File, bytes_max: u64) -> Result<File> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(not_regular());
    }
    check_size(metadata.len(), bytes_max)?;
    Ok(file)
}

fn check_size(bytes: u64, bytes_max: u64) -> Result<()> {
    if bytes > bytes_max {
        let message = format!("it has {bytes} bytes; the limit is {bytes_max}");
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(())
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
        std::fs::write(path("bytes"), [0xff]).unwrap();
        File::create(path("sparse")).unwrap().set_len(1 << 40).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/full", path("full")).unwrap();
        std::os::unix::fs::symlink(path("text"), path("link")).unwrap();
        assert_eq!(read_text(&path("text"), 2).unwrap(), "é");
        assert_eq!(read_text(&path("link"), SMALL_BYTES_MAX).unwrap(), "é");
        for (name, problem) in [
            ("text", "it has 2 bytes; the limit is 1"),
            ("bytes", "it is not valid UTF-8"),
            ("sparse", "it has 1099511627776 bytes; the limit is 1"),
            ("pipe", "it is not a regular file"),
            ("full", "it is not a regular file"),
            (".", "it is not a regular file"),
        ] {
            assert_eq!(read_text(&path(name), 1).unwrap_err().to_string(), problem, "{name}");
        }
        for name in ["sparse", "pipe", "full", "."] {
            assert!(open_append(&path(name), SMALL_BYTES_MAX).is_err(), "{name}");
        }
        open_append(&path("new"), 0).unwrap();
        assert_eq!(read(&path("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
