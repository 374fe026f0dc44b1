//! Prepares a GGUF file for mistral.rs.

use std::collections::BTreeMap;
use std::path::Path;

use ntl_text::checkpoint::{CheckpointFiles, Choices, LoadError};
use ntl_text::gguf::{GgufFile, end_ids, tokenizer_files};
use ntl_text::tokenizer::Tokenizer;
use serde_json::json;

use crate::prepared::{Prepared, Weights};
use crate::stand_in::StandIn;

/// Architectures that mistral.rs 0.8.1 loads from GGUF files, by their names in the files.
const ARCHITECTURES: [&str; 8] =
    ["llama", "mistral3", "phi2", "phi3", "qwen2", "qwen3", "qwen3moe", "starcoder2"];

pub(crate) fn prepare(file: &Path, choices: Choices) -> Result<Prepared, LoadError> {
    let file =
        file.canonicalize().map_err(|source| LoadError::Read { file: file.display().to_string(), source })?;
    let gguf = GgufFile::open(&file)?;
    let kind = gguf.text("general.architecture")?.unwrap_or_default().to_owned();
    if !ARCHITECTURES.contains(&kind.as_str()) {
        let reason =
            format!("`{kind}` is not supported; the supported ones are {}", ARCHITECTURES.join(", "));
        return Err(gguf.field("general.architecture", reason));
    }
    let beside = CheckpointFiles::folder(file.parent().unwrap_or(Path::new(".")))?;
    let files = CheckpointFiles::memory(gguf.place(), tokenizer_files(&gguf, &beside)?);
    let tokenizer = Tokenizer::open_as(&files, choices.tokenizer_type)?;
    let (dtype, parameters) = weights(&gguf);
    let eos_ids = end_ids(&gguf)?;
    let bos = gguf.id("tokenizer.ggml.bos_token_id")?;
    let begin = bos.or(eos_ids.first().copied()).unwrap_or(0);
    let embeddings = gguf.tensors().get("token_embd.weight");
    let rows = embeddings.and_then(|tensor| tensor.shape.first().copied()).unwrap_or_default();
    let stand_in = StandIn::new(rows.max(tokenizer.len()))?;
    // Replaces the file's chat template, from which mistral.rs would read further end-of-sequence tokens.
    stand_in.write("tokenizer_config.json", &json!({}))?;
    Ok(Prepared {
        place: gguf.place().to_owned(),
        kind,
        dtype,
        parameters,
        begin,
        eos_ids,
        tokenizer,
        stand_in,
        weights: Weights::Gguf(file),
    })
}

/// Returns the element type of most weights, and the number of weights.
fn weights(gguf: &GgufFile) -> (String, u64) {
    let mut counts = BTreeMap::<String, u64>::new();
    for tensor in gguf.tensors().values() {
        let elements: usize = tensor.shape.iter().product();
        *counts.entry(tensor.stored.name().to_owned()).or_default() += elements as u64;
    }
    let all = counts.values().sum();
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    (most.map_or_else(String::new, |(name, _)| name), all)
}
