//! From a checkpoint to something that an engine can run.

use std::str::FromStr;
use std::sync::Arc;

use candle_core::{DType, Device};
use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, ModelInfo, NumberEncoding};
use ntl_core::numbers::NumberGrammar;
use ntl_core::text::TextDecoder;

use crate::causal;
use crate::checkpoint::{CheckpointFacts, CheckpointFiles, Choices, LoadError, architecture};
use crate::gpu;
use crate::ops::{Format, Placement};
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

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.split_once(':') {
            None if name == "auto" => Ok(Self::Auto),
            None if name == "cpu" => Ok(Self::Cpu),
            None if name == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", number)) => {
                number.parse().map(Self::Cuda).map_err(|_| format!("`{number}` is no GPU number"))
            }
            _ => Err("expected auto, cpu, cuda or cuda:N".to_owned()),
        }
    }
}

/// Element type of the weights in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DtypeChoice {
    /// What suits the device.
    #[default]
    Auto,
    /// 32-bit floating point.
    F32,
    /// 16-bit brain floating point. On the CPU weights only; what is computed stays f32.
    Bf16,
    /// 16-bit floating point. On the CPU weights only; what is computed stays f32.
    F16,
    /// 8-bit integers with one scale for each 32 of them, CPU only.
    Q8_0,
}

impl DtypeChoice {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Auto, Self::F32, Self::Bf16, Self::F16, Self::Q8_0];

    /// The name that users give.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }
}

impl FromStr for DtypeChoice {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|choice| choice.name() == name);
        found.ok_or_else(|| format!("`{name}` is none of {}", known()))
    }
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// What its weights become.
    pub dtype: DtypeChoice,
    /// What is chosen instead of what its files say.
    pub choices: Choices,
    /// Most bytes for the beginnings of prompts that later prompts may share; 0 keeps none.
    pub prefix_bytes_max: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            dtype: DtypeChoice::default(),
            choices: Choices::default(),
            prefix_bytes_max: PREFIX_BYTES_MAX,
        }
    }
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

/// What a kind of T5 is to a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Plain,
    Rt,
    Xval,
    RegressionHead,
}

/// Kinds of T5 that are served, as `config.json` names them.
const T5_ARCHITECTURES: [(&str, Architecture); 6] = [
    ("T5ForConditionalGeneration", Architecture::Plain),
    ("MT5ForConditionalGeneration", Architecture::Plain),
    ("T5VanillaForNumberTokenLoss", Architecture::Plain),
    ("T5RegressionModelRT", Architecture::Rt),
    ("T5RegressionModelXval", Architecture::Xval),
    ("T5ForSequenceClassification", Architecture::RegressionHead),
];

/// Longest prompt where the tokenizer recommends none: T5's relative positions know no limit of their own.
pub(crate) const PROMPT_TOKENS_MAX: usize = 512;

/// Memory for shared beginnings of prompts: some 6,000 tokens of a 1B Llama.
const PREFIX_BYTES_MAX: usize = 256 << 20;

/// What `config.json` calls the kinds of checkpoints that [`load`] serves.
pub fn architectures() -> Vec<&'static str> {
    [&T5_ARCHITECTURES.map(|(served, _)| served)[..], &causal::ARCHITECTURES].concat()
}

/// Loads whatever kind of checkpoint this is.
///
/// # Errors
/// When a file or tensor is missing or wrong, or this kind is not served; the message names it.
pub fn load(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    load_adapted(files, None, options)
}

/// The same with a LoRA adapter, as PEFT saves them, merged into the weights.
///
/// # Errors
/// As [`load`], and when the adapter does not fit the model.
pub fn load_adapted(
    files: &CheckpointFiles,
    adapter: Option<&CheckpointFiles>,
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let name = architecture(files)?;
    if causal::ARCHITECTURES.contains(&name.as_str()) {
        return causal::load(files, adapter, (&name, options));
    }
    if let Some(adapter) = adapter {
        let reason = format!("adapters are merged into decoder-only models only, not into `{name}`");
        return Err(LoadError::malformed(adapter.place(), reason));
    }
    let Some(&(_, architecture)) = T5_ARCHITECTURES.iter().find(|(served, _)| *served == name) else {
        let reason = format!("`{name}` is not served natively; known are {}", architectures().join(", "));
        return Err(LoadError::field(files.name_of("config.json"), "architectures", reason));
    };
    load_t5(files, (&name, architecture), options)
}

/// Loads a T5 of one of [`T5_ARCHITECTURES`].
fn load_t5(
    files: &CheckpointFiles,
    (name, architecture): (&str, Architecture),
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let place = &options.place()?;
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

impl LoadOptions {
    /// What they come to on this machine.
    ///
    /// # Errors
    /// When there is no such device, or it cannot keep weights so.
    pub fn place(&self) -> Result<Placement, LoadError> {
        let device = self.device.open()?;
        if device.is_cpu() {
            return Ok(Placement::cpu(match self.dtype {
                DtypeChoice::Auto | DtypeChoice::F32 => Format::F32,
                DtypeChoice::Bf16 => Format::Bf16,
                DtypeChoice::F16 => Format::F16,
                DtypeChoice::Q8_0 => Format::Q8,
            }));
        }
        let dtype = match self.dtype {
            DtypeChoice::F32 => DType::F32,
            DtypeChoice::Auto | DtypeChoice::Bf16 => DType::BF16,
            DtypeChoice::F16 => DType::F16,
            DtypeChoice::Q8_0 => {
                let reason = "q8_0 is for the CPU; on a GPU choose f32, bf16 or f16".to_owned();
                return Err(LoadError::Device(reason));
            }
        };
        Ok(Placement { device, dtype, format: Format::F32 })
    }
}

impl DeviceChoice {
    /// The device itself.
    ///
    /// # Errors
    /// When there is no such GPU, or it cannot be used.
    pub fn open(self) -> Result<Device, LoadError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if gpu::count().unwrap_or(0) == 0 => Ok(Device::Cpu),
            Self::Auto => gpu::open(0),
            Self::Cuda(number) => gpu::open(number),
        }
    }
}
