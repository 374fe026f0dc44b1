//! Reads the number at the beginning of a whole answer, by the rules of searches over tokens.
//!
//! In: the text of an answer, white space before the number included. Out: its value, or that it has none or
//! none that is known.

use std::sync::Arc;

use super::decimal::Decimal;
use super::rules::{NumberRules, Terminator};
use super::state::{GrammarLimits, PieceEffect, TextState};
use super::values::{AdmittedValues, NumberValues};

/// The reading of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberReading {
    Number(Decimal),
    /// It does not begin with a number, or with one that is not admitted.
    Invalid,
    /// Its number is longer than the limits, or the answer was cut where the number could continue.
    Open,
}

impl NumberRules {
    /// The rules for whole answers, for which no token ids are needed.
    pub fn of_answers(limits: GrammarLimits, terminator: Terminator, values: NumberValues) -> Self {
        Self {
            limits,
            terminator,
            values: AdmittedValues::new(values),
            ending: Vec::new(),
            separating: None,
            read: Arc::default(),
            is_masked: true,
        }
    }

    /// Reads an answer. `is_cut`: whether the model would have continued it.
    pub fn read_answer(&self, answer: &str, is_cut: bool) -> NumberReading {
        let answer = answer.trim_start();
        let value = match TextState::START.read(answer, self.limits) {
            PieceEffect::Continues(_) if is_cut => return NumberReading::Open,
            PieceEffect::TooLong => return NumberReading::Open,
            PieceEffect::Continues(state) => self.value_at_end(state),
            PieceEffect::Leaves { state, rest } => self.value_before(state, rest),
            PieceEffect::Completes(value) => self.value_of(value),
        };
        value.map_or(NumberReading::Invalid, NumberReading::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution::Interval;
    use super::*;

    fn read(rules: &NumberRules, answer: &str, is_cut: bool) -> String {
        match rules.read_answer(answer, is_cut) {
            NumberReading::Number(value) => value.to_string(),
            NumberReading::Invalid => "invalid".to_owned(),
            NumberReading::Open => "open".to_owned(),
        }
    }

    fn rules(terminator: Terminator, values: NumberValues) -> NumberRules {
        NumberRules::of_answers(GrammarLimits::new(3, 2, true).unwrap(), terminator, values)
    }

    #[test]
    fn an_answer_is_the_number_that_it_begins_with() {
        let all = rules(Terminator::Any, NumberValues::All);
        for (answer, want) in [
            ("42", "42"),
            ("\n\n -4.5", "-4.5"),
            ("5.", "5"),
            ("4 out of 5", "4"),
            ("4/5", "4"),
            ("", "invalid"),
            ("about 4", "invalid"),
            ("-", "invalid"),
            ("1234", "open"),
            ("1.234", "open"),
        ] {
            assert_eq!(read(&all, answer, false), want, "{answer:?}");
        }
        let range = NumberValues::Range(Interval { low: 1.0, high: 5.0 });
        assert_eq!(read(&rules(Terminator::Any, range), "5.00", false), "5");
        assert_eq!(read(&rules(Terminator::Any, range), "6", false), "invalid");
        let whole = rules(Terminator::Eos, NumberValues::All);
        assert_eq!(
            ["4", "4 out of 5", "4."].map(|answer| read(&whole, answer, false)),
            ["4", "invalid", "invalid"]
        );
        let line = rules(Terminator::Texts(vec!["\n".to_owned()]), NumberValues::All);
        assert_eq!(["4\nFine", "4 stars"].map(|answer| read(&line, answer, false)), ["4", "invalid"]);
    }

    #[test]
    fn an_answer_that_was_cut_is_open_where_its_number_could_continue() {
        let all = rules(Terminator::Any, NumberValues::All);
        for (answer, want) in
            [("", "open"), ("4", "open"), ("4.", "open"), ("4 because", "4"), ("I", "invalid")]
        {
            assert_eq!(read(&all, answer, true), want, "{answer:?}");
        }
    }
}
