//! What is known about a loaded model.

use std::fmt;

/// Which architecture a model has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelKind {
    T5,
    /// With number embeddings (Regression Transformer).
    T5Rt,
    /// With a number head beside the output layer (xVal).
    T5Xval,
    /// With a regression head instead of an output layer.
    T5RegressionHead,
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gpt2,
    Granite,
    /// Any other architecture that mistral.rs serves.
    Other(String),
}

impl ModelKind {
    const KNOWN: [Self; 10] = [
        Self::T5,
        Self::T5Rt,
        Self::T5Xval,
        Self::T5RegressionHead,
        Self::Llama,
        Self::Mistral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Gpt2,
        Self::Granite,
    ];

    /// The name on the wire and in logs.
    pub fn name(&self) -> &str {
        match self {
            Self::T5 => "t5",
            Self::T5Rt => "t5-rt",
            Self::T5Xval => "t5-xval",
            Self::T5RegressionHead => "t5-regression-head",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gpt2 => "gpt2",
            Self::Granite => "granite",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for ModelKind {
    fn from(name: &str) -> Self {
        let known = Self::KNOWN.into_iter().find(|kind| kind.name() == name);
        known.unwrap_or_else(|| Self::Other(name.to_owned()))
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which implementation runs a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    Native,
    MistralRs,
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
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Dtype {
    fn from(name: &str) -> Self {
        let known = [Self::F32, Self::Bf16, Self::F16, Self::Int8, Self::Q8_0];
        known.into_iter().find(|dtype| dtype.name() == name).unwrap_or_else(|| Self::Other(name.to_owned()))
    }
}

/// How a checkpoint writes numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberEncoding {
    /// Plain text pieces, some of several digits (`AutoNumberTokenizer` and most decoder-only models).
    Text,
    /// Text in which every digit is a token of its own (`T5Custom_Tokenizer`).
    Digits,
    /// Tokens of one digit at one power of ten, `_3_1_` for 30 (`RtTokenizer`).
    Rt,
    /// One token for all numbers, each with its value beside it (`XvalTokenizer`).
    Xval,
}

impl NumberEncoding {
    /// The name on the wire and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Digits => "digits",
            Self::Rt => "rt",
            Self::Xval => "xval",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    pub kind: ModelKind,
    pub backend: Backend,
    pub dtype: Dtype,
    /// Element type of the keys and values of contexts, where the backend says it.
    pub kv_cache_dtype: Option<Dtype>,
    pub number_encoding: NumberEncoding,
    /// Weights, counted once where they are shared.
    pub parameters: u64,
    /// Most prompt tokens that it takes.
    pub prompt_tokens_max: usize,
    /// Most tokens of prompt and answer together, where they share one sequence of limited length.
    pub context_tokens_max: Option<usize>,
    /// Most tokens of an answer, where the model has no position for more.
    pub answer_tokens_max: Option<usize>,
    /// Ids that the tokenizer knows: logits from here on are padding, and these ids are never produced.
    pub tokens: usize,
    /// Ids that end a sequence.
    pub eos_ids: Vec<u32>,
    /// Whether prompt and answer live in different stacks (T5) or in one sequence.
    pub encoder_decoder: bool,
}

impl ModelInfo {
    /// Whether its logits are a distribution over tokens; a regression head predicts one value instead.
    pub fn has_token_distribution(&self) -> bool {
        self.kind != ModelKind::T5RegressionHead
    }
}
