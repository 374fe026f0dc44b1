//! The contract of guided decoding. Grammars are in `ntl-models`.

use std::sync::Arc;

use crate::numbers::{ListedValues, SchemaNumbers};

/// Why guided decoding failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GuideError(pub String);

/// A compiled constraint.
pub trait Guide: std::fmt::Debug + Send + Sync {
    /// The state before the first token.
    fn start(&self) -> Box<dyn GuideState>;
}

/// A value in JSON whose distribution a text has: a number that a schema names, or one of listed values.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaField {
    /// Index of the call of a function whose arguments have it; `None` if the whole text is JSON.
    pub call: Option<usize>,
    /// Its place in the JSON, as a JSONPath such as `$.rooms[0].area`.
    pub path: String,
    pub values: FieldValues,
    /// Whether a space may precede it.
    pub may_follow_space: bool,
}

/// The values that a schema admits at one place.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValues {
    Numbers(Arc<SchemaNumbers>),
    Listed(Arc<ListedValues>),
}

impl FieldValues {
    /// The numbers, if the field is one.
    pub fn numbers(&self) -> Option<&SchemaNumbers> {
        match self {
            Self::Numbers(numbers) => Some(numbers),
            Self::Listed(_) => None,
        }
    }

    /// Returns whether only one value is left.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Numbers(_) => false,
            Self::Listed(values) => values.texts().len() < 2,
        }
    }
}

/// The effect of a token on the fields of a JSON schema.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldEffect {
    /// No field begins or continues.
    None,
    /// A field begins with the token, or after one space at the beginning of the token.
    Begins { field: SchemaField, has_space: bool },
    /// A field begins inside the token, after other text.
    BeginsInside,
    /// The value before the token continues.
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

    /// Returns the effect of a token on the fields that the constraint names.
    fn field_effect(&self, _id: u32) -> FieldEffect {
        FieldEffect::None
    }

    /// Removes the values that the text before the field has already excluded, and finds whether a space may
    /// precede the others.
    fn narrow(&mut self, _field: &mut SchemaField) {}

    /// Returns tokens that write the number `text`, or one of equal value with more zeros, so that it can end
    /// there; `None` if the constraint forbids it here.
    fn spell(&mut self, _text: &str) -> Option<Vec<u32>> {
        None
    }

    /// Returns tokens that write the value `text`, after a space if it begins with one; `None` if the
    /// constraint forbids it here.
    fn spell_value(&mut self, _text: &str) -> Option<Vec<u32>> {
        None
    }

    /// Forbids the number before the next token to continue.
    fn end_number(&mut self) {}
}
