//! Finds the weight files of a checkpoint and reads their tables.
//!
//! In: the files of a checkpoint. Out: [`Shards`]. Reads the GGUF file if the checkpoint is one, otherwise
//! the first of these that exists: `model.safetensors`, its sharded form, `pytorch_model.bin`, its sharded
//! form.

use std::collections::BTreeMap;

use ntl_text::checkpoint::{CheckpointFiles, FileReader, LoadError, OneFile};
use serde::Deserialize;

use super::gguf::{self, Conversion, GgufNames, GgufTables, Place};
use super::table::{Entry, Table, TableError};
use super::{safetensors, torch};

#[derive(Debug, Clone, Copy)]
enum Format<'a> {
    Safetensors,
    /// The tensors are in the dictionary `key` of the file's dictionary, or in that itself.
    Torch {
        key: Option<&'a str>,
    },
}

const SINGLE_FILES: [(&str, Format<'static>); 2] =
    [("model.safetensors", Format::Safetensors), ("pytorch_model.bin", Format::Torch { key: None })];

/// The weight files and all tensors in them.
pub(super) struct Shards<'a> {
    /// The name, in errors, of the index or of the only file.
    pub(super) file: String,
    /// Open files with their names, without the directory.
    pub(super) readers: Vec<(String, FileReader<'a>)>,
    /// Each tensor with the index of its reader.
    pub(super) tensors: BTreeMap<String, (usize, Entry)>,
    /// The names in a GGUF file.
    names: Option<GgufNames>,
}

/// A tensor in one of the files.
pub(super) struct Found<'s> {
    /// Index of the file's reader.
    pub(super) file: usize,
    pub(super) entry: &'s Entry,
    pub(super) conversion: Conversion,
}

/// An index in the format of `save_pretrained`.
#[derive(Deserialize)]
struct Index {
    /// File names by tensor.
    weight_map: BTreeMap<String, String>,
}

impl<'a> Shards<'a> {
    pub(super) fn open(files: &'a CheckpointFiles) -> Result<Self, LoadError> {
        if let Some(file) = files.one_file() {
            return Self::gguf(files, file);
        }
        for (file, format) in SINGLE_FILES {
            if files.has(file)? {
                return Self::single(files, file, format);
            }
            let index = format!("{file}.index.json");
            if files.has(&index)? {
                return Self::indexed(files, &index, format);
            }
        }
        Err(files.missing(SINGLE_FILES[0].0, "; its sharded form or a pytorch_model.bin would do as well"))
    }

    /// Opens one safetensors file with any name.
    pub(super) fn open_file(files: &'a CheckpointFiles, file: &str) -> Result<Self, LoadError> {
        Self::single(files, file, Format::Safetensors)
    }

    /// Opens one file of PyTorch with any name, whose tensors are in the dictionary `key`.
    pub(super) fn open_torch(files: &'a CheckpointFiles, file: &str, key: &str) -> Result<Self, LoadError> {
        Self::single(files, file, Format::Torch { key: Some(key) })
    }

    /// Returns where the files store a tensor.
    pub(super) fn place(&self, name: &str) -> Place {
        let place = self.names.as_ref().and_then(|names| names.place(name));
        place.unwrap_or_else(|| Place { name: name.to_owned(), conversion: Conversion::Unchanged })
    }

    pub(super) fn find(&self, Place { name, conversion }: &Place) -> Option<Found<'_>> {
        let (file, entry) = self.tensors.get(name)?;
        Some(Found { file: *file, entry, conversion: *conversion })
    }

    fn gguf(files: &'a CheckpointFiles, file: &OneFile) -> Result<Self, LoadError> {
        let first = file.parts.first().map_or("", String::as_str);
        let GgufTables { parts, tensors, names } = gguf::read(files, first)?;
        let mut readers = Vec::new();
        for part in parts {
            let reader = files.open(&part)?;
            readers.push((part, reader));
        }
        Ok(Self { file: files.place().to_owned(), readers, tensors, names: Some(names) })
    }

    fn single(files: &'a CheckpointFiles, file: &str, format: Format<'_>) -> Result<Self, LoadError> {
        let (reader, table) = open(files, file, format)?;
        let tensors = table.into_iter().map(|(name, entry)| (name, (0, entry))).collect();
        let readers = vec![(file.to_owned(), reader)];
        Ok(Self { file: files.name_of(file), readers, tensors, names: None })
    }

    fn indexed(files: &'a CheckpointFiles, file: &str, format: Format<'_>) -> Result<Self, LoadError> {
        let index_name = files.name_of(file);
        let index: Index = files.require_json(file)?;
        let mut by_file = BTreeMap::<String, Vec<String>>::new();
        for (tensor, shard) in index.weight_map {
            if !is_plain_name(&shard) {
                let reason = format!("its file `{shard}` is not a file name");
                return Err(LoadError::tensor(index_name, &tensor, reason));
            }
            by_file.entry(shard).or_default().push(tensor);
        }
        let mut shards =
            Self { file: index_name, readers: Vec::new(), tensors: BTreeMap::new(), names: None };
        for (shard, tensors) in by_file {
            shards.add(files, shard, format, tensors)?;
        }
        Ok(shards)
    }

    /// Opens one file, which must contain these tensors according to the index.
    fn add(
        &mut self,
        files: &'a CheckpointFiles,
        shard: String,
        format: Format<'_>,
        tensors: Vec<String>,
    ) -> Result<(), LoadError> {
        if !files.has(&shard)? {
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
    format: Format<'_>,
) -> Result<(FileReader<'a>, Table), LoadError> {
    let reader = files.open(file)?;
    let table = match format {
        Format::Safetensors => safetensors::read(&reader),
        Format::Torch { key } => torch::read(&reader, key),
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

/// Returns whether `name` is the name of a file in the same directory.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let has_separator = name.contains(['/', '\\', '\0']);
    !has_separator && !matches!(name, "" | "." | "..")
}
