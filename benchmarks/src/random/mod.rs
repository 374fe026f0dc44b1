//! Random checkpoints of well-known shapes, for measuring speed where no trained one is at hand.
//!
//! In: a shape and a seed. Out: a folder that this project, Hugging Face and converters read. The same seed gives the
//! same bytes on every machine.

mod llama;
mod t5;
mod tensors;
mod tokenizer;

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use ntl_models::checkpoint::LoadError;

use llama::LlamaShape;
use t5::T5Shape;
use tensors::Planned;

/// Shape of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Encoder and decoder.
    T5(T5Shape),
    /// Decoder only.
    Llama(LlamaShape),
}

/// All shapes that there are by name; t5-large makes a file of 3 GB, t5-3b one of 11.4 GB, tinyllama one of 4.4 GB.
pub const SHAPES: [(&str, Shape); 7] = [
    ("t5-small", Shape::T5(T5Shape::v1_0(512, 2048, 6, 8))),
    ("t5-base", Shape::T5(T5Shape::v1_0(768, 3072, 12, 12))),
    ("t5-large", Shape::T5(T5Shape::v1_0(1024, 4096, 24, 16))),
    ("t5-3b", Shape::T5(T5Shape::v1_0(1024, 16_384, 24, 32).with_head(128))),
    ("t5-v1.1-base", Shape::T5(T5Shape::v1_1(768, 2048, 12, 12))),
    ("llama-160m", Shape::Llama(LlamaShape::new((768, 3072), 12, (12, 12)))),
    ("tinyllama", Shape::Llama(LlamaShape::new((2048, 5632), 22, (32, 4)))),
];

/// The shape of that name.
pub fn shape(name: &str) -> Option<Shape> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, shape)| *shape)
}

/// Why a checkpoint could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The demo checkpoint, whose tokenizer is used, cannot be read.
    #[error("the demo checkpoint cannot be read")]
    Demo(#[from] LoadError),
    /// The demo checkpoint's added tokens are none.
    #[error("the demo checkpoint's added tokens cannot be read")]
    Added(#[from] serde_json::Error),
    /// A file cannot be written.
    #[error("a file cannot be written")]
    Io(#[from] io::Error),
}

impl Shape {
    fn vocabulary(&self) -> usize {
        match self {
            Self::T5(_) => t5::VOCABULARY,
            Self::Llama(_) => llama::VOCABULARY,
        }
    }

    fn config(&self) -> String {
        match self {
            Self::T5(shape) => shape.config(),
            Self::Llama(shape) => shape.config(),
        }
    }

    fn tensors(&self) -> Vec<Planned> {
        match self {
            Self::T5(shape) => shape.tensors(),
            Self::Llama(shape) => shape.tensors(),
        }
    }
}

/// Writes a checkpoint folder: random weights of this shape, and the demo checkpoint's tokenizer with as many more
/// pieces as the vocabulary has room for.
///
/// # Errors
/// When the demo checkpoint cannot be read or the folder not written.
pub fn write(folder: &Path, shape: Shape, seed: u64) -> Result<(), WriteError> {
    fs::create_dir_all(folder)?;
    tokenizer::write(folder, shape.vocabulary())?;
    fs::write(folder.join("config.json"), shape.config())?;
    let file = File::create(folder.join("model.safetensors"))?;
    Ok(tensors::write(&shape.tensors(), seed, BufWriter::new(file))?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ntl_models::checkpoint::CheckpointFiles;
    use ntl_models::{LoadOptions, load};

    use super::*;

    /// A folder that is gone at the end of the test.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn tiny_checkpoints_load_with_a_tokenizer_as_large_as_their_vocabulary() {
        for (name, shape) in [
            ("v1_0", Shape::T5(T5Shape::v1_0(64, 32, 1, 1))),
            ("wide_heads", Shape::T5(T5Shape::v1_0(64, 32, 1, 1).with_head(128))),
            ("v1_1", Shape::T5(T5Shape::v1_1(64, 32, 1, 1))),
            ("llama", Shape::Llama(LlamaShape::new((64, 32), 1, (2, 1)))),
        ] {
            let folder = std::env::temp_dir().join(format!("ntl-bench-{name}-{}", std::process::id()));
            let folder = Folder(folder);
            write(&folder.0, shape, 1).unwrap();
            let first = fs::read(folder.0.join("model.safetensors")).unwrap();
            write(&folder.0, shape, 1).unwrap();
            assert!(first == fs::read(folder.0.join("model.safetensors")).unwrap(), "{name} repeats");
            let files = CheckpointFiles::folder(&folder.0).unwrap();
            let loaded = load(&files, LoadOptions::default()).unwrap();
            assert_eq!(loaded.tokenizer.len(), shape.vocabulary(), "{name}");
            let text = "What is 17 + 4?";
            let ids = loaded.tokenizer.encode(text, false).unwrap();
            assert_eq!(loaded.tokenizer.decode_tokens(&ids), text, "{name}");
        }
    }
}
