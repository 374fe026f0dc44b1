//! Reading a number character by character: where in it we are, and what a piece of text does there.
//!
//! A number is at most one lead-in space, an optional minus, digits, optionally a point and more digits.

use super::Decimal;
use super::decimal::DIGITS_MAX;

/// Which numbers are read. Longer ones are not refused: their probability stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarLimits {
    digits_max: u8,
    decimals_max: u8,
    sign: bool,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self { digits_max: 12, decimals_max: 6, sign: true }
    }
}

impl GrammarLimits {
    /// At most `digits_max` (1 to 20) digits before the point and `decimals_max` (0 to 20) after it; `sign` reads
    /// a leading minus. `None` outside these ranges.
    pub fn new(digits_max: u8, decimals_max: u8, sign: bool) -> Option<Self> {
        let fits = (1..=DIGITS_MAX).contains(&digits_max) && decimals_max <= DIGITS_MAX;
        fits.then_some(Self { digits_max, decimals_max, sign })
    }
}

/// Where in a number a prefix stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Nothing yet.
    Start,
    /// After the lead-in space.
    Space,
    /// After the minus.
    Sign,
    /// In the digits before the point.
    Integer,
    /// Right after the point.
    Point,
    /// In the digits after it.
    Fraction,
}

impl Phase {
    pub(super) const ALL: [Self; 6] =
        [Self::Start, Self::Space, Self::Sign, Self::Integer, Self::Point, Self::Fraction];
}

/// A number read so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberState {
    pub(super) phase: Phase,
    value: Decimal,
    digits: u8,
}

/// What a piece of text does to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading<'a> {
    /// All of it belongs to the number.
    Continues(NumberState),
    /// It would belong to a number longer than the limits.
    TooLong,
    /// The number goes no further than this state; `rest` (not empty) follows it.
    Leaves { state: NumberState, rest: &'a str },
}

enum Step {
    Continues(NumberState),
    TooLong,
    Leaves,
}

impl NumberState {
    /// Before the first character.
    pub const START: Self = Self { phase: Phase::Start, value: Decimal::ZERO, digits: 0 };

    pub(super) fn at(phase: Phase) -> Self {
        Self { phase, ..Self::START }
    }

    /// The value, where the text so far is a complete number.
    pub(super) fn value(self) -> Option<Decimal> {
        matches!(self.phase, Phase::Integer | Phase::Fraction).then(|| self.value.canonical())
    }

    /// The value, where the text so far is a complete number or one with a full stop behind it.
    pub(super) fn value_before_full_stop(self) -> Option<Decimal> {
        self.value().or_else(|| (self.phase == Phase::Point).then(|| self.value.canonical()))
    }

    pub(super) fn read(self, text: &str, limits: GrammarLimits) -> Reading<'_> {
        let mut state = self;
        for (at, character) in text.char_indices() {
            match state.step(character, limits) {
                Step::Continues(next) => state = next,
                Step::TooLong => return Reading::TooLong,
                Step::Leaves => return Reading::Leaves { state, rest: &text[at..] },
            }
        }
        Reading::Continues(state)
    }

    /// Only ASCII digits are digits: look-alikes of other scripts end a number as letters do.
    fn step(self, character: char, limits: GrammarLimits) -> Step {
        match (self.phase, character) {
            (Phase::Start, ' ') => Step::Continues(Self { phase: Phase::Space, ..self }),
            (Phase::Start | Phase::Space, '-') if limits.sign => {
                Step::Continues(Self { phase: Phase::Sign, value: self.value.negated(), ..self })
            }
            (Phase::Start | Phase::Space | Phase::Sign | Phase::Integer, '0'..='9') => {
                self.integer_digit(character as u8 - b'0', limits)
            }
            (Phase::Integer, '.') => Step::Continues(Self { phase: Phase::Point, ..self }),
            (Phase::Point | Phase::Fraction, '0'..='9') => self.decimal(character as u8 - b'0', limits),
            _ => Step::Leaves,
        }
    }

    fn integer_digit(self, digit: u8, limits: GrammarLimits) -> Step {
        if self.digits >= limits.digits_max {
            return Step::TooLong;
        }
        let value = self.value.with_integer_digit(digit);
        Step::Continues(Self { phase: Phase::Integer, value, digits: self.digits + 1 })
    }

    fn decimal(self, digit: u8, limits: GrammarLimits) -> Step {
        if self.value.decimals() >= limits.decimals_max {
            return Step::TooLong;
        }
        Step::Continues(Self { phase: Phase::Fraction, value: self.value.with_decimal(digit), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        let limits = GrammarLimits::new(3, 2, true).unwrap();
        match NumberState::START.read(text, limits) {
            Reading::Continues(state) => state.value().map_or("incomplete".into(), |value| value.to_string()),
            Reading::TooLong => "too long".into(),
            Reading::Leaves { state, rest } => {
                format!("{}|{rest}", state.value().map_or("none".into(), |value| value.to_string()))
            }
        }
    }

    #[test]
    fn texts_are_read_as_numbers_or_not() {
        for (text, want) in [
            ("42", "42"),
            (" 42", "42"),
            ("-4", "-4"),
            (" -4.50", "-4.5"),
            ("007", "7"),
            ("-0", "0"),
            ("", "incomplete"),
            (" ", "incomplete"),
            (" -", "incomplete"),
            ("5.", "incomplete"),
            ("  5", "none| 5"),
            ("5 ", "5| "),
            ("5a", "5|a"),
            ("--5", "none|-5"),
            ("1-2", "1|-2"),
            (".5", "none|.5"),
            ("1.2.3", "1.2|.3"),
            ("５", "none|５"),
            ("4２", "4|２"),
            ("1234", "too long"),
            ("1.234", "too long"),
        ] {
            assert_eq!(read(text), want, "{text:?}");
        }
    }

    #[test]
    fn a_minus_is_no_number_where_signs_are_not_read() {
        let limits = GrammarLimits::new(3, 0, false).unwrap();
        assert!(matches!(NumberState::START.read("-1", limits), Reading::Leaves { rest: "-1", .. }));
        assert_eq!(GrammarLimits::new(0, 0, true), None);
        assert_eq!(GrammarLimits::new(21, 0, true), None);
        assert_eq!(GrammarLimits::new(1, 21, true), None);
    }
}
