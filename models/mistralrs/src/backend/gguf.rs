//! A GGUF file: what it says of its model and tokenizer, and what mistral.rs needs beside it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use candle_core::quantized::gguf_file::{Content, Value};
use ntl_models::checkpoint::{CheckpointFiles, LoadError};
use ntl_models::tokenizer::Tokenizer;
use serde_json::json;

use super::runner::Weights;
use super::stand_in::StandIn;
use super::{Facts, Prepared, gguf_tokenizer};
use crate::Options;

const TOKENIZER_FILE: &str = "tokenizer.json";

/// What mistral.rs 0.8.1 loads, as the files call it.
const ARCHITECTURES: [&str; 8] =
    ["llama", "mistral3", "phi2", "phi3", "qwen2", "qwen3", "qwen3moe", "starcoder2"];

/// The fields at the head of a file.
pub(super) struct Fields {
    /// How errors call the file.
    place: String,
    content: Content,
}

impl Fields {
    fn open(file: &Path) -> Result<Self, LoadError> {
        let place = file.display().to_string();
        let mut opened =
            File::open(file).map_err(|source| LoadError::Read { file: place.clone(), source })?;
        let content = Content::read(&mut opened).map_err(|error| LoadError::malformed(&place, error))?;
        Ok(Self { place, content })
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.content.metadata.get(name)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_string().ok().map(String::as_str)
    }

    /// A count or an id, of whatever width it is stored in.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        let value = self.get(name)?;
        value.to_u32().ok().or_else(|| u32::try_from(value.to_u64().ok()?).ok())
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        self.get(name)?.to_bool().ok()
    }

    /// A list, as far as all of it is what `read` takes.
    pub(super) fn list<T>(&self, name: &str, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
        self.get(name)?.to_vec().ok()?.iter().map(read).collect()
    }

    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        self.list(name, |value| value.to_string().ok().cloned())
    }

    /// The error that a field is missing or cannot be served.
    pub(super) fn refuse(&self, name: &str, reason: &str) -> LoadError {
        LoadError::field(&self.place, name, reason)
    }
}

pub(super) fn prepare(file: &Path, options: &Options) -> Result<Prepared, LoadError> {
    // Links in the path are the user's own; from here on it is the file itself.
    let file =
        file.canonicalize().map_err(|source| LoadError::Read { file: file.display().to_string(), source })?;
    let fields = Fields::open(&file)?;
    let kind = fields.text("general.architecture").unwrap_or_default().to_owned();
    if !ARCHITECTURES.contains(&kind.as_str()) {
        let reason = format!("`{kind}` is not served; known are {}", ARCHITECTURES.join(", "));
        return Err(fields.refuse("general.architecture", &reason));
    }
    let tokenizer = tokenizer(&file, &fields, options)?;
    let (dtype, parameters) = weights(&fields);
    let id = |name: &str| fields.number(&format!("tokenizer.ggml.{name}_token_id"));
    // Chat models may end a turn otherwise than a text.
    let mut eos_ids: Vec<u32> = [id("eos"), id("eot"), id("eom")].into_iter().flatten().collect();
    eos_ids.sort_unstable();
    eos_ids.dedup();
    let rows = fields.content.tensor_infos.get("token_embd.weight");
    let vocab = rows.and_then(|tensor| tensor.shape.dims().first().copied()).unwrap_or_default();
    let facts = Facts {
        kind,
        dtype,
        parameters,
        begin: id("bos").or(eos_ids.first().copied()).unwrap_or(0),
        eos_ids,
        vocab: vocab.max(tokenizer.len()),
    };
    let failed = |source| LoadError::Read { file: "a temporary folder".to_owned(), source };
    let stand_in = StandIn::new(facts.vocab).map_err(failed)?;
    // In the place of the file's own chat template, which mistral.rs would read for ends of texts.
    stand_in.write("tokenizer_config.json", &json!({})).map_err(failed)?;
    Ok(Prepared { place: fields.place, facts, tokenizer, stand_in, weights: Weights::Gguf(file) })
}

/// The `tokenizer.json` beside the file, else what the file itself holds.
fn tokenizer(file: &Path, fields: &Fields, options: &Options) -> Result<Tokenizer, LoadError> {
    let beside = CheckpointFiles::folder(file.parent().unwrap_or(Path::new(".")))?;
    let chosen = options.load.choices.tokenizer_type;
    if beside.has(TOKENIZER_FILE) {
        return Tokenizer::open_as(&beside, chosen);
    }
    let files = [
        (TOKENIZER_FILE, gguf_tokenizer::tokenizer(fields)?),
        ("tokenizer_config.json", gguf_tokenizer::config(fields)),
    ];
    let files = files.map(|(name, content)| (name.to_owned(), content.to_string().into_bytes()));
    Tokenizer::open_as(&CheckpointFiles::memory(&fields.place, files), chosen)
}

/// The element type that most weights have, and how many weights there are.
fn weights(fields: &Fields) -> (String, u64) {
    let mut counts = BTreeMap::<String, u64>::new();
    for tensor in fields.content.tensor_infos.values() {
        let name = format!("{:?}", tensor.ggml_dtype).to_lowercase();
        *counts.entry(name).or_default() += tensor.shape.elem_count() as u64;
    }
    let all = counts.values().sum();
    let most = counts.into_iter().max_by_key(|&(_, count)| count);
    (most.map_or_else(String::new, |(name, _)| name), all)
}
