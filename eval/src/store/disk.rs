//! The operations of a run on the files of its directory. Tests make each of them fail with the failpoint
//! [`POINT`].

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use ntl_core::failpoint;

const POINT: &str = "disk";

/// A file whose operations may fail.
#[derive(Debug)]
pub(super) struct DiskFile(pub(super) File);

impl DiskFile {
    /// Creates a file in place of an earlier one. Does not write through a link.
    pub(super) fn create(file: &Path) -> io::Result<Self> {
        remove(file)?;
        File::create_new(file).map(Self)
    }

    /// Returns when the content is on the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        failpoint::check(POINT)?;
        self.0.sync_all()
    }
}

impl Write for DiskFile {
    /// A failure writes half of the bytes, as on a disk that becomes full.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = failpoint::check(POINT) {
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Read for DiskFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        failpoint::check(POINT)?;
        self.0.read(buffer)
    }
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    failpoint::check(POINT)?;
    fs::rename(from, to)
}

/// Removes a file if it is there.
pub(super) fn remove(file: &Path) -> io::Result<()> {
    failpoint::check(POINT)?;
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
