//! From a checkpoint to something that an engine can run.

use std::sync::Arc;

use candle_core::{DType, Device};
use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, ModelInfo};
use ntl_core::numbers::NumberGrammar;
use ntl_core::text::TextDecoder;

use crate::checkpoint::{CheckpointFacts, CheckpointFiles, Choices, LoadError, architecture};
use crate::t5::{T5, TokenizerFacts};
use crate::tokenizer::Tokenizer;

/// Where a model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU where this build and machine have one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU by number.
    Cuda(usize),
}

/// Element type of the weights in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DtypeChoice {
    /// What suits the device.
    #[default]
    Auto,
    /// 32-bit floating point.
    F32,
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// What its weights become.
    pub dtype: DtypeChoice,
    /// What is chosen instead of what its files say.
    pub choices: Choices,
}

/// A loaded checkpoint.
pub struct LoadedModel {
    /// Computes logits.
    pub model: Box<dyn BatchModel>,
    /// Splits and joins text.
    pub tokenizer: Arc<Tokenizer>,
    /// What decoding needs to know.
    pub vocabulary: Vocabulary,
}

/// Architectures that are served, as `config.json` names them.
const T5_ARCHITECTURES: [&str; 2] = ["T5ForConditionalGeneration", "T5VanillaForNumberTokenLoss"];

/// Longest prompt where the tokenizer recommends none: T5's relative positions know no limit of their own.
pub(crate) const PROMPT_TOKENS_MAX: usize = 512;

/// Loads whatever kind of checkpoint this is.
///
/// # Errors
/// When a file or tensor is missing or wrong, or this kind is not served; the message names it.
pub fn load(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let architecture = architecture(files)?;
    if !T5_ARCHITECTURES.contains(&architecture.as_str()) {
        let reason = format!("`{architecture}` is not served; known are {}", T5_ARCHITECTURES.join(", "));
        return Err(LoadError::field(files.name_of("config.json"), "architectures", reason));
    }
    let device = options.device.open()?;
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer = Arc::new(Tokenizer::open_as(files, facts.chosen_tokenizer_type())?);
    let tokenizer_facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: tokenizer.model_max_length().unwrap_or(PROMPT_TOKENS_MAX),
        number_encoding: tokenizer.number_encoding(),
    };
    let model = T5::load(files, tokenizer_facts, (options.dtype.resolve(), &device))?;
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary })
}

/// What decoding needs to know of a tokenizer and its model.
pub fn vocabulary(tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> Vocabulary {
    let texts = (0u32..).take(tokenizer.len()).map(|id| tokenizer.piece_text(id));
    Vocabulary {
        decoder: Arc::clone(tokenizer) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::new(texts, info.eos_ids.clone())),
        number_values: (0u32..)
            .take(tokenizer.len())
            .filter_map(|id| Some((id, tokenizer.number_value(id)?)))
            .collect(),
        eos_ids: info.eos_ids.clone().into(),
        tokens: info.tokens,
    }
}

impl DtypeChoice {
    fn resolve(self) -> DType {
        match self {
            Self::Auto | Self::F32 => DType::F32,
        }
    }
}

impl DeviceChoice {
    fn open(self) -> Result<Device, LoadError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if !candle_core::utils::cuda_is_available() => Ok(Device::Cpu),
            Self::Auto => cuda(0),
            Self::Cuda(number) => cuda(number),
        }
    }
}

fn cuda(number: usize) -> Result<Device, LoadError> {
    if !candle_core::utils::cuda_is_available() {
        return Err(LoadError::Device("this program was built without CUDA; use `--device cpu`".to_owned()));
    }
    Device::new_cuda(number)
        .map_err(|error| LoadError::Device(format!("GPU {number} cannot be used: {error}")))
}
