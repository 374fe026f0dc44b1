//! Loads a checkpoint of any served kind as a model that an engine can run.

use std::str::FromStr;
use std::sync::Arc;

use candle_core::{DType, Device};
use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, ModelInfo, NumberEncoding};
use ntl_core::numbers::NumberGrammar;
use ntl_core::text::TextDecoder;

use crate::adapter::Adapter;
use crate::causal::{Causal, CausalOptions, Family};
use crate::checkpoint::{CONFIG_FILE, CheckpointFacts, CheckpointFiles, Choices, LoadError, architecture};
use crate::gpu;
use crate::ops::{Format, Placement};
use crate::t5::{NumberScaling, RegressionHead, T5, T5Kind, TokenizerFacts};
use crate::tokenizer::Tokenizer;
use crate::warm_up::warm_up;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The first GPU if this build and machine have one, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// A GPU, by its number.
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
    /// f32 on the CPU, bf16 on a GPU.
    #[default]
    Auto,
    F32,
    /// On a CPU without tiles of bf16 (AMX) only weights are bf16; computations are f32.
    Bf16,
    /// On the CPU only weights are f16; computations are f32.
    F16,
    /// 8-bit integers with one scale for each output of a layer; CPU only.
    Int8,
    /// 8-bit integers with one scale for each 32 of them; CPU only.
    Q8_0,
}

impl DtypeChoice {
    pub const ALL: [Self; 6] = [Self::Auto, Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Q8_0];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
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

/// Element type of the keys and values of running requests and of the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvCacheDtype {
    /// That of products: f32 on the CPU, the type of the weights on a GPU.
    #[default]
    Auto,
    /// Half of the memory of f32; computations on the CPU stay f32.
    Bf16,
}

impl KvCacheDtype {
    pub const ALL: [Self; 2] = [Self::Auto, Self::Bf16];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bf16 => "bf16",
        }
    }
}

impl FromStr for KvCacheDtype {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|choice| choice.name() == name);
        found.ok_or_else(|| format!("`{name}` is none of auto, bf16"))
    }
}

/// How to load a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOptions {
    pub device: DeviceChoice,
    pub dtype: DtypeChoice,
    pub kv_cache_dtype: KvCacheDtype,
    /// Facts that overrule the checkpoint's files.
    pub choices: Choices,
    /// Most bytes of the prefix cache; 0 turns it off.
    pub prefix_bytes_max: usize,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            dtype: DtypeChoice::default(),
            kv_cache_dtype: KvCacheDtype::default(),
            choices: Choices::default(),
            prefix_bytes_max: PREFIX_BYTES_MAX,
        }
    }
}

/// A loaded checkpoint.
pub struct LoadedModel {
    pub model: Box<dyn BatchModel>,
    pub tokenizer: Arc<Tokenizer>,
    pub vocabulary: Vocabulary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum T5Architecture {
    Plain,
    Rt,
    Xval,
    RegressionHead,
}

/// Served kinds of T5, as `config.json` names them.
const T5_ARCHITECTURES: [(&str, T5Architecture); 6] = [
    ("T5ForConditionalGeneration", T5Architecture::Plain),
    ("MT5ForConditionalGeneration", T5Architecture::Plain),
    ("T5VanillaForNumberTokenLoss", T5Architecture::Plain),
    ("T5RegressionModelRT", T5Architecture::Rt),
    ("T5RegressionModelXval", T5Architecture::Xval),
    ("T5ForSequenceClassification", T5Architecture::RegressionHead),
];

/// Longest prompt if the tokenizer recommends none; T5's relative positions have no limit.
pub(crate) const PROMPT_TOKENS_MAX: usize = 512;

/// Default size of the prefix cache: about 6,000 tokens of a 1B Llama.
const PREFIX_BYTES_MAX: usize = 256 << 20;

/// The architectures that [`load`] serves, as `config.json` names them.
pub fn architectures() -> Vec<&'static str> {
    [&T5_ARCHITECTURES.map(|(name, _)| name)[..], &Family::architectures()].concat()
}

pub fn load(files: &CheckpointFiles, options: LoadOptions) -> Result<LoadedModel, LoadError> {
    load_adapted(files, None, options)
}

/// As [`load`], with a LoRA adapter of PEFT merged into the weights.
pub fn load_adapted(
    files: &CheckpointFiles,
    adapter: Option<&CheckpointFiles>,
    options: LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let name = architecture(files)?;
    if Family::of(&name).is_some() {
        return load_causal(files, adapter, &name, options);
    }
    if let Some(adapter) = adapter {
        let reason = format!("adapters are merged into decoder-only models only, not into `{name}`");
        return Err(LoadError::malformed(adapter.place(), reason));
    }
    let Some(&(_, architecture)) = T5_ARCHITECTURES.iter().find(|(served, _)| *served == name) else {
        let reason = format!("`{name}` is not served natively; known are {}", architectures().join(", "));
        return Err(LoadError::field(files.name_of(CONFIG_FILE), "architectures", reason));
    };
    load_t5(files, &name, architecture, options)
}

fn load_causal(
    files: &CheckpointFiles,
    adapter: Option<&CheckpointFiles>,
    architecture: &str,
    options: LoadOptions,
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
    Ok(LoadedModel { model: ready(model, &causal.place)?, tokenizer, vocabulary })
}

fn load_t5(
    files: &CheckpointFiles,
    name: &str,
    architecture: T5Architecture,
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
        (T5Architecture::RegressionHead, ..) => {
            let model = RegressionHead::load(files, tokenizer_facts, log_scale()?, place)?;
            let vocabulary = point_vocabulary(&tokenizer, model.info());
            return Ok(LoadedModel { model: ready(model, place)?, tokenizer, vocabulary });
        }
        (T5Architecture::Plain, ..) => T5Kind::Plain,
        (T5Architecture::Rt, NumberEncoding::Rt, _) => T5Kind::Rt,
        (T5Architecture::Xval, _, Some(number_id)) => {
            T5Kind::Xval(NumberScaling { number_id, log_scale: log_scale()? })
        }
        (T5Architecture::Rt | T5Architecture::Xval, ..) => return Err(wrong_tokenizer()),
    };
    let model = T5::load(files, tokenizer_facts, kind, place)?;
    let vocabulary = vocabulary(&tokenizer, model.info());
    Ok(LoadedModel { model: ready(model, place)?, tokenizer, vocabulary })
}

/// A model that has run each of its kernels once, where it is on a GPU.
fn ready(mut model: impl BatchModel + 'static, place: &Placement) -> Result<Box<dyn BatchModel>, LoadError> {
    if !place.device.is_cpu() {
        warm_up(&mut model).map_err(LoadError::DoesNotRun)?;
    }
    Ok(Box::new(model))
}

/// What decoding needs to know about a tokenizer and its model.
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

/// The same for a regression head, which answers every prompt by one number.
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
    /// The device and the type of weights on this machine.
    pub fn place(&self) -> Result<Placement, LoadError> {
        let device = self.device.open()?;
        let kv = match self.kv_cache_dtype {
            KvCacheDtype::Auto => None,
            KvCacheDtype::Bf16 => Some(DType::BF16),
        };
        if device.is_cpu() {
            let format = match self.dtype {
                DtypeChoice::Auto | DtypeChoice::F32 => Format::F32,
                DtypeChoice::Bf16 => Format::Bf16,
                DtypeChoice::F16 => Format::F16,
                DtypeChoice::Int8 => Format::Int8,
                DtypeChoice::Q8_0 => Format::Q8,
            };
            return Ok(Placement { kv, ..Placement::cpu(format) });
        }
        let dtype = match self.dtype {
            DtypeChoice::F32 => DType::F32,
            DtypeChoice::Auto | DtypeChoice::Bf16 => DType::BF16,
            DtypeChoice::F16 => DType::F16,
            DtypeChoice::Int8 | DtypeChoice::Q8_0 => {
                let name = self.dtype.name();
                let reason = format!("{name} is for the CPU; on a GPU choose f32, bf16 or f16");
                return Err(LoadError::Device(reason));
            }
        };
        if kv.is_some_and(|kv| kv != dtype) {
            let reason = "on a GPU keys and values have the type of the weights".to_owned();
            return Err(LoadError::Device(reason));
        }
        Ok(Placement { device, dtype, kv, format: Format::F32 })
    }
}

impl DeviceChoice {
    pub fn open(self) -> Result<Device, LoadError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if gpu::count().unwrap_or(0) == 0 => Ok(Device::Cpu),
            Self::Auto => gpu::open(0),
            Self::Cuda(number) => gpu::open(number),
        }
    }

    /// Free memory of the GPU that this opens, in bytes; `None` where it is the CPU.
    pub fn free_gpu_bytes(self) -> Option<u64> {
        match self {
            Self::Cpu => None,
            Self::Auto => gpu::free_bytes(0),
            Self::Cuda(number) => gpu::free_bytes(number),
        }
    }
}
