//! Prepares a GGUF file for mistral.rs.

use std::collections::BTreeMap;
use std::path::Path;

use ntl_text::checkpoint::{CheckpointFiles, Choices, LoadError};
use ntl_text::tokenizer::Tokenizer;
use serde_json::json;

use crate::gguf_file::GgufFile;
use crate::gguf_tokenizer;
use crate::prepared::{Prepared, Weights};
use crate::stand_in::StandIn;

const TOKENIZER_FILE: &str = "tokenizer.json";

/// Architectures that mistral.rs 0.8.1 loads from GGUF files, by their names in the files.
const ARCHITECTURES: [&str; 8] =
    ["llama", "mistral3", "phi2", "phi3", "qwen2", "qwen3", "qwen3moe", "starcoder2"];

pub(crate) fn prepare(file: &Path, choices: Choices) -> Result<Prepared, LoadError> {
    let file =
        file.canonicalize().map_err(|source| LoadError::Read { file: file.display().to_string(), source })?;
    let gguf = GgufFile::open(&file)?;
    let kind = gguf.text("general.architecture").unwrap_or_default().to_owned();
    if !ARCHITECTURES.contains(&kind.as_str()) {
        let reason =
            format!("`{kind}` is not supported; the supported ones are {}", ARCHITECTURES.join(", "));
        return Err(gguf.refuse("general.architecture", &reason));
    }
    let tokenizer = open_tokenizer(&file, &gguf, choices)?;
    let (dtype, parameters) = weights(&gguf);
    let id = |name: &str| gguf.number(&format!("tokenizer.ggml.{name}_token_id"));
    // Chat models may end a turn with a different token than a text.
    let mut eos_ids: Vec<u32> = [id("eos"), id("eot"), id("eom")].into_iter().flatten().collect();
    eos_ids.sort_unstable();
    eos_ids.dedup();
    let begin = id("bos").or(eos_ids.first().copied()).unwrap_or(0);
    let rows = gguf.content.tensor_infos.get("token_embd.weight");
    let rows = rows.and_then(|tensor| tensor.shape.dims().first().copied()).unwrap_or_default();
    let failed = |source| LoadError::Read { file: "a temporary folder".to_owned(), source };
    let stand_in = StandIn::new(rows.max(tokenizer.len())).map_err(failed)?;
    // Replaces the file's chat template, from which mistral.rs would read further end-of-sequence tokens.
    stand_in.write("tokenizer_config.json", &json!({})).map_err(failed)?;
    Ok(Prepared {
        place: gguf.place,
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

/// Opens the `tokenizer.json` next to the file, otherwise the tokenizer in the file.
fn open_tokenizer(file: &Path, gguf: &GgufFile, choices: Choices) -> Result<Tokenizer, LoadError> {
    let beside = CheckpointFiles::folder(file.parent().unwrap_or(Path::new(".")))?;
    let chosen = choices.tokenizer_type;
    if beside.has(TOKENIZER_FILE)? {
        return Tokenizer::open_as(&beside, chosen);
    }
    let files = [
        (TOKENIZER_FILE, gguf_tokenizer::tokenizer(gguf)?),
        ("tokenizer_config.json", gguf_tokenizer::config(gguf)),
    ];
    let files = files.map(|(name, content)| (name.to_owned(), content.to_string().into_bytes()));
    Tokenizer::open_as(&CheckpointFiles::memory(&gguf.place, files), chosen)
}

/// Returns the element type of most weights, and the number of weights.
fn weights(gguf: &GgufFile) -> (String, u64) {
    let mut counts = BTreeMap::<String, u64>::new();
    for tensor in gguf.content.tensor_infos.values() {
        let name = format!("{:?}", tensor.ggml_dtype).to_lowercase();
        *counts.entry(name).or_default() += tensor.shape.elem_count() as u64;
    }
    let all = counts.values().sum();
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    (most.map_or_else(String::new, |(name, _)| name), all)
}
