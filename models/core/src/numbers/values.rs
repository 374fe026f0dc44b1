//! Which values a number may have: all, a range, the values of a scale, or the numbers of a JSON schema.
//!
//! [`AdmittedValues`] also decides whether any number that begins with a prefix is admitted, regardless of
//! how many digits follow. All comparisons are of exact decimals.

use std::sync::Arc;

use super::decimal::{Decimal, Magnitude};
use super::distribution::Interval;
use super::schema::{Multiples, NumberBound, NumberSet, SchemaNumbers};
use super::state::{Extent, TextState};
use super::value::NumberValue;

/// Which values count; the mass of all others is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum NumberValues {
    #[default]
    All,
    /// Both ends included.
    Range(Interval),
    Scale(Scale),
}

impl NumberValues {
    /// The smallest interval that contains them; `None` without bounds.
    pub fn interval(&self) -> Option<Interval> {
        match self {
            Self::All => None,
            Self::Range(range) => Some(*range),
            Self::Scale(scale) => Some(scale.interval()),
        }
    }

    fn contains(&self, value: f64) -> bool {
        match self {
            Self::All => true,
            Self::Range(Interval { low, high }) => (*low..=*high).contains(&value),
            Self::Scale(scale) => scale.has(value),
        }
    }
}

/// The values of a rating: `low`, `low + step` and so on to `high`. They are stored as integers, in units of
/// a power of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scale {
    low: i128,
    high: i128,
    step: i128,
    /// Digits after the point; 10 to the power of it is the number of units in 1.
    decimals: u8,
}

/// Why there is no such scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    #[error(
        "its ends and step must be at most 1e12 and have at most {} digits after the point",
        Scale::DECIMALS_MAX
    )]
    TooFine,
    #[error("its step must be above 0")]
    NoStep,
    #[error("its first value must not be above its last one")]
    Reversed,
    #[error("its last value must be its first one plus a whole number of steps")]
    NotAStep,
    #[error("it has {0} values; at most {max}", max = Scale::VALUES_MAX)]
    TooMany(u128),
}

impl Scale {
    pub const DECIMALS_MAX: u8 = 6;
    pub const VALUES_MAX: u128 = 1000;

    pub fn new(low: f64, high: f64, step: f64) -> Result<Self, ScaleError> {
        let [low, high, step] = [low, high, step].map(|value| match value.abs() {
            0.0..=1e12 => Decimal::shortest_f64(value).map(Decimal::canonical),
            _ => None,
        });
        let (Some(low), Some(high), Some(step)) = (low, high, step) else { return Err(ScaleError::TooFine) };
        let decimals = low.decimals().max(high.decimals()).max(step.decimals());
        if decimals > Self::DECIMALS_MAX {
            return Err(ScaleError::TooFine);
        }
        let [low, high, step] = [low, high, step].map(|value| value.units_ceil(decimals));
        let scale = Self { low, high, step, decimals };
        if scale.step <= 0 {
            return Err(ScaleError::NoStep);
        }
        if scale.low > scale.high {
            return Err(ScaleError::Reversed);
        }
        if (scale.high - scale.low) % scale.step != 0 {
            return Err(ScaleError::NotAStep);
        }
        match scale.count() {
            0..=Self::VALUES_MAX => Ok(scale),
            count => Err(ScaleError::TooMany(count)),
        }
    }

    /// Number of values.
    pub fn count(&self) -> u128 {
        ((self.high - self.low) / self.step).unsigned_abs() + 1
    }

    /// Digits after the point that all values can be written with.
    pub fn decimals(&self) -> u8 {
        self.decimals
    }

    pub fn interval(&self) -> Interval {
        Interval { low: self.value(self.low), high: self.value(self.high) }
    }

    /// The smallest value that is not below `value`.
    pub fn at_least(&self, value: f64) -> Option<f64> {
        self.values().find(|&own| own >= value)
    }

    /// The largest value that is not above `value`.
    pub fn at_most(&self, value: f64) -> Option<f64> {
        self.values().take_while(|&own| own <= value).last()
    }

    /// The values, ascending.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        let units = std::iter::successors(Some(self.low), |units| Some(units + self.step));
        units.take_while(|&units| units <= self.high).map(|units| self.value(units))
    }

    fn value(&self, units: i128) -> f64 {
        Decimal::of_units(units, self.decimals).to_f64()
    }

    /// Returns whether a number that is not a [`Decimal`] is one of them.
    fn has(&self, value: f64) -> bool {
        let units = (value * 10_f64.powi(self.decimals.into())).round() as i128;
        (self.low..=self.high).contains(&units)
            && (units - self.low) % self.step == 0
            && self.value(units).total_cmp(&value).is_eq()
    }

    /// Returns whether a canonical value is one of them.
    fn contains(&self, value: Decimal) -> bool {
        let units = value.units_ceil(self.decimals);
        value.decimals() <= self.decimals
            && (self.low..=self.high).contains(&units)
            && (units - self.low) % self.step == 0
    }

    /// Returns whether one of the values has this sign and a magnitude from `low` up to, not including,
    /// `end`.
    fn has_any(&self, negative: bool, low: Magnitude, end: Magnitude) -> bool {
        let largest = self.low.abs().max(self.high.abs());
        let near = low.units_ceil(self.decimals).min(largest + 1);
        let far = end.units_ceil(self.decimals).min(largest + 1) - 1;
        if near > far {
            return false;
        }
        let (low, high) = if negative { (-far, -near) } else { (near, far) };
        let steps = (low - self.low).max(0) + self.step - 1;
        self.low + steps / self.step * self.step <= high.min(self.high)
    }
}

/// The admitted magnitudes of one sign, both ends included.
#[derive(Debug, Clone, Copy, PartialEq)]
struct SignRange {
    low: Magnitude,
    high: Magnitude,
}

/// The admitted numbers among those in a range.
#[derive(Debug, Clone, PartialEq)]
enum Among {
    All,
    Scale(Scale),
    Multiples(Multiples),
    Listed(Arc<[Decimal]>),
}

/// The numbers that at least one of several sets contains.
#[derive(Debug, Clone)]
pub(super) struct AdmittedValues {
    sets: Arc<[AdmittedSet]>,
    /// The same numbers, for dedicated number tokens, whose values may not be decimals. A schema is about
    /// numbers in text.
    values: NumberValues,
}

#[derive(Debug, Clone)]
struct AdmittedSet {
    /// `None` if no number without a minus is admitted.
    positive: Option<SignRange>,
    /// `None` if no number with a minus is admitted; -0 is 0.
    negative: Option<SignRange>,
    among: Among,
}

impl AdmittedValues {
    pub(super) fn new(values: NumberValues) -> Self {
        let set = match values {
            NumberValues::All => AdmittedSet::between(None, None, Among::All),
            NumberValues::Range(range) => AdmittedSet::within(range, Among::All),
            NumberValues::Scale(scale) => AdmittedSet::within(scale.interval(), Among::Scale(scale)),
        };
        Self { sets: Arc::new([set]), values }
    }

    pub(super) fn of_schema(numbers: &SchemaNumbers) -> Self {
        let sets = numbers.alternatives().iter().map(AdmittedSet::of).collect();
        Self { sets, values: NumberValues::All }
    }

    /// Returns whether a canonical value is admitted.
    pub(super) fn contains(&self, value: NumberValue) -> bool {
        match value {
            NumberValue::Decimal(value) => self.sets.iter().any(|set| set.contains(value)),
            NumberValue::Scaled(value) => self.values.contains(value.to_f64()),
            // Its mass is counted separately, and is never that of a number.
            NumberValue::Special(_) => true,
        }
    }

    /// Returns whether an admitted number begins with this prefix or equals it.
    pub(super) fn are_reached_from(&self, state: TextState) -> bool {
        self.sets.iter().any(|set| set.is_reached_from(state))
    }

    /// Returns whether an interval holds an admitted value of dedicated number tokens.
    pub(super) fn reach_any(&self, interval: Interval) -> bool {
        match self.values {
            NumberValues::All => true,
            NumberValues::Range(range) => interval.low <= range.high && interval.high >= range.low,
            NumberValues::Scale(scale) => {
                scale.at_least(interval.low).is_some_and(|value| value <= interval.high)
            }
        }
    }

    /// Returns whether all values of dedicated number tokens in an interval are admitted.
    pub(super) fn contain_all(&self, interval: Interval) -> bool {
        match self.values {
            NumberValues::All => true,
            NumberValues::Range(range) => range.low <= interval.low && interval.high <= range.high,
            NumberValues::Scale(_) => false,
        }
    }

    /// Returns the part of an interval that dedicated number tokens may reach, if they reach any of it.
    pub(super) fn within(&self, interval: Interval) -> Interval {
        let Some(range) = self.values.interval() else { return interval };
        Interval { low: interval.low.max(range.low), high: interval.high.min(range.high) }
    }
}

impl SignRange {
    fn of_f64(low: f64, high: f64) -> Self {
        Self { low: Magnitude::of_f64(low.max(0.0)), high: Magnitude::of_f64(high) }
    }

    fn between(low: Magnitude, high: Option<Magnitude>) -> Option<Self> {
        let high = high?;
        (low <= high).then_some(Self { low, high })
    }
}

/// The smallest magnitude that a bound towards 0 admits on the bound's own side of 0.
fn nearest_magnitude(bound: Option<NumberBound>, is_reached: fn(Decimal) -> bool) -> Magnitude {
    match bound {
        Some(NumberBound { value, is_exclusive }) if is_reached(value) => {
            let magnitude = value.magnitude();
            if is_exclusive { magnitude.next() } else { magnitude }
        }
        _ => Magnitude::ZERO,
    }
}

/// The largest magnitude that a bound away from 0 admits; `None` if it admits none on this side of 0.
fn farthest_magnitude(bound: Option<NumberBound>, is_passed: fn(Decimal) -> bool) -> Option<Magnitude> {
    match bound {
        None => Some(Magnitude::ABOVE_ALL),
        Some(NumberBound { value, .. }) if is_passed(value) => None,
        Some(NumberBound { value, is_exclusive: false }) => Some(value.magnitude()),
        Some(NumberBound { value, is_exclusive: true }) => value.magnitude().previous(),
    }
}

impl AdmittedSet {
    fn of(set: &NumberSet) -> Self {
        match set {
            NumberSet::Listed(listed) => Self::between(None, None, Among::Listed(listed.as_slice().into())),
            NumberSet::Bounded { low, high, multiples } => {
                Self::between(*low, *high, multiples.map_or(Among::All, Among::Multiples))
            }
        }
    }

    fn within(Interval { low, high }: Interval, among: Among) -> Self {
        Self {
            positive: (high >= 0.0).then(|| SignRange::of_f64(low, high)),
            negative: (low <= 0.0).then(|| SignRange::of_f64(-high, -low)),
            among,
        }
    }

    /// The numbers between canonical bounds.
    fn between(low: Option<NumberBound>, high: Option<NumberBound>, among: Among) -> Self {
        let positive = SignRange::between(
            nearest_magnitude(low, |value| value >= Decimal::ZERO),
            farthest_magnitude(high, |value| value < Decimal::ZERO),
        );
        let negative = SignRange::between(
            nearest_magnitude(high, |value| value <= Decimal::ZERO),
            farthest_magnitude(low, |value| value > Decimal::ZERO),
        );
        Self { positive, negative, among }
    }

    fn of_sign(&self, negative: bool) -> Option<SignRange> {
        if negative { self.negative } else { self.positive }
    }

    fn contains(&self, value: Decimal) -> bool {
        let magnitude = value.magnitude();
        let range = self.of_sign(value.is_negative());
        range.is_some_and(|range| (range.low..=range.high).contains(&magnitude)) && self.among.contains(value)
    }

    fn is_reached_from(&self, state: TextState) -> bool {
        let negative = state.is_negative();
        match state.extent() {
            Extent::AnySign => true,
            Extent::Any => self.reach(negative, Magnitude::ZERO, Magnitude::ABOVE_ALL),
            Extent::Fixed { low, end } => self.reach(negative, low, end),
            Extent::Growing { integer } => {
                let Some(range) = self.of_sign(negative) else { return false };
                let powers = std::iter::successors(Some(1_u128), |power| Some(power * 10));
                let spans = powers.map(|power| (integer * power, (integer + 1) * power));
                spans
                    .map(|(low, end)| (Magnitude::of_integer(low), Magnitude::of_integer(end)))
                    .take_while(|&(low, _)| low <= range.high)
                    .any(|(low, end)| self.reach(negative, low, end))
            }
        }
    }

    /// Returns whether magnitudes from `low` up to, not including, `end` hold an admitted value.
    fn reach(&self, negative: bool, low: Magnitude, end: Magnitude) -> bool {
        let Some(range) = self.of_sign(negative) else { return false };
        low <= range.high && end > range.low && self.among.has_any(range, negative, low, end)
    }
}

impl Among {
    fn contains(&self, value: Decimal) -> bool {
        match self {
            Self::All => true,
            Self::Scale(scale) => scale.contains(value),
            Self::Multiples(multiples) => multiples.contains(value),
            Self::Listed(values) => values.contains(&value),
        }
    }

    /// Returns whether one of the numbers in the range has a magnitude from `low` up to, not including,
    /// `end`.
    fn has_any(&self, range: SignRange, negative: bool, low: Magnitude, end: Magnitude) -> bool {
        match self {
            Self::All => true,
            Self::Scale(scale) => scale.has_any(negative, low, end),
            Self::Multiples(multiples) => {
                let first = multiples.at_least(low.max(range.low));
                first < end && first <= range.high
            }
            Self::Listed(values) => values.iter().any(|value| {
                let magnitude = value.magnitude();
                // -0 is 0.
                let has_sign = value.is_negative() == negative || magnitude == Magnitude::ZERO;
                has_sign && (low..end).contains(&magnitude)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::piece::NumberPiece;
    use super::super::state::{GrammarLimits, PieceEffect};
    use super::*;

    fn range(low: f64, high: f64) -> NumberValues {
        NumberValues::Range(Interval { low, high })
    }

    fn scale(low: f64, high: f64, step: f64) -> NumberValues {
        NumberValues::Scale(Scale::new(low, high, step).unwrap())
    }

    fn all_values() -> Vec<NumberValues> {
        vec![
            NumberValues::All,
            range(1.0, 5.0),
            range(-2.5, 0.75),
            range(0.0, 0.0),
            range(12.0, 13.5),
            range(-30.0, -21.0),
            range(7.25, 7.25),
            range(1e300, 1e301),
            range(-1e300, -1e299),
            scale(1.0, 5.0, 1.0),
            scale(1.0, 10.0, 0.5),
            scale(0.0, 30.0, 10.0),
            scale(-2.0, 2.0, 1.0),
            scale(0.05, 0.25, 0.1),
            scale(-3.5, -1.5, 0.25),
            scale(12.0, 12.0, 1.0),
        ]
    }

    /// By the definition, and in floating point: the texts are short.
    fn admits(values: NumberValues, value: f64) -> bool {
        let Some(Interval { low, high }) = values.interval() else { return true };
        let is_on_scale = match values {
            NumberValues::Scale(scale) => scale.values().any(|own| (own - value).abs() < 1e-9),
            NumberValues::All | NumberValues::Range(_) => true,
        };
        (low..=high).contains(&value) && is_on_scale
    }

    /// Texts of up to two digits before the point and two after it, with and without a minus.
    fn numbers() -> Vec<String> {
        let wholes = ["", "0"].into_iter().flat_map(|zero| (0..100).map(move |n| format!("{zero}{n}")));
        let wholes: Vec<String> = wholes.collect();
        let parts: Vec<String> = std::iter::once(String::new())
            .chain((0..10).map(|n| format!(".{n}")))
            .chain((0..100).map(|n| format!(".{n:02}")))
            .collect();
        let positive = wholes.iter().flat_map(|whole| parts.iter().map(move |part| format!("{whole}{part}")));
        let positive: Vec<String> = positive.collect();
        let negative = positive.iter().map(|text| format!("-{text}"));
        negative.chain(positive.iter().cloned()).collect()
    }

    fn state(text: &str) -> TextState {
        match TextState::START.read(text, GrammarLimits::default()) {
            PieceEffect::Continues(state) => state,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn the_definition_determines_whether_a_value_is_admitted() {
        for values in all_values() {
            let admitted = AdmittedValues::new(values);
            for text in numbers() {
                let value = state(&text).value().unwrap();
                assert_eq!(
                    admitted.contains(value.into()),
                    admits(values, text.parse().unwrap()),
                    "{text}: {values:?}"
                );
            }
        }
    }

    #[test]
    fn a_prefix_of_an_admitted_number_is_never_pruned() {
        let mut prefixes = 0;
        for values in all_values() {
            let admitted = AdmittedValues::new(values);
            let admitted_texts = numbers().into_iter().filter(|text| admits(values, text.parse().unwrap()));
            for text in admitted_texts {
                for end in 0..=text.len() {
                    assert!(admitted.are_reached_from(state(&text[..end])), "{:?} {values:?}", &text[..end]);
                    prefixes += 1;
                }
            }
        }
        assert!(prefixes > 100_000, "{prefixes}");
    }

    #[test]
    fn a_prefix_of_numbers_that_are_all_not_admitted_is_pruned() {
        for (values, reached, pruned) in [
            (
                scale(1.0, 5.0, 1.0),
                &["", " ", "0", "00", "5", "5.", "5.0", "05"][..],
                &["6", "10", "45", "4.3", "0.", "-", "5.01"][..],
            ),
            (scale(1.0, 10.0, 0.5), &["1", "10", "1.5", "9.50"], &["11", "100", "10.5", "1.25", "1.3", "-1"]),
            (scale(10.0, 50.0, 20.0), &["1", "10", "3", "5"], &["2", "4", "100", "11", "1.", "10.5"]),
            (scale(-5.0, -1.0, 1.0), &["-", "-1", "-0"], &["1", "5", "0", "-6", "-10"]),
            (range(1.0, 5.0), &["1", "4.99", "5.000", "0"], &["6", "5.1", "0.", "12", "-"]),
            (range(120.0, 130.0), &["1", "12", "13", "130."], &["14", "2", "131", "1.", "12.", "130.5"]),
            (range(0.0, 1.0), &["-", "-0", "-0.0", "1", "1.0"], &["-1", "-0.5", "-0.01", "1.1", "2"]),
            (range(2.0, 3.0), &["2", "3"], &["1.", "1.9"]),
        ] {
            let admitted = AdmittedValues::new(values);
            for text in reached {
                assert!(admitted.are_reached_from(state(text)), "{text:?} {values:?}");
            }
            for text in pruned {
                assert!(!admitted.are_reached_from(state(text)), "{text:?} {values:?}");
            }
        }
    }

    #[test]
    fn digits_at_powers_of_ten_are_pruned_by_what_can_follow_them() {
        let read = |places: &[(u8, i8)]| {
            places.iter().fold(TextState::START, |state, &(digit, place)| {
                match state.read_piece(&NumberPiece::Place { digit, place }, GrammarLimits::default()) {
                    Some(PieceEffect::Continues(next)) => next,
                    other => panic!("{other:?}"),
                }
            })
        };
        let admitted = AdmittedValues::new(scale(1.0, 10.0, 0.5));
        for (places, want) in [
            (&[(1, 1)][..], true),
            (&[(1, 1), (0, 0)], true),
            (&[(1, 1), (1, 0)], false),
            (&[(2, 1)], false),
            (&[(0, 2)], true),
            (&[(1, 2)], false),
            (&[(7, 0)], true),
            (&[(7, 0), (5, -1)], true),
            (&[(7, 0), (4, -1)], false),
            (&[(0, 0)], false),
        ] {
            assert_eq!(admitted.are_reached_from(read(places)), want, "{places:?}");
        }
    }

    #[test]
    fn a_scale_is_a_whole_number_of_steps_and_at_most_a_thousand_values() {
        let values =
            |low, high, step| Scale::new(low, high, step).map(|scale| scale.values().collect::<Vec<_>>());
        assert_eq!(values(1.0, 5.0, 1.0), Ok(vec![1.0, 2.0, 3.0, 4.0, 5.0]));
        assert_eq!(values(-0.2, 0.1, 0.1), Ok(vec![-0.2, -0.1, 0.0, 0.1]));
        assert_eq!(values(3.0, 3.0, 1.0), Ok(vec![3.0]));
        for (low, high, step, error) in [
            (1.0, 5.0, 0.0, ScaleError::NoStep),
            (1.0, 5.0, -1.0, ScaleError::NoStep),
            (5.0, 1.0, 1.0, ScaleError::Reversed),
            (1.0, 5.5, 1.0, ScaleError::NotAStep),
            (1.0, 1001.0, 1.0, ScaleError::TooMany(1001)),
            (1.0, 2.0, 1e-7, ScaleError::TooFine),
            (f64::NAN, 2.0, 1.0, ScaleError::TooFine),
            (1.0, f64::INFINITY, 1.0, ScaleError::TooFine),
            (1.0, 1e13, 1e12, ScaleError::TooFine),
        ] {
            assert_eq!(values(low, high, step), Err(error));
        }
        let scale = Scale::new(1.0, 10.0, 0.5).unwrap();
        assert_eq!((scale.at_least(2.1), scale.at_most(2.1)), (Some(2.5), Some(2.0)));
        assert_eq!((scale.at_least(10.1), scale.at_most(0.9)), (None, None));
    }
}
