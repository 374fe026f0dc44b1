//! Unpacks members of `.tar.gz` and `.zip` archives.
//!
//! Members are named by their paths below the archive's top folder, folders with a `/` at the end, and are
//! written to the same paths below the target folder.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;

use super::DataError;

/// Maximum number of bytes that are unpacked from an archive. All members that tasks need have less than 100
/// MB together.
const BYTES_MAX: u64 = 1 << 30;

/// Unpacks the wanted members. Overwrites existing files.
pub(super) fn members(archive: &Path, wanted: &[&str], folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    members_within(archive, wanted, folder, BYTES_MAX)
}

fn members_within(
    archive: &Path,
    wanted: &[&str],
    folder: &Path,
    bytes_max: u64,
) -> Result<Vec<PathBuf>, DataError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let mut target = Target { folder, bytes_max, bytes_left: bytes_max };
    let unpacked = if archive.extension().is_some_and(|extension| extension == "zip") {
        from_zip(archive, wanted, &mut target)
    } else {
        from_tar(archive, wanted, &mut target)
    };
    unpacked.map_err(|source| DataError::Read { file: archive.to_owned(), source })
}

fn from_tar(archive: &Path, wanted: &[&str], target: &mut Target<'_>) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(GzDecoder::new(File::open(archive)?)).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        if entry.header().entry_type().is_file()
            && let Some(below) = kept(&path, wanted)
        {
            files.push(target.write(&mut entry, &below)?);
        }
    }
    Ok(files)
}

fn from_zip(archive: &Path, wanted: &[&str], target: &mut Target<'_>) -> io::Result<Vec<PathBuf>> {
    let mut archive = zip::ZipArchive::new(File::open(archive)?)?;
    let mut files = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let path = PathBuf::from(entry.name());
        if entry.is_file()
            && let Some(below) = kept(&path, wanted)
        {
            files.push(target.write(&mut entry, &below)?);
        }
    }
    Ok(files)
}

/// The path below the top folder, where it is wanted and stays inside.
fn kept(path: &Path, wanted: &[&str]) -> Option<PathBuf> {
    let below: PathBuf = path.components().skip(1).collect();
    if !below.components().all(|part| matches!(part, Component::Normal(_))) {
        return None;
    }
    for name in wanted {
        let is_wanted = match name.strip_suffix('/') {
            Some(folder) => below.starts_with(folder),
            None => below == Path::new(name),
        };
        if is_wanted {
            return Some(below);
        }
    }
    None
}

/// Where members go, and how much room is left for them.
struct Target<'a> {
    folder: &'a Path,
    bytes_max: u64,
    bytes_left: u64,
}

impl Target<'_> {
    fn write(&mut self, from: &mut impl Read, below: &Path) -> io::Result<PathBuf> {
        let file = self.folder.join(below);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        let copied = io::copy(&mut from.take(self.bytes_left + 1), &mut File::create(&file)?)?;
        let Some(left) = self.bytes_left.checked_sub(copied) else {
            fs::remove_file(&file)?;
            let message = format!("it holds more than {} bytes, at {}", self.bytes_max, below.display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        };
        self.bytes_left = left;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// An archive of three members of two bytes each.
    fn archive(folder: &Path) -> PathBuf {
        let archive = folder.join("all.tar.gz");
        let mut tar = tar::Builder::new(GzEncoder::new(File::create(&archive).unwrap(), Compression::fast()));
        for name in ["top/train/a.txt", "top/interpolate/b.txt", "top/val.jsonl"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(2);
            header.set_cksum();
            tar.append_data(&mut header, name, &b"hi"[..]).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap();
        archive
    }

    #[test]
    fn members_beyond_the_limit_are_not_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path());
        let wanted = ["train/", "interpolate/", "val.jsonl"];
        assert_eq!(members_within(&archive, &wanted, folder.path(), 6).unwrap().len(), 3);
        let target = tempfile::tempdir().unwrap();
        let error = members_within(&archive, &wanted, target.path(), 5).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert_eq!(cause, "it holds more than 5 bytes, at val.jsonl");
        assert!(error.to_string().contains("all.tar.gz"), "{error}");
        assert!(!target.path().join("val.jsonl").exists());
    }

    #[test]
    fn only_wanted_members_leave_an_archive() {
        let folder = tempfile::tempdir().unwrap();
        let archive = archive(folder.path());
        let files = members(&archive, &["interpolate/", "val.jsonl"], folder.path()).unwrap();
        let names: Vec<&Path> = files.iter().map(|file| file.strip_prefix(folder.path()).unwrap()).collect();
        assert_eq!(names, [Path::new("interpolate/b.txt"), Path::new("val.jsonl")]);
        assert_eq!(fs::read_to_string(&files[0]).unwrap(), "hi");
        assert!(!folder.path().join("train").exists());
    }

    #[test]
    fn paths_that_leave_the_folder_are_not_followed() {
        assert_eq!(kept(Path::new("top/../../etc"), &["../"]), None);
        assert_eq!(kept(Path::new("top/a/b"), &["a/"]), Some(PathBuf::from("a/b")));
    }
}
