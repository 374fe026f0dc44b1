//! Which files hold the weights of a checkpoint, and the tables of them all.
//!
//! In: the files of a checkpoint. Out: [`Shards`]. `model.safetensors` comes first, then its form in several files, then
//! `pytorch_model.bin` and its form in several files; only the first of them that is there is read.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::reader::FileReader;
use super::table::{Entry, Table, TableError};
use super::{CheckpointFiles, LoadError, safetensors, torch};

/// How files of weights are written.
#[derive(Debug, Clone, Copy)]
enum Format {
    Safetensors,
    Torch,
}

/// All forms by the file that is looked for, best first.
const FORMS: [(&str, Format, bool); 4] = [
    ("model.safetensors", Format::Safetensors, false),
    ("model.safetensors.index.json", Format::Safetensors, true),
    ("pytorch_model.bin", Format::Torch, false),
    ("pytorch_model.bin.index.json", Format::Torch, true),
];

/// The files of weights with all tensors in them.
pub(super) struct Shards<'a> {
    /// The file that says what there is: the index, or the only file.
    pub(super) file: String,
    /// Open files with their names, without the folder.
    pub(super) readers: Vec<(String, FileReader<'a>)>,
    /// Each tensor with the number of its file.
    pub(super) tensors: BTreeMap<String, (usize, Entry)>,
}

/// An index as `save_pretrained` writes it.
#[derive(Deserialize)]
struct Index {
    /// File of each tensor.
    weight_map: BTreeMap<String, String>,
}

impl<'a> Shards<'a> {
    /// Opens the weights of a checkpoint and reads their tables.
    ///
    /// # Errors
    /// When none of the forms is there, a file is missing or damaged, or the index and a file disagree.
    pub(super) fn open(files: &'a CheckpointFiles) -> Result<Self, LoadError> {
        let form = FORMS.into_iter().find(|(file, ..)| files.has(file));
        let (file, format, is_index) = form.ok_or_else(|| {
            files.missing(FORMS[0].0, "; its sharded form or a pytorch_model.bin would do as well")
        })?;
        if is_index {
            return Self::indexed(files, file, format);
        }
        Self::single(files, file, format)
    }

    /// Opens one file of safetensors, whatever its name.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub(super) fn open_file(files: &'a CheckpointFiles, file: &str) -> Result<Self, LoadError> {
        Self::single(files, file, Format::Safetensors)
    }

    fn single(files: &'a CheckpointFiles, file: &str, format: Format) -> Result<Self, LoadError> {
        let (reader, table) = open(files, file, format)?;
        let tensors = table.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        Ok(Self { file: files.name_of(file), readers: vec![(file.to_owned(), reader)], tensors })
    }

    fn indexed(files: &'a CheckpointFiles, file: &str, format: Format) -> Result<Self, LoadError> {
        let index_name = files.name_of(file);
        let index: Index = serde_json::from_slice(&files.require(file)?)
            .map_err(|error| LoadError::malformed(&index_name, error))?;
        let mut by_file = BTreeMap::<String, Vec<String>>::new();
        for (tensor, shard) in index.weight_map {
            if !is_plain_name(&shard) {
                let reason = format!("its file `{shard}` is no file name");
                return Err(LoadError::tensor(index_name, &tensor, reason));
            }
            by_file.entry(shard).or_default().push(tensor);
        }
        let mut shards = Self { file: index_name, readers: Vec::new(), tensors: BTreeMap::new() };
        for (shard, tensors) in by_file {
            shards.add(files, shard, (format, tensors))?;
        }
        Ok(shards)
    }

    /// Opens one file, of which the index names these tensors.
    fn add(
        &mut self,
        files: &'a CheckpointFiles,
        shard: String,
        (format, tensors): (Format, Vec<String>),
    ) -> Result<(), LoadError> {
        if !files.has(&shard) {
            let first = tensors.first().map_or("", String::as_str);
            return Err(LoadError::tensor(&self.file, first, format!("its file `{shard}` is missing")));
        }
        let (reader, mut table) = open(files, &shard, format)?;
        for tensor in tensors {
            let entry = table.remove(&tensor).ok_or_else(|| {
                LoadError::tensor(
                    files.name_of(&shard),
                    &tensor,
                    "missing, but the index says that it is here",
                )
            })?;
            self.tensors.insert(tensor, (self.readers.len(), entry));
        }
        self.readers.push((shard, reader));
        Ok(())
    }
}

fn open<'a>(
    files: &'a CheckpointFiles,
    file: &str,
    format: Format,
) -> Result<(FileReader<'a>, Table), LoadError> {
    let reader = files.open(file)?;
    let table = match format {
        Format::Safetensors => safetensors::read(&reader),
        Format::Torch => torch::read(&reader),
    };
    let table = table.map_err(|TableError { tensor, reason }| {
        let name = files.name_of(file);
        match tensor {
            Some(tensor) => LoadError::tensor(name, &tensor, reason),
            None => LoadError::malformed(name, reason),
        }
    })?;
    Ok((reader, table))
}

/// Whether it names a file of the same folder and nothing else.
fn is_plain_name(name: &str) -> bool {
    let has_separator = name.contains(['/', '\\', '\0']);
    !has_separator && !matches!(name, "" | "." | "..")
}
