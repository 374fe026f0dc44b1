//! DeepMind's mathematics dataset (Saxton et al. 2019): any of its test modules, one by one and together, as
//! in Table 1 of the NTL paper.
//!
//! Items are read from a module's file, a folder of them, or the unpacked archive with its folders
//! `interpolate` and `extrapolate`. Answers may be numbers, fractions or texts.

use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::splits::{SplitChoice, chosen, limited};
use super::{Entry, Origin, Suite, from_file};
use crate::data::fetch::Source;
use crate::data::read::{Truth, pairs};
use crate::data::{DataError, Item, place};
use crate::error::UsageError;
use crate::settings::RunSettings;

pub const ENTRY: Entry = Entry {
    name: "mathematics",
    about: "DeepMind's mathematics dataset, per module and together, interpolate and extrapolate",
    origin: Origin::Published(&[Source {
        url: "https://storage.googleapis.com/mathematics-dataset/mathematics_dataset-v1.0.tar.gz",
        sha256: None,
        members: &["interpolate/", "extrapolate/"],
    }]),
};

/// `module`: the name of a module, or `all`.
pub fn suites(choice: SplitChoice, module: &str, settings: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let path = place::find(ENTRY.name, &["interpolate", "extrapolate"], settings.data.as_deref());
    let path = match (&settings.data, path) {
        (Some(path), _) => path.clone(),
        (None, found) => found?.parent().map(Path::to_owned).unwrap_or_default(),
    };
    let mut suites = Vec::new();
    for (split, place) in places(&path, choice) {
        let files = files(&place, module)?;
        if !files.is_empty() {
            suites.push(suite(settings, split, &place, &files)?);
        }
    }
    if suites.is_empty() {
        let message = format!("{} holds no file of module {}", path.display(), module);
        return Err(UsageError(message).into());
    }
    Ok(suites)
}

/// Returns the splits and their folders: those named like a split, or the path itself as a split with the
/// folder's name.
fn places(path: &Path, choice: SplitChoice) -> Vec<(String, PathBuf)> {
    let wanted = chosen(choice).iter().map(|split| split.name());
    let inside: Vec<(String, PathBuf)> = wanted
        .map(|split| (split.to_owned(), path.join(split)))
        .filter(|(_, folder)| folder.is_dir())
        .collect();
    if !inside.is_empty() {
        return inside;
    }
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let name = folder.and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy().into_owned());
    let known = name.filter(|name| matches!(name.as_str(), "interpolate" | "extrapolate"));
    vec![(known.unwrap_or_else(|| "test".to_owned()), path.to_owned())]
}

/// The module files at a place, in the order of their names.
fn files(place: &Path, module: &str) -> Result<Vec<PathBuf>, DataError> {
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let entries: io::Result<Vec<DirEntry>> = fs::read_dir(place).and_then(Iterator::collect);
    let mut files = Vec::new();
    for entry in entries.map_err(|source| DataError::Read { file: place.to_owned(), source })? {
        let file = entry.path();
        let text = file.extension().is_some_and(|extension| extension == "txt");
        if text && (module == "all" || name_of(&file) == module) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn name_of(file: &Path) -> String {
    file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn suite(settings: &RunSettings, split: String, place: &Path, files: &[PathBuf]) -> anyhow::Result<Suite> {
    let limit = settings.limit.map_or(usize::MAX, usize::from);
    let mut items = Vec::new();
    for file in files {
        let module = name_of(file);
        let read = pairs(file, Truth::NumberOrText)?.into_iter();
        let read = read.map(|item| Item { module: Some(module.clone()), ..item }).collect();
        items.extend(limited(read, limit, settings.seed));
    }
    let modules: Vec<String> = files.iter().map(|file| name_of(file)).collect();
    let settings = Map::from_iter([from_file(place), ("modules".to_owned(), json!(modules))]);
    Ok(Suite { task: ENTRY.name, split, items, settings, ..Suite::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_folders_or_named_after_the_folder() {
        let root = tempfile::tempdir().unwrap();
        for split in ["interpolate", "extrapolate"] {
            fs::create_dir(root.path().join(split)).unwrap();
        }
        let file = root.path().join("interpolate/arithmetic__mul.txt");
        fs::write(&file, "3*4\n12\n").unwrap();
        fs::write(root.path().join("interpolate/README"), "").unwrap();
        let names = |path: &Path, choice| -> Vec<String> {
            places(path, choice).into_iter().map(|(split, _)| split).collect()
        };
        assert_eq!(names(root.path(), SplitChoice::Both), ["interpolate", "extrapolate"]);
        assert_eq!(names(root.path(), SplitChoice::Extrapolate), ["extrapolate"]);
        assert_eq!(names(&file, SplitChoice::Both), ["interpolate"]);
        assert_eq!(names(Path::new("/nowhere/mul.txt"), SplitChoice::Both), ["test"]);
        let folder = root.path().join("interpolate");
        for module in ["all", "arithmetic__mul"] {
            assert_eq!(files(&folder, module).unwrap(), std::slice::from_ref(&file), "{module}");
        }
        assert!(files(&folder, "arithmetic__div").unwrap().is_empty());
    }
}
