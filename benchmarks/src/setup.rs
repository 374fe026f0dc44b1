//! Shared setup of all benchmarks: loads a checkpoint, starts an engine, builds requests and reads the events
//! of answers.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use ntl_core::contract::{EngineError, Event, NumberJob, NumberMethod, Request, Terminator};
use ntl_core::numbers::GrammarLimits;
use ntl_engine::{Engine, EngineLimits, JobEvents, NoObserver};
use ntl_models::{LoadOptions, LoadedModel, load};
use ntl_text::checkpoint::{CheckpointFiles, LoadError};

/// Returns the demo checkpoint that the server embeds, read from the checkout.
pub fn demo_files() -> Result<CheckpointFiles, LoadError> {
    archive("demo.tar.gz")
}

/// Returns a small checkpoint from the checkout with the SentencePiece files of the paper's tokenizer.
pub fn sentencepiece_files() -> Result<CheckpointFiles, LoadError> {
    archive("t5-ntl-was.tar.gz")
}

/// Returns the directory of the demo checkpoint and its held-out questions.
pub fn demo_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo")
}

fn archive(file: &str) -> Result<CheckpointFiles, LoadError> {
    let path = demo_folder().join(file);
    let place = path.display().to_string();
    let archive = std::fs::read(&path).map_err(|source| LoadError::Read { file: place.clone(), source })?;
    CheckpointFiles::archive(&place, &archive)
}

pub fn demo() -> Result<LoadedModel, LoadError> {
    open(None, LoadOptions::default())
}

/// Loads a checkpoint directory, or the demo checkpoint if `folder` is `None`.
pub fn open(folder: Option<&Path>, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let files = folder.map_or_else(demo_files, CheckpointFiles::folder)?;
    load(&files, options)
}

pub fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))
}

/// Starts an engine on all of rayon's threads. It stops when its last clone is dropped.
pub fn engine(loaded: LoadedModel) -> std::io::Result<Engine> {
    let threads = NonZeroUsize::new(rayon::current_num_threads()).unwrap_or(NonZeroUsize::MIN);
    let limits = EngineLimits { threads, ..EngineLimits::default() };
    Ok(Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver))?.0)
}

/// Returns a request for a number with the server's default limits.
pub fn number_request(method: NumberMethod) -> Request {
    let limits = GrammarLimits::default();
    let terminator = Terminator::Any;
    Request::Number(NumberJob { limits, terminator, ..NumberJob::new(method) })
}

/// Returns the method of a number tree without early stop, with the server's default budget of nodes.
pub fn tree(tolerance: f64) -> NumberMethod {
    NumberMethod::Tree { tolerance, nodes_max: 4096, precision: None }
}

/// Returns the events of an answer. Each call blocks until the next event; the answer or its failure ends the
/// iterator.
pub fn events(mut answer: JobEvents) -> impl Iterator<Item = Result<Event, EngineError>> {
    std::iter::from_fn(move || {
        Some(match answer.next_blocking()? {
            Event::Failed(error) => Err(error),
            event => Ok(event),
        })
    })
}
