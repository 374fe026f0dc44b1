//! The mistral.rs backend: loads models that the native engine does not support (further architectures, GGUF
//! files, weights quantised at load) and implements the engine contract for them.
//!
//! mistral.rs only computes logits. It gets token ids, never a text or the checkpoint's tokenizer or chat
//! template; it neither chooses tokens nor ends sequences.

mod folder;
mod gguf;
mod prepared;
mod runner;
mod sequences;
mod stand_in;

use std::path::Path;
use std::sync::Arc;

use ntl_core::contract::{Backend, BatchModel, ModelInfo};
use ntl_models::{DeviceChoice, LoadOptions, LoadedModel, open_device};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};
use ntl_text::vocabulary;

use prepared::Prepared;
use runner::Runner;
use sequences::SequenceModel;

/// Loads a checkpoint directory. `isq` names a type to which mistral.rs quantises the weights, such as `q4k`.
pub fn load_folder(
    files: &CheckpointFiles,
    isq: Option<&str>,
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    catch_panic(files.place(), || start(folder::prepare(files, isq, options.choices)?, isq, options.device))
}

/// Loads a GGUF file, with the `tokenizer.json` next to it if there is one.
pub fn load_gguf(file: &Path, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    catch_panic(&file.display().to_string(), || {
        start(gguf::prepare(file, options.choices)?, None, options.device)
    })
}

fn start(prepared: Prepared, isq: Option<&str>, device: DeviceChoice) -> Result<LoadedModel, LoadError> {
    let runner = Runner::start(&prepared.stand_in, &prepared.weights, &open_device(device)?, isq)
        .map_err(|reason| LoadError::malformed(&prepared.place, format!("mistral.rs: {reason}")))?;
    let positions_max = runner.positions_max();
    let tokenizer = Arc::new(prepared.tokenizer);
    let info = ModelInfo {
        kind: prepared.kind,
        backend: Backend::MistralRs,
        dtype: prepared.dtype.as_str().into(),
        kv_cache_dtype: None,
        number_encoding: tokenizer.number_encoding(),
        parameters: prepared.parameters,
        prompt_tokens_max: positions_max,
        context_tokens_max: Some(positions_max),
        answer_tokens_max: None,
        tokens: tokenizer.len(),
        eos_ids: prepared.eos_ids,
        encoder_decoder: false,
        labels: None,
        hidden_states: None,
    };
    let model = SequenceModel::new(Box::new(runner), info, prepared.begin)
        .map_err(|error| LoadError::malformed(&prepared.place, format!("mistral.rs: {error}")))?;
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary, adapters: None })
}

/// Runs `load` on a separate thread and converts a panic into an error, since mistral.rs panics on many
/// inputs that it does not support.
fn catch_panic(
    place: &str,
    load: impl FnOnce() -> Result<LoadedModel, LoadError> + Send,
) -> Result<LoadedModel, LoadError> {
    let outcome = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("ntl-load".to_owned()).spawn_scoped(scope, load);
        let thread = thread.map_err(|error| error.to_string())?;
        thread.join().map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
        })
    });
    outcome.unwrap_or_else(|reason| {
        Err(LoadError::malformed(place, format!("mistral.rs cannot load it: {reason}")))
    })
}
