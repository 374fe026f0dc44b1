//! The numbers that one request reads, and the tokens that end them.

use std::sync::Arc;

use super::decimal::Decimal;
use super::expansion::NumberState;
use super::schema::SchemaNumbers;
use super::state::{GrammarLimits, PieceEffect, TextState};
use super::values::{AdmittedValues, NumberValues};

/// The tokens that end a number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Terminator {
    /// Any token that does not continue it.
    #[default]
    Any,
    /// Only the end of the sequence.
    Eos,
    /// The end of the sequence, or a token that starts with one of these.
    Texts(Vec<String>),
    /// The end of the sequence, or a token that can follow a number in JSON: only white space, or `,`, `}` or
    /// `]` after any white space.
    Json,
}

impl Terminator {
    /// Returns whether a token, or the rest of one, that is `text` ends a number, given that it does not
    /// continue it.
    pub(super) fn is_text(&self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Eos => false,
            Self::Texts(starts) => starts.iter().any(|start| text.starts_with(start.as_str())),
            Self::Json => may_follow_json_value(text.as_bytes()),
        }
    }
}

/// Returns whether a token with these bytes can follow a value in JSON.
pub(super) fn may_follow_json_value(bytes: &[u8]) -> bool {
    match bytes.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n')) {
        Some(first) => matches!(first, b',' | b'}' | b']'),
        None => !bytes.is_empty(),
    }
}

/// Made by [`NumberGrammar::rules`](super::NumberGrammar::rules).
#[derive(Debug, Clone)]
pub struct NumberRules {
    pub(super) limits: GrammarLimits,
    pub(super) terminator: Terminator,
    pub(super) values: AdmittedValues,
    /// Ids that end a complete number unless any token does ([`Terminator::Any`]).
    pub(super) ending: Vec<u32>,
    /// The ids that could continue digits, if the request reads thousands separators.
    pub(super) separating: Option<Vec<u32>>,
    /// See [`NumberRules::read_ids`].
    pub(super) read: Arc<[u32]>,
    /// See [`NumberRules::masked`].
    pub(super) is_masked: bool,
}

impl NumberRules {
    /// For listed values, whose grammar needs no rules.
    pub(super) fn listed(limits: GrammarLimits) -> Self {
        Self {
            limits,
            terminator: Terminator::Json,
            values: AdmittedValues::new(NumberValues::All),
            ending: Vec::new(),
            separating: None,
            read: Arc::default(),
            is_masked: true,
        }
    }

    /// Sets whether the probabilities of dedicated number tokens are conditional on the tokens that are
    /// allowed at their positions. Otherwise the mass of all others is invalid. Has no effect on text.
    pub fn masked(self, is_masked: bool) -> Self {
        Self { is_masked, ..self }
    }

    /// Every id whose logit [`NumberGrammar::expand`](super::NumberGrammar::expand) reads in any state,
    /// ascending.
    pub fn read_ids(&self) -> &Arc<[u32]> {
        &self.read
    }

    /// The same rules for the numbers of a JSON schema.
    pub(crate) fn for_schema(&self, numbers: &SchemaNumbers) -> Self {
        Self { values: AdmittedValues::of_schema(numbers), ..self.clone() }
    }

    /// The value of a number that is ended by the `rest` of a token that also continues it.
    pub(super) fn value_before(&self, state: TextState, rest: &str) -> Option<Decimal> {
        let value = match &self.terminator {
            Terminator::Any => state.value_before_punctuation(),
            terminator if terminator.is_text(rest) => state.value(),
            _ => None,
        };
        value.filter(|&value| self.values.contains(value.into()))
    }

    /// Returns the state after `text`, or `None` if `text` is not the beginning of a number.
    pub fn state_after(&self, text: &str) -> Option<NumberState> {
        match TextState::START.read(text, self.limits) {
            PieceEffect::Continues(state) => Some(NumberState::Text(state)),
            PieceEffect::Completes(_) | PieceEffect::TooLong | PieceEffect::Leaves { .. } => None,
        }
    }

    /// The value of a number that its last token completes.
    pub(super) fn value_of(&self, value: Decimal) -> Option<Decimal> {
        Some(value).filter(|&value| self.values.contains(value.into()))
    }

    /// Returns the value of a number that the next token ends. If any token ends a number, "5." is a 5 and a
    /// full stop.
    pub(super) fn value_at_end(&self, state: TextState) -> Option<Decimal> {
        let value = match self.terminator {
            Terminator::Any => state.value_before_punctuation(),
            Terminator::Eos | Terminator::Texts(_) | Terminator::Json => state.value(),
        };
        value.filter(|&value| self.values.contains(value.into()))
    }
}
