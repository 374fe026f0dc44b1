//! From a checkpoint that mistral.rs knows to a model that an engine can run.
//!
//! mistral.rs computes logits, and nothing else: it is given token ids and never sees a text, a tokenizer or a chat
//! template of the checkpoint, chooses no token and ends no sequence by itself.

mod folder;
mod gguf;
mod gguf_tokenizer;
mod runner;
mod stand_in;

use std::path::Path;
use std::sync::Arc;

use ntl_core::engine::{BatchModel, ModelInfo};
use ntl_models::checkpoint::{CheckpointFiles, LoadError};
use ntl_models::tokenizer::Tokenizer;
use ntl_models::{LoadedModel, vocabulary};

use crate::Options;
use crate::sequences::SequenceModel;
use runner::{Runner, Weights};
use stand_in::StandIn;

/// What is known of a model before mistral.rs has loaded it.
struct Facts {
    /// Kind of model, such as `gemma2`.
    kind: String,
    /// Element type of the weights, such as `f32` or `q4k`.
    dtype: String,
    /// Weights, where they could be counted; else 0.
    parameters: u64,
    /// Ids that end a sequence.
    eos_ids: Vec<u32>,
    /// The token that a text without any begins with.
    begin: u32,
    /// Rows of the embedding table.
    vocab: usize,
}

/// A checkpoint, ready for mistral.rs to load.
struct Prepared {
    /// How errors call it.
    place: String,
    facts: Facts,
    tokenizer: Tokenizer,
    /// The folder that mistral.rs reads.
    stand_in: StandIn,
    weights: Weights,
}

/// Loads a folder with weights as safetensors.
pub(crate) fn load_folder(files: &CheckpointFiles, options: &Options) -> Result<LoadedModel, LoadError> {
    guarded(files.place(), || start(folder::prepare(files, options)?, options))
}

/// Loads a GGUF file, with the `tokenizer.json` beside it where there is one.
pub(crate) fn load_gguf(file: &Path, options: &Options) -> Result<LoadedModel, LoadError> {
    guarded(&file.display().to_string(), || start(gguf::prepare(file, options)?, options))
}

fn start(prepared: Prepared, options: &Options) -> Result<LoadedModel, LoadError> {
    let Prepared { place, facts, tokenizer, stand_in, weights } = prepared;
    let device = options.load.device.open()?;
    let refused = |reason: String| LoadError::malformed(&place, format!("mistral.rs: {reason}"));
    let runner = Runner::start(&stand_in, &weights, (&device, options.isq)).map_err(refused)?;
    let positions_max = runner.positions_max().map_err(refused)?;
    let info = ModelInfo {
        kind: facts.kind,
        backend: "mistralrs".to_owned(),
        dtype: facts.dtype,
        number_encoding: tokenizer.number_encoding(),
        parameters: facts.parameters,
        prompt_tokens_max: positions_max,
        context_tokens_max: Some(positions_max),
        answer_tokens_max: None,
        tokens: tokenizer.len(),
        eos_ids: facts.eos_ids,
        encoder_decoder: false,
    };
    let model = SequenceModel::new(Box::new(runner), info, facts.begin);
    let model = model.map_err(|error| refused(error.to_string()))?;
    let tokenizer = Arc::new(tokenizer);
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary })
}

/// Loads on a thread of its own, for mistral.rs panics on much of what it does not like.
fn guarded(
    place: &str,
    load: impl FnOnce() -> Result<LoadedModel, LoadError> + Send,
) -> Result<LoadedModel, LoadError> {
    let refused = |reason: &str| LoadError::malformed(place, format!("mistral.rs cannot load it: {reason}"));
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("ntl-load".to_owned()).spawn_scoped(scope, load);
        let thread = thread.map_err(|error| refused(&error.to_string()))?;
        thread.join().unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(refused(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")))
        })
    })
}

/// One id or a list of them, as configurations have it.
fn ids(value: Option<&serde_json::Value>) -> Vec<u32> {
    let id = |value: &serde_json::Value| u32::try_from(value.as_u64()?).ok();
    match value {
        Some(serde_json::Value::Array(all)) => all.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
