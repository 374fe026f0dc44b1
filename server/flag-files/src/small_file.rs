//! Reads the files that flags name, such as configurations, keys and calibrations: regular files of limited
//! size, so that a pipe cannot delay the server and a device or a sparse file cannot use up its memory.

use std::fs::{self, File};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Maximum size of such a file, in bytes.
const BYTES_MAX: u64 = 16 << 20;

/// # Errors
/// If the file cannot be read, is not a regular file, or is too large.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    // Opening a pipe would wait for its other end.
    if !fs::metadata(path)?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut bytes = Vec::new();
    if len <= BYTES_MAX {
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    }
    let len = len.max(bytes.len() as u64);
    if len > BYTES_MAX {
        let message = format!("it has {len} bytes; the limit is {BYTES_MAX}");
        return Err(Error::new(ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

/// # Errors
/// Like [`read`], or if the file is not UTF-8. Errors have no text of the file.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::new(ErrorKind::InvalidData, "it is not valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_limited_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("text"), "é").unwrap();
        fs::write(path("bytes"), [0xff]).unwrap();
        File::create(path("sparse")).unwrap().set_len(1 << 40).unwrap();
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink("/dev/zero", path("zero")).unwrap();
        std::os::unix::fs::symlink(path("text"), path("link")).unwrap();
        assert_eq!(read_text(&path("text")).unwrap(), "é");
        assert_eq!(read_text(&path("link")).unwrap(), "é");
        for (name, problem) in [
            ("bytes", "it is not valid UTF-8"),
            ("sparse", "it has 1099511627776 bytes; the limit is 16777216"),
            ("pipe", "it is not a regular file"),
            ("zero", "it is not a regular file"),
            (".", "it is not a regular file"),
        ] {
            assert_eq!(read_text(&path(name)).unwrap_err().to_string(), problem, "{name}");
        }
        assert_eq!(read(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
