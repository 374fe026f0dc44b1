//! Reads the header of a GGUF file: its metadata and its table of tensors
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! In: an open file. Out: [`GgufFile`]. Invariant: every tensor of a known type lies inside the file,
//! aligned, and no two tensors overlap. Errors name the key or the tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use super::cursor::Cursor;
use super::parts::part_names;
use super::types::TensorType;
use super::value::{ELEMENTS_MAX, Value};
use crate::checkpoint::{CheckpointFiles, FileReader, LoadError};

/// Maximum size of a header, in bytes. The largest vocabularies need about 20 MB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of keys, and of tensors.
const ENTRIES_MAX: u64 = 1 << 16;

const DIMENSIONS_MAX: u32 = 4;

const ALIGNMENT: &str = "general.alignment";
const ALIGNMENT_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub struct GgufFile {
    /// The path, for error messages.
    place: String,
    /// Names of the files of the model, the first of which has the metadata.
    parts: Vec<String>,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, GgufTensor>,
}

/// A tensor in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    pub stored: TensorType,
    /// Sizes from the outermost dimension to the innermost, as in PyTorch. All are at least 1.
    pub shape: Vec<usize>,
    /// Index of its file among the parts of the model.
    pub part: usize,
    /// Byte offset of the first block in the file.
    pub offset: u64,
}

impl GgufFile {
    pub fn open(file: &Path) -> Result<Self, LoadError> {
        let place = file.display().to_string();
        let reader = File::open(file).and_then(FileReader::file);
        match reader {
            Ok(reader) => Self::read(&place, &reader),
            Err(source) => Err(LoadError::Read { file: place, source }),
        }
    }

    /// Reads the header of a model in `files`, and the headers of its further parts. `place` names the file
    /// in errors.
    pub fn read_model(place: &str, files: &CheckpointFiles, name: &str) -> Result<Self, LoadError> {
        let mut model = Self::read(place, &files.open(name)?)?;
        model.parts = part_names(name);
        model.check_part(0, model.parts.len())?;
        for (index, name) in model.parts.iter().enumerate().skip(1) {
            let part = Self::read(&files.name_of(name), &files.open(name)?)?;
            part.check_part(index, model.parts.len())?;
            for (tensor_name, tensor) in part.tensors {
                let tensor = GgufTensor { part: index, ..tensor };
                if model.tensors.insert(tensor_name.clone(), tensor).is_some() {
                    return Err(LoadError::tensor(part.place, &tensor_name, "an earlier part has it too"));
                }
            }
        }
        Ok(model)
    }

    /// Checks that a file is this part of a model with `count` parts.
    fn check_part(&self, index: usize, count: usize) -> Result<(), LoadError> {
        const COUNT: &str = "split.count";
        const NUMBER: &str = "split.no";
        let stated = self.id(COUNT)?.unwrap_or(1) as usize;
        if stated != count && stated.max(count) > 1 {
            let reason = format!(
                "the model has {stated} parts, and the file names of {count}; name the first part, such as \
                 m-00001-of-00003.gguf"
            );
            return Err(self.field(COUNT, reason));
        }
        let number = self.id(NUMBER)?.unwrap_or(0) as usize;
        if number != index {
            return Err(self.field(NUMBER, format!("this is part {number} in the place of part {index}")));
        }
        Ok(())
    }

    /// Reads the header of an open file. `place` names it in errors.
    pub fn read(place: &str, reader: &FileReader<'_>) -> Result<Self, LoadError> {
        let is_whole = reader.size() <= HEADER_BYTES_MAX;
        let bytes = reader
            .part(0, reader.size().min(HEADER_BYTES_MAX))
            .map_err(|source| LoadError::Read { file: place.to_owned(), source })?;
        let end = if is_whole { "the file is cut off" } else { "the header is longer than 64 MiB" };
        let mut cursor = Cursor::new(&bytes, end);
        let counts = Counts::read(&mut cursor).map_err(|reason| LoadError::malformed(place, reason))?;
        let metadata = read_metadata(&mut cursor, counts.keys, place)?;
        let mut tensors = read_tensors(&mut cursor, counts.tensors, place)?;
        let tensorless = BTreeMap::new();
        let file = Self { place: place.to_owned(), parts: Vec::new(), metadata, tensors: tensorless };
        let alignment = file.alignment()?;
        let start = (cursor.position() as u64).next_multiple_of(alignment);
        check_places(&mut tensors, alignment, reader.size().saturating_sub(start))
            .map_err(|(name, reason)| LoadError::tensor(place, &name, reason))?;
        let tensors = tensors.into_iter().map(|(name, tensor)| {
            let offset = start + tensor.offset;
            (name, GgufTensor { offset, ..tensor })
        });
        Ok(Self { tensors: tensors.collect(), ..file })
    }

    /// The path, for error messages.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The names of the model's files.
    pub fn parts(&self) -> &[String] {
        &self.parts
    }

    pub fn tensors(&self) -> &BTreeMap<String, GgufTensor> {
        &self.tensors
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// Returns the keys that begin with `prefix`.
    pub(super) fn keys<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.metadata.keys().map(String::as_str).filter(move |key| key.starts_with(prefix))
    }

    /// Returns a text, or `None` if the key is missing.
    pub fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => Err(self.field(key, format!("{} instead of a text", other.described()))),
        }
    }

    /// Returns an id, which may be stored with any width.
    pub fn id(&self, key: &str) -> Result<Option<u32>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) => match u32::try_from(*number) {
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(self.field(key, format!("{number} is out of range"))),
            },
            Some(other) => Err(self.field(key, format!("{} instead of an integer", other.described()))),
        }
    }

    /// Returns a size, which is one number, or the same number for every layer. Returns `None` if the key is
    /// missing or 0, by which some converters write that a size is unused.
    pub fn size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        const SIZE_MAX: usize = 1 << 24;
        let number = match self.get(key) {
            None | Some(Value::Integer(0)) => return Ok(None),
            Some(Value::Integer(number)) => *number,
            Some(Value::Integers(numbers)) => match numbers.split_first() {
                Some((first, others)) if others.iter().all(|other| other == first) => i128::from(*first),
                _ => return Err(self.field(key, "layers of different sizes are not supported")),
            },
            Some(other) => {
                return Err(self.field(key, format!("{} instead of an integer", other.described())));
            }
        };
        match usize::try_from(number) {
            Ok(size @ 1..=SIZE_MAX) => Ok(Some(size)),
            _ => Err(self.field(key, format!("{number} is out of range"))),
        }
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.field(key, format!("{} instead of a boolean", other.described()))),
        }
    }

    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, LoadError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Texts(texts)) => Ok(Some(texts)),
            // Some writers give an empty list another type.
            Some(Value::Integers(none)) if none.is_empty() => Ok(Some(&[])),
            Some(_) => Err(self.field(key, "not a list of texts")),
        }
    }

    /// Returns the error for a missing or unsupported field.
    pub fn field(&self, key: impl Into<String>, reason: impl ToString) -> LoadError {
        LoadError::field(&self.place, key, reason)
    }

    fn alignment(&self) -> Result<u64, LoadError> {
        const USUAL: u64 = 32;
        let Some(alignment) = self.id(ALIGNMENT)? else { return Ok(USUAL) };
        let alignment = u64::from(alignment);
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
            return Err(self.field(ALIGNMENT, format!("{alignment} is not a power of two up to 2^20")));
        }
        Ok(alignment)
    }
}

struct Counts {
    tensors: u64,
    keys: u64,
}

impl Counts {
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, String> {
        if cursor.array()? != *b"GGUF" {
            return Err("it does not begin with GGUF".to_owned());
        }
        match cursor.u32()? {
            2 | 3 => {}
            version if matches!(version.swap_bytes(), 1..=3) => {
                return Err("it is big-endian, which is not supported".to_owned());
            }
            version => return Err(format!("version {version} is not supported; 2 and 3 are")),
        }
        let tensors = cursor.u64()?;
        let keys = cursor.u64()?;
        for (what, count) in [("tensors", tensors), ("metadata fields", keys)] {
            if count > ENTRIES_MAX {
                return Err(format!("it claims {count} {what}; at most {ENTRIES_MAX} are possible"));
            }
        }
        Ok(Self { tensors, keys })
    }
}

fn read_metadata(
    cursor: &mut Cursor<'_>,
    count: u64,
    place: &str,
) -> Result<BTreeMap<String, Value>, LoadError> {
    let mut metadata = BTreeMap::new();
    let mut elements = ELEMENTS_MAX;
    for index in 0..count {
        let key = cursor.name().map_err(|reason| {
            LoadError::malformed(place, format!("the name of metadata field {index}: {reason}"))
        })?;
        let value =
            Value::read(cursor, &mut elements).map_err(|reason| LoadError::field(place, key, reason))?;
        if metadata.insert(key.to_owned(), value).is_some() {
            return Err(LoadError::field(place, key, "it is there twice"));
        }
    }
    Ok(metadata)
}

/// Reads the table. Offsets count from the beginning of the tensors' data.
fn read_tensors(
    cursor: &mut Cursor<'_>,
    count: u64,
    place: &str,
) -> Result<Vec<(String, GgufTensor)>, LoadError> {
    let mut tensors = Vec::new();
    for index in 0..count {
        let name = cursor
            .name()
            .map_err(|reason| LoadError::malformed(place, format!("the name of tensor {index}: {reason}")))?;
        let tensor = read_tensor(cursor).map_err(|reason| LoadError::tensor(place, name, reason))?;
        tensors.push((name.to_owned(), tensor));
    }
    Ok(tensors)
}

fn read_tensor(cursor: &mut Cursor<'_>) -> Result<GgufTensor, String> {
    let dimensions = cursor.u32()?;
    if !(1..=DIMENSIONS_MAX).contains(&dimensions) {
        return Err(format!("{dimensions} dimensions; 1 to {DIMENSIONS_MAX} are possible"));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let size = cursor.u64()?;
        shape.push(usize::try_from(size).map_err(|_| format!("a size of {size} is out of range"))?);
    }
    shape.reverse();
    if shape.contains(&0) {
        return Err(format!("its shape {shape:?} has no elements"));
    }
    let stored = TensorType::numbered(cursor.u32()?);
    Ok(GgufTensor { stored, shape, part: 0, offset: cursor.u64()? })
}

/// Checks that tensors lie inside the `data_bytes` of the tensors' data, aligned and without overlaps, and
/// that no name is there twice. Sorts them by offset.
fn check_places(
    tensors: &mut [(String, GgufTensor)],
    alignment: u64,
    data_bytes: u64,
) -> Result<(), (String, String)> {
    tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut previous = "";
    for (name, _) in tensors.iter() {
        if name == previous {
            return Err((name.clone(), "it is there twice".to_owned()));
        }
        previous = name;
    }
    tensors.sort_by_key(|(_, tensor)| tensor.offset);
    let mut end = 0;
    let mut before = "";
    for (name, tensor) in tensors.iter() {
        let bytes = claimed_bytes(tensor, alignment, data_bytes).map_err(|reason| (name.clone(), reason))?;
        if tensor.offset < end {
            return Err((name.clone(), format!("it overlaps tensor `{before}`")));
        }
        (end, before) = (tensor.offset + bytes, name);
    }
    Ok(())
}

/// Returns the size of a tensor in bytes; for unknown types the minimum. Checks that it lies inside the data.
fn claimed_bytes(tensor: &GgufTensor, alignment: u64, data_bytes: u64) -> Result<u64, String> {
    let GgufTensor { stored, shape, offset, .. } = tensor;
    let elements = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    let elements = elements.ok_or_else(|| format!("its shape {shape:?} multiplies beyond 2^64"))?;
    let bytes = match stored {
        TensorType::Known(known) => {
            let inner = shape.last().copied().unwrap_or(1);
            let block = known.block_elements();
            if !inner.is_multiple_of(block) {
                let name = known.name();
                return Err(format!("rows of {inner} elements are not whole blocks of {block} ({name})"));
            }
            (elements / block as u64).checked_mul(known.block_bytes() as u64)
        }
        // No type has less than one bit per element.
        TensorType::Other(_) => Some(elements / 8),
    };
    let bytes = bytes.ok_or_else(|| format!("its shape {shape:?} multiplies beyond 2^64"))?;
    if !offset.is_multiple_of(alignment) {
        return Err(format!("its offset {offset} is not a multiple of {alignment}"));
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= data_bytes => Ok(bytes),
        _ => Err(format!(
            "{bytes} bytes from offset {offset} on do not fit into the {data_bytes} bytes of data"
        )),
    }
}
