//! Numbers of dedicated tokens, as in RegressLM: a sign, an exponent and digits of fixed numbers, one token
//! each. An answer consists of one or several numbers.
//!
//! After any token, the possible values have known bounds, because the length of a number is fixed.

use super::distribution::{Interval, OpenPart};
use super::expansion::{Child, Expansion, NumberState, TokenEffect};
use super::rules::{NumberRules, Terminator};
use super::softmax::Softmax;
use super::state::GrammarLimits;
use super::token_state::{TokenPart, TokenState};
use super::value::{NumberValue, Scaled, SpecialValue};
use super::values::{AdmittedValues, NumberValues};
use crate::sampling::{SamplingParams, drawn_candidates};
use crate::text::TextDecoder;

/// Maximum number of tokens of an answer.
pub const ANSWER_TOKENS_MAX: usize = 64;

/// The id that starts every answer and is in none. It pads and ends sequences of training.
const PAD: usize = 0;

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenFormat {
    /// A sign, the sign of the exponent, its digits, and digits of which the first one is before the point.
    Ieee { base: u8, exponent_digits: usize, digits: usize },
    /// A sign, digits, and the power of ten of the last one: `<E-r>` to `<Er>`.
    P10 { digits: usize, exponent_max: u16 },
    /// Digits after the point, for numbers from 0 up to 1.
    Normalized { base: u8, digits: usize },
}

/// Why a vocabulary does not have numbers of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotationError {
    #[error("it has no token `{0}`, which its numbers need")]
    Missing(String),
    #[error("numbers of base {0}: bases from 2 to 36 are supported")]
    Base(u8),
    #[error("two values have the token `{0}`")]
    Repeated(String),
    #[error("a number needs digits")]
    NoDigits,
    #[error("an answer has {0} tokens; at most {ANSWER_TOKENS_MAX} are supported")]
    TooLong(usize),
    #[error("its numbers do not fit into double precision")]
    TooLarge,
}

/// The number tokens of a vocabulary.
#[derive(Debug, PartialEq)]
pub struct TokenNotation {
    format: TokenFormat,
    /// The name of each id.
    names: Vec<String>,
    /// The ids of numbers at each position, ascending.
    positions: Vec<Vec<(u32, TokenPart)>>,
    /// The ids at the first position, with those of special values, ascending.
    first: Vec<(u32, TokenPart)>,
    /// Number of tokens of a special value.
    special_tokens: usize,
    base: u8,
    /// The power of the base that the last digit counts, if the exponent is 0.
    last_place: i32,
    outputs: usize,
}

impl TokenNotation {
    /// `names`: the tokens by id. `outputs`: number of numbers in an answer.
    pub fn new(names: Vec<String>, format: TokenFormat, outputs: usize) -> Result<Self, NotationError> {
        let length = match format {
            TokenFormat::Ieee { exponent_digits, digits, .. } => {
                exponent_digits.saturating_add(digits).saturating_add(2)
            }
            TokenFormat::P10 { digits, .. } => digits.saturating_add(2),
            TokenFormat::Normalized { digits, .. } => digits,
        };
        check_length(length, outputs)?;
        let (base, last_place, count, positions) = match format {
            TokenFormat::Ieee { base, .. } | TokenFormat::Normalized { base, .. }
                if !(2..=36).contains(&base) =>
            {
                return Err(NotationError::Base(base));
            }
            TokenFormat::Ieee { base, exponent_digits, digits: count } => {
                let mut positions = vec![
                    sign_tokens(&names, |negative| TokenPart::Sign { negative })?,
                    sign_tokens(&names, |negative| TokenPart::ExponentSign { negative })?,
                ];
                positions.resize(2 + exponent_digits, digit_tokens(&names, base, TokenPart::ExponentDigit)?);
                positions.resize(length, digit_tokens(&names, base, TokenPart::Digit)?);
                (base, 1 - count as i32, count, positions)
            }
            TokenFormat::P10 { digits: count, exponent_max } => {
                let mut positions = vec![sign_tokens(&names, |negative| TokenPart::Sign { negative })?];
                positions.resize(length - 1, digit_tokens(&names, 10, TokenPart::Digit)?);
                let most = i32::from(exponent_max);
                let mut exponents = Vec::new();
                for power in -most..=most {
                    exponents.push((format!("<E{power}>"), TokenPart::Exponent(power)));
                }
                positions.push(tokens_of(&names, exponents)?);
                (10, 0, count, positions)
            }
            TokenFormat::Normalized { base, digits: count } => {
                let position = digit_tokens(&names, base, TokenPart::Digit)?;
                (base, -(count as i32), count, vec![position; count])
            }
        };
        if count == 0 {
            return Err(NotationError::NoDigits);
        }
        let first = positions[0].clone();
        let notation = Self { format, names, positions, first, special_tokens: 0, base, last_place, outputs };
        // Larger exponents than this are too large in every base.
        let exponent_digits = match format {
            TokenFormat::Ieee { exponent_digits, .. } => exponent_digits as u32,
            TokenFormat::P10 { .. } | TokenFormat::Normalized { .. } => 0,
        };
        let digits_fit = u64::from(base).checked_pow(count as u32).is_some_and(|all| all <= 1 << 53);
        let exponents_fit = u32::from(base).checked_pow(exponent_digits).is_some_and(|all| all <= 1024);
        let fits =
            digits_fit && exponents_fit && notation.interval(TokenState::default(), 0).high.is_finite();
        if fits { Ok(notation) } else { Err(NotationError::TooLarge) }
    }

    /// Adds values that are not finite numbers. Each is its token, as often as a number has tokens.
    pub fn with_special_values(mut self, values: &[(String, SpecialValue)]) -> Result<Self, NotationError> {
        for (name, value) in values {
            let id = self.id(name).ok_or_else(|| NotationError::Missing(name.clone()))?;
            if self.first.iter().any(|(known, _)| *known == id) {
                return Err(NotationError::Repeated(name.clone()));
            }
            self.first.push((id, TokenPart::Special(*value)));
        }
        self.first.sort_unstable_by_key(|(id, _)| *id);
        self.special_tokens = self.positions.len();
        Ok(self)
    }

    /// Adds the padding after each number.
    pub fn with_separator(mut self) -> Result<Self, NotationError> {
        self.positions.push(vec![(PAD as u32, TokenPart::Separator)]);
        check_length(self.positions.len(), self.outputs)?;
        Ok(self)
    }

    pub fn format(&self) -> TokenFormat {
        self.format
    }

    /// Returns whether it has values that are not finite numbers.
    pub fn has_special_values(&self) -> bool {
        self.special_tokens > 0
    }

    fn id(&self, name: &str) -> Option<u32> {
        id_of(&self.names, name)
    }

    /// Number of ids.
    pub fn tokens(&self) -> usize {
        self.names.len()
    }

    /// Number of numbers in an answer.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Number of tokens of one number.
    pub fn number_tokens(&self) -> usize {
        self.positions.len()
    }

    /// Number of tokens of an answer.
    pub fn answer_tokens(&self) -> usize {
        self.outputs * self.positions.len()
    }

    /// Returns the ids of a text that consists of the names of tokens. It may leave out the padding between
    /// numbers.
    pub fn encode(&self, mut text: &str) -> Option<Vec<u32>> {
        let mut ids = Vec::new();
        while !text.is_empty() {
            let (name, rest) = text.split_at(text.find('>')? + 1);
            let id = self.id(name)?;
            if id as usize != PAD && self.separates(ids.len()) {
                ids.push(PAD as u32);
            }
            ids.push(id);
            text = rest;
        }
        Some(ids)
    }

    /// Returns whether the padding between numbers is at an index of an answer.
    fn separates(&self, index: usize) -> bool {
        matches!(self.positions[index % self.positions.len()][..], [(_, TokenPart::Separator)])
    }

    /// The ids that may follow; none after a complete answer.
    pub(crate) fn allowed(&self, state: TokenState) -> &[(u32, TokenPart)] {
        let position = usize::from(state.position);
        match state.special {
            _ if usize::from(state.output) >= self.outputs => &[],
            Some(value) if position < self.special_tokens => {
                let entry = self.first.iter().find(|(_, part)| *part == TokenPart::Special(value));
                entry.map_or(&[], std::slice::from_ref)
            }
            None if position == 0 => &self.first,
            _ => self.positions.get(position).map_or(&[], Vec::as_slice),
        }
    }

    /// Returns whether only one answer begins with a prefix, so that its other tokens need no row.
    fn is_settled(&self, state: TokenState, rules: &NumberRules) -> bool {
        if usize::from(state.output) + 1 != self.outputs {
            return false;
        }
        (state.position..self.positions.len() as u8).all(|position| {
            match self.allowed(TokenState { position, ..state }) {
                [(_, TokenPart::Separator)] => true,
                [_] => rules.is_masked,
                _ => false,
            }
        })
    }

    /// Returns the state after one of the allowed tokens, and the value of the number that it completes.
    pub(crate) fn advance(&self, state: TokenState, part: TokenPart) -> (TokenState, Option<NumberValue>) {
        let next = state.with(part, self.base);
        if usize::from(next.position) < self.positions.len() { (next, None) } else { self.complete(next) }
    }

    /// Returns the state before the next number, and the value of this one, of which only padding or the
    /// repetition of a special value is missing.
    fn complete(&self, state: TokenState) -> (TokenState, Option<NumberValue>) {
        let exponent = if state.is_exponent_negative { -state.exponent } else { state.exponent };
        let value = match state.special {
            Some(value) => NumberValue::Special(value),
            None => NumberValue::Scaled(self.value(state.is_negative, state.digits, exponent)),
        };
        (state.next_output(), Some(value))
    }

    fn value(&self, negative: bool, digits: u64, exponent: i32) -> Scaled {
        Scaled::new(negative, digits, self.base, exponent + self.last_place)
    }

    pub(super) fn rules(
        &self,
        limits: GrammarLimits,
        terminator: Terminator,
        values: NumberValues,
    ) -> NumberRules {
        NumberRules {
            limits,
            terminator,
            values: AdmittedValues::new(values),
            ending: Vec::new(),
            separating: None,
            read: (0..self.tokens() as u32).collect(),
            is_masked: true,
        }
    }

    pub(super) fn effect(&self, state: TokenState, id: u32, rules: &NumberRules) -> TokenEffect {
        let allowed = self.allowed(state);
        let Ok(found) = allowed.binary_search_by_key(&id, |(id, _)| *id) else { return TokenEffect::Invalid };
        let (next, value) = match self.advance(state, allowed[found].1) {
            (next, None) if self.is_settled(next, rules) => self.complete(next),
            advanced => advanced,
        };
        match value {
            Some(value) if !rules.values.contains(value) => TokenEffect::Invalid,
            Some(value) if usize::from(next.output) == self.outputs => TokenEffect::Closes(value),
            Some(value) => TokenEffect::Completes { value, next: NumberState::Tokens(next) },
            None if self.may_be_admitted(next, rules) => TokenEffect::Continues(NumberState::Tokens(next)),
            None => TokenEffect::Invalid,
        }
    }

    pub(super) fn expand(&self, state: TokenState, softmax: &Softmax<'_>, rules: &NumberRules) -> Expansion {
        let allowed = self.allowed(state);
        let mut logprobs = Vec::with_capacity(allowed.len());
        for (id, part) in allowed {
            logprobs.push(match part {
                TokenPart::Separator => 0.0,
                _ => softmax.log_probability(*id),
            });
        }
        // The probability of all allowed tokens may be too small for the row's softmax.
        let most = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let scale = if rules.is_masked && most.is_finite() {
            most + logprobs.iter().map(|logprob| (logprob - most).exp()).sum::<f64>().ln()
        } else {
            0.0
        };
        let mut expansion = Expansion::default();
        let mut seen = 0.0;
        for (&(token, _), logprob) in allowed.iter().zip(&logprobs) {
            let probability = (logprob - scale).exp();
            match self.effect(state, token, rules) {
                TokenEffect::Continues(state) => {
                    expansion.children.push(Child { token, state, probability, completed: None });
                }
                TokenEffect::Completes { value, next: state } => {
                    expansion.children.push(Child { token, state, probability, completed: Some(value) });
                }
                TokenEffect::Closes(value) => expansion.close(Some(value), probability),
                TokenEffect::Invalid | TokenEffect::TooLong => expansion.invalid += probability,
            }
            seen += probability;
        }
        if !rules.is_masked || !most.is_finite() {
            expansion.invalid += (1.0 - seen).max(0.0);
        }
        expansion
    }

    /// Returns the probabilities with which the reference implementation draws the next token: temperature
    /// and cut-offs apply to all tokens, then those that may not follow are left out. Empty if the cut-offs
    /// leave no token that may follow.
    pub(super) fn draws(
        &self,
        state: TokenState,
        logits: &[f32],
        rules: &NumberRules,
        sampling: &SamplingParams,
    ) -> Vec<(u32, f64)> {
        let allowed = self.allowed(state);
        if let [(id, TokenPart::Separator)] = *allowed {
            return vec![(id, 1.0)];
        }
        // The reference never draws the end of a sequence before the answer is complete.
        let mut logits = logits.get(..self.tokens()).unwrap_or(logits).to_vec();
        if rules.is_masked
            && let Some(pad) = logits.get_mut(PAD)
        {
            *pad = f32::NEG_INFINITY;
        }
        let mut weights = drawn_candidates(&logits, sampling);
        weights.sort_unstable_by_key(|(id, _)| *id);
        if rules.is_masked {
            weights.retain(|(id, _)| allowed.binary_search_by_key(id, |(id, _)| *id).is_ok());
        }
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        weights.into_iter().map(|(id, weight)| (id, weight / total)).collect()
    }

    fn may_be_admitted(&self, state: TokenState, rules: &NumberRules) -> bool {
        rules.values.reach_any(self.interval(state, usize::from(state.output)))
    }

    /// Returns where the number `index` of all answers that begin with a prefix lies. The prefix does not
    /// contain the whole number. With the mask it becomes an admitted number in any case if no special value
    /// and no other number may follow.
    pub(super) fn open_part(
        &self,
        state: TokenState,
        index: usize,
        probability: f64,
        rules: &NumberRules,
    ) -> OpenPart {
        let all = self.interval(state, index);
        let is_begun = usize::from(state.output) == index && state.position > 0 && state.special.is_none();
        let is_finite = is_begun || !self.has_special_values();
        let is_certain = rules.is_masked && is_finite && rules.values.contain_all(all);
        OpenPart { interval: rules.values.within(all), probability, is_certain }
    }

    /// Returns the interval of the number `index` of all answers that begin with a prefix, which does not
    /// contain the whole number. After the token of a special value, it is as wide as before the first token.
    fn interval(&self, state: TokenState, index: usize) -> Interval {
        let is_number = usize::from(state.output) == index && state.special.is_none();
        let state = if is_number { state } else { TokenState::default() };
        let (mut least, mut most) = (state, state);
        let (mut is_signed, mut is_exponent_signed) = (false, false);
        for parts in &self.positions[usize::from(state.position)..] {
            match parts[..] {
                [(_, TokenPart::Sign { .. }), ..] => is_signed = true,
                [(_, TokenPart::ExponentSign { .. }), ..] => is_exponent_signed = true,
                _ => {}
            }
            if let Some((_, part)) = parts.iter().min_by_key(|(_, part)| magnitude(*part)) {
                least = least.with(*part, self.base);
            }
            if let Some((_, part)) = parts.iter().max_by_key(|(_, part)| magnitude(*part)) {
                most = most.with(*part, self.base);
            }
        }
        let (low, high) = match (is_exponent_signed, state.is_exponent_negative) {
            (true, _) => (-most.exponent, most.exponent),
            (false, true) => (-most.exponent, -least.exponent),
            (false, false) => (least.exponent, most.exponent),
        };
        let low = self.value(false, least.digits, low).to_f64();
        let high = self.value(false, most.digits, high).to_f64();
        match (is_signed, state.is_negative) {
            (true, _) => Interval { low: -high, high },
            (false, true) => Interval { low: -high, high: -low },
            (false, false) => Interval { low, high },
        }
    }
}

fn id_of(names: &[String], name: &str) -> Option<u32> {
    (0u32..).zip(names).find(|(_, known)| *known == name).map(|(id, _)| id)
}

/// Returns the ids of the named parts, ascending.
fn tokens_of(
    names: &[String],
    parts: impl IntoIterator<Item = (String, TokenPart)>,
) -> Result<Vec<(u32, TokenPart)>, NotationError> {
    let mut tokens = Vec::new();
    for (name, part) in parts {
        let id = id_of(names, &name).ok_or(NotationError::Missing(name))?;
        tokens.push((id, part));
    }
    tokens.sort_unstable_by_key(|(id, _)| *id);
    Ok(tokens)
}

fn sign_tokens(
    names: &[String],
    part: fn(bool) -> TokenPart,
) -> Result<Vec<(u32, TokenPart)>, NotationError> {
    tokens_of(names, [("<+>".to_owned(), part(false)), ("<->".to_owned(), part(true))])
}

fn digit_tokens(
    names: &[String],
    base: u8,
    part: fn(u8) -> TokenPart,
) -> Result<Vec<(u32, TokenPart)>, NotationError> {
    tokens_of(names, (0..base).map(|digit| (format!("<{digit}>"), part(digit))))
}

/// The rank of a token among those of its position, by the magnitude of the number.
fn magnitude(part: TokenPart) -> i32 {
    match part {
        TokenPart::ExponentDigit(digit) | TokenPart::Digit(digit) => i32::from(digit),
        TokenPart::Exponent(power) => power,
        _ => 0,
    }
}

fn check_length(tokens: usize, outputs: usize) -> Result<(), NotationError> {
    let all = tokens.saturating_mul(outputs);
    if (1..=ANSWER_TOKENS_MAX).contains(&all) { Ok(()) } else { Err(NotationError::TooLong(all)) }
}

impl TextDecoder for TokenNotation {
    fn decode(&self, ids: &[u32]) -> String {
        ids.iter().filter(|id| **id as usize != PAD).map(|&id| self.token_text(id)).collect()
    }

    fn token_text(&self, id: u32) -> String {
        self.names.get(id as usize).cloned().unwrap_or_default()
    }

    fn settled_len(&self, text: &str) -> usize {
        text.len()
    }
}
