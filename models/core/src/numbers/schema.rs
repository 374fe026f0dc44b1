//! The numbers that a JSON schema admits at one place of a text, and the nearest of them to an estimate.
//!
//! All comparisons are of exact decimals. A schema may have alternatives (`anyOf`); a number is admitted if
//! any of them admits it.

use super::decimal::{Decimal, Magnitude};
use super::distribution::Interval;

/// Maximum number of digits after the point of `multipleOf`.
const STEP_DECIMALS_MAX: u8 = 10;

/// Maximum number of digits after the point for which all numbers have fewer units than an `i128`.
const DECIMALS_MAX: u8 = 18;

/// Maximum number of numbers by which an alternative is distinguished from the others.
const PROBES_MAX: usize = 24;

/// The largest `f64` below 1e20.
const LARGEST: f64 = 99_999_999_999_999_983_616.0;

/// The numbers of at least one alternative.
#[derive(Debug, Clone, PartialEq)]
pub struct SchemaNumbers {
    alternatives: Vec<NumberSet>,
}

/// The numbers that one alternative of a schema admits.
#[derive(Debug, Clone, PartialEq)]
pub enum NumberSet {
    /// `enum` and `const`.
    Listed(Vec<Decimal>),
    /// All others.
    Bounded { low: Option<NumberBound>, high: Option<NumberBound>, multiples: Option<Multiples> },
}

/// The smallest or largest number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberBound {
    pub value: Decimal,
    /// Whether the bound itself is not admitted.
    pub is_exclusive: bool,
}

/// The multiples of a number, in units of a power of ten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multiples {
    pub(super) units: i128,
    /// 10 to the power of it is the number of units in 1.
    pub(super) decimals: u8,
}

/// An admitted number with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct AdmittedNumber {
    pub value: f64,
    pub text: String,
}

impl Multiples {
    /// Returns the numbers that are multiples of all `steps`, which are canonical and not negative. Returns
    /// `None` for a step of 0, more than 10 digits after the point, and common multiples of 1e20 or more.
    pub fn common(steps: &[Decimal]) -> Option<Self> {
        let decimals = steps.iter().map(|step| step.decimals()).max()?;
        if decimals > STEP_DECIMALS_MAX {
            return None;
        }
        let units_max = 10_i128.pow(20 + u32::from(decimals));
        let units = steps.iter().map(|step| step.units_ceil(decimals)).try_fold(1, |all, units| {
            let common = all / greatest_common_divisor(all, units).max(1);
            common.checked_mul(units).filter(|units| (1..units_max).contains(units))
        })?;
        Some(Self { units, decimals })
    }

    /// The smallest multiple that is not below a magnitude.
    pub(super) fn at_least(self, low: Magnitude) -> Magnitude {
        let count = -(-low.units_ceil(self.decimals)).div_euclid(self.units);
        Decimal::of_units(count * self.units, self.decimals).magnitude()
    }

    pub(super) fn contains(self, value: Decimal) -> bool {
        value.decimals() <= self.decimals && value.units_ceil(self.decimals) % self.units == 0
    }

    /// Returns the multiple nearest to `value` within the bounds, or `None` if the bounds have none.
    fn nearest(self, value: f64, low: Option<NumberBound>, high: Option<NumberBound>) -> Option<Decimal> {
        let first = low.map(|bound| {
            let count = -(-bound.value.units_ceil(self.decimals)).div_euclid(self.units);
            count + i128::from(self.is_excluded(bound, count))
        });
        let last = high.map(|bound| {
            let count = bound.value.units_floor(self.decimals).div_euclid(self.units);
            count - i128::from(self.is_excluded(bound, count))
        });
        let step = Decimal::of_units(self.units, self.decimals).to_f64();
        let count = (value / step).round() as i128;
        let count = count.max(first.unwrap_or(i128::MIN)).min(last.unwrap_or(i128::MAX));
        if first.is_some_and(|first| count < first) {
            return None;
        }
        self.times(count).map(Decimal::canonical)
    }

    /// `None` if the product is too large.
    fn times(self, count: i128) -> Option<Decimal> {
        Some(Decimal::of_units(count.checked_mul(self.units)?, self.decimals))
    }

    fn is_excluded(self, bound: NumberBound, count: i128) -> bool {
        bound.is_exclusive && self.times(count).map(Decimal::canonical) == Some(bound.value)
    }
}

/// Euclid's algorithm.
fn greatest_common_divisor(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl NumberSet {
    /// Returns the admitted number nearest to `value`. A number that is not listed and not a multiple has at
    /// most `decimals` digits after the point, or the fewest that an admitted number has.
    fn nearest(&self, value: f64, decimals: u8) -> Option<AdmittedNumber> {
        match self {
            Self::Listed(listed) => {
                let nearest = listed.iter().min_by(|a, b| {
                    let [a, b] = [a, b].map(|listed| (listed.to_f64() - value).abs());
                    a.total_cmp(&b)
                })?;
                Some(AdmittedNumber::plain(*nearest))
            }
            Self::Bounded { low, high, multiples: Some(multiples) } => {
                multiples.nearest(value, *low, *high).map(AdmittedNumber::plain)
            }
            Self::Bounded { low, high, multiples: None } => {
                let value = value.clamp(-LARGEST, LARGEST);
                for decimals in decimals..=DECIMALS_MAX {
                    let rounded = format!("{value:.width$}", width = usize::from(decimals));
                    let rounded = Decimal::parse(&rounded).map(Decimal::canonical);
                    if let Some(number) = rounded
                        && self.contains(number)
                    {
                        return Some(AdmittedNumber::plain(number));
                    }
                    let shortest = Multiples { units: 1, decimals };
                    if let Some(number) = shortest.nearest(value, *low, *high) {
                        return Some(AdmittedNumber::plain(number));
                    }
                }
                let ends = [low, high].into_iter().flatten().map(|bound| bound.value);
                let mut others = Decimal::shortest_f64(value).map(Decimal::canonical).into_iter().chain(ends);
                others.find(|&number| self.contains(number)).map(AdmittedNumber::plain)
            }
        }
    }

    /// Returns whether a canonical number is admitted.
    pub fn contains(&self, value: Decimal) -> bool {
        match self {
            Self::Listed(listed) => listed.contains(&value),
            Self::Bounded { low, high, multiples } => {
                low.is_none_or(|low| low.value < value || !low.is_exclusive && low.value <= value)
                    && high.is_none_or(|high| value < high.value || !high.is_exclusive && value <= high.value)
                    && multiples.is_none_or(|multiples| multiples.contains(value))
            }
        }
    }

    /// Numbers of the set that distinguish it from the others: its ends, and numbers next to the ends of all
    /// sets.
    fn probes(&self, all: &[Self]) -> Vec<AdmittedNumber> {
        if let Self::Listed(listed) = self {
            return listed.iter().take(PROBES_MAX).map(|&number| AdmittedNumber::plain(number)).collect();
        }
        let (mut ends, mut finest) = (self.ends(), 1.0_f64);
        for other in all {
            ends.extend(other.ends());
            finest = finest.min(other.step());
        }
        ends.push(0.0);
        let mut probes = Vec::new();
        for end in ends {
            // The last two are not multiples of any other step.
            for difference in [0.0, -self.step(), self.step(), -0.3 * finest, 0.3 * finest] {
                if probes.len() == PROBES_MAX {
                    return probes;
                }
                let Some(probe) = self.nearest(end + difference, STEP_DECIMALS_MAX) else { continue };
                if !probes.contains(&probe) {
                    probes.push(probe);
                }
            }
        }
        probes
    }

    /// The distance of multiples, or 1 without them.
    fn step(&self) -> f64 {
        match self {
            Self::Bounded { multiples: Some(step), .. } => {
                Decimal::of_units(step.units, step.decimals).to_f64()
            }
            Self::Bounded { .. } | Self::Listed(_) => 1.0,
        }
    }

    /// The bounds, or the smallest and the largest number of a list.
    fn ends(&self) -> Vec<f64> {
        match self {
            Self::Listed(listed) => {
                let Interval { low, high } = Interval::around(listed.iter().map(|listed| listed.to_f64()));
                vec![low, high]
            }
            Self::Bounded { low, high, .. } => {
                [low, high].into_iter().flatten().map(|bound| bound.value.to_f64()).collect()
            }
        }
    }

    /// The smallest interval that contains its numbers, if they have both bounds.
    fn interval(&self) -> Option<Interval> {
        match self {
            Self::Listed(listed) => Some(Interval::around(listed.iter().map(|listed| listed.to_f64()))),
            Self::Bounded { low, high, multiples } => {
                let [low, high] = [(*low)?, (*high)?];
                let (mut first, mut last) = (low.value, high.value);
                if let Some(multiples) = multiples {
                    first = multiples.nearest(-LARGEST, Some(low), Some(high)).unwrap_or(first);
                    last = multiples.nearest(LARGEST, Some(low), Some(high)).unwrap_or(last);
                }
                Some(Interval { low: first.to_f64(), high: last.to_f64() })
            }
        }
    }
}

impl AdmittedNumber {
    fn plain(value: Decimal) -> Self {
        Self { value: value.to_f64(), text: value.to_string() }
    }
}

impl SchemaNumbers {
    /// Returns `None` without alternatives.
    pub fn new(alternatives: Vec<NumberSet>) -> Option<Self> {
        (!alternatives.is_empty()).then_some(Self { alternatives })
    }

    /// Returns the alternatives whose numbers `admits` admits, or `None` if these are all or none. It is
    /// called with numbers of each alternative that the others may not have.
    pub fn narrowed(&self, mut admits: impl FnMut(&str) -> bool) -> Option<Self> {
        let mut different: Vec<&NumberSet> = Vec::new();
        for set in &self.alternatives {
            if !different.contains(&set) {
                different.push(set);
            }
        }
        if different.len() < 2 {
            return None;
        }
        let mut admitted = Vec::new();
        for set in &different {
            if set.probes(&self.alternatives).iter().all(|probe| admits(&probe.text)) {
                admitted.push((*set).clone());
            }
        }
        if admitted.len() == different.len() { None } else { Self::new(admitted) }
    }

    pub(super) fn alternatives(&self) -> &[NumberSet] {
        &self.alternatives
    }

    /// Returns the admitted number nearest to `value`. A number that is not listed and not a multiple has at
    /// most `decimals` digits after the point, unless only a longer one is admitted. Ties go to the first
    /// alternative. Returns `None` if the bounds of all alternatives exclude each other.
    pub fn nearest(&self, value: f64, decimals: u8) -> Option<AdmittedNumber> {
        let mut nearest = None;
        let mut distance = f64::INFINITY;
        for set in &self.alternatives {
            let Some(number) = set.nearest(value, decimals) else { continue };
            let number_distance = (number.value - value).abs();
            if nearest.is_none() || number_distance < distance {
                (nearest, distance) = (Some(number), number_distance);
            }
        }
        nearest
    }

    /// The smallest interval that contains all admitted numbers; `None` without both bounds.
    pub fn interval(&self) -> Option<Interval> {
        let all: Option<Vec<Interval>> = self.alternatives.iter().map(NumberSet::interval).collect();
        Some(Interval::around(all?.into_iter().flat_map(|Interval { low, high }| [low, high])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(value: f64) -> Decimal {
        Decimal::shortest_f64(value).unwrap().canonical()
    }

    fn bound(value: f64) -> Option<NumberBound> {
        Some(NumberBound { value: decimal(value), is_exclusive: false })
    }

    fn beyond(value: f64) -> Option<NumberBound> {
        Some(NumberBound { value: decimal(value), is_exclusive: true })
    }

    fn bounded(low: Option<NumberBound>, high: Option<NumberBound>, steps: &[f64]) -> NumberSet {
        let steps: Vec<Decimal> = steps.iter().map(|&step| decimal(step)).collect();
        NumberSet::Bounded { low, high, multiples: Multiples::common(&steps) }
    }

    #[test]
    fn an_estimate_becomes_the_nearest_admitted_number() {
        for (set, value, want) in [
            (bounded(None, None, &[1.0]), 41.6, Some("42")),
            (bounded(None, None, &[1.0]), -0.4, Some("0")),
            (bounded(None, bound(40.0), &[1.0]), 41.6, Some("40")),
            (bounded(None, beyond(40.0), &[1.0]), 41.6, Some("39")),
            (bounded(bound(-2.5), None, &[1.0]), -7.0, Some("-2")),
            (bounded(beyond(-2.0), None, &[1.0]), -7.0, Some("-1")),
            (bounded(None, bound(-2.5), &[1.0]), 7.0, Some("-3")),
            (bounded(bound(0.2), bound(0.8), &[1.0]), 0.5, None),
            (bounded(None, None, &[0.05]), 1.23, Some("1.25")),
            (bounded(None, None, &[0.1]), 0.3, Some("0.3")),
            (bounded(None, None, &[4.0, 6.0]), 17.0, Some("12")),
            (bounded(None, None, &[1.0, 0.75]), 4.0, Some("3")),
            (bounded(bound(10.0), bound(50.0), &[20.0]), 1.0, Some("20")),
            (bounded(None, None, &[]), 1.0 / 3.0, Some("0.333333")),
            (bounded(None, None, &[]), -1e-9, Some("0")),
            (bounded(None, None, &[]), 42.0, Some("42")),
            (bounded(bound(0.5), bound(2.0), &[]), 0.1, Some("0.5")),
            (bounded(bound(0.5), bound(2.0), &[]), 9.0, Some("2")),
            (bounded(beyond(0.0), None, &[]), 1e-9, Some("0.000001")),
            (bounded(beyond(0.0), bound(5e-7), &[]), 2e-7, Some("0.0000002")),
            (bounded(bound(1.0 / 3.0), None, &[]), 1.0 / 3.0, Some("0.333334")),
            (bounded(beyond(0.0), None, &[]), -3.0, Some("0.000001")),
            (bounded(bound(2e-20), bound(2e-20), &[]), 0.5, Some("0.00000000000000000002")),
            (bounded(bound(3.0), bound(2.0), &[]), 2.4, None),
        ] {
            let got = SchemaNumbers::new(vec![set.clone()]).unwrap().nearest(value, 6);
            assert_eq!(got.as_ref().map(|got| got.text.as_str()), want, "{set:?} {value}");
            assert!(got.is_none_or(|got| got.text.parse() == Ok(got.value)));
        }
    }

    #[test]
    fn a_number_has_more_decimals_than_requested_only_if_no_shorter_one_is_admitted() {
        for (set, value, want) in [
            (bounded(beyond(0.0), bound(1.0), &[]), 0.336293887283484, "1"),
            (bounded(bound(0.5), bound(0.9), &[]), 0.5352635984631243, "0.5"),
            (bounded(bound(0.55), bound(0.59), &[]), 0.5512, "0.55"),
            (bounded(beyond(3.0), beyond(3.1), &[]), 3.0, "3.01"),
            (bounded(beyond(-1.0), beyond(0.0), &[]), -0.5, "-0.5"),
            (bounded(bound(-0.4), bound(7.5), &[]), 9.0, "7"),
            (bounded(bound(-0.4), bound(7.5), &[]), -9.0, "0"),
        ] {
            let number = SchemaNumbers::new(vec![set.clone()]).unwrap().nearest(value, 0).unwrap();
            assert_eq!(number.text, want, "{set:?} {value}");
        }
    }

    #[test]
    fn the_nearest_number_of_all_alternatives_is_written() {
        let list = NumberSet::Listed([1.0, 2.5, -3.0].map(decimal).to_vec());
        let numbers = SchemaNumbers::new(vec![list, bounded(bound(100.0), None, &[1.0])]).unwrap();
        for (value, want) in [(1.4, "1"), (50.0, "2.5"), (52.0, "100"), (-9.0, "-3"), (130.2, "130")] {
            assert_eq!(numbers.nearest(value, 6).unwrap().text, want, "{value}");
        }
        assert_eq!(numbers.interval(), None);
        let both = SchemaNumbers::new(vec![
            bounded(bound(0.0), bound(5.0), &[]),
            bounded(bound(-2.0), bound(3.0), &[1.0]),
        ]);
        assert_eq!(both.unwrap().interval(), Some(Interval { low: -2.0, high: 5.0 }));
        assert_eq!(SchemaNumbers::new(Vec::new()), None);
    }

    #[test]
    fn alternatives_with_a_number_that_is_not_admitted_are_removed() {
        let integers = |low: f64, high: f64| bounded(bound(low), bound(high), &[1.0]);
        let reals = |low: f64, high: f64| bounded(bound(low), bound(high), &[]);
        let list = |values: &[f64]| NumberSet::Listed(values.iter().copied().map(decimal).collect());
        let sets = [
            integers(0.0, 9.0),
            integers(1000.0, 2000.0),
            integers(2.0, 99.0),
            reals(0.0, 9.0),
            reals(-5.0, 3.0),
            list(&[5.0]),
            list(&[1.0, 50.0, 99.0]),
            bounded(bound(0.0), None, &[]),
            bounded(None, None, &[0.5]),
        ];
        let grid = || (-300..30_000).map(|tenths| Decimal::of_units(tenths, 1).canonical());
        let mut removed = 0;
        for first in &sets {
            for second in &sets {
                let admits = |text: &str| first.contains(Decimal::parse(text).unwrap().canonical());
                let is_within = grid().all(|number| !second.contains(number) || first.contains(number));
                let both = SchemaNumbers::new(vec![second.clone(), first.clone()]).unwrap();
                let narrowed = both.narrowed(admits);
                assert_eq!(narrowed.is_none(), is_within, "{first:?} {second:?}");
                if let Some(narrowed) = narrowed {
                    assert_eq!(narrowed.alternatives(), std::slice::from_ref(first));
                    removed += 1;
                }
            }
        }
        assert!(removed > 40, "{removed}");
        let both = SchemaNumbers::new(sets[..2].to_vec()).unwrap();
        assert_eq!(both.narrowed(|_| false), None);
    }

    #[test]
    fn a_step_that_is_zero_or_too_fine_is_refused() {
        let common =
            |steps: &[f64]| Multiples::common(&steps.iter().map(|&step| decimal(step)).collect::<Vec<_>>());
        assert_eq!([common(&[]), common(&[0.0]), common(&[1e-11]), common(&[9e19, 7.0])], [None; 4]);
        assert_eq!(common(&[0.5, 0.75]), Some(Multiples { units: 150, decimals: 2 }));
    }
}
