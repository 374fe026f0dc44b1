//! Hidden states of a model, and the vectors of prompts that are made of them.

/// A stack of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    Encoder,
    Decoder,
}

/// The hidden states that a model returns for
/// [`LogitsRequest::Hidden`](crate::logits::LogitsRequest::Hidden).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenStates {
    /// The stack that reads prompts.
    pub stack: Stack,
    pub width: usize,
}

/// How the hidden states of all tokens of a prompt become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    Mean,
    /// The vector of the last token.
    Last,
}

/// The hidden states that a vector for a prompt is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingJob {
    pub stack: Stack,
    pub pooling: Pooling,
}

impl EmbeddingJob {
    pub(crate) const DECODER_MEAN: Self = Self { stack: Stack::Decoder, pooling: Pooling::Mean };
}
