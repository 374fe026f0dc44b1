//! From a folder to a decoder-only model that an engine can run.

use std::sync::Arc;

use ntl_core::engine::BatchModel;

use super::{Causal, CausalOptions};
use crate::adapter::Adapter;
use crate::checkpoint::{CheckpointFacts, CheckpointFiles, LoadError};
use crate::load::{LoadOptions, LoadedModel, vocabulary};
use crate::tokenizer::Tokenizer;

/// Loads a checkpoint of one of [`ARCHITECTURES`](super::ARCHITECTURES).
///
/// # Errors
/// When a file or tensor is missing or wrong, of the adapter as well; the message names it.
pub(crate) fn load(
    files: &CheckpointFiles,
    adapter: Option<&CheckpointFiles>,
    (architecture, options): (&str, LoadOptions),
) -> Result<LoadedModel, LoadError> {
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer = Arc::new(Tokenizer::open_as(files, facts.chosen_tokenizer_type())?);
    let causal = CausalOptions {
        tokens: tokenizer.len(),
        place: options.place()?,
        prefix_bytes_max: options.prefix_bytes_max,
    };
    let adapter = adapter.map(Adapter::open).transpose()?;
    let model = Causal::load_adapted(files, architecture, &causal, adapter.as_ref())?;
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary })
}
