//! The files of a repository that the server reads. Nothing else is downloaded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ntl_common::regular_file;
use serde::Deserialize;

use super::error::Problem;
use super::reference::is_inner_path;

/// The purpose of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    Model,
    /// A model without its weights, which another engine has.
    Tokenizer,
    Adapter,
}

/// Maximum size of a file without weights, in bytes.
pub(super) const DESCRIPTION_BYTES_MAX: u64 = 256 << 20;

const TOKENIZER: [&str; 8] = [
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer_config.json",
];
const MODEL: [&str; 6] = [
    "config.yaml",
    "encoder_tokenizer/tokenizer.json",
    "encoder_tokenizer/tokenizer_config.json",
    "ieee_vocab.json",
    OWN_FILE,
    "p10_vocab.json",
];
const ADAPTER: &str = "adapter_config.json";
const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// Weights, in the order in which the loader looks for them. Each may be sharded.
const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Describes a checkpoint of RegressLM, whose weights and vocabulary may have any name.
const OWN_FILE: &str = "ntl.json";

/// An index of sharded weights.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Returns the files without weights, of all `names` of a repository.
pub(super) fn descriptions(contents: Contents, names: &BTreeSet<String>) -> Vec<String> {
    let mut wanted: Vec<String> = match contents {
        Contents::Model => TOKENIZER.iter().chain(&MODEL).map(|&name| name.to_owned()).collect(),
        Contents::Tokenizer => TOKENIZER.map(str::to_owned).into(),
        Contents::Adapter => vec![ADAPTER.to_owned()],
    };
    if contents == Contents::Model {
        match weight_file(names) {
            Some(WeightFile::Index(index)) => wanted.push(index),
            Some(WeightFile::Single(_)) => {}
            None if names.contains(OWN_FILE) => wanted.extend(with_ending(names, ".model")),
            None => {}
        }
    }
    wanted.retain(|name| names.contains(name));
    wanted.sort();
    wanted.dedup();
    wanted
}

/// Returns the files with weights, once the descriptions are in `folder`.
pub(super) fn weights(
    contents: Contents,
    names: &BTreeSet<String>,
    folder: &Path,
) -> Result<Vec<String>, Problem> {
    match contents {
        Contents::Tokenizer => Ok(Vec::new()),
        Contents::Adapter if names.contains(ADAPTER_WEIGHTS) => Ok(vec![ADAPTER_WEIGHTS.to_owned()]),
        Contents::Adapter => Ok(Vec::new()),
        Contents::Model => match weight_file(names) {
            Some(WeightFile::Single(file)) => Ok(vec![file]),
            Some(WeightFile::Index(index)) => shards(names, &folder.join(index)),
            None if names.contains(OWN_FILE) => Ok(with_ending(names, ".pt")),
            None => match with_ending(names, ".gguf").into_iter().next() {
                Some(file) => Err(Problem::OnlyGguf(file)),
                None => Ok(Vec::new()),
            },
        },
    }
}

/// Returns whether a snapshot with these files was downloaded completely: weights are downloaded last.
pub(super) fn is_complete(contents: Contents, names: &BTreeSet<String>, folder: &Path) -> bool {
    let described = match contents {
        Contents::Model => names.contains("config.json") || names.contains(OWN_FILE),
        Contents::Tokenizer => names.contains("tokenizer.json") || names.contains("spiece.model"),
        Contents::Adapter => names.contains(ADAPTER),
    };
    let weights = weights(contents, names, folder);
    described && weights.is_ok_and(|files| contents == Contents::Tokenizer || !files.is_empty())
}

enum WeightFile {
    Single(String),
    Index(String),
}

fn weight_file(names: &BTreeSet<String>) -> Option<WeightFile> {
    for file in WEIGHTS {
        if names.contains(file) {
            return Some(WeightFile::Single(file.to_owned()));
        }
        let index = format!("{file}.index.json");
        if names.contains(&index) {
            return Some(WeightFile::Index(index));
        }
    }
    None
}

fn shards(names: &BTreeSet<String>, index: &Path) -> Result<Vec<String>, Problem> {
    let bytes = regular_file::read(index, regular_file::SMALL_BYTES_MAX);
    let bytes = bytes.map_err(|source| Problem::disk(index, source))?;
    let parsed: Index = serde_json::from_slice(&bytes)
        .map_err(|error| Problem::Response(format!("the index of the weights: {error}")))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    match shards.iter().find(|&shard| !names.contains(shard) || !is_inner_path(shard)) {
        Some(shard) => Err(Problem::Name(shard.clone())),
        None => Ok(shards.into_iter().collect()),
    }
}

/// Returns the files outside of inner directories that have an ending.
fn with_ending(names: &BTreeSet<String>, ending: &str) -> Vec<String> {
    let mut found = names.clone();
    found.retain(|name| name.ends_with(ending) && !name.contains('/') && is_inner_path(name));
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn only_files_that_the_server_reads_are_selected() {
        let folder = tempfile::tempdir().unwrap();
        let names = set(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "consolidated.safetensors",
            "flax_model.msgpack",
            "model.safetensors",
            "onnx/model.onnx",
            "original/tokenizer.model",
            "pytorch_model.bin",
            "tokenizer.json",
            "training_args.bin",
            "../config.json",
        ]);
        assert_eq!(descriptions(Contents::Model, &names), ["config.json", "tokenizer.json"]);
        assert_eq!(weights(Contents::Model, &names, folder.path()).unwrap(), ["model.safetensors"]);
        assert_eq!(descriptions(Contents::Tokenizer, &names), ["config.json", "tokenizer.json"]);
        assert!(weights(Contents::Tokenizer, &names, folder.path()).unwrap().is_empty());
        let adapter =
            set(&["adapter_config.json", "adapter_model.safetensors", "optimizer.pt", "tokenizer.json"]);
        assert_eq!(descriptions(Contents::Adapter, &adapter), ["adapter_config.json"]);
        assert_eq!(
            weights(Contents::Adapter, &adapter, folder.path()).unwrap(),
            ["adapter_model.safetensors"]
        );
        let regresslm = set(&["ntl.json", "model.pt", "vocab.model", "../x.pt", "old/y.pt"]);
        assert_eq!(descriptions(Contents::Model, &regresslm), ["ntl.json", "vocab.model"]);
        assert_eq!(weights(Contents::Model, &regresslm, folder.path()).unwrap(), ["model.pt"]);
    }

    #[test]
    fn shards_are_the_files_of_the_index_and_lie_in_the_repository() {
        let folder = tempfile::tempdir().unwrap();
        let index = "model.safetensors.index.json";
        let names = set(&[
            index,
            "config.json",
            "a.safetensors",
            "b.safetensors",
            "c.safetensors",
            "../d.safetensors",
        ]);
        assert_eq!(descriptions(Contents::Model, &names), ["config.json", index]);
        let shards = |text: &str| {
            std::fs::write(folder.path().join(index), text).unwrap();
            weights(Contents::Model, &names, folder.path()).map_err(|problem| problem.to_string())
        };
        let found =
            shards(r#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#);
        assert_eq!(found.unwrap(), ["a.safetensors", "b.safetensors"]);
        for wrong in ["../d.safetensors", "missing.safetensors", "/etc/passwd"] {
            let error = shards(&format!(r#"{{"weight_map": {{"x": "{wrong}"}}}}"#)).unwrap_err();
            assert_eq!(error, format!("`{wrong}` is not the name of a file of the repository"));
        }
        assert!(shards("[]").unwrap_err().contains("the index of the weights"));
    }

    #[test]
    fn a_snapshot_is_complete_once_it_has_its_weights() {
        let folder = tempfile::tempdir().unwrap();
        for (contents, names, complete) in [
            (Contents::Model, &["config.json", "model.safetensors"][..], true),
            (Contents::Model, &["config.json", "tokenizer.json"], false),
            (Contents::Model, &["model.safetensors"], false),
            (Contents::Tokenizer, &["tokenizer.json"], true),
            (Contents::Tokenizer, &["config.json"], false),
            (Contents::Adapter, &["adapter_config.json"], false),
            (Contents::Adapter, &["adapter_config.json", "adapter_model.safetensors"], true),
        ] {
            assert_eq!(is_complete(contents, &set(names), folder.path()), complete, "{names:?}");
        }
    }
}
