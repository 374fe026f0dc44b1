//! Reads parts of a weight file from several threads concurrently, without mapping the file or keeping it in
//! memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use ntl_core::failpoint;

/// The failpoint in every read of a checkpoint file.
pub(super) const READING: &str = "checkpoint-read";

/// An open file, or bytes in memory.
#[derive(Debug)]
pub struct FileReader<'a> {
    source: ReaderSource<'a>,
    len: u64,
}

#[derive(Debug)]
enum ReaderSource<'a> {
    File(File),
    Memory(&'a [u8]),
}

impl<'a> FileReader<'a> {
    pub fn file(file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { source: ReaderSource::File(file), len })
    }

    pub fn memory(bytes: &'a [u8]) -> Self {
        Self { source: ReaderSource::Memory(bytes), len: bytes.len() as u64 }
    }

    /// The file's length in bytes when it was opened.
    pub fn size(&self) -> u64 {
        self.len
    }

    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.source {
            ReaderSource::File(file) => {
                failpoint::check(READING)?;
                file.read_exact_at(buffer, offset)
            }
            ReaderSource::Memory(bytes) => {
                let from = usize::try_from(offset).ok();
                let part = from.and_then(|from| bytes.get(from..from.checked_add(buffer.len())?));
                let part = part.ok_or(io::ErrorKind::UnexpectedEof)?;
                buffer.copy_from_slice(part);
                Ok(())
            }
        }
    }

    /// Reads a part of the file. Allocates nothing if the part is not inside the file.
    pub fn part(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut part = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?];
        self.read_exact_at(&mut part, offset)?;
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_from_files_and_from_memory_and_never_from_beyond_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abcdef").unwrap();
        let on_disk = FileReader::file(File::open(file.path()).unwrap()).unwrap();
        for reader in [on_disk, FileReader::memory(b"abcdef")] {
            assert_eq!(reader.size(), 6);
            assert_eq!(reader.part(2, 3).unwrap(), b"cde");
            assert_eq!(reader.part(6, 0).unwrap(), b"");
            for (offset, len) in [(4, 3), (7, 0), (u64::MAX, 2), (0, u64::MAX)] {
                assert!(reader.part(offset, len).is_err(), "{len} bytes from {offset} on");
            }
        }
    }
}
