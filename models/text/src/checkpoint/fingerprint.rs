//! Fingerprints of checkpoints: short texts that differ if the weights, the configurations or the tokenizers
//! differ.
//!
//! A fingerprint takes milliseconds, because only samples of a large file are read. They are spread over the
//! whole file, and training changes all parts of a weight file. The hash is FNV-1a, which detects accidental
//! differences. It does not protect against a file that was crafted to match.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::error::LoadError;
use super::files::CheckpointFiles;
use super::reader::FileReader;

/// Maximum size, in bytes, of files that are read completely.
const WHOLE_MAX: u64 = 1 << 20;

const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// Endings of the files that a fingerprint covers: weights and SentencePiece models. [`NAMES`] lists the
/// others.
const ENDINGS: [&str; 5] = [".safetensors", ".bin", ".gguf", ".pt", ".model"];
const NAMES: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "added_tokens.json",
    "adapter_config.json",
    "ntl.json",
    "ieee_vocab.json",
    "p10_vocab.json",
];

/// The files of RegressLM's tokenizer of prompts, in an inner directory.
const INNER: &str = "encoder_tokenizer";
const INNER_NAMES: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];

impl CheckpointFiles {
    /// Computes the fingerprint of a directory or an archive.
    pub fn fingerprint(&self) -> Result<String, LoadError> {
        let mut hash = Fnv::new();
        for name in self.names()? {
            if NAMES.contains(&name.as_str()) || ENDINGS.iter().any(|ending| name.ends_with(ending)) {
                self.add_to(&mut hash, &name)?;
            }
        }
        let inner = self.within(INNER);
        for name in INNER_NAMES {
            if inner.has(name)? {
                inner.add_to(&mut hash, name)?;
            }
        }
        Ok(hash.text())
    }

    fn add_to(&self, hash: &mut Fnv, name: &str) -> Result<(), LoadError> {
        hash.add(name.as_bytes());
        hash.add_file(&self.open(name)?).map_err(|source| LoadError::unreadable(self.name_of(name), source))
    }
}

/// Computes the fingerprint of files in their order, such as the parts of a GGUF file.
pub fn files_fingerprint(paths: &[PathBuf]) -> Result<String, LoadError> {
    let mut hash = Fnv::new();
    for path in paths {
        let added = File::open(path).and_then(FileReader::file).and_then(|file| hash.add_file(&file));
        added.map_err(|source| LoadError::unreadable(path.display().to_string(), source))?;
    }
    Ok(hash.text())
}

/// FNV-1a of 128 bits.
struct Fnv(u128);

impl Fnv {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    /// Adds a part, preceded by its length, which separates it from the next part.
    fn add(&mut self, part: &[u8]) {
        for byte in part.len().to_le_bytes().iter().chain(part) {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }

    fn add_file(&mut self, file: &FileReader<'_>) -> io::Result<()> {
        let len = file.size();
        self.add(&len.to_le_bytes());
        if len <= WHOLE_MAX {
            self.add(&file.part(0, len)?);
            return Ok(());
        }
        for sample in 0..SAMPLES {
            let offset = (len - SAMPLE_BYTES) / (SAMPLES - 1) * sample;
            self.add(&file.part(offset, SAMPLE_BYTES)?);
        }
        Ok(())
    }

    fn text(&self) -> String {
        format!("{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(files: &[(&str, &[u8])]) -> String {
        let files = files.iter().map(|&(name, bytes)| (name.to_owned(), bytes.to_vec()));
        CheckpointFiles::memory("x", files).fingerprint().unwrap()
    }

    #[test]
    fn a_fingerprint_differs_if_weights_configuration_or_tokenizer_do() {
        let base = fingerprint(&[("config.json", b"{}"), ("model.safetensors", b"abc")]);
        assert_eq!(base.len(), 32);
        assert_eq!(
            base,
            fingerprint(&[("model.safetensors", b"abc"), ("config.json", b"{}"), ("README.md", b"x")])
        );
        for other in [
            &[("config.json", b"{ }" as &[u8]), ("model.safetensors", b"abc")][..],
            &[("config.json", b"{}"), ("model.safetensors", b"abd")],
            &[("config.json", b"{}"), ("other.safetensors", b"abc")],
            &[("config.json", b"{}"), ("model.safetensors", b"abc"), ("tokenizer.json", b"{}")],
            &[("config.json", b"{}"), ("model.safetensors", b"abc"), ("p10_vocab.json", b"{}")],
            &[
                ("config.json", b"{}"),
                ("model.safetensors", b"abc"),
                ("encoder_tokenizer/tokenizer.json", b"{}"),
            ],
        ] {
            assert_ne!(base, fingerprint(other));
        }
    }

    #[test]
    fn samples_of_a_large_file_span_it_from_beginning_to_end() {
        let mut large = vec![7_u8; 3 << 20];
        let base = fingerprint(&[("model.safetensors", &large)]);
        for (from, bytes) in [(0, 1), ((3 << 20) - 100, 1), (1 << 20, 60_000)] {
            large[from..from + bytes].fill(8);
            assert_ne!(base, fingerprint(&[("model.safetensors", &large)]), "{from}");
            large[from..from + bytes].fill(7);
        }
        assert_eq!(base, fingerprint(&[("model.safetensors", &large)]));
    }

    #[test]
    fn a_directory_and_an_archive_of_the_same_files_have_the_same_fingerprint() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("model.safetensors"), "abc").unwrap();
        let found = CheckpointFiles::folder(folder.path()).unwrap().fingerprint().unwrap();
        assert_eq!(found, fingerprint(&[("config.json", b"{}"), ("model.safetensors", b"abc")]));
        let file = folder.path().join("model.safetensors");
        let one = files_fingerprint(std::slice::from_ref(&file)).unwrap();
        assert_eq!(one.len(), 32);
        assert_ne!(one, files_fingerprint(&[file, folder.path().join("config.json")]).unwrap());
        let missing = files_fingerprint(&[folder.path().join("nothing")]).unwrap_err();
        assert!(missing.to_string().contains("nothing"));
    }
}
