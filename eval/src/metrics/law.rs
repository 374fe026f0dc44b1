//! Known distributions, and scores of predicted distributions against them.
//!
//! A question with a known distribution needs no sample to be scored: the scores are expectations over the
//! true distribution. The CRPS of a prediction F is `E|X - Y| - E|X - X'| / 2`, with X and X' from F and Y
//! from the true distribution G (Gneiting and Raftery 2007, eq. 21). It is smallest for F = G.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use serde::{Deserialize, Serialize};
use statrs::function::erf::{erfc, erfc_inv};

use super::distribution::{Predicted, UNKNOWN_MAX};
use super::{Estimates, same};
use crate::stats::Interval;

/// Levels of the quantiles between which an interval covers 90%.
const OUTER: [f64; 2] = [0.05, 0.95];

/// A known distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Law {
    /// Values in ascending order, and their probabilities, which add up to 1.
    Discrete(Vec<(f64, f64)>),
    /// With a standard deviation of 0, all probability is at the mean.
    Normal { mean: f64, sd: f64 },
}

impl Law {
    /// Returns the distribution of values with weights. Equal values are merged.
    pub fn discrete(mut weighted: Vec<(f64, f64)>) -> Self {
        weighted.retain(|(_, weight)| *weight > 0.0);
        weighted.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = weighted.iter().map(|(_, weight)| weight).sum();
        let mut points: Vec<(f64, f64)> = Vec::with_capacity(weighted.len());
        for (value, weight) in weighted {
            match points.last_mut() {
                Some((last, p)) if same(*last, value) => *p += weight / total,
                _ => points.push((value, weight / total)),
            }
        }
        Self::Discrete(points)
    }

    /// Returns the smallest value whose cumulative probability reaches `level`, between 0 and 1.
    pub fn quantile(&self, level: f64) -> f64 {
        match self {
            Self::Discrete(points) => {
                // The sum of all probabilities may be a rounding error below 1.
                let reached = level - 1e-12;
                let mut below = 0.0;
                let found = points.iter().find(|(_, p)| {
                    below += p;
                    below >= reached
                });
                found.or(points.last()).map_or(0.0, |(value, _)| *value)
            }
            Self::Normal { mean, sd } => mean - sd * SQRT_2 * erfc_inv(2.0 * level),
        }
    }

    /// Returns the best estimates of each kind.
    pub fn estimates(&self) -> Estimates {
        let mode = match self {
            Self::Discrete(points) => {
                // `max_by` returns the last of several equals.
                let best = points.iter().rev().max_by(|a, b| a.1.total_cmp(&b.1));
                best.map_or(0.0, |(value, _)| *value)
            }
            Self::Normal { mean, .. } => *mean,
        };
        Estimates { mean: self.mean(), median: self.quantile(0.5), mode }
    }

    fn mean(&self) -> f64 {
        match self {
            Self::Discrete(points) => points.iter().map(|(value, p)| value * p).sum(),
            Self::Normal { mean, .. } => *mean,
        }
    }

    /// Returns the probability of an interval, ends included.
    pub fn mass_within(&self, Interval { low, high }: Interval) -> f64 {
        match self {
            Self::Discrete(points) => {
                let inside = points.iter().filter(|&&(value, _)| {
                    (value >= low || same(value, low)) && (value <= high || same(value, high))
                });
                inside.map(|(_, p)| p).sum()
            }
            Self::Normal { mean, sd } if *sd > 0.0 => {
                let below = |value: f64| 0.5 * erfc(-(value - mean) / sd * FRAC_1_SQRT_2);
                below(high) - below(low)
            }
            Self::Normal { mean, .. } => f64::from(u8::from((low..=high).contains(mean))),
        }
    }

    /// Returns the interval between the outer quantiles.
    pub(super) fn outer_interval(&self) -> Interval {
        let [low, high] = OUTER.map(|level| self.quantile(level));
        Interval { low, high }
    }

    /// Returns `E|X - value|`.
    fn distance(&self, value: f64) -> f64 {
        match self {
            Self::Discrete(points) => points.iter().map(|(x, p)| p * (x - value).abs()).sum(),
            Self::Normal { mean, sd } => mean_absolute(value - mean, *sd),
        }
    }

    /// Returns `E|X - Y|` of independent X and Y.
    fn distance_to(&self, other: &Self) -> f64 {
        match (self, other) {
            (Self::Discrete(points), other) | (other, Self::Discrete(points)) => {
                points.iter().map(|(value, p)| p * other.distance(*value)).sum()
            }
            (Self::Normal { mean, sd }, Self::Normal { mean: other_mean, sd: other_sd }) => {
                mean_absolute(mean - other_mean, sd.hypot(*other_sd))
            }
        }
    }

    /// Returns `E|X - X'|`, also known as Gini's mean difference.
    fn spread(&self) -> f64 {
        match self {
            Self::Discrete(points) => {
                let (mut spread, mut mass, mut first) = (0.0, 0.0, 0.0);
                for (value, p) in points {
                    spread += 2.0 * p * (value * mass - first);
                    mass += p;
                    first += p * value;
                }
                spread
            }
            Self::Normal { sd, .. } => 2.0 * sd / PI.sqrt(),
        }
    }

    /// Returns the CRPS of the distribution for an observed value.
    pub fn crps(&self, observed: f64) -> f64 {
        self.distance(observed) - self.spread() / 2.0
    }
}

/// Returns `E|Z|` of a normal Z.
fn mean_absolute(mean: f64, sd: f64) -> f64 {
    if sd <= 0.0 {
        return mean.abs();
    }
    let z = mean / sd;
    let density = (-z * z / 2.0).exp() / (2.0 * PI).sqrt();
    sd * (z * (1.0 - erfc(z * FRAC_1_SQRT_2)) + 2.0 * density)
}

/// Scores of a prediction against the known distribution of the truth.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LawScores {
    /// Expected CRPS divided by the smallest possible one, minus 1. `None` if the true distribution has
    /// a single value, or if too much of the prediction is unknown.
    pub crps_excess: Option<f64>,
    /// Kullback-Leibler divergence of the prediction from the truth, in nats. `None` if a possible value has
    /// no predicted probability, and unless both distributions are discrete.
    pub kl: Option<f64>,
    /// Maximum difference between the probabilities of an event. Unknown mass counts as different.
    pub total_variation: Option<f64>,
    /// True probability of the interval between the outer predicted quantiles.
    pub coverage: Option<f64>,
    /// Width of that interval relative to the interval of the true distribution. `None` if that one has no
    /// width.
    pub width: Option<f64>,
}

impl LawScores {
    /// Scores a single predicted number.
    pub fn of_point(truth: &Law, value: f64) -> Self {
        let crps_excess = crps_excess(truth, &Law::Discrete(vec![(value, 1.0)]));
        Self { crps_excess, ..Self::default() }
    }

    /// Scores a known distribution, such as a baseline.
    pub fn of_law(truth: &Law, predicted: &Law) -> Self {
        let scores = Self::of_interval(truth, predicted.outer_interval());
        match predicted {
            Law::Discrete(points) => scores.with_support(truth, points.clone(), 0.0),
            Law::Normal { .. } => Self { crps_excess: crps_excess(truth, predicted), ..scores },
        }
    }

    /// Scores the distribution that a server returns.
    pub fn of_reply(truth: &Law, predicted: Predicted<'_>) -> Self {
        let (support, unknown) = predicted.normalized();
        let [low, high] = OUTER.map(|level| {
            let quantile = predicted.quantiles.iter().find(|(q, _)| (q - level).abs() < 1e-9);
            quantile.and_then(|(_, value)| *value)
        });
        let outer = low.zip(high).map(|(low, high)| Self::of_interval(truth, Interval { low, high }));
        let scores = outer.unwrap_or_default();
        if support.is_empty() || unknown > UNKNOWN_MAX {
            return scores;
        }
        scores.with_support(truth, support, unknown)
    }

    /// Adds the scores of predicted values. Their probabilities add up to 1; `unknown` is the share of the
    /// mass that is not on them.
    fn with_support(self, truth: &Law, support: Vec<(f64, f64)>, unknown: f64) -> Self {
        let discrete = match truth {
            Law::Discrete(points) => Some(points.as_slice()),
            Law::Normal { .. } => None,
        };
        Self {
            kl: discrete.and_then(|truth| kl(truth, &support, unknown)),
            total_variation: discrete.map(|truth| total_variation(truth, &support, unknown)),
            crps_excess: crps_excess(truth, &Law::discrete(support)),
            ..self
        }
    }

    fn of_interval(truth: &Law, interval: Interval) -> Self {
        let outer = truth.outer_interval();
        let true_width = outer.high - outer.low;
        Self {
            coverage: Some(truth.mass_within(interval)),
            width: (true_width > 0.0).then(|| (interval.high - interval.low) / true_width),
            ..Self::default()
        }
    }
}

fn crps_excess(truth: &Law, predicted: &Law) -> Option<f64> {
    let own = truth.spread() / 2.0;
    let expected = predicted.distance_to(truth) - predicted.spread() / 2.0;
    (own > 0.0).then(|| expected / own - 1.0)
}

/// Returns the predicted probability of a value.
fn probability(predicted: &[(f64, f64)], value: f64) -> f64 {
    predicted.iter().filter(|(known, _)| same(*known, value)).map(|(_, p)| p).sum()
}

/// Returns the smallest divergence that the unknown share allows: it lies on the possible values that the
/// server did not return, in proportion to their true probabilities.
fn kl(truth: &[(f64, f64)], predicted: &[(f64, f64)], unknown: f64) -> Option<f64> {
    let (mut divergence, mut missing) = (0.0, 0.0);
    for (value, p) in truth {
        let q = probability(predicted, *value) * (1.0 - unknown);
        if q > 0.0 {
            divergence += p * (p / q).ln();
        } else {
            missing += p;
        }
    }
    if missing > 0.0 {
        divergence += missing * (missing / unknown).ln();
    }
    divergence.is_finite().then_some(divergence)
}

fn total_variation(truth: &[(f64, f64)], predicted: &[(f64, f64)], unknown: f64) -> f64 {
    let shared = truth.iter().map(|(value, p)| p.min(probability(predicted, *value) * (1.0 - unknown)));
    1.0 - shared.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() < 1e-9, "{got}, want {want}");
    }

    /// A fine grid of a normal distribution.
    fn grid(mean: f64, sd: f64) -> Law {
        let point = |step: i32| {
            let z = f64::from(step) / 500.0;
            (mean + sd * z, (-z * z / 2.0).exp())
        };
        Law::discrete((-4000..=4000).map(point).collect())
    }

    fn reply<'a>(support: &'a [(f64, f64)], quantiles: &'a [(f64, Option<f64>)], mass: f64) -> Predicted<'a> {
        Predicted { quantiles, support, mass, range: None }
    }

    #[test]
    fn rounding_errors_are_no_unknown_mass_on_which_a_possible_value_could_lie() {
        let truth = Law::discrete(vec![(1.0, 0.5), (4.0, 0.5)]);
        // The probabilities add up to 1 - 1.1e-16.
        let support = [(1.0, 0.7), (2.0, 0.2), (3.0, 0.1)];
        assert!(support.iter().map(|(_, p)| p).sum::<f64>() < 1.0);
        let scores = LawScores::of_reply(&truth, reply(&support, &[], 1.0));
        assert_eq!(scores.kl, None);
        close(scores.total_variation.unwrap(), 0.5);
        // Really unknown mass may lie there.
        assert!(LawScores::of_reply(&truth, reply(&support, &[], 1.005)).kl.is_some());
    }

    #[test]
    fn a_normal_distribution_agrees_with_a_fine_grid_of_it() {
        let normal = Law::Normal { mean: 3.0, sd: 2.0 };
        let grid = grid(3.0, 2.0);
        let other = Law::Normal { mean: 1.0, sd: 0.5 };
        for (exact, approximate) in [
            (normal.spread(), grid.spread()),
            (normal.distance(4.5), grid.distance(4.5)),
            (normal.distance_to(&other), grid.distance_to(&other)),
            (normal.crps(-1.0), grid.crps(-1.0)),
            (normal.quantile(0.05), grid.quantile(0.05)),
            (
                normal.mass_within(Interval { low: 2.0, high: 6.0 }),
                grid.mass_within(Interval { low: 2.0, high: 6.0 }),
            ),
        ] {
            assert!((exact - approximate).abs() < 0.003, "{exact} {approximate}");
        }
        // From tables.
        assert!((normal.quantile(0.95) - (3.0 + 2.0 * 1.644_853_626_951_47)).abs() < 1e-9);
    }

    #[test]
    fn the_true_distribution_has_the_best_scores() {
        let die: Vec<(f64, f64)> = (1..=6).map(|face| (f64::from(face), 1.0 / 6.0)).collect();
        let truth = Law::discrete(die.clone());
        let quantiles = [(0.05, Some(1.0)), (0.95, Some(6.0))];
        let scores = LawScores::of_reply(&truth, reply(&die, &quantiles, 1.0));
        for (got, want) in [
            (scores.crps_excess, 0.0),
            (scores.kl, 0.0),
            (scores.total_variation, 0.0),
            (scores.coverage, 1.0),
            (scores.width, 1.0),
        ] {
            close(got.unwrap(), want);
        }
        let own = LawScores::of_law(&truth, &truth);
        for (got, want) in
            [(own.crps_excess, 0.0), (own.kl, 0.0), (own.total_variation, 0.0), (own.coverage, 1.0)]
        {
            close(got.unwrap(), want);
        }
        // E|X - 3.5| is 1.5, and E|X - X'| is 35/18.
        close(LawScores::of_point(&truth, 3.5).crps_excess.unwrap(), 1.5 / (35.0 / 36.0) - 1.0);
    }

    #[test]
    fn errors_of_a_prediction_are_measured_against_the_truth() {
        let truth = Law::discrete(vec![(0.0, 0.5), (1.0, 0.5)]);
        let quantiles = [(0.05, Some(0.0)), (0.95, Some(0.0))];
        let support = [(0.0, 0.75), (1.0, 0.125), (2.0, 0.125)];
        let scores = LawScores::of_reply(&truth, reply(&support, &quantiles, 1.0));
        close(scores.kl.unwrap(), 0.5 * (0.5_f64 / 0.75).ln() + 0.5 * (0.5_f64 / 0.125).ln());
        close(scores.total_variation.unwrap(), 0.375);
        close(scores.coverage.unwrap(), 0.5);
        close(scores.width.unwrap(), 0.0);
        // E|X - Y| is 0.75 / 2 + 0.125 / 2 + 0.125 * 1.5, and E|X - X'| is 2 (0.75 * 0.375 + 0.125 * 0.125).
        close(scores.crps_excess.unwrap(), (0.625 - 0.296_875) / 0.25 - 1.0);
    }

    #[test]
    fn unknown_mass_bounds_the_divergence_and_counts_as_different() {
        let truth = Law::discrete(vec![(0.0, 0.5), (1.0, 0.5)]);
        let scores = LawScores::of_reply(&truth, reply(&[(0.0, 0.4975)], &[], 0.5));
        close(scores.kl.unwrap(), 0.5 * (0.5_f64 / 0.995).ln() + 0.5 * (0.5_f64 / 0.005).ln());
        close(scores.total_variation.unwrap(), 0.5);
        let certain = LawScores::of_reply(&truth, reply(&[(0.0, 1.0)], &[], 1.0));
        assert_eq!((certain.kl, certain.coverage), (None, None));
        let unknown = LawScores::of_reply(&truth, reply(&[(0.0, 0.9)], &[], 1.0));
        assert_eq!(unknown, LawScores::default());
    }

    #[test]
    fn a_distribution_without_noise_is_its_mean() {
        let exact = Law::Normal { mean: 2.0, sd: 0.0 };
        close(exact.crps(5.0), 3.0);
        assert_eq!(exact.outer_interval(), Interval { low: 2.0, high: 2.0 });
        assert_eq!(LawScores::of_point(&exact, 2.0), LawScores::default());
        close(exact.mass_within(Interval { low: 1.0, high: 2.0 }), 1.0);
    }
}
