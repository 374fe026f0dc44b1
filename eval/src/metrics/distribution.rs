//! Scores of predicted distributions: pinball loss, coverage and Winkler score of the quantiles, CRPS,
//! logarithmic score, and PIT (probability integral transform, the position of the truth in the
//! distribution).
//!
//! In: quantiles and values of one answer, and the truth. The server returns a limited number of values and
//! leaves mass open. CRPS and PIT are computed from the returned values, scaled to a sum of 1, and only if
//! the rest is at most [`UNKNOWN_MAX`] of the mass. Out: [`DistributionScores`] of one item, and
//! [`DistributionCalibration`] and [`Unknown`] of all items.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::same;
use crate::stats::Interval;
use crate::stats::weighted::mean_in_order;

/// Number of bins of the PIT histogram.
const BINS: usize = 20;

/// Maximum share of the probability mass of numbers that may be open, or on values that were not returned,
/// for CRPS and PIT to be computed.
pub const UNKNOWN_MAX: f64 = 0.01;

/// Smaller shares are rounding errors of sums that are 1.
const NO_MASS: f64 = 1e-12;

/// The part of a distribution that a server returns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Predicted<'a> {
    /// Levels and their values, which may be missing.
    pub quantiles: &'a [(f64, Option<f64>)],
    /// Values and probabilities.
    pub support: &'a [(f64, f64)],
    /// Probability mass of everything that is a number or may be one.
    pub mass: f64,
    /// Interval that contains all numbers, if known.
    pub range: Option<Interval>,
}

impl Predicted<'_> {
    /// Returns the values in ascending order with probabilities that add up to 1, and the share of the mass
    /// that is not on them.
    pub(super) fn normalized(&self) -> (Vec<(f64, f64)>, f64) {
        let returned: f64 = self.support.iter().map(|(_, probability)| probability).sum();
        let rest = (self.mass - returned).max(0.0);
        let unknown = match rest / self.mass {
            _ if self.mass <= 0.0 => 1.0,
            unknown if unknown < NO_MASS => 0.0,
            unknown => unknown,
        };
        if returned <= 0.0 {
            return (Vec::new(), unknown);
        }
        let mut sorted: Vec<(f64, f64)> =
            self.support.iter().map(|(value, probability)| (*value, probability / returned)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        (sorted, unknown)
    }
}

/// CRPS of the returned values, and its bounds for any distribution of the remaining mass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crps {
    pub value: f64,
    pub low: f64,
    /// `None` without a range: even a little mass far away has an unlimited cost.
    pub high: Option<f64>,
}

/// Minus the logarithm of the probability of the truth, over all its spellings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogScore {
    /// Infinite if the truth has no probability.
    pub value: f64,
    /// Whether `value` is only a lower bound: the truth is not among the returned values, so all other mass
    /// counts as its probability.
    pub is_bound: bool,
}

/// Whether an interval covers the truth, and its width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalScore {
    pub covers: bool,
    pub width: f64,
}

impl IntervalScore {
    pub fn of(Interval { low, high }: Interval, truth: f64) -> Self {
        let covers = (truth >= low || same(low, truth)) && (truth <= high || same(high, truth));
        Self { covers, width: high - low }
    }
}

/// Scores of the predicted distribution of one item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DistributionScores {
    /// Pinball loss, averaged over the quantiles.
    pub pinball: Option<f64>,
    /// Whether the truth is between the lowest and the highest quantile, ends included.
    pub inside: Option<bool>,
    /// Width of the interval between two quantiles with equal tails, plus a penalty if the truth is outside
    /// (Winkler 1972).
    pub winkler: Option<f64>,
    /// Continuous ranked probability score, in units of the truth.
    pub crps: Option<Crps>,
    pub log_score: Option<LogScore>,
    /// Share of the mass of numbers that is open or on values that were not returned.
    pub unknown: f64,
    /// Probability below the truth, and of the truth itself.
    pub pit: Option<(f64, f64)>,
    /// For each quantile: its level, and whether the truth is at most its value.
    pub below: Vec<(f64, bool)>,
    /// Score of the interval for the requested coverage.
    pub interval: Option<IntervalScore>,
}

impl DistributionScores {
    pub fn of(predicted: Predicted<'_>, truth: f64) -> Self {
        let quantiles = predicted.quantiles.iter();
        let known: Vec<(f64, f64)> = quantiles.filter_map(|(q, value)| Some((*q, (*value)?))).collect();
        let pinball = known.iter().map(|(q, value)| (q * (truth - value)).max((q - 1.0) * (truth - value)));
        let mut by_level = known.clone();
        by_level.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ends = match by_level.as_slice() {
            [first, .., last] => Some((*first, *last)),
            _ => None,
        };
        let (support, unknown) = predicted.normalized();
        let is_known = !support.is_empty() && unknown <= UNKNOWN_MAX;
        Self {
            pinball: (!known.is_empty()).then(|| pinball.sum::<f64>() / known.len() as f64),
            inside: ends.map(|((_, low), (_, high))| IntervalScore::of(Interval { low, high }, truth).covers),
            winkler: ends.and_then(|(low, high)| winkler(low, high, truth)),
            crps: is_known.then(|| crps(&support, unknown, predicted.range, truth)),
            log_score: log_score(&support, unknown, truth),
            unknown,
            pit: is_known.then(|| pit(&support, truth)),
            below: known.iter().map(|&(q, value)| (q, truth <= value || same(value, truth))).collect(),
            interval: None,
        }
    }
}

/// Computes `E|X - y| - E|X - X'| / 2` (Gneiting and Raftery 2007, eq. 21) and its bounds. The lower bound
/// puts the unknown share at the truth, the upper one in the farther part of the range.
fn crps(support: &[(f64, f64)], unknown: f64, range: Option<Interval>, truth: f64) -> Crps {
    let value = crps_of(support, truth);
    let known = 1.0 - unknown;
    let high = range.map(|range| {
        // The distribution function is between `known * F` and `known * F + unknown`. Below the truth, the
        // upper limit costs its square. Above the truth, the lower limit costs the square of its distance
        // from 1.
        let mut ends: Vec<f64> = support.iter().map(|(value, _)| *value).chain([truth]).collect();
        ends.extend([range.low.min(truth), range.high.max(truth)]);
        ends.sort_by(f64::total_cmp);
        let mut values = support.iter().peekable();
        let mut below = 0.0;
        let mut sum = 0.0;
        for pair in ends.windows(2) {
            while let Some((_, p)) = values.next_if(|(value, _)| *value <= pair[0]) {
                below += p;
            }
            let cost = if pair[0] < truth { known * below + unknown } else { 1.0 - known * below };
            sum += cost * cost * (pair[1] - pair[0]);
        }
        sum
    });
    Crps { value, low: known * known * value, high }
}

fn crps_of(support: &[(f64, f64)], truth: f64) -> f64 {
    let distance: f64 = support.iter().map(|(value, p)| p * (value - truth).abs()).sum();
    let (mut spread, mut mass, mut first) = (0.0, 0.0, 0.0);
    for (value, p) in support {
        spread += p * (value * mass - first);
        mass += p;
        first += p * value;
    }
    distance - spread
}

/// Returns the Winkler score of the central interval between two levels with their values, or `None` if the
/// tails are not equal.
fn winkler(low: (f64, f64), high: (f64, f64), truth: f64) -> Option<f64> {
    let alpha = 2.0 * low.0;
    let is_central = (low.0 + high.0 - 1.0).abs() < 1e-9 && alpha < 1.0;
    let outside = (low.1 - truth).max(truth - high.1).max(0.0);
    is_central.then(|| high.1 - low.1 + 2.0 / alpha * outside)
}

/// Returns `None` for a single value without any other mass, which is not a distribution.
fn log_score(support: &[(f64, f64)], unknown: f64, truth: f64) -> Option<LogScore> {
    if support.is_empty() || (support.len() == 1 && unknown <= 0.0) {
        return None;
    }
    let (_, at) = pit(support, truth);
    let is_bound = at <= 0.0;
    Some(LogScore { value: -(if is_bound { unknown } else { at * (1.0 - unknown) }).ln(), is_bound })
}

fn pit(support: &[(f64, f64)], truth: f64) -> (f64, f64) {
    let at: f64 = support.iter().filter(|(value, _)| same(*value, truth)).map(|(_, p)| p).sum();
    let below = support.iter().filter(|(value, _)| *value < truth && !same(*value, truth));
    (below.map(|(_, p)| p).sum(), at)
}

/// How well the predicted distributions agree with the truth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DistributionCalibration {
    /// Number of truths in each of 20 equal bins of the distribution; flat when calibrated. If the truth
    /// itself has probability, its position inside that probability is drawn at random (seeded).
    pub pit: Vec<usize>,
    /// For each quantile, the number of truths that are at most its value; at least `q n` when calibrated.
    pub coverage: Vec<Coverage>,
}

/// How often the truth is at most the value of a quantile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// The quantile's level.
    pub q: f64,
    /// Number of truths that are at most its value.
    pub covered: usize,
    /// Number of items with that quantile.
    pub n: usize,
}

impl DistributionCalibration {
    /// Returns `None` without any distribution. `seed` is for the random positions inside probabilities.
    pub fn of<'a>(scores: impl Iterator<Item = &'a DistributionScores>, seed: u64) -> Option<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pit = vec![0; BINS];
        let mut coverage = Vec::<Coverage>::new();
        let mut any = false;
        for item in scores {
            any = true;
            if let Some((below, at)) = item.pit {
                let place = below + at * rng.random::<f64>();
                pit[((place * BINS as f64) as usize).min(BINS - 1)] += 1;
            }
            for &(q, covered) in &item.below {
                let at = coverage.iter().position(|row| row.q.total_cmp(&q).is_eq()).unwrap_or_else(|| {
                    coverage.push(Coverage { q, covered: 0, n: 0 });
                    coverage.len() - 1
                });
                coverage[at].n += 1;
                coverage[at].covered += usize::from(covered);
            }
        }
        any.then_some(Self { pit, coverage })
    }
}

/// The unknown parts of the distributions of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unknown {
    /// Maximum share of the mass that may be unknown for CRPS and PIT.
    pub limit: f64,
    /// Number of items above the limit, which have neither.
    pub above: usize,
    /// The unknown share, averaged over all items.
    pub mean: Option<f64>,
    /// Lower bound of the mean CRPS for any distribution of the unknown mass.
    pub crps_low: Option<f64>,
    /// Upper bound of the mean CRPS; missing without `--range`.
    pub crps_high: Option<f64>,
    /// Number of items whose logarithmic score is a lower bound, because the truth is not among the returned
    /// values.
    pub log_score_bounds: usize,
}

fn plain_mean(values: &[f64]) -> Option<f64> {
    mean_in_order(values, &vec![1.0; values.len()])
}

impl Unknown {
    /// Returns `None` without any distribution.
    pub fn of<'a>(scores: impl Iterator<Item = &'a DistributionScores>) -> Option<Self> {
        let all: Vec<&DistributionScores> = scores.collect();
        let known: Vec<Crps> = all.iter().filter_map(|item| item.crps).collect();
        let high: Option<Vec<f64>> = known.iter().map(|crps| crps.high).collect();
        (!all.is_empty()).then(|| Self {
            limit: UNKNOWN_MAX,
            above: all.iter().filter(|item| item.unknown > UNKNOWN_MAX).count(),
            mean: plain_mean(&all.iter().map(|item| item.unknown).collect::<Vec<_>>()),
            crps_low: plain_mean(&known.iter().map(|crps| crps.low).collect::<Vec<_>>()),
            crps_high: high.and_then(|values| plain_mean(&values)),
            log_score_bounds: all
                .iter()
                .filter(|item| item.log_score.is_some_and(|found| found.is_bound))
                .count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::seq::SliceRandom;

    use super::*;

    type Quantiles<'a> = &'a [(f64, Option<f64>)];

    /// Scores of a distribution whose values are all known.
    fn scores(support: &[(f64, f64)], quantiles: Quantiles<'_>, truth: f64) -> DistributionScores {
        let mass = support.iter().map(|(_, p)| p).sum();
        DistributionScores::of(Predicted { quantiles, support, mass, range: None }, truth)
    }

    #[test]
    fn pinball_charges_the_wrong_side_more() {
        // At 10: 0.1 * 2 under 8, and 0.1 * 2 over 12.
        let found = scores(&[], &[(0.1, Some(8.0)), (0.9, Some(12.0))], 10.0);
        assert!((found.pinball.unwrap() - 0.2).abs() < 1e-12);
        assert_eq!((found.inside, found.crps, found.pit), (Some(true), None, None));
        let outside = scores(&[], &[(0.1, Some(8.0)), (0.9, Some(12.0))], 13.0);
        assert!((outside.pinball.unwrap() - (0.5 + 0.9) / 2.0).abs() < 1e-12);
        assert_eq!(outside.inside, Some(false));
        assert_eq!(scores(&[], &[(0.5, None)], 1.0).pinball, None);
    }

    #[test]
    fn the_winkler_score_is_the_width_plus_a_penalty_for_a_truth_outside() {
        let winkler =
            |truth| scores(&[], &[(0.05, Some(8.0)), (0.5, None), (0.95, Some(12.0))], truth).winkler;
        // Alpha is 0.1: 20 for each unit outside.
        for (truth, want) in [(8.0, 4.0), (12.0, 4.0), (13.0, 24.0), (7.5, 14.0)] {
            assert!((winkler(truth).unwrap() - want).abs() < 1e-9, "{truth}");
        }
        assert_eq!(scores(&[], &[(0.1, Some(1.0)), (0.95, Some(2.0))], 1.0).winkler, None);
    }

    #[test]
    fn crps_of_a_certain_answer_is_its_absolute_error() {
        let crps = |support: &[(f64, f64)], truth| scores(support, &[], truth).crps.unwrap().value;
        assert!((crps(&[(3.0, 0.4)], 5.0) - 2.0).abs() < 1e-12);
        // Half 0, half 2 at 0: 1 - 2/4.
        assert!((crps(&[(2.0, 0.25), (0.0, 0.25)], 0.0) - 0.5).abs() < 1e-12);
    }

    /// A distribution over `count` values, in random order.
    fn drawn(rng: &mut ChaCha8Rng, count: usize) -> Vec<(f64, f64)> {
        let mut support: Vec<(f64, f64)> =
            (0..count).map(|_| (f64::from(rng.random_range(-500..500)), rng.random::<f64>())).collect();
        support.shuffle(rng);
        let total: f64 = support.iter().map(|(_, p)| p).sum();
        support.iter().map(|(value, p)| (*value, p / total)).collect()
    }

    #[test]
    fn crps_equals_the_double_sum_and_the_integral() {
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        for count in [1, 2, 7, 300] {
            let support = drawn(&mut rng, count);
            let truth = f64::from(rng.random_range(-600..600)) + 0.25;
            let found = scores(&support, &[], truth).crps.unwrap().value;
            let distance: f64 = support.iter().map(|(x, p)| p * (x - truth).abs()).sum();
            let pairs = support.iter().flat_map(|a| support.iter().map(move |b| (a, b)));
            let spread: f64 = pairs.map(|((x, p), (y, q))| p * q * (x - y).abs()).sum();
            assert!((found - (distance - spread / 2.0)).abs() < 1e-9, "{count}");
            // All steps are at multiples of a quarter.
            let cost = |step: i32| {
                let x = f64::from(step) / 4.0;
                let below: f64 = support.iter().filter(|(value, _)| *value <= x).map(|(_, p)| p).sum();
                (if x < truth { below } else { 1.0 - below }).powi(2) / 4.0
            };
            let integral: f64 = (-4 * 601..4 * 601).map(cost).sum();
            assert!((found - integral).abs() < 1e-9, "{count}: {found} {integral}");
        }
    }

    /// `scipy.stats.energy_distance(values, [y], weights) ** 2 / 2` of scipy 1.17.
    #[test]
    fn crps_agrees_with_scipy() {
        let support = [(-3.0, 0.1), (0.5, 0.25), (1.0, 0.4), (7.0, 0.2), (40.0, 0.05)];
        for (truth, want) in
            [(-10.0, 10.50375), (1.0, 0.55375), (0.75, 0.62875), (12.5, 8.50375), (100.0, 93.25375)]
        {
            assert!((scores(&support, &[], truth).crps.unwrap().value - want).abs() < 1e-12, "{truth}");
        }
    }

    #[test]
    fn too_much_unknown_mass_omits_crps_and_pit() {
        let support = [(1.0, 0.5), (3.0, 0.3)];
        let of = |mass| {
            let predicted = Predicted { quantiles: &[], support: &support, mass, range: None };
            DistributionScores::of(predicted, 2.0)
        };
        let known = of(0.8 / 0.995);
        assert!((known.unknown - 0.005).abs() < 1e-12 && known.crps.is_some() && known.pit.is_some());
        let unknown = of(0.8 / 0.98);
        assert!((unknown.unknown - 0.02).abs() < 1e-12);
        assert_eq!((unknown.crps, unknown.pit), (None, None));
        let items = [known.clone(), unknown];
        let found = Unknown::of(items.iter()).unwrap();
        assert_eq!((found.above, found.crps_high, found.log_score_bounds), (1, None, 2));
        assert_eq!(found.crps_low, known.crps.map(|crps| crps.low));
        assert_eq!(Unknown::of([].iter()), None);
    }

    #[test]
    fn crps_stays_within_its_bounds_for_any_location_of_the_unknown_mass() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let range = Interval { low: -600.0, high: 700.0 };
        for _ in 0..50 {
            let support = drawn(&mut rng, 20);
            let unknown = 0.01 * rng.random::<f64>();
            let truth = f64::from(rng.random_range(-550..650));
            let known: Vec<(f64, f64)> = support.iter().map(|(x, p)| (*x, p * (1.0 - unknown))).collect();
            let predicted = Predicted { quantiles: &[], support: &known, mass: 1.0, range: Some(range) };
            let Crps { low, high, .. } = DistributionScores::of(predicted, truth).crps.unwrap();
            let high = high.unwrap();
            let at = |place: f64| {
                let all: Vec<(f64, f64)> = known.iter().copied().chain([(place, unknown)]).collect();
                scores(&all, &[], truth).crps.unwrap().value
            };
            let places: Vec<f64> = [range.low, range.high, truth].map(at).to_vec();
            let random: Vec<f64> = (0..50).map(|_| at(rng.random_range(range.low..range.high))).collect();
            for value in places.iter().chain(&random) {
                assert!(low - 1e-9 <= *value && *value <= high + 1e-9, "{low} {value} {high}");
            }
            // Both bounds are reached: the lower one at the truth, and the upper one except for costs that
            // both ends cannot have together.
            assert!((at(truth) - low).abs() < 1e-9);
            assert!(high <= places[0] + places[1] + 1e-9);
        }
    }

    #[test]
    fn the_log_score_uses_all_mass_that_may_be_the_truth() {
        let of = |truth, mass| {
            let support = [(1.0, 0.5), (3.0, 0.25)];
            DistributionScores::of(Predicted { quantiles: &[], support: &support, mass, range: None }, truth)
                .log_score
                .unwrap()
        };
        let found = of(3.0, 0.8);
        assert!((found.value - (0.8_f64 / 0.25).ln()).abs() < 1e-12 && !found.is_bound);
        let other = of(2.0, 0.8);
        assert!((other.value - (0.8_f64 / 0.05).ln()).abs() < 1e-9 && other.is_bound);
        assert!(of(2.0, 0.75).value.is_infinite());
        assert_eq!(scores(&[(1.0, 1.0)], &[], 1.0).log_score, None);
    }

    #[test]
    fn the_pit_holds_the_mass_below_and_at_the_truth() {
        let found = scores(&[(1.0, 0.2), (2.0, 0.5), (3.0, 0.3)], &[], 2.0);
        assert!(found.pit.is_some_and(|(below, at)| (below - 0.2).abs() < 1e-12 && (at - 0.5).abs() < 1e-12));
    }

    #[test]
    fn calibration_counts_every_item_once() {
        let quantiles = [(0.5, Some(2.0)), (0.9, None)];
        let items: Vec<DistributionScores> =
            (1..=3).map(|truth| scores(&[(2.0, 1.0)], &quantiles, f64::from(truth))).collect();
        let found = DistributionCalibration::of(items.iter(), 0).unwrap();
        assert_eq!(found.pit.iter().sum::<usize>(), 3);
        // Below all mass, and above all.
        assert!(found.pit[0] >= 1 && found.pit[BINS - 1] >= 1);
        assert_eq!(found.coverage, [Coverage { q: 0.5, covered: 2, n: 3 }]);
        assert_eq!(DistributionCalibration::of([].iter(), 0), None);
    }
}
