//! The properties of a loaded model.

use super::error::EngineError;
use super::hidden_states::HiddenStates;
use super::job::Job;
use crate::labels::Labels;

/// Which implementation runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Native,
    MistralRs,
    /// Another inference server.
    Remote,
    /// The scripted model of tests.
    #[cfg(any(test, feature = "testing"))]
    Scripted,
}

impl Backend {
    /// The name on the wire and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::MistralRs => "mistralrs",
            Self::Remote => "remote",
            #[cfg(any(test, feature = "testing"))]
            Self::Scripted => "scripted",
        }
    }
}

/// Element type of weights in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dtype {
    F32,
    Bf16,
    F16,
    /// 8-bit integers with one scale for each output of a layer.
    Int8,
    /// 8-bit integers with one scale for each 32 of them.
    Q8_0,
    /// Codes of 4 to 6 bits, quantised at load.
    Q4K,
    /// 8-bit floats (E4M3), for keys and values.
    Fp8,
    /// Any other type of mistral.rs.
    Other(String),
}

impl Dtype {
    /// The name on the wire and in logs.
    pub fn name(&self) -> &str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Fp8 => "fp8",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Dtype {
    fn from(name: &str) -> Self {
        let known = [Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Q8_0, Self::Q4K, Self::Fp8];
        known.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| Self::Other(name.to_owned()))
    }
}

/// How a checkpoint writes numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberEncoding {
    /// Plain text pieces, some of several digits (`AutoNumberTokenizer` and most decoder-only models).
    Text,
    /// Text in which every digit is a separate token (`T5Custom_Tokenizer`).
    Digits,
    /// Tokens of one digit at one power of ten, `_3_1_` for 30 (`RtTokenizer`).
    Rt,
    /// One token for all numbers, which carries the value (`XvalTokenizer`).
    Xval,
    /// Dedicated tokens: two signs, the digits of an exponent, and digits (RegressLM).
    Ieee,
    /// Dedicated tokens: a sign, digits, and a power of ten (RegressLM).
    P10,
    /// Dedicated tokens: digits after the point (RegressLM).
    Normalized,
}

impl NumberEncoding {
    /// Returns whether each number token has a value, which Number Token Losses need.
    pub fn has_number_tokens(self) -> bool {
        matches!(self, Self::Text | Self::Digits | Self::Rt)
    }

    /// The name on the wire and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Digits => "digits",
            Self::Rt => "rt",
            Self::Xval => "xval",
            Self::Ieee => "ieee",
            Self::P10 => "p10",
            Self::Normalized => "normalized",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Family of models, as on the wire and in logs.
    pub kind: String,
    pub backend: Backend,
    pub dtype: Dtype,
    /// Element type of the keys and values of contexts, if the backend reports it.
    pub kv_cache_dtype: Option<Dtype>,
    pub number_encoding: NumberEncoding,
    /// Number of weights. Shared weights count once.
    pub parameters: u64,
    /// Maximum number of prompt tokens.
    pub prompt_tokens_max: usize,
    /// Maximum number of tokens of prompt and answer together, if they share one sequence of limited length.
    pub context_tokens_max: Option<usize>,
    /// Maximum number of tokens of an answer, if the model has no positions for more.
    pub answer_tokens_max: Option<usize>,
    /// Ids that the tokenizer knows: logits from here on are padding, and these ids are never produced.
    pub tokens: usize,
    /// Ids that end a sequence.
    pub eos_ids: Vec<u32>,
    /// Whether prompt and answer are processed by different stacks, or form one sequence.
    pub encoder_decoder: bool,
    /// The labels whose values the model predicts instead of tokens: its logits are one value per label.
    pub labels: Option<Labels>,
    /// `None` if the backend does not return them.
    pub hidden_states: Option<HiddenStates>,
}

impl ModelInfo {
    /// Returns whether the logits are a distribution over tokens.
    pub fn has_token_distribution(&self) -> bool {
        self.labels.is_none()
    }

    /// Checks that the prompt and the longest answer of a job fit.
    ///
    /// # Errors
    /// If the model has no positions for them.
    pub fn check_length(&self, job: &Job) -> Result<(), EngineError> {
        let prompt = job.prompt.len();
        if prompt > self.prompt_tokens_max {
            return Err(EngineError::PromptTooLong { got: prompt, max: self.prompt_tokens_max });
        }
        let answer = job.request.tokens_max();
        match self.context_tokens_max {
            Some(max) if prompt.saturating_add(answer) > max => {
                Err(EngineError::ContextTooLong { prompt, answer, max })
            }
            _ => Ok(()),
        }
    }
}
