//! The files of a checkpoint: a directory, an archive in memory, or one file that contains a whole model.
//!
//! Small files are read completely, up to a limit. Weight files are opened and read in parts, so that loading
//! needs no more memory than the weights. Links must not lead out of a directory, see `links`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ntl_core::failpoint;
use serde::de::DeserializeOwned;

use super::reader::{FileReader, READING};
use super::{LoadError, links};

/// Maximum size of a metadata file such as `config.json`, in bytes. Real ones have a few kilobytes, or some
/// megabytes if they list labels or added tokens.
const DESCRIPTION_BYTES_MAX: u64 = 16 << 20;

const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a vocabulary, in bytes. The largest vocabularies in use have about 35 MB.
const VOCABULARY_BYTES_MAX: u64 = 256 << 20;

/// Beginning of a Git LFS pointer.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The files of one checkpoint, by name.
#[derive(Debug)]
pub struct CheckpointFiles {
    place: String,
    /// The part of the source in which the files are: empty, or the name of a directory and a slash.
    within: String,
    source: FilesSource,
    tables_only: bool,
    /// The chat template in place of the checkpoint's.
    chat_template: Option<String>,
}

#[derive(Debug, Clone)]
enum FilesSource {
    /// A directory. All links in its path are resolved.
    Folder(PathBuf),
    Memory(BTreeMap<String, Vec<u8>>),
    OneFile(Arc<OneFile>),
}

/// A file that contains a whole model, perhaps in several parts, and the files of the checkpoint that it
/// replaces.
#[derive(Debug)]
pub struct OneFile {
    /// Its path in errors.
    pub place: String,
    /// The directory that contains it. All links in its path are resolved.
    pub folder: PathBuf,
    /// The names of the parts, or of the only file.
    pub parts: Vec<String>,
    /// Whether most weights have less than 16 bits.
    pub is_quantised: bool,
    /// The metadata files of the checkpoint.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl CheckpointFiles {
    pub fn folder(path: &Path) -> Result<Self, LoadError> {
        match path.canonicalize() {
            Ok(root) if root.is_dir() => Ok(Self::new(path.display().to_string(), FilesSource::Folder(root))),
            Ok(_) => Err(LoadError::NotAFolder(path.to_owned())),
            Err(_) => Err(LoadError::NoFolder(path.to_owned())),
        }
    }

    /// The files of a directory whose path has no links. A link that is put there later leads to no file.
    pub fn resolved_folder(path: &Path) -> Self {
        Self::new(path.display().to_string(), FilesSource::Folder(path.to_owned()))
    }

    /// Unpacks a gzipped tar archive in memory. `place` names it in errors.
    pub fn archive(place: &str, gzipped_tar: &[u8]) -> Result<Self, LoadError> {
        let files = unpacked(gzipped_tar).map_err(|source| LoadError::unreadable(place, source))?;
        Ok(Self::memory(place, files))
    }

    /// Files in memory. `place` names them in errors.
    pub fn memory(place: &str, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Self::new(place.to_owned(), FilesSource::Memory(files.into_iter().collect()))
    }

    /// A checkpoint in one file. Errors name only this file.
    pub fn of_one_file(file: OneFile) -> Self {
        Self::new(file.place.clone(), FilesSource::OneFile(Arc::new(file)))
    }

    /// Returns the file that contains the whole model, if the checkpoint is one file.
    pub fn one_file(&self) -> Option<&OneFile> {
        match &self.source {
            FilesSource::OneFile(file) => Some(file),
            FilesSource::Folder(_) | FilesSource::Memory(_) => None,
        }
    }

    fn new(place: String, source: FilesSource) -> Self {
        Self { place, within: String::new(), source, tables_only: false, chat_template: None }
    }

    /// Returns the same files, with a chat template in place of theirs.
    #[must_use]
    pub fn with_chat_template(self, text: String) -> Self {
        Self { chat_template: Some(text), ..self }
    }

    pub(crate) fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Returns the files in an inner directory, which need not exist.
    #[must_use]
    pub fn within(&self, folder: &str) -> Self {
        Self {
            place: self.name_of(folder),
            within: format!("{}{folder}/", self.within),
            source: self.source.clone(),
            tables_only: self.tables_only,
            chat_template: self.chat_template.clone(),
        }
    }

    /// Returns the path of a file in the source.
    fn inner(&self, file: &str) -> String {
        format!("{}{file}", self.within)
    }

    /// Returns the same files, but loading weights from them only checks the tables, and returns zeros that
    /// need no memory. This is for inspecting a checkpoint without loading it.
    #[must_use]
    pub fn tables_only(self) -> Self {
        Self { tables_only: true, ..self }
    }

    pub fn reads_tables_only(&self) -> bool {
        self.tables_only
    }

    /// The name of the checkpoint in errors: its directory.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns the name of one of its files in errors.
    pub fn name_of(&self, file: &str) -> String {
        match &self.source {
            FilesSource::OneFile(_) => self.place.clone(),
            FilesSource::Folder(_) | FilesSource::Memory(_) => {
                format!("{}/{file}", self.place.trim_end_matches('/'))
            }
        }
    }

    /// # Errors
    /// If the system cannot determine whether the file exists.
    pub fn has(&self, file: &str) -> Result<bool, LoadError> {
        match &self.source {
            FilesSource::Folder(root) => is_there(root, &self.inner(file), &self.name_of(file)),
            FilesSource::Memory(files) => Ok(files.contains_key(&self.inner(file))),
            FilesSource::OneFile(one) => {
                let file = self.inner(file);
                Ok(one.parts.contains(&file) || one.files.contains_key(&file))
            }
        }
    }

    /// Reads a file that contains no weights. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// If the file cannot be read or is too large, or a link leads outside.
    pub fn read(&self, file: &str) -> Result<Option<Cow<'_, [u8]>>, LoadError> {
        match &self.source {
            FilesSource::Memory(files) => Ok(in_memory(files, &self.inner(file))),
            FilesSource::OneFile(one) => Ok(in_memory(&one.files, &self.inner(file))),
            FilesSource::Folder(root) => {
                Ok(read_whole(root, &self.inner(file), self.name_of(file))?.map(Cow::Owned))
            }
        }
    }

    /// Like [`read`](Self::read), but a missing file is an error.
    pub fn require(&self, file: &str) -> Result<Cow<'_, [u8]>, LoadError> {
        self.read(file)?.ok_or_else(|| self.missing(file, ""))
    }

    /// Reads and parses a JSON file. Returns `None` if it does not exist.
    pub fn json<T: DeserializeOwned>(&self, file: &str) -> Result<Option<T>, LoadError> {
        let Some(bytes) = self.read(file)? else { return Ok(None) };
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|parsed| json.end().map(|()| parsed).map_err(|error| error.to_string()));
        parsed.map(Some).map_err(|reason| LoadError::malformed(self.name_of(file), reason))
    }

    /// Like [`json`](Self::json), but a missing file is an error.
    pub fn require_json<T: DeserializeOwned>(&self, file: &str) -> Result<T, LoadError> {
        self.json(file)?.ok_or_else(|| self.missing(file, ""))
    }

    /// Reads a file of the parent directory, to which the paper's trainer writes its settings. Returns its
    /// bytes, and its name in errors.
    pub(super) fn read_above(&self, file: &str) -> Result<Option<(Vec<u8>, String)>, LoadError> {
        let FilesSource::Folder(root) = &self.source else { return Ok(None) };
        let Some(above) = root.parent() else { return Ok(None) };
        let name = self.name_of(&format!("../{file}"));
        Ok(read_whole(above, file, name.clone())?.map(|bytes| (bytes, name)))
    }

    /// Opens a weight file.
    pub fn open(&self, file: &str) -> Result<FileReader<'_>, LoadError> {
        match &self.source {
            FilesSource::Memory(files) => files.get(&self.inner(file)).map(|bytes| FileReader::memory(bytes)),
            FilesSource::OneFile(one) if one.parts.contains(&self.inner(file)) => {
                Some(open_weights(&one.folder, file, &self.place)?)
            }
            FilesSource::OneFile(one) => {
                one.files.get(&self.inner(file)).map(|bytes| FileReader::memory(bytes))
            }
            FilesSource::Folder(root) if self.has(file)? => {
                Some(open_weights(root, &self.inner(file), &self.name_of(file))?)
            }
            FilesSource::Folder(_) => None,
        }
        .ok_or_else(|| self.missing(file, ""))
    }

    /// Returns the names of all existing files. A directory's names are sorted.
    pub fn names(&self) -> Result<Vec<String>, LoadError> {
        let root = match &self.source {
            FilesSource::Folder(root) => root,
            FilesSource::Memory(files) => return Ok(files.keys().cloned().collect()),
            FilesSource::OneFile(one) => return Ok(one.files.keys().chain(&one.parts).cloned().collect()),
        };
        let mut names = names_in(&root.join(&self.within))
            .map_err(|source| LoadError::unreadable(&self.place, source))?;
        names.retain(|name| matches!(self.has(name), Ok(true)));
        names.sort();
        Ok(names)
    }

    /// Returns the path of a file of a directory, with links resolved.
    pub fn path_of(&self, file: &str) -> Result<PathBuf, LoadError> {
        match &self.source {
            FilesSource::Folder(root) if self.has(file)? => {
                target(root, &self.inner(file), &self.name_of(file))
            }
            _ => Err(self.missing(file, "")),
        }
    }

    pub fn missing(&self, file: &str, hint: &str) -> LoadError {
        LoadError::MissingFile { place: self.place.clone(), file: file.to_owned(), hint: hint.to_owned() }
    }
}

fn in_memory<'a>(files: &'a BTreeMap<String, Vec<u8>>, file: &str) -> Option<Cow<'a, [u8]>> {
    files.get(file).map(|bytes| Cow::Borrowed(bytes.as_slice()))
}

/// Returns the files in a gzipped tar archive, by the last parts of their names.
fn unpacked(gzipped_tar: &[u8]) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(gzipped_tar));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        if let (Some(name), true) = (name, entry.header().entry_type().is_file()) {
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

/// Returns the names of all that is in a directory, without names that are not UTF-8.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Returns whether a directory has a file. A dangling link does not count. It is an error if the file's
/// status cannot be read.
fn is_there(root: &Path, file: &str, name: &str) -> Result<bool, LoadError> {
    match root.join(file).metadata() {
        Ok(metadata) => Ok(metadata.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(LoadError::unreadable(name, source)),
    }
}

fn open_weights(root: &Path, file: &str, name: &str) -> Result<FileReader<'static>, LoadError> {
    let reader =
        FileReader::file(open(root, file, name)?).map_err(|source| LoadError::unreadable(name, source))?;
    let beginning = reader
        .part(0, reader.size().min(LFS_POINTER.len() as u64))
        .map_err(|source| LoadError::unreadable(name, source))?;
    check_pointer(&beginning, name)?;
    Ok(reader)
}

fn open(root: &Path, file: &str, name: &str) -> Result<File, LoadError> {
    let opened =
        File::open(target(root, file, name)?).map_err(|source| LoadError::unreadable(name, source))?;
    match path_of_opened(&opened) {
        // A directory of the path may have become a link in the meantime.
        Some(target) if !links::may_lead_to(root, &target) => {
            Err(LoadError::Outside { file: name.to_owned(), target })
        }
        _ => Ok(opened),
    }
}

/// Returns the path of an open file, or `None` if the system does not report it.
#[cfg(target_os = "linux")]
fn path_of_opened(file: &File) -> Option<PathBuf> {
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(not(target_os = "linux"))]
fn path_of_opened(_: &File) -> Option<PathBuf> {
    None
}

/// Returns the path of a file with links resolved. Fails if they lead outside.
fn target(root: &Path, file: &str, name: &str) -> Result<PathBuf, LoadError> {
    let target = root.join(file).canonicalize().map_err(|source| LoadError::unreadable(name, source))?;
    if links::may_lead_to(root, &target) {
        Ok(target)
    } else {
        Err(LoadError::Outside { file: name.to_owned(), target })
    }
}

fn read_whole(root: &Path, file: &str, name: String) -> Result<Option<Vec<u8>>, LoadError> {
    if !is_there(root, file, &name)? {
        return Ok(None);
    }
    let max = bytes_max(file);
    let opened = open(root, file, &name)?;
    let len = opened.metadata().map_err(|source| LoadError::unreadable(&name, source))?.len();
    if len > max {
        return Err(LoadError::TooLarge { file: name, bytes: len, max });
    }
    let mut bytes = Vec::new();
    // A file that grows meanwhile is read only up to its previous length.
    let read = failpoint::check(READING).and_then(|()| opened.take(len).read_to_end(&mut bytes));
    read.map_err(|source| LoadError::unreadable(&name, source))?;
    check_pointer(&bytes, &name)?;
    Ok(Some(bytes))
}

/// Rejects a Git LFS pointer, which Git stores in place of a large file.
fn check_pointer(bytes: &[u8], name: &str) -> Result<(), LoadError> {
    if bytes.starts_with(LFS_POINTER) {
        return Err(LoadError::LfsPointer { file: name.to_owned() });
    }
    Ok(())
}

fn bytes_max(file: &str) -> u64 {
    match file.rsplit('/').next().unwrap_or(file) {
        "tokenizer.json" | "vocab.json" | "merges.txt" => VOCABULARY_BYTES_MAX,
        "ntl.json" | "config.yaml" => SETTINGS_BYTES_MAX,
        _ if file.ends_with(".model") => VOCABULARY_BYTES_MAX,
        _ => DESCRIPTION_BYTES_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_and_a_missing_file_are_named() {
        let error = CheckpointFiles::folder(Path::new("/no/such/folder")).unwrap_err();
        assert_eq!(error.to_string(), "checkpoint folder /no/such/folder does not exist");
        let folder = tempfile::tempdir().unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        assert!(files.read("config.json").unwrap().is_none());
        let message = files.require("config.json").unwrap_err().to_string();
        assert!(message.ends_with("has no config.json"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn files_of_an_inner_directory_are_named_with_it_and_links_may_not_leave_the_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/a.json"), "{}").unwrap();
        std::fs::write(folder.path().join("b.json"), "{}").unwrap();
        std::os::unix::fs::symlink("../b.json", folder.path().join("inner/b.json")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("inner/c.json")).unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap().within("inner");
        assert_eq!(files.names().unwrap(), ["a.json", "b.json", "c.json"]);
        assert!(files.has("b.json").unwrap() && files.read("b.json").unwrap().is_some());
        let message = files.read("c.json").unwrap_err().to_string();
        assert!(message.contains("/inner/c.json is a link to /etc/hostname"), "{message}");
        let message = files.require("d.json").unwrap_err().to_string();
        assert!(message.ends_with("/inner has no d.json"), "{message}");
    }

    #[cfg(unix)]
    #[test]
    fn a_resolved_directory_that_becomes_a_link_has_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["inside", "outside"] {
            std::fs::create_dir(root.join(name)).unwrap();
            std::fs::write(root.join(name).join("a.json"), "{}").unwrap();
        }
        let files = CheckpointFiles::resolved_folder(&root.join("inside"));
        assert!(files.read("a.json").unwrap().is_some());
        std::fs::rename(root.join("inside"), root.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("outside", root.join("inside")).unwrap();
        assert!(matches!(files.read("a.json"), Err(LoadError::Outside { .. })));
        assert!(files.open("a.json").is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_path_of_an_open_file_is_where_it_was_opened() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::write(root.join("a"), "").unwrap();
        std::os::unix::fs::symlink("a", root.join("link")).unwrap();
        assert_eq!(path_of_opened(&File::open(root.join("link")).unwrap()), Some(root.join("a")));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_whose_status_cannot_be_read_is_never_treated_as_missing() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("config.json", folder.path().join("config.json")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("ntl.json")).unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        for error in [files.has("config.json").map(drop), files.read("config.json").map(drop)] {
            let message = error.unwrap_err().to_string();
            assert!(message.ends_with("/config.json cannot be read"), "{message}");
        }
        assert!(!files.has("ntl.json").unwrap());
        assert!(files.names().unwrap().is_empty());
    }

    #[test]
    fn a_path_that_is_not_a_directory_is_distinguished_from_a_name_on_the_hub() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = CheckpointFiles::folder(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("is a file; give the checkpoint folder that holds it"), "{error}");
        for (path, hint) in [
            ("no-org/no-model", Some("written as hf:no-org/no-model")),
            ("no-model-0.5b", Some("written as hf:ORG/NAME")),
            ("./no-model", None),
            ("no/such/folder", None),
        ] {
            let error = CheckpointFiles::folder(Path::new(path)).unwrap_err().to_string();
            assert_eq!(error.contains("hf:"), hint.is_some(), "{error}");
            assert!(error.contains(hint.unwrap_or("does not exist")), "{error}");
        }
    }

    #[test]
    fn a_git_lfs_pointer_in_place_of_any_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        for name in ["tokenizer.json", "model.safetensors", "spiece.model"] {
            std::fs::write(folder.path().join(name), pointer).unwrap();
            for error in [files.read(name).unwrap_err(), files.open(name).unwrap_err()] {
                assert!(error.to_string().ends_with("fetch the file with `git lfs pull`"), "{error}");
            }
        }
    }

    #[test]
    fn a_device_is_not_a_file_of_a_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("config.json")).unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        assert!(files.read("config.json").unwrap().is_none());
        assert!(matches!(files.open("config.json"), Err(LoadError::MissingFile { .. })));
    }

    #[test]
    fn directory_and_archive_return_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.json"), b"{}").unwrap();
        std::fs::write(folder.path().join("empty"), b"").unwrap();
        let mut tar =
            tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        tar.append_dir_all("inside", folder.path()).unwrap();
        let archive = tar.into_inner().unwrap().finish().unwrap();
        let from_folder = CheckpointFiles::folder(folder.path()).unwrap();
        let from_archive = CheckpointFiles::archive("embedded", &archive).unwrap();
        for file in ["a.json", "empty"] {
            assert_eq!(*from_folder.require(file).unwrap(), *from_archive.require(file).unwrap());
            assert_eq!(from_folder.open(file).unwrap().size(), from_archive.open(file).unwrap().size());
        }
        assert!(!from_archive.has("b.json").unwrap());
    }

    #[test]
    fn the_files_of_a_directory_are_listed_and_their_links_resolved() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("b.json"), b"{}").unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("b.json"), folder.path().join("a.json")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", folder.path().join("c.json")).unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        assert_eq!(files.names().unwrap(), ["a.json", "b.json", "c.json"]);
        let there = folder.path().canonicalize().unwrap().join("b.json");
        assert_eq!(files.path_of("a.json").unwrap(), there);
        assert!(matches!(files.path_of("c.json"), Err(LoadError::Outside { .. })));
        assert!(matches!(files.path_of("inner"), Err(LoadError::MissingFile { .. })));
        let memory = CheckpointFiles::memory("m", [("a.json".to_owned(), b"{}".to_vec())]);
        assert_eq!(*memory.require("a.json").unwrap(), *files.require("a.json").unwrap());
        assert!(matches!(memory.path_of("a.json"), Err(LoadError::MissingFile { .. })));
    }

    #[test]
    fn bytes_that_are_not_an_archive_are_rejected() {
        let error = CheckpointFiles::archive("embedded", b"not a gzip").unwrap_err();
        assert_eq!(error.to_string(), "embedded cannot be read");
    }

    #[test]
    fn a_metadata_file_of_a_gigabyte_is_rejected_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        File::create(folder.path().join("config.json")).unwrap().set_len(1 << 30).unwrap();
        let files = CheckpointFiles::folder(folder.path()).unwrap();
        let message = files.read("config.json").unwrap_err().to_string();
        assert!(message.ends_with("config.json has 1073741824 bytes; the limit is 16777216"), "{message}");
    }
}
