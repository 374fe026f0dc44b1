//! GGUF files: one file with the metadata, the tokenizer and the weights of a model.
//!
//! [`checkpoint`] converts the metadata to the files of a Hugging Face checkpoint, so that all other code
//! reads a GGUF file as it reads a directory. [`GgufFile`] is the header itself. Files are treated as
//! hostile: every count, length and offset is checked before anything is allocated for it.

mod config;
mod cursor;
mod file;
mod parts;
mod tokenizer;
mod types;
mod value;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use crate::checkpoint::{CONFIG_FILE, CheckpointFiles, LoadError, OneFile};
use config::GgufConfig;

pub use config::native_architectures;
pub use file::{GgufFile, GgufTensor};
pub use parts::{is_later_part, part_paths};
pub use tokenizer::end_ids;
pub use types::{GgmlType, TensorType};
pub use value::Value;

const TOKENIZER_FILE: &str = "tokenizer.json";
const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// The files of a tokenizer that may be next to a GGUF file.
const TOKENIZER_FILES: [&str; 5] = [
    TOKENIZER_FILE,
    TOKENIZER_CONFIG_FILE,
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// Reads the header of a GGUF file, and returns the checkpoint that it contains. The file may be the first of
/// several parts.
///
/// # Errors
/// If the native engine does not serve the architecture, if the tokenizer is not supported, and if a part of
/// the header is malformed; the error names the key or the tensor.
pub fn checkpoint(path: &Path) -> Result<CheckpointFiles, LoadError> {
    let place = path.display().to_string();
    let FileLocation { folder, name } =
        FileLocation::of(path).map_err(|source| LoadError::Read { file: place.clone(), source })?;
    let beside = CheckpointFiles::resolved_folder(&folder);
    let gguf = GgufFile::read_model(&place, &beside, &name)?;
    let config = GgufConfig::new(&gguf)?;
    let mut files = tokenizer_files(&gguf, &beside)?;
    files.insert(CONFIG_FILE.to_owned(), bytes_of(&config.json(&beside)?));
    Ok(CheckpointFiles::of_one_file(OneFile {
        place,
        folder,
        parts: gguf.parts().to_vec(),
        is_quantised: is_quantised(&gguf),
        files,
    }))
}

/// The directory and the name of a file. All links in the directory's path are resolved.
struct FileLocation {
    folder: PathBuf,
    name: String,
}

impl FileLocation {
    /// Keeps the name that was given, as in the cache of the Hugging Face hub, whose names are links to
    /// blobs. A link to another directory is resolved: its target has the further parts.
    fn of(path: &Path) -> io::Result<Self> {
        let named = Self::split(&std::path::absolute(path)?)?;
        let is_outside = CheckpointFiles::resolved_folder(&named.folder).path_of(&named.name);
        if matches!(is_outside, Err(LoadError::Outside { .. })) {
            return Self::split(&path.canonicalize()?);
        }
        Ok(named)
    }

    fn split(path: &Path) -> io::Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some(folder), Some(name)) = (path.parent(), name) else {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "its name is not UTF-8"));
        };
        Ok(Self { folder: folder.canonicalize()?, name: name.to_owned() })
    }
}

/// Returns the files of the tokenizer: those next to the GGUF file if there is a `tokenizer.json`, otherwise
/// files made from the metadata.
pub fn tokenizer_files(
    gguf: &GgufFile,
    beside: &CheckpointFiles,
) -> Result<BTreeMap<String, Vec<u8>>, LoadError> {
    let mut files = BTreeMap::new();
    files.insert(TOKENIZER_CONFIG_FILE.to_owned(), bytes_of(&tokenizer::config(gguf)?));
    if beside.has(TOKENIZER_FILE)? {
        for name in TOKENIZER_FILES {
            if let Some(bytes) = beside.read(name)? {
                files.insert(name.to_owned(), bytes.into_owned());
            }
        }
    } else {
        files.insert(TOKENIZER_FILE.to_owned(), bytes_of(&tokenizer::tokenizer(gguf)?));
    }
    Ok(files)
}

fn bytes_of(json: &Json) -> Vec<u8> {
    json.to_string().into_bytes()
}

/// Returns whether most weights have less than 16 bits.
fn is_quantised(gguf: &GgufFile) -> bool {
    let mut quantised = 0.0;
    let mut all = 0.0;
    for tensor in gguf.tensors().values() {
        let elements = tensor.shape.iter().product::<usize>() as f64;
        all += elements;
        if let TensorType::Known(known) = tensor.stored
            && known.is_quantised()
        {
            quantised += elements;
        }
    }
    quantised > all / 2.0
}
