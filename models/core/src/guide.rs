//! The contract of guided decoding. Grammars are in `ntl-models`.

use std::sync::Arc;

use crate::numbers::SchemaNumbers;

/// Why guided decoding failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuideError(pub String);

/// A compiled constraint.
pub trait Guide: std::fmt::Debug + Send + Sync {
    /// The state before the first token.
    fn start(&self) -> Box<dyn GuideState>;
}

/// A number that a JSON schema names.
#[derive(Debug, Clone, PartialEq)]
pub struct NumberField {
    /// Index of the call of a function whose arguments have it; `None` if the whole text is JSON.
    pub call: Option<usize>,
    /// Its place in the JSON, as a JSONPath such as `$.rooms[0].area`.
    pub path: String,
    pub numbers: Arc<SchemaNumbers>,
    /// Whether a space may precede it.
    pub may_follow_space: bool,
}

/// The effect of a token on the numbers that a JSON schema names.
#[derive(Debug, Clone, PartialEq)]
pub enum NumberEffect {
    /// No such number begins or continues.
    None,
    /// A number begins with the token, or after one space at the beginning of the token.
    Begins { field: NumberField, has_space: bool },
    /// A number begins inside the token, after other text.
    BeginsInside,
    /// The number before the token continues.
    Continues,
}

/// The state of a constraint after the tokens of one path.
pub trait GuideState: Send {
    /// Sets the logits of all forbidden tokens to minus infinity. An error when the constraint exceeds its
    /// cost limits.
    fn restrict(&mut self, logits: &mut [f32]) -> Result<(), GuideError>;

    /// Advances by a token; an error when it was forbidden.
    fn accept(&mut self, id: u32) -> Result<(), GuideError>;

    /// Returns `true` if no token can follow.
    fn is_complete(&mut self) -> bool;

    /// Returns the effect of a token on the numbers that the constraint names.
    fn number_effect(&self, _id: u32) -> NumberEffect {
        NumberEffect::None
    }

    /// Removes the numbers that the text before the field has already excluded, and finds whether a space may
    /// precede the others.
    fn narrow(&mut self, _field: &mut NumberField) {}

    /// Returns tokens that write the number `text`, or one of equal value with more zeros, so that it can end
    /// there; `None` if the constraint forbids it here.
    fn spell(&mut self, _text: &str) -> Option<Vec<u32>> {
        None
    }

    /// Forbids the number before the next token to continue.
    fn end_number(&mut self) {}
}
