//! Reads a number character by character: the part of the number that was reached, and the effect of a piece
//! of text there.
//!
//! A number is at most one lead-in space, an optional minus, digits, optionally a point and more digits; or,
//! instead of the digits, tokens of one digit at falling powers of ten, or one token for all of it.

use super::decimal::{DIGITS_MAX, Decimal, Magnitude};
use super::piece::NumberPiece;

/// Which numbers are read. The probability of longer ones stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrammarLimits {
    digits_max: u8,
    decimals_max: u8,
    sign: bool,
    thousands: Option<char>,
    leading_zeros: bool,
}

impl Default for GrammarLimits {
    fn default() -> Self {
        Self { digits_max: 12, decimals_max: 6, sign: true, thousands: None, leading_zeros: true }
    }
}

impl GrammarLimits {
    /// At most `digits_max` (1 to 20) digits before the point and `decimals_max` (0 to 20) after it; `sign`
    /// reads a leading minus. `None` outside these ranges.
    pub fn new(digits_max: u8, decimals_max: u8, sign: bool) -> Option<Self> {
        let fits = (1..=DIGITS_MAX).contains(&digits_max) && decimals_max <= DIGITS_MAX;
        fits.then_some(Self { digits_max, decimals_max, sign, ..Self::default() })
    }

    pub const THOUSANDS: [char; 4] = [',', '_', '\'', ' '];

    pub fn digits_max(self) -> u8 {
        self.digits_max
    }

    pub fn decimals_max(self) -> u8 {
        self.decimals_max
    }

    pub fn has_sign(self) -> bool {
        self.sign
    }

    /// Returns the separator of groups of three digits.
    pub fn thousands(self) -> Option<char> {
        self.thousands
    }

    /// The same for numbers in JSON, which have no zeros before their first digit. The numbers have no
    /// exponent either.
    pub fn in_json(self) -> Self {
        Self { leading_zeros: false, ..self }
    }

    /// The same with as many digits as can be read at all.
    pub(super) fn largest(self) -> Self {
        Self { digits_max: DIGITS_MAX, decimals_max: DIGITS_MAX, ..self }
    }

    pub(super) fn has_thousands(self) -> bool {
        self.thousands.is_some()
    }

    /// Maximum number of characters of a number within these limits, including the leading space.
    pub fn characters_max(self) -> usize {
        let digits = usize::from(self.digits_max);
        let decimals = usize::from(self.decimals_max);
        let separators = if self.has_thousands() { digits / 3 } else { 0 };
        // The space, the minus and the point.
        digits + separators + decimals + 3
    }

    /// Also reads `separator` between groups of three digits; `None` unless it is one of [`Self::THOUSANDS`].
    pub fn with_thousands(self, separator: char) -> Option<Self> {
        Self::THOUSANDS.contains(&separator).then_some(Self { thousands: Some(separator), ..self })
    }
}

/// The part of a number that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Start,
    Space,
    Sign,
    /// Digits before the point.
    Integer,
    /// A thousands separator.
    Separator,
    /// A group of digits after a separator, not complete yet.
    Group,
    Point,
    /// Digits after the point.
    Fraction,
    /// Tokens of one digit at one power of ten.
    Places,
}

impl Phase {
    pub(super) const ALL: [Self; 9] = [
        Self::Start,
        Self::Space,
        Self::Sign,
        Self::Integer,
        Self::Separator,
        Self::Group,
        Self::Point,
        Self::Fraction,
        Self::Places,
    ];
}

/// The number read so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextState {
    pub(super) phase: Phase,
    value: Decimal,
    digits: u8,
    /// Digits after the last separator; 0 before the first one.
    grouped: u8,
    separated: bool,
    /// The last power of ten, in [`Phase::Places`].
    place: i8,
    /// The number head's prediction for the next token.
    head: Option<f32>,
}

/// The effect of a piece on a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum PieceEffect<'a> {
    /// All of it belongs to the number.
    Continues(TextState),
    /// It completes the number, which has this value.
    Completes(Decimal),
    /// It would belong to a number longer than the limits.
    TooLong,
    /// The number ends in this state; `rest` (not empty) follows it.
    Leaves { state: TextState, rest: &'a str },
}

impl PieceEffect<'_> {
    /// Returns whether any character of `text`, which was read, belongs to the number.
    pub(super) fn touches(self, text: &str) -> bool {
        !matches!(self, Self::Leaves { rest, .. } if rest.len() == text.len())
    }
}

/// The numbers that begin with a prefix, by their magnitudes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Extent {
    /// All numbers: the sign may still come.
    AnySign,
    /// All numbers of the prefix's sign.
    Any,
    /// From `low` up to, not including, `end`.
    Fixed { low: Magnitude, end: Magnitude },
    /// From `integer` up to, not including, `integer + 1`, both times 1, 10, 100 and so on for each further
    /// digit. Not 0.
    Growing { integer: u128 },
}

enum Step {
    Continues(TextState),
    TooLong,
    Leaves,
}

impl TextState {
    /// Before the first character.
    pub const START: Self = Self {
        phase: Phase::Start,
        value: Decimal::ZERO,
        digits: 0,
        grouped: 0,
        separated: false,
        place: i8::MAX,
        head: None,
    };

    /// Before the first character of a number that no space may precede.
    pub(super) const AFTER_SPACE: Self = Self { phase: Phase::Space, ..Self::START };

    /// Sets the number head's prediction for the next token.
    pub fn with_head_value(self, number: Option<f32>) -> Self {
        Self { head: number, ..self }
    }

    /// The power of ten of the last digit, for digits at powers of ten.
    pub(crate) fn place(self) -> Option<i8> {
        (self.phase == Phase::Places).then_some(self.place)
    }

    /// Number of digits before the point.
    pub(crate) fn digits(self) -> u8 {
        self.digits
    }

    /// Number of digits after the point.
    pub(crate) fn decimals(self) -> u8 {
        self.value.decimals()
    }

    pub(crate) fn is_negative(self) -> bool {
        self.value.is_negative()
    }

    pub(crate) fn has_point(self) -> bool {
        matches!(self.phase, Phase::Point | Phase::Fraction)
    }

    /// Returns whether no digit has been read yet.
    pub(crate) fn is_before_digits(self) -> bool {
        matches!(self.phase, Phase::Start | Phase::Space | Phase::Sign)
    }

    /// The text read so far, without a leading space and without zeros that change nothing.
    pub(crate) fn written(self) -> String {
        match self.phase {
            Phase::Start | Phase::Space => String::new(),
            Phase::Sign => "-".to_owned(),
            Phase::Point => format!("{}.", self.value),
            _ => self.value.to_string(),
        }
    }

    /// The value of the digits read so far.
    pub(super) fn value_read(self) -> f64 {
        self.value.to_f64()
    }

    /// The numbers that begin with this prefix, regardless of how many digits follow.
    pub(super) fn extent(self) -> Extent {
        let low = self.value.magnitude();
        match self.phase {
            Phase::Start | Phase::Space => Extent::AnySign,
            Phase::Sign => Extent::Any,
            Phase::Integer | Phase::Separator | Phase::Group => match self.value.integer() {
                0 => Extent::Any,
                integer => Extent::Growing { integer },
            },
            Phase::Point => Extent::Fixed { low, end: low.plus_one_at(0) },
            Phase::Fraction => {
                let last_place = -(self.value.decimals() as i8);
                Extent::Fixed { low, end: low.plus_one_at(last_place) }
            }
            Phase::Places => Extent::Fixed { low, end: low.plus_one_at(self.place) },
        }
    }

    pub(super) fn at(phase: Phase) -> Self {
        Self { phase, ..Self::START }
    }

    /// The value, if the text so far is a complete number.
    pub(super) fn value(self) -> Option<Decimal> {
        matches!(self.phase, Phase::Integer | Phase::Fraction | Phase::Places).then(|| self.value.canonical())
    }

    /// Like [`TextState::value`], but also accepts a number followed by a full stop or a comma.
    pub(super) fn value_before_punctuation(self) -> Option<Decimal> {
        let punctuated = matches!(self.phase, Phase::Point | Phase::Separator);
        self.value().or_else(|| punctuated.then(|| self.value.canonical()))
    }

    /// Returns the effect of a piece on the number, or `None` if the piece contains no part of it.
    pub(super) fn read_piece(self, piece: &NumberPiece, limits: GrammarLimits) -> Option<PieceEffect<'_>> {
        let begins = matches!(self.phase, Phase::Start | Phase::Space | Phase::Sign);
        match piece {
            NumberPiece::Text(text) => Some(self.read(text, limits)).filter(|reading| reading.touches(text)),
            NumberPiece::Place { digit, place } => {
                let follows = self.phase == Phase::Places && *place < self.place;
                (begins || follows).then(|| self.read_place(*digit, *place, limits))
            }
            NumberPiece::Head if !begins => None,
            NumberPiece::Head => match self.head_value() {
                Some(value) => (limits.sign || !value.is_negative()).then_some(PieceEffect::Completes(value)),
                None => Some(PieceEffect::TooLong),
            },
        }
    }

    /// Returns the number head's prediction with the sign that was read before it, or `None` if it has too
    /// many digits.
    fn head_value(self) -> Option<Decimal> {
        let head = self.head.and_then(Decimal::shortest_f32)?;
        Some(if self.value.is_negative() { head.negated() } else { head }.canonical())
    }

    fn read_place(self, digit: u8, place: i8, limits: GrammarLimits) -> PieceEffect<'static> {
        let integer = place.max(-1) + 1;
        let decimal = place.min(0).unsigned_abs();
        if integer.unsigned_abs() > limits.digits_max || decimal > limits.decimals_max {
            return PieceEffect::TooLong;
        }
        let digits = self.digits.max(integer.unsigned_abs());
        let value = self.value.with_place(digit, place);
        PieceEffect::Continues(Self { phase: Phase::Places, value, digits, place, ..self })
    }

    pub(super) fn read(self, text: &str, limits: GrammarLimits) -> PieceEffect<'_> {
        let mut state = self;
        for (at, character) in text.char_indices() {
            match state.step(character, limits) {
                Step::Continues(next) => state = next,
                Step::TooLong => return PieceEffect::TooLong,
                Step::Leaves => return PieceEffect::Leaves { state, rest: &text[at..] },
            }
        }
        PieceEffect::Continues(state)
    }

    /// Only ASCII digits are digits. Digits of other scripts end a number, as letters do.
    fn step(self, character: char, limits: GrammarLimits) -> Step {
        match (self.phase, character) {
            (Phase::Start, ' ') => Step::Continues(Self { phase: Phase::Space, ..self }),
            (Phase::Start | Phase::Space, '-') if limits.sign => {
                Step::Continues(Self { phase: Phase::Sign, value: self.value.negated(), ..self })
            }
            (Phase::Integer, '0'..='9') if !limits.leading_zeros && self.value.integer() == 0 => Step::Leaves,
            // `1,2345` is not a number: no digit may follow a complete group of three.
            (Phase::Integer, '0'..='9') if self.separated => Step::TooLong,
            (
                Phase::Start | Phase::Space | Phase::Sign | Phase::Integer | Phase::Separator | Phase::Group,
                '0'..='9',
            ) => self.integer_digit(character as u8 - b'0', limits),
            (Phase::Integer, _) if limits.thousands == Some(character) && self.may_be_separated() => {
                Step::Continues(Self { phase: Phase::Separator, separated: true, grouped: 0, ..self })
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
        let grouped = if self.separated { self.grouped + 1 } else { 0 };
        let phase = if self.separated && grouped < 3 { Phase::Group } else { Phase::Integer };
        Step::Continues(Self { phase, value, digits: self.digits + 1, grouped, ..self })
    }

    /// The first group has one to three digits, and all others three.
    fn may_be_separated(self) -> bool {
        self.separated || self.digits <= 3
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
        match TextState::START.read(text, limits) {
            PieceEffect::Continues(state) => {
                state.value().map_or("incomplete".into(), |value| value.to_string())
            }
            PieceEffect::TooLong | PieceEffect::Completes(_) => "too long".into(),
            PieceEffect::Leaves { state, rest } => {
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
    fn thousands_are_separated_into_groups_of_three_if_requested() {
        let limits = GrammarLimits::default().with_thousands(',').unwrap();
        for (text, want) in [
            ("1,234", Some("1234")),
            ("12,345,678.5", Some("12345678.5")),
            ("1234", Some("1234")),
            ("1,23", None),
            ("1234,567", None),
            ("1,234,5", None),
            ("1,2345", None),
        ] {
            let value = match TextState::START.read(text, limits) {
                PieceEffect::Continues(state) => state.value().map(|value| value.to_string()),
                _ => None,
            };
            assert_eq!(value.as_deref(), want, "{text}");
        }
        assert!(matches!(
            TextState::START.read("1,234", GrammarLimits::default()),
            PieceEffect::Leaves { .. }
        ));
        assert_eq!(GrammarLimits::default().with_thousands('.'), None);
    }

    #[test]
    fn a_number_in_json_has_no_leading_zeros() {
        let limits = GrammarLimits::default().in_json();
        for (text, is_number) in [
            ("0", true),
            ("-0", true),
            ("0.05", true),
            ("100", true),
            ("00", false),
            ("-07", false),
            ("01.5", false),
        ] {
            let read = TextState::START.read(text, limits);
            assert_eq!(matches!(read, PieceEffect::Continues(_)), is_number, "{text}: {read:?}");
        }
    }

    #[test]
    fn a_minus_does_not_begin_a_number_if_signs_are_not_read() {
        let limits = GrammarLimits::new(3, 0, false).unwrap();
        assert!(matches!(TextState::START.read("-1", limits), PieceEffect::Leaves { rest: "-1", .. }));
        assert_eq!(GrammarLimits::new(0, 0, true), None);
        assert_eq!(GrammarLimits::new(21, 0, true), None);
        assert_eq!(GrammarLimits::new(1, 21, true), None);
    }
}
