//! What the benchmarks share: the demo checkpoint, opened, random checkpoints of the usual sizes, and load.

pub mod decode;
pub mod load;
pub mod loading;
pub mod numbers;
pub mod prefix;
pub mod random;
pub mod spread;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use ntl_engine::{Engine, EngineLimits, NoObserver};
use ntl_models::checkpoint::{CheckpointFiles, LoadError};
use ntl_models::{LoadOptions, LoadedModel, load};

/// The files of the demo checkpoint that the server embeds.
///
/// # Errors
/// When the archive is missing from the checkout.
pub fn demo_files() -> Result<CheckpointFiles, LoadError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/demo/t5-ntl-was.tar.gz");
    let place = path.display().to_string();
    let archive = std::fs::read(&path).map_err(|source| LoadError::Read { file: place.clone(), source })?;
    CheckpointFiles::archive(&place, &archive)
}

/// Loads the demo checkpoint.
///
/// # Errors
/// When the archive is missing from the checkout or does not load.
pub fn demo() -> Result<LoadedModel, LoadError> {
    load(&demo_files()?, LoadOptions::default())
}

/// An engine on a loaded model that reports to nobody. It stops when its last clone is dropped.
///
/// # Errors
/// When the operating system gives no thread.
pub fn engine(loaded: LoadedModel) -> std::io::Result<Engine> {
    let threads = NonZeroUsize::new(rayon::current_num_threads()).unwrap_or(NonZeroUsize::MIN);
    let limits = EngineLimits { threads, ..EngineLimits::default() };
    Ok(Engine::spawn(loaded.model, loaded.vocabulary, limits, Arc::new(NoObserver))?.0)
}
