//! From a checkpoint to something that an engine can run.

use std::sync::Arc;

use candle_core::{DType, Device};
use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, ModelInfo, NumberEncoding};
use ntl_core::numbers::NumberGrammar;
use ntl_core::text::TextDecoder;

use crate::checkpoint::{CheckpointFacts, CheckpointFiles, Choices, LoadError, architecture};
use crate::t5::{NumberScaling, RegressionHead, T5, T5Kind, TokenizerFacts};
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

/// What an architecture is to a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Plain,
    Rt,
    Xval,
    RegressionHead,
}

/// Architectures that are served, as `config.json` names them.
const ARCHITECTURES: [(&str, Architecture); 6] = [
    ("T5ForConditionalGeneration", Architecture::Plain),
    ("MT5ForConditionalGeneration", Architecture::Plain),
    ("T5VanillaForNumberTokenLoss", Architecture::Plain),
    ("T5RegressionModelRT", Architecture::Rt),
    ("T5RegressionModelXval", Architecture::Xval),
    ("T5ForSequenceClassification", Architecture::RegressionHead),
];

const CONFIG_FILE: &str = "config.json";

/// Longest prompt where the tokenizer recommends none: T5's relative positions know no limit of their own.
pub(crate) const PROMPT_TOKENS_MAX: usize = 512;

/// Loads whatever kind of checkpoint this is.
///
/// # Errors
/// When a file or tensor is missing or wrong, or this kind is not served; the message names it.
pub fn load(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    let name = architecture(files)?;
    let refuse = |field: &str, reason: String| LoadError::field(files.name_of(CONFIG_FILE), field, reason);
    let Some(&(_, architecture)) = ARCHITECTURES.iter().find(|(served, _)| *served == name) else {
        let served = ARCHITECTURES.map(|(served, _)| served).join(", ");
        return Err(refuse("architectures", format!("`{name}` is not served; known are {served}")));
    };
    let device = options.device.open()?;
    let place = (options.dtype.resolve(), &device);
    let facts = CheckpointFacts::open(files, options.choices)?;
    let tokenizer = Arc::new(Tokenizer::open_as(files, facts.chosen_tokenizer_type())?);
    let log_scale = || facts.log_scale_embeddings().map(|choice| choice.value);
    let tokenizer_facts = TokenizerFacts {
        tokens: tokenizer.len(),
        prompt_tokens_max: tokenizer.model_max_length().unwrap_or(PROMPT_TOKENS_MAX),
        number_encoding: tokenizer.number_encoding(),
    };
    let wrong_tokenizer = || {
        let reason = format!("`{name}` needs the class of tokenizers that it was trained with");
        LoadError::field(files.name_of("tokenizer_config.json"), "tokenizer_class", reason)
    };
    let kind = match (architecture, tokenizer.number_encoding(), tokenizer.number_token()) {
        (Architecture::RegressionHead, ..) => {
            let model = RegressionHead::load(files, tokenizer_facts, log_scale()?, place)?;
            let vocabulary = point_vocabulary(&tokenizer, model.info());
            return Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary });
        }
        (Architecture::Plain, ..) => T5Kind::Plain,
        (Architecture::Rt, NumberEncoding::Rt, _) => T5Kind::Rt,
        (Architecture::Xval, _, Some(number_id)) => {
            T5Kind::Xval(NumberScaling { number_id, log_scale: log_scale()? })
        }
        (Architecture::Rt | Architecture::Xval, ..) => return Err(wrong_tokenizer()),
    };
    let model = T5::load(files, tokenizer_facts, kind, place)?;
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: Box::new(model), tokenizer, vocabulary })
}

/// What decoding needs to know of a tokenizer and its model.
pub fn vocabulary(tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> Vocabulary {
    let ids = || (0u32..).take(tokenizer.len());
    let pieces = ids().map(|id| tokenizer.number_piece(id));
    Vocabulary {
        decoder: Arc::clone(tokenizer) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::new(pieces, info.eos_ids.clone())),
        number_values: ids().filter_map(|id| Some((id, tokenizer.number_value(id)?))).collect(),
        eos_ids: info.eos_ids.clone().into(),
        tokens: info.tokens,
    }
}

/// The same for a model that writes nothing and answers every prompt by one number.
fn point_vocabulary(tokenizer: &Arc<Tokenizer>, info: &ModelInfo) -> Vocabulary {
    Vocabulary {
        decoder: Arc::clone(tokenizer) as Arc<dyn TextDecoder>,
        grammar: Arc::new(NumberGrammar::point()),
        number_values: Arc::new([]),
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
