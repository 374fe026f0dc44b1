//! Tokens, and prompts made of them.

/// A token id. If the checkpoint writes all numbers with one id (xVal), a number token also has its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    pub id: u32,
    pub value: Option<f32>,
}

/// A token with its log-probability (natural logarithm, over the whole vocabulary, before temperature).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f64,
}

impl From<u32> for Token {
    fn from(id: u32) -> Self {
        Self { id, value: None }
    }
}

/// The tokens that a model is given, special tokens included.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Prompt {
    pub tokens: Vec<Token>,
    /// The index from which on tokens belong to the second segment. Only BERT distinguishes segments.
    pub second_segment: Option<usize>,
}

impl Prompt {
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub fn ids(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        self.tokens.iter().map(|token| token.id)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        ids.into_iter().collect()
    }
}

impl<T: Into<Token>> FromIterator<T> for Prompt {
    fn from_iter<I: IntoIterator<Item = T>>(tokens: I) -> Self {
        Self { tokens: tokens.into_iter().map(Into::into).collect(), second_segment: None }
    }
}
