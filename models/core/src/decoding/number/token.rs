//! Expectation token by token along the greedy path: the quantity that NTL-MSE trains.
//!
//! A diagnostic, not an estimate of the number: the greedy path fixes the places, so the value is wrong
//! wherever a carry is uncertain. With P(19) = P(20) = 0.5 it is 1.5 tens and 9 ones, 24.

use std::collections::HashMap;

use super::super::{Decoding, Progress, StepResult, Vocabulary};
use super::Root;
use crate::contract::{EngineError, Event, LogitsRequest, NumberOutcome, PathRow, TokenNumber};
use crate::numbers::{
    Distribution, NumberRules, NumberState, NumberValue, Softmax, TextState, TokenEffect, sorted_unique,
};

pub(super) struct TokenExpectation {
    vocabulary: Vocabulary,
    rules: NumberRules,
    /// Requests the best id and all ids with a value.
    logits: LogitsRequest,
    row: PathRow,
    state: NumberState,
    probability: f64,
    parts: Vec<Part>,
    /// Whether another engine left out probabilities that the value needs.
    is_unreported: bool,
    nodes: usize,
}

/// A token with digits on the path.
struct Part {
    expectation: f64,
    /// Digits before the point that are written before this token's end.
    digits: u8,
    /// Digits after the point that are written before this token's end.
    decimals: u8,
    /// The power of ten of the token's digit, if tokens have one.
    place: Option<i8>,
    /// Whether the token contains the minus, so that its own value has the sign.
    holds_sign: bool,
    /// Whether the token contains the point, so that its own value has the place value.
    holds_point: bool,
}

impl TokenExpectation {
    pub(super) fn new(vocabulary: &Vocabulary, rules: NumberRules, root: Root) -> Self {
        Self {
            vocabulary: vocabulary.clone(),
            rules,
            logits: LogitsRequest::Ids(sorted_unique(vocabulary.number_values.iter().map(|(id, _)| id))),
            row: root.row,
            state: root.state,
            probability: 1.0,
            parts: Vec::new(),
            is_unreported: false,
            nodes: 0,
        }
    }

    fn add_part(&mut self, id: u32, next: TextState, softmax: &Softmax<'_>) {
        if !self.vocabulary.number_values.iter().any(|&(number, _)| number == id) {
            return;
        }
        let before = self.text();
        let Some(seen) = expectation(softmax, &self.vocabulary.number_values) else {
            self.is_unreported = true;
            return;
        };
        self.parts.push(Part {
            expectation: seen.value,
            digits: next.digits(),
            decimals: next.decimals(),
            place: next.place(),
            holds_sign: next.is_negative() && !before.is_negative(),
            holds_point: next.has_point() && !before.has_point(),
        });
    }

    /// The text of the number so far. Dedicated number tokens write none.
    fn text(&self) -> TextState {
        match self.state {
            NumberState::Text(state) => state,
            NumberState::Tokens(_) | NumberState::Listed(_) => TextState::START,
        }
    }

    /// The sum of the expectations at their places.
    fn value(&self) -> Option<f64> {
        let digits = self.parts.last()?.digits;
        let sign = if self.text().is_negative() { -1.0 } else { 1.0 };
        let places = self.parts.iter().map(|part| {
            let exponent = match (part.place, part.decimals, part.holds_point) {
                (Some(place), ..) => i32::from(place),
                (None, _, true) => 0,
                (None, 0, false) => i32::from(digits) - i32::from(part.digits),
                (None, decimals, false) => -i32::from(decimals),
            };
            let sign = if part.holds_sign { 1.0 } else { sign };
            sign * part.expectation * 10.0_f64.powi(exponent)
        });
        Some(places.sum::<f64>()).filter(|value| value.is_finite())
    }

    fn outcome(&self, closed: Option<NumberValue>) -> NumberOutcome {
        let closed = closed.map(|value| (value, self.probability));
        let mass = closed.map_or(0.0, |(_, probability)| probability);
        let distribution = Distribution::new(&HashMap::from_iter(closed), 0.0, 1.0 - mass);
        let token_value = if closed.is_some() && !self.is_unreported { self.value() } else { None };
        let unreported = if self.is_unreported { 1.0 - mass } else { 0.0 };
        NumberOutcome { token_value, unreported, ..NumberOutcome::new(distribution, self.nodes, self.nodes) }
    }
}

/// Returns the expected value and the mass of the number tokens at one position, or `None` if none of them
/// has any probability, or another engine does not report them all.
pub(in crate::decoding) fn expectation(
    softmax: &Softmax<'_>,
    number_values: &[(u32, f64)],
) -> Option<TokenNumber> {
    let (mut mass, mut sum) = (0.0, 0.0);
    for &(id, value) in number_values {
        let probability = softmax.reported(id)?;
        mass += probability;
        sum += probability * value;
    }
    (mass > 0.0).then(|| TokenNumber { value: sum / mass, mass })
}

impl Decoding for TokenExpectation {
    fn next_rows(&mut self, _rows_max: usize) -> Vec<PathRow> {
        vec![self.row.clone().with_logits(self.logits.clone())]
    }

    fn advance(&mut self, result: StepResult<'_>, events: &mut Vec<Event>) -> Result<Progress, EngineError> {
        self.nodes += 1;
        let row = result.row(0);
        let softmax = row.softmax()?;
        let Some(id) = self.vocabulary.argmax(row.logits) else {
            self.is_unreported = true;
            events.push(Event::Number(self.outcome(None)));
            return Ok(Progress::Done);
        };
        self.probability *= softmax.probability(id);
        let closed = match self.vocabulary.grammar.effect(self.state, id, &self.rules) {
            TokenEffect::Continues(next) => {
                if let NumberState::Text(next) = next {
                    self.add_part(id, next, &softmax);
                }
                self.state = next;
                self.row = PathRow::new(Some(row.node), id);
                return Ok(Progress::Running);
            }
            TokenEffect::Closes(value) => Some(value),
            TokenEffect::Invalid | TokenEffect::TooLong | TokenEffect::Completes { .. } => None,
        };
        events.push(Event::Number(self.outcome(closed)));
        Ok(Progress::Done)
    }
}
