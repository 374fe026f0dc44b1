//! The distribution of a number, and estimates of it.
//!
//! Estimates are conditional on the closed mass: they answer "if it is a number, which?". Invariant: values are
//! finite, sorted and distinct; estimates of an empty distribution are `None`, never NaN.

use std::collections::HashMap;

use super::decimal::Decimal;

/// A closed interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// One value, merged over all its spellings.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    pub value: f64,
    /// Its exact decimal text.
    pub text: String,
    /// Its probability, not divided by the closed mass.
    pub probability: f64,
}

/// The three parts of the probability, which add up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mass {
    /// On complete numbers.
    pub closed: f64,
    /// On texts that are not a number.
    pub invalid: f64,
    /// On prefixes that were not expanded, or lead beyond the digit limits.
    pub open: f64,
}

/// Which error the estimate minimises.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// Squared error: the trimmed mean.
    Mean,
    /// Absolute error.
    Median,
    /// Probability of being wrong.
    Mode,
    /// Pinball loss at this level.
    Quantile(f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimation {
    /// Share of the closed mass that the trimmed mean leaves out at each end, 0 to 0.49.
    pub trim: f64,
    /// Whether means are conditional on the closed mass; otherwise they are raw sums, in which texts that are not numbers
    /// count as 0.
    pub normalize: bool,
    /// The range of all numbers, if known; open mass lies in it, too.
    pub range: Option<Interval>,
}

impl Default for Estimation {
    fn default() -> Self {
        Self { trim: 0.005, normalize: true, range: None }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    leaves: Vec<Leaf>,
    mass: Mass,
}

impl Distribution {
    /// Merges `closed` (canonical values with their probabilities) by value.
    pub fn new(closed: &HashMap<Decimal, f64>, invalid: f64, open: f64) -> Self {
        let leaf = |(value, &probability): (&Decimal, &f64)| {
            let (value, text) = (value.to_f64(), value.to_string());
            Leaf { value, text, probability }
        };
        Self::merged(closed.iter().map(leaf).collect(), invalid, open)
    }

    fn merged(mut leaves: Vec<Leaf>, invalid: f64, open: f64) -> Self {
        // By probability within equal values, so that the merged leaf keeps the likeliest text.
        leaves.sort_by(|a, b| {
            let by_probability = b.probability.total_cmp(&a.probability);
            a.value.total_cmp(&b.value).then(by_probability).then_with(|| a.text.cmp(&b.text))
        });
        leaves.dedup_by(|later, kept| {
            let same = later.value.total_cmp(&kept.value).is_eq();
            kept.probability += if same { later.probability } else { 0.0 };
            same
        });
        let closed = leaves.iter().map(|leaf| leaf.probability).sum();
        Self { leaves, mass: Mass { closed, invalid, open } }
    }

    /// All values, ascending.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    pub fn mass(&self) -> Mass {
        self.mass
    }

    /// The average of several distributions and their masses. The average of none is all invalid.
    pub fn average(all: &[&Self]) -> Self {
        let share = 1.0 / all.len().max(1) as f64;
        let leaves = all.iter().flat_map(|one| &one.leaves);
        let leaves = leaves.map(|leaf| Leaf { probability: leaf.probability * share, ..leaf.clone() });
        let mass = |part: fn(&Mass) -> f64| all.iter().map(|one| part(&one.mass) * share).sum();
        let invalid = if all.is_empty() { 1.0 } else { mass(|mass| mass.invalid) };
        Self::merged(leaves.collect(), invalid, mass(|mass| mass.open))
    }

    /// The same distribution with its open mass on one value.
    pub(super) fn with_open_mass_at(&self, value: f64) -> Self {
        let mut leaves = self.leaves.clone();
        leaves.push(Leaf { value, text: String::new(), probability: self.mass.open });
        Self::merged(leaves, self.mass.invalid, 0.0)
    }

    pub fn estimate(&self, objective: Objective, estimation: &Estimation) -> Option<f64> {
        match objective {
            Objective::Mean => self.trimmed_mean(estimation),
            Objective::Median => self.quantile(0.5),
            Objective::Mode => self.mode(),
            Objective::Quantile(q) => self.quantile(q),
        }
    }

    /// The expectation, without trimming. 1e-6 of mass on an 8-digit number moves it by 100.
    pub fn mean(&self, estimation: &Estimation) -> Option<f64> {
        self.trimmed_mean(&Estimation { trim: 0.0, ..*estimation })
    }

    /// Population standard deviation over all closed numbers.
    pub fn std(&self) -> Option<f64> {
        let mean = self.mean(&Estimation::default())?;
        let squares: f64 =
            self.leaves.iter().map(|leaf| leaf.probability * (leaf.value - mean).powi(2)).sum();
        Some((squares / self.mass.closed).sqrt()).filter(|std| std.is_finite())
    }

    /// Mean of the closed mass without a share `trim` of it at each end.
    pub fn trimmed_mean(&self, estimation: &Estimation) -> Option<f64> {
        let (closed, trim) = (self.mass.closed, estimation.trim);
        let mean = self.mean_between(trim * closed, (1.0 - trim) * closed)?;
        Some(if estimation.normalize { mean } else { mean * closed })
    }

    /// The smallest value at which the conditional distribution function reaches `q`.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        self.value_at(q * self.mass.closed)
    }

    /// The most probable value; the smallest of equals.
    pub fn mode(&self) -> Option<f64> {
        self.most_probable(1).first().map(|leaf| leaf.value)
    }

    /// The `count` most probable values, best first; of equals the smaller value first.
    pub fn most_probable(&self, count: usize) -> Vec<&Leaf> {
        let mut leaves: Vec<&Leaf> = self.leaves.iter().collect();
        leaves.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.value.total_cmp(&b.value)));
        leaves.truncate(count);
        leaves
    }

    /// Mean of the mass between two positions, counted in closed mass from the smallest value up.
    pub(super) fn mean_between(&self, from: f64, to: f64) -> Option<f64> {
        let (mut below, mut sum, mut weight) = (0.0, 0.0, 0.0);
        for leaf in &self.leaves {
            let above = below + leaf.probability;
            let overlap = (above.min(to) - f64::max(below, from)).max(0.0);
            sum += overlap * leaf.value;
            weight += overlap;
            below = above;
        }
        (weight > 0.0).then(|| sum / weight).filter(|mean| mean.is_finite())
    }

    /// The value at a position counted in closed mass from the smallest value up.
    pub(super) fn value_at(&self, position: f64) -> Option<f64> {
        // Sums of many small probabilities: one part in 1e12 is rounding, not mass.
        let position = position - 1e-12 * self.mass.closed;
        let mut below = 0.0;
        let reached = self.leaves.iter().find(|leaf| {
            below += leaf.probability;
            below >= position
        });
        reached.or(self.leaves.last()).map(|leaf| leaf.value)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::numbers::{GrammarLimits, NumberState, state::Reading};

    pub(in crate::numbers) fn distribution(rows: &[(&str, f64)], invalid: f64, open: f64) -> Distribution {
        let limits = GrammarLimits::new(20, 20, true).unwrap();
        let mut closed = HashMap::new();
        for &(text, probability) in rows {
            let Reading::Continues(state) = NumberState::START.read(text, limits) else { panic!("{text}") };
            *closed.entry(state.value().unwrap()).or_default() += probability;
        }
        Distribution::new(&closed, invalid, open)
    }

    const PLAIN: Estimation = Estimation { trim: 0.005, normalize: true, range: None };

    fn assert_close(got: Option<f64>, want: f64) {
        let got = got.unwrap();
        assert!((got - want).abs() < 1e-9, "{got} instead of {want}");
    }

    #[test]
    fn spellings_of_one_value_are_one_leaf() {
        let numbers =
            distribution(&[("7", 0.2), ("07", 0.1), ("7.0", 0.3), ("-0", 0.1), ("0", 0.1)], 0.2, 0.0);
        let leaves: Vec<_> =
            numbers.leaves().iter().map(|leaf| (leaf.text.as_str(), leaf.probability)).collect();
        assert_eq!(leaves.len(), 2);
        assert!((leaves[0].1 - 0.2).abs() < 1e-12 && leaves[0].0 == "0", "{leaves:?}");
        assert!((leaves[1].1 - 0.6).abs() < 1e-12 && leaves[1].0 == "7", "{leaves:?}");
    }

    #[test]
    fn values_that_share_an_f64_are_one_leaf_with_the_likelier_text() {
        let numbers = distribution(&[("12345678901234567890", 0.2), ("12345678901234567891", 0.7)], 0.1, 0.0);
        assert_eq!(numbers.leaves().len(), 1);
        assert_eq!(numbers.leaves()[0].text, "12345678901234567891");
        assert!((numbers.mass().closed - 0.9).abs() < 1e-12);
    }

    #[test]
    fn estimates_are_conditional_on_the_closed_mass() {
        let numbers = distribution(&[("10", 0.4), ("20", 0.3), ("-5", 0.1)], 0.15, 0.05);
        assert_close(numbers.mean(&PLAIN), (4.0 + 6.0 - 0.5) / 0.8);
        assert_close(numbers.quantile(0.5), 10.0);
        assert_close(numbers.mode(), 10.0);
        assert_close(numbers.quantile(0.01), -5.0);
        assert_close(numbers.quantile(0.99), 20.0);
        let mean = 9.5 / 0.8;
        let variance =
            (0.4 * (10.0_f64 - mean).powi(2) + 0.3 * (20.0 - mean).powi(2) + 0.1 * (-5.0 - mean).powi(2))
                / 0.8;
        assert_close(numbers.std(), variance.sqrt());
    }

    #[test]
    fn a_trimmed_mean_ignores_a_little_mass_on_nonsense() {
        let numbers = distribution(&[("4", 0.5), ("5", 0.499), ("99999999", 0.001)], 0.0, 0.0);
        assert!(numbers.mean(&PLAIN).unwrap() > 1e5);
        assert_close(numbers.trimmed_mean(&PLAIN), (0.495 * 4.0 + 0.495 * 5.0) / 0.99);
        let raw = Estimation { trim: 0.0, normalize: false, range: None };
        let half = distribution(&[("4", 0.25), ("8", 0.25)], 0.5, 0.0);
        assert_close(half.trimmed_mean(&raw), 3.0);
        assert_close(half.mean(&PLAIN), 6.0);
    }

    #[test]
    fn an_average_weighs_every_distribution_alike() {
        let (one, other) =
            (distribution(&[("1", 0.8)], 0.2, 0.0), distribution(&[("1", 0.2), ("3", 0.4)], 0.1, 0.3));
        let average = Distribution::average(&[&one, &other]);
        assert_close(average.most_probable(1).first().map(|leaf| leaf.probability), 0.5);
        let mass = average.mass();
        assert!((mass.closed - 0.7).abs() < 1e-12 && (mass.invalid - 0.15).abs() < 1e-12, "{mass:?}");
        let nothing = Distribution::average(&[]).mass();
        assert!((nothing.invalid - 1.0).abs() < 1e-12 && nothing.closed.abs() < 1e-12);
    }

    #[test]
    fn an_empty_distribution_has_no_estimates() {
        let empty = distribution(&[], 1.0, 0.0);
        for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.9)] {
            assert_eq!(empty.estimate(objective, &PLAIN), None);
        }
        assert_eq!((empty.mean(&PLAIN), empty.std()), (None, None));
    }
}
