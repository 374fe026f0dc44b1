//! The effects of tokens on a number, and the split of the probability after its prefix.

use super::state::TextState;
use super::token_state::TokenState;
use super::value::NumberValue;

/// The number read so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberState {
    Text(TextState),
    Tokens(TokenState),
    /// The beginning of listed values.
    Listed(ListedPrefix),
}

/// A beginning of some of the values that a schema lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedPrefix(pub(super) u32);

impl NumberState {
    /// Before the first character.
    pub const START: Self = Self::Text(TextState::START);

    /// Like [`NumberState::START`], but no space may precede the number.
    pub(crate) const AFTER_SPACE: Self = Self::Text(TextState::AFTER_SPACE);

    /// Sets the number head's prediction for the next token.
    pub fn with_head_value(self, number: Option<f32>) -> Self {
        match self {
            Self::Text(state) => Self::Text(state.with_head_value(number)),
            Self::Tokens(_) | Self::Listed(_) => self,
        }
    }

    /// Number of complete numbers of the answer before this one.
    pub(crate) fn output(self) -> usize {
        match self {
            Self::Text(_) | Self::Listed(_) => 0,
            Self::Tokens(state) => state.output.into(),
        }
    }

    /// The value read so far, which sorts prefixes of texts roughly by the values of their numbers.
    pub(crate) fn value_read(self) -> f64 {
        match self {
            Self::Text(state) => state.value_read(),
            Self::Tokens(_) | Self::Listed(_) => 0.0,
        }
    }

    /// Returns whether no digit of a text has been read yet.
    pub(crate) fn is_before_digits(self) -> bool {
        matches!(self, Self::Text(state) if state.is_before_digits())
    }

    /// The text read so far, without a leading space and without zeros that change nothing.
    pub(crate) fn written(self) -> String {
        match self {
            Self::Text(state) => state.written(),
            Self::Tokens(_) | Self::Listed(_) => String::new(),
        }
    }
}

/// One spelling of a complete number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClosedNumber {
    /// The value in canonical form.
    pub value: NumberValue,
    /// Conditional on the prefix.
    pub probability: f64,
}

/// The effect of one token on a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TokenEffect {
    Continues(NumberState),
    /// The number is complete, with this value.
    Closes(NumberValue),
    /// One of several numbers is complete, with this value; the next one follows.
    Completes {
        value: NumberValue,
        next: NumberState,
    },
    /// The text is not a number, not an admitted one, or the beginning of numbers that are all not admitted.
    Invalid,
    TooLong,
}

/// The split of the probability after one prefix; all parts add up to 1.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Expansion {
    pub children: Vec<Child>,
    /// Numbers that end here.
    pub closed: Vec<ClosedNumber>,
    /// Texts that are not a number or not an admitted one, and prefixes that no admitted number begins with.
    pub invalid: f64,
    /// Numbers beyond the limits, pruned tokens, and unreported mass.
    pub left_open: f64,
    /// The part of `left_open` that another engine does not report.
    pub unreported: f64,
}

/// The effect of the tokens that another engine does not report.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unreported {
    /// The effect of most of them.
    pub effect: TokenEffect,
    /// The maximum mass of the others.
    pub other_max: f64,
}

/// The end of a text that is not an admitted number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RefusedEnd {
    /// This token.
    Token(u32),
    /// The text is a number, but not an admitted one.
    Value,
    /// Any of the tokens that do not end the number.
    Others,
}

/// A text that begins with a prefix and is not an admitted number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    pub end: RefusedEnd,
    /// Conditional on the prefix.
    pub probability: f64,
}

/// A longer prefix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Child {
    pub token: u32,
    /// After the token.
    pub state: NumberState,
    /// Conditional on the prefix.
    pub probability: f64,
    /// The value of the number that the token completes, if another number follows.
    pub completed: Option<NumberValue>,
}

impl Child {
    pub(super) fn new(token: u32, state: NumberState, probability: f64) -> Self {
        Self { token, state, probability, completed: None }
    }
}

impl Expansion {
    pub(super) fn close(&mut self, value: Option<NumberValue>, probability: f64) {
        match value {
            Some(value) if probability > 0.0 => self.closed.push(ClosedNumber { value, probability }),
            Some(_) => {}
            None => self.invalid += probability,
        }
    }
}
