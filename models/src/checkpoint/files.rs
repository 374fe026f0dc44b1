//! Where a checkpoint's files come from: a folder, or an archive inside the program.
//!
//! Folder files are mapped, not read, so that loading costs no more memory than the weights themselves.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::LoadError;

/// The files of one checkpoint, by name.
#[derive(Debug)]
pub struct CheckpointFiles {
    place: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Folder(PathBuf),
    Memory(BTreeMap<String, Vec<u8>>),
}

/// The bytes of one file.
#[derive(Debug)]
pub enum FileBytes<'a> {
    /// Held in memory by the [`CheckpointFiles`].
    Memory(&'a [u8]),
    /// Mapped from a folder.
    Mapped(Mmap),
    /// A folder's empty file, which cannot be mapped.
    Empty,
}

impl Deref for FileBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Memory(bytes) => bytes,
            Self::Mapped(map) => map,
            Self::Empty => &[],
        }
    }
}

impl CheckpointFiles {
    /// The files of a folder.
    ///
    /// # Errors
    /// When there is no such folder.
    pub fn folder(path: &Path) -> Result<Self, LoadError> {
        if !path.is_dir() {
            return Err(LoadError::NoFolder(path.to_owned()));
        }
        Ok(Self { place: path.display().to_string(), source: Source::Folder(path.to_owned()) })
    }

    /// The files of a gzipped tar archive, unpacked in memory. `place` names it in errors.
    ///
    /// # Errors
    /// When it is no such archive.
    pub fn archive(place: &str, gzipped_tar: &[u8]) -> Result<Self, LoadError> {
        let unreadable = |source| LoadError::Read { file: place.to_owned(), source };
        let mut files = BTreeMap::new();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(gzipped_tar));
        for entry in archive.entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let name =
                entry.path().map_err(unreadable)?.file_name().map(|name| name.to_string_lossy().into_owned());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).map_err(unreadable)?;
            if let (Some(name), true) = (name, entry.header().entry_type().is_file()) {
                files.insert(name, bytes);
            }
        }
        Ok(Self { place: place.to_owned(), source: Source::Memory(files) })
    }

    /// How errors call the checkpoint: its folder.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// How errors call one of its files.
    pub fn name_of(&self, file: &str) -> String {
        format!("{}/{file}", self.place.trim_end_matches('/'))
    }

    /// Whether the file is there.
    pub fn has(&self, file: &str) -> bool {
        match &self.source {
            Source::Folder(folder) => folder.join(file).is_file(),
            Source::Memory(files) => files.contains_key(file),
        }
    }

    /// The bytes of a file; `None` where it does not exist.
    ///
    /// # Errors
    /// When it exists but cannot be read.
    pub fn read(&self, file: &str) -> Result<Option<FileBytes<'_>>, LoadError> {
        match &self.source {
            Source::Memory(files) => Ok(files.get(file).map(|bytes| FileBytes::Memory(bytes))),
            Source::Folder(_) if !self.has(file) => Ok(None),
            Source::Folder(folder) => map_file(&folder.join(file))
                .map(Some)
                .map_err(|source| LoadError::Read { file: self.name_of(file), source }),
        }
    }

    /// The bytes of a file that has to be there.
    ///
    /// # Errors
    /// When it is missing or cannot be read.
    pub fn require(&self, file: &str) -> Result<FileBytes<'_>, LoadError> {
        self.read(file)?.ok_or_else(|| LoadError::MissingFile {
            place: self.place.clone(),
            file: file.to_owned(),
            hint: String::new(),
        })
    }
}

fn map_file(path: &Path) -> std::io::Result<FileBytes<'static>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(FileBytes::Empty);
    }
    #[expect(unsafe_code, reason = "mapping a file is unsafe because another process could cut it meanwhile")]
    // SAFETY: checkpoint files are not written while they are loaded; the map is read-only and private.
    let map = unsafe { Mmap::map(&file)? };
    Ok(FileBytes::Mapped(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_folder_and_a_missing_file_are_named() {
        let error = CheckpointFiles::folder(Path::new("/no/such/folder")).unwrap_err();
        assert_eq!(error.to_string(), "checkpoint folder /no/such/folder does not exist");
        let folder = tempfile::tempdir().unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        assert!(files.read("config.json").unwrap().is_none());
        let message = files.require("config.json").unwrap_err().to_string();
        assert!(message.ends_with("has no config.json"), "{message}");
    }

    #[test]
    fn folder_and_archive_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.json"), b"{}").unwrap();
        std::fs::write(folder.path().join("empty"), b"").unwrap();
        let mut tar =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        tar.append_dir_all("inside", folder.path()).unwrap();
        let archive = tar.into_inner().unwrap().finish().unwrap();
        let (from_folder, from_archive) = (
            CheckpointFiles::folder(folder.path()).unwrap(),
            CheckpointFiles::archive("embedded", &archive).unwrap(),
        );
        for file in ["a.json", "empty"] {
            assert_eq!(*from_folder.require(file).unwrap(), *from_archive.require(file).unwrap());
        }
        assert!(!from_archive.has("b.json"));
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        let error = CheckpointFiles::archive("embedded", b"not a gzip").unwrap_err();
        assert_eq!(error.to_string(), "embedded cannot be read");
    }
}
