//! Reads a RegressLM with a regression head, which predicts a linear function of the mean of the encoder's
//! output.

use ntl_text::checkpoint::{CheckpointFiles, LoadResult};
use ntl_text::labels::one_number;

use super::config::StackConfig;
use crate::adapter::AdaptableLayers;
use crate::families::Family;
use crate::ops::Placement;
use crate::t5::layers::Loader;
use crate::t5::model::TokenizerFacts;
use crate::t5::pooled::{PooledEncoder, PooledHead, PooledParts};
use crate::t5::pools::Pooling;
use crate::weights::Weights;

pub(crate) fn load_regresslm_head(
    files: &CheckpointFiles,
    facts: TokenizerFacts,
    place: &Placement,
) -> LoadResult<PooledEncoder> {
    let config = StackConfig::read_regresslm(files)?;
    facts.check_vocabulary(files, "encoder_vocab_size", config.vocab_size)?;
    let weights = Weights::open(files)?;
    let adaptable = AdaptableLayers::default();
    let prefix = "model.model.encoder.";
    let loader = Loader { weights: &weights, config: &config, place, prefix, adaptable: &adaptable };
    let exact = place.exact();
    let exact = Loader { place: &exact, prefix: "", ..loader };
    let out = exact.of_labels("regression_head", [1, config.hidden_size], true)?;
    let mut info = facts.info(Family::of(files)?, Vec::new(), place, weights.parameters());
    info.prompt_tokens_max = info.prompt_tokens_max.min(config.positions_max);
    info.labels = Some(one_number());
    let parts = PooledParts {
        info,
        embeddings: config.embeddings(loader.table()?, None),
        input: None,
        encoder: loader.encoder()?,
        sizes: config.sizes(),
        pooling: Pooling::Mean,
        head: PooledHead { hidden: None, out },
    };
    Ok(PooledEncoder::new(parts, adaptable, place))
}
