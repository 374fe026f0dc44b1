//! The distribution of a number, and estimates of it.
//!
//! Estimates are conditional on the closed mass: they answer "if it is a number, which?". Invariant: values
//! are finite, sorted and distinct; estimates of an empty distribution are `None`, never NaN.

use std::collections::HashMap;

use super::value::{NumberValue, SpecialValue};

/// A closed interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

impl Interval {
    /// The smallest interval that contains these values.
    pub(crate) fn around(values: impl IntoIterator<Item = f64>) -> Self {
        let mut all = Self { low: f64::INFINITY, high: f64::NEG_INFINITY };
        for value in values {
            all = Self { low: all.low.min(value), high: all.high.max(value) };
        }
        all
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.low.is_finite() && self.high.is_finite()
    }
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
    /// Mass of complete numbers.
    pub closed: f64,
    /// Mass of texts that are not numbers, and of values that are not finite.
    pub invalid: f64,
    /// Mass of prefixes that were not expanded, or that lead beyond the digit limits.
    pub open: f64,
}

/// The mass of each value that is not a finite number. They are parts of [`Mass::invalid`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SpecialMass {
    pub nan: f64,
    pub infinity: f64,
    pub negative_infinity: f64,
    /// Mass of the value that stands for invalid ones.
    pub invalid: f64,
}

impl SpecialMass {
    fn add(&mut self, value: SpecialValue, probability: f64) {
        match value {
            SpecialValue::Nan => self.nan += probability,
            SpecialValue::Infinity => self.infinity += probability,
            SpecialValue::NegativeInfinity => self.negative_infinity += probability,
            SpecialValue::Invalid => self.invalid += probability,
        }
    }

    /// Adds the value if it is special, and otherwise returns its leaf.
    fn leaf(&mut self, value: NumberValue, probability: f64) -> Option<Leaf> {
        if let NumberValue::Special(value) = value {
            self.add(value, probability);
            return None;
        }
        Some(Leaf { value: value.to_f64(), text: value.to_string(), probability })
    }

    fn total(&self) -> f64 {
        self.nan + self.infinity + self.negative_infinity + self.invalid
    }
}

/// A part of the open mass whose numbers, if it has any, lie in an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenPart {
    pub interval: Interval,
    pub probability: f64,
    /// Whether all of it is numbers. Otherwise any share may be invalid.
    pub is_certain: bool,
}

/// A number drawn from the open mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DrawnNumber {
    /// The number of its draw, in the order of the strata. A draw may be several numbers, or none.
    pub draw: u32,
    pub value: NumberValue,
    /// The mass that it represents.
    pub mass: f64,
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
    /// The mode if one value has more than half of the closed mass, otherwise the trimmed mean.
    Auto,
    /// Pinball loss at this level.
    Quantile(f64),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimation {
    /// Share of the closed mass that the trimmed mean leaves out at each end, 0 to 0.49.
    pub trim: f64,
    /// Whether means are conditional on the closed mass; otherwise they are raw sums, in which texts that are
    /// not numbers count as 0.
    pub normalize: bool,
    /// The range of all numbers, if known. It also contains the open mass.
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
    special: SpecialMass,
    /// The rest of the open mass may close at any value.
    open_parts: Vec<OpenPart>,
}

impl Distribution {
    /// Merges `closed` (values with their probabilities) by value.
    pub fn new<V: Copy + Into<NumberValue>>(closed: &HashMap<V, f64>, invalid: f64, open: f64) -> Self {
        let mut special = SpecialMass::default();
        let mut leaves = Vec::with_capacity(closed.len());
        for (&value, &probability) in closed {
            leaves.extend(special.leaf(value.into(), probability));
        }
        Self { special, ..Self::merged(leaves, invalid + special.total(), open) }
    }

    /// Returns the distribution in which drawn numbers with their masses replace open mass, of which `open`
    /// is left. The rest of the mass is invalid.
    pub(super) fn with_drawn(&self, drawn: &[DrawnNumber], open: f64) -> Self {
        let mut special = self.special;
        let mut leaves = self.leaves.clone();
        for &DrawnNumber { value, mass, .. } in drawn {
            leaves.extend(special.leaf(value, mass));
        }
        let merged = Self::merged(leaves, 0.0, open.max(0.0));
        let invalid = (1.0 - merged.mass.closed - merged.mass.open).max(0.0);
        Self { special, mass: Mass { invalid, ..merged.mass }, ..merged }
    }

    /// Replaces the probabilities of all leaves.
    pub(super) fn set_probabilities(&mut self, probabilities: &[f64]) {
        for (leaf, &probability) in self.leaves.iter_mut().zip(probabilities) {
            leaf.probability = probability;
        }
        self.mass.closed = probabilities.iter().sum();
    }

    fn merged(mut leaves: Vec<Leaf>, invalid: f64, open: f64) -> Self {
        // Equal values are sorted by probability, so that the merged leaf keeps the likeliest text.
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
        let mass = Mass { closed, invalid, open };
        Self { leaves, mass, special: SpecialMass::default(), open_parts: Vec::new() }
    }

    /// Sets where parts of the open mass lie.
    #[must_use]
    pub fn with_open_parts(self, open_parts: Vec<OpenPart>) -> Self {
        Self { open_parts, ..self }
    }

    pub(super) fn open_parts(&self) -> &[OpenPart] {
        &self.open_parts
    }

    /// All values, ascending.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    pub fn mass(&self) -> Mass {
        self.mass
    }

    pub fn special(&self) -> SpecialMass {
        self.special
    }

    /// Size in memory, in bytes.
    pub fn bytes(&self) -> usize {
        let texts: usize = self.leaves.iter().map(|leaf| leaf.text.capacity()).sum();
        self.leaves.capacity() * size_of::<Leaf>()
            + self.open_parts.capacity() * size_of::<OpenPart>()
            + texts
    }

    /// The average of several distributions and their masses. The average of none is all invalid.
    pub fn average(all: &[&Self]) -> Self {
        let share = 1.0 / all.len().max(1) as f64;
        let leaves = all.iter().flat_map(|one| &one.leaves);
        let leaves = leaves.map(|leaf| Leaf { probability: leaf.probability * share, ..leaf.clone() });
        let mass = |part: fn(&Mass) -> f64| all.iter().map(|one| part(&one.mass) * share).sum();
        let invalid = if all.is_empty() { 1.0 } else { mass(|mass| mass.invalid) };
        let open_parts = all.iter().flat_map(|one| &one.open_parts);
        let open_parts = open_parts.map(|part| OpenPart { probability: part.probability * share, ..*part });
        let part = |part: fn(&SpecialMass) -> f64| all.iter().map(|one| part(&one.special) * share).sum();
        let special = SpecialMass {
            nan: part(|special| special.nan),
            infinity: part(|special| special.infinity),
            negative_infinity: part(|special| special.negative_infinity),
            invalid: part(|special| special.invalid),
        };
        let average = Self::merged(leaves.collect(), invalid, mass(|mass| mass.open));
        Self { special, ..average }.with_open_parts(open_parts.collect())
    }

    pub fn estimate(&self, objective: Objective, estimation: &Estimation) -> Option<f64> {
        match objective {
            Objective::Mean => self.trimmed_mean(estimation),
            Objective::Median => self.quantile(0.5),
            Objective::Mode => self.mode(),
            Objective::Auto => self.majority().or_else(|| self.trimmed_mean(estimation)),
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
        let closed = self.mass.closed;
        let trim = estimation.trim;
        let mean = self.mean_between(trim * closed, (1.0 - trim) * closed)?;
        Some(if estimation.normalize { mean } else { mean * closed })
    }

    /// The smallest value at which the conditional distribution function of the closed mass reaches `q`. If
    /// open mass that is certain to be numbers excludes this value, the nearest one that it does not exclude.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let value = self.value_at(q * self.mass.closed)?;
        let is_any_certain = self.open_parts.iter().any(|part| part.is_certain);
        let bounds = is_any_certain.then(|| self.quantile_bounds(q, None)).flatten();
        Some(bounds.map_or(value, |bounds| value.max(bounds.low).min(bounds.high)))
    }

    /// Returns the most probable value. Ties go to the smaller value.
    pub fn mode(&self) -> Option<f64> {
        self.most_probable(1).first().map(|leaf| leaf.value)
    }

    /// Returns the value that has more than half of the closed mass, or `None` if no value has. It is the
    /// mode and the median.
    pub fn majority(&self) -> Option<f64> {
        let best = self.most_probable(1);
        best.first().filter(|leaf| leaf.probability > 0.5 * self.mass.closed).map(|leaf| leaf.value)
    }

    /// Returns the `count` most probable values, best first. Ties go to the smaller value.
    pub fn most_probable(&self, count: usize) -> Vec<&Leaf> {
        let mut leaves: Vec<&Leaf> = self.leaves.iter().collect();
        leaves.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.value.total_cmp(&b.value)));
        leaves.truncate(count);
        leaves
    }

    /// Mean of the mass between two positions, counted in closed mass from the smallest value up.
    fn mean_between(&self, from: f64, to: f64) -> Option<f64> {
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
    fn value_at(&self, position: f64) -> Option<f64> {
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
