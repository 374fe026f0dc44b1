//! Loads a checkpoint of any supported family as a model that an engine can run.

use std::sync::Arc;

#[cfg(feature = "cuda")]
use candle_core::Device;
use ntl_core::contract::{BatchModel, NumberEncoding};
use ntl_core::decoding::Vocabulary;
use ntl_core::numbers::{NumberGrammar, TokenNotation};
use ntl_core::text::TextDecoder;
use ntl_text::checkpoint::{CheckpointFacts, CheckpointFiles, LoadError, OWN_FILE};
use ntl_text::labels::read_labels;
use ntl_text::load_options::LoadOptions;
use ntl_text::tokenizer::Tokenizer;

use crate::adapter::AdapterReader;
use crate::causal::{Causal, CausalOptions};
use crate::encoders;
use crate::families::{EncoderVariant, Family, Network, T5Variant};
#[cfg(feature = "cuda")]
use crate::on_gpu::OnGpu;
use crate::ops::Placement;
use crate::options::place_of;
use crate::t5::{
    NumberScaling, PooledEncoder, RegressionHead, T5, T5Kind, TokenizerFacts, TorchConfig, encoding,
    load_regresslm_head, read_notation,
};
use crate::warm_up::warm_up;
use crate::weights::Weights;

/// Maximum prompt length in tokens if the tokenizer recommends none. T5's relative positions have no limit.
pub(crate) const PROMPT_TOKENS_MAX: usize = 512;

/// A loaded checkpoint.
pub struct LoadedModel {
    pub model: Box<dyn BatchModel>,
    /// Reads prompts. It also writes answers, unless they are of dedicated number tokens.
    pub tokenizer: Arc<Tokenizer>,
    pub vocabulary: Vocabulary,
    /// Reads adapters for the model, if it can have any.
    pub adapters: Option<AdapterReader>,
}

pub fn load(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let family = Family::of(files)?;
    match family.network {
        Network::Causal(_) => load_causal(files, options),
        Network::RegressLmTorch => load_torch(files, options),
        Network::T5(variant) => load_t5(files, family, variant, options),
        Network::Encoder(variant) => load_encoder(files, variant, options),
    }
}

fn load_causal(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer = Arc::new(Tokenizer::open_as(files, facts.chosen_tokenizer_type())?);
    let causal = CausalOptions {
        tokens: tokenizer.len(),
        place: place_of(&options, files)?,
        prefix_bytes_max: options.prefix_bytes_max,
    };
    complete(Causal::load(files, &causal)?, Causal::adapters, tokenizer, &causal.place)
}

/// Loads RegressLM's PyTorch model. No adapters fit it, because its attention is stored as joint layers and
/// its queries and keys are reordered.
fn load_torch(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let place = &place_of(&options, files)?;
    let config = TorchConfig::read(files)?;
    let tokens_max = config.prompt_tokens_max;
    let tokenizer = Tokenizer::of_vocabulary(files, &config.vocabulary, tokens_max, OWN_FILE)?;
    let facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: tokens_max,
        number_encoding: encoding(&config.notation),
    };
    let model = T5::load_torch(files, facts, &config, place)?;
    let vocabulary = notation_vocabulary(&Arc::new(config.notation));
    Ok(LoadedModel {
        model: ready(model, place)?,
        tokenizer: Arc::new(tokenizer),
        vocabulary,
        adapters: None,
    })
}

fn load_encoder(
    files: &CheckpointFiles,
    variant: EncoderVariant,
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let place = &place_of(&options, files)?;
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer = Arc::new(Tokenizer::open_as(files, facts.chosen_tokenizer_type())?);
    let model = encoders::load(files, variant, facts_about(&tokenizer, usize::MAX), place)?;
    complete(model, PooledEncoder::adapters, tokenizer, place)
}

fn load_t5(
    files: &CheckpointFiles,
    family: Family,
    variant: T5Variant,
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let place = &place_of(&options, files)?;
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer_files = match variant {
        T5Variant::RegressLm | T5Variant::RegressLmHead => &files.within("encoder_tokenizer"),
        _ => files,
    };
    let tokenizer = Arc::new(Tokenizer::open_as(tokenizer_files, facts.chosen_tokenizer_type())?);
    // The configuration may still reduce it.
    let unlimited = if family.limits_prompts() { usize::MAX } else { PROMPT_TOKENS_MAX };
    let tokenizer_facts = facts_about(&tokenizer, unlimited);
    let model = match (variant, tokenizer.number_encoding(), tokenizer.number_token()) {
        (T5Variant::Head, ..) => {
            // Classes have no logarithms.
            let log_scale = read_labels(files)?.names.len() == 1 && facts.log_scale_embeddings()?.value;
            let model = RegressionHead::load(files, tokenizer_facts, log_scale, place)?;
            return complete(model, RegressionHead::adapters, tokenizer, place);
        }
        (T5Variant::RegressLm, ..) => return load_regresslm(files, tokenizer, tokenizer_facts, place),
        (T5Variant::RegressLmHead, ..) => {
            let model = load_regresslm_head(files, tokenizer_facts, place)?;
            return complete(model, PooledEncoder::adapters, tokenizer, place);
        }
        (T5Variant::Gemma(version), ..) => T5::load_gemma(files, tokenizer_facts, version, place)?,
        (T5Variant::Plain, ..) => T5::load(files, tokenizer_facts, T5Kind::Plain, place)?,
        (T5Variant::Rt, NumberEncoding::Rt, _) => T5::load(files, tokenizer_facts, T5Kind::Rt, place)?,
        (T5Variant::Xval, _, Some(number_id)) => {
            let log_scale = facts.log_scale_embeddings()?.value;
            let kind = T5Kind::Xval(NumberScaling { number_id, log_scale });
            T5::load(files, tokenizer_facts, kind, place)?
        }
        (T5Variant::Rt | T5Variant::Xval, ..) => return Err(wrong_tokenizer(files, family)),
    };
    complete(model, T5::adapters, tokenizer, place)
}

/// Loads a RegressLM whose decoder writes number tokens.
fn load_regresslm(
    files: &CheckpointFiles,
    tokenizer: Arc<Tokenizer>,
    tokenizer_facts: TokenizerFacts,
    place: &Placement,
) -> Result<LoadedModel, LoadError> {
    let notation = Arc::new(read_notation(files)?);
    let facts = TokenizerFacts { number_encoding: encoding(&notation), ..tokenizer_facts };
    let model = T5::load_regresslm(files, facts, &notation, place)?;
    let vocabulary = notation_vocabulary(&notation);
    let adapters = Some(model.adapters().clone());
    Ok(LoadedModel { model: ready(model, place)?, tokenizer, vocabulary, adapters })
}

fn wrong_tokenizer(files: &CheckpointFiles, family: Family) -> LoadError {
    let name = family.architecture;
    let reason = format!("`{name}` needs the class of tokenizers that it was trained with");
    LoadError::field(files.name_of("tokenizer_config.json"), "tokenizer_class", reason)
}

/// Opens the weights of a checkpoint without an adapter.
pub(crate) fn weights(files: &CheckpointFiles, family: Family) -> Result<Weights<'_>, LoadError> {
    match family.network {
        Network::RegressLmTorch => TorchConfig::read(files)?.weights(files),
        Network::T5(_) | Network::Causal(_) | Network::Encoder(_) => Weights::open(files),
    }
}

/// `prompt_tokens_max` is for a tokenizer that recommends no length.
fn facts_about(tokenizer: &Tokenizer, prompt_tokens_max: usize) -> TokenizerFacts {
    TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: tokenizer.model_max_length().unwrap_or(prompt_tokens_max),
        number_encoding: tokenizer.number_encoding(),
    }
}

/// Returns a model with the tokenizer that reads its prompts and writes its answers.
fn complete<M: BatchModel + 'static>(
    model: M,
    adapters: fn(&M) -> &AdapterReader,
    tokenizer: Arc<Tokenizer>,
    place: &Placement,
) -> Result<LoadedModel, LoadError> {
    let vocabulary = ntl_text::vocabulary(&tokenizer, model.info());
    let adapters = Some(adapters(&model).clone());
    Ok(LoadedModel { model: ready(model, place)?, tokenizer, vocabulary, adapters })
}

/// Boxes a model. On a GPU the model first runs each of its kernels once.
fn ready(mut model: impl BatchModel + 'static, place: &Placement) -> Result<Box<dyn BatchModel>, LoadError> {
    if place.device.is_cpu() {
        return Ok(Box::new(model));
    }
    warm_up(&mut model).map_err(LoadError::DoesNotRun)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = &place.device {
        return Ok(Box::new(OnGpu::new(model, device.clone())));
    }
    Ok(Box::new(model))
}

/// The vocabulary of a decoder that writes numbers in dedicated tokens.
fn notation_vocabulary(notation: &Arc<TokenNotation>) -> Vocabulary {
    Vocabulary {
        decoder: Arc::clone(notation) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::of_tokens(Arc::clone(notation))),
        number_values: Arc::new([]),
        eos_ids: Arc::new([]),
        tokens: notation.tokens(),
    }
}
