//! How good a predicted distribution is: pinball loss and coverage of its quantiles, CRPS, and where the truth falls in it
//! (PIT, probability integral transform).
//!
//! In: quantiles and the most probable values of one answer, and the truth. CRPS and PIT use the values that were
//! returned, their probabilities scaled to 1. Out: [`DistributionScores`] of one item, and [`Calibration`] of all.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::same;

/// Bins of the PIT histogram.
const BINS: usize = 20;

/// Of one item.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DistributionScores {
    /// Pinball loss, averaged over the quantiles.
    pub pinball: Option<f64>,
    /// Whether the truth is between the lowest and the highest quantile, ends included.
    pub inside: Option<bool>,
    /// Continuous ranked probability score, in units of the truth.
    pub crps: Option<f64>,
    /// Probability below the truth, and of the truth itself.
    pub pit: Option<(f64, f64)>,
    /// For each quantile: its level, and whether the truth is at most its value.
    pub below: Vec<(f64, bool)>,
}

impl DistributionScores {
    /// `quantiles`: levels and their values, which may be missing. `support`: values and probabilities.
    pub fn of(quantiles: &[(f64, Option<f64>)], support: &[(f64, f64)], truth: f64) -> Self {
        let known: Vec<(f64, f64)> =
            quantiles.iter().filter_map(|(q, value)| Some((*q, (*value)?))).collect();
        let pinball = known.iter().map(|(q, value)| (q * (truth - value)).max((q - 1.0) * (truth - value)));
        let at_most = |value: f64| truth <= value || same(value, truth);
        let mut by_level = known.clone();
        by_level.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ends = by_level.first().zip(by_level.last()).filter(|_| by_level.len() > 1);
        let support = normalized(support);
        Self {
            pinball: (!known.is_empty()).then(|| pinball.sum::<f64>() / known.len() as f64),
            inside: ends.map(|((_, low), (_, high))| (truth >= *low || same(*low, truth)) && at_most(*high)),
            crps: crps(&support, truth),
            pit: (!support.is_empty()).then(|| pit(&support, truth)),
            below: known.iter().map(|(q, value)| (*q, at_most(*value))).collect(),
        }
    }
}

/// Sorted by value, probabilities adding up to 1.
fn normalized(support: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let total: f64 = support.iter().map(|(_, probability)| probability).sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let mut sorted: Vec<(f64, f64)> = support.iter().map(|(value, p)| (*value, p / total)).collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    sorted
}

/// `E|X - y| - E|X - X'| / 2` (Gneiting and Raftery 2007, eq. 21).
fn crps(support: &[(f64, f64)], truth: f64) -> Option<f64> {
    let distance: f64 = support.iter().map(|(value, p)| p * (value - truth).abs()).sum();
    let (mut spread, mut mass, mut first) = (0.0, 0.0, 0.0);
    for (value, p) in support {
        spread += p * (value * mass - first);
        mass += p;
        first += p * value;
    }
    (!support.is_empty()).then_some(distance - spread)
}

fn pit(support: &[(f64, f64)], truth: f64) -> (f64, f64) {
    let at: f64 = support.iter().filter(|(value, _)| same(*value, truth)).map(|(_, p)| p).sum();
    let below = support.iter().filter(|(value, _)| *value < truth && !same(*value, truth));
    (below.map(|(_, p)| p).sum(), at)
}

/// Whether predicted distributions agree with the truth.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Calibration {
    /// How many truths fall into each of 20 equal bins of the distribution; flat when calibrated. Where the truth has
    /// probability of its own, the place inside it is drawn (seeded).
    pub pit: Vec<usize>,
    /// For each quantile, how many truths are at most its value; at least `q n` when calibrated.
    pub coverage: Vec<Coverage>,
}

/// How often the truth is at most the value of a quantile.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Coverage {
    /// The quantile's level.
    pub q: f64,
    /// Truths at most its value.
    pub covered: usize,
    /// Items with that quantile.
    pub n: usize,
}

impl Calibration {
    /// `None` without any distribution. `seed` is of the places inside probabilities.
    pub fn of<'a>(scores: impl Iterator<Item = &'a DistributionScores>, seed: u64) -> Option<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut pit, mut coverage, mut any) = (vec![0; BINS], Vec::<Coverage>::new(), false);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(support: &[(f64, f64)], quantiles: &[(f64, Option<f64>)], truth: f64) -> DistributionScores {
        DistributionScores::of(quantiles, support, truth)
    }

    #[test]
    fn pinball_charges_the_wrong_side_more() {
        // At 10: 0.1 * 2 under 8; 0.1 * 2 over 12.
        let found = scores(&[], &[(0.1, Some(8.0)), (0.9, Some(12.0))], 10.0);
        assert!((found.pinball.unwrap() - 0.2).abs() < 1e-12);
        assert_eq!((found.inside, found.crps, found.pit), (Some(true), None, None));
        let outside = scores(&[], &[(0.1, Some(8.0)), (0.9, Some(12.0))], 13.0);
        assert!((outside.pinball.unwrap() - (0.5 + 0.9) / 2.0).abs() < 1e-12);
        assert_eq!(outside.inside, Some(false));
        assert_eq!(scores(&[], &[(0.5, None)], 1.0).pinball, None);
    }

    #[test]
    fn crps_of_a_certain_answer_is_its_absolute_error() {
        let crps = |support: &[(f64, f64)], truth| scores(support, &[], truth).crps.unwrap();
        assert!((crps(&[(3.0, 0.4)], 5.0) - 2.0).abs() < 1e-12);
        // Half 0, half 2 at 0: 1 - 2/4.
        assert!((crps(&[(2.0, 0.25), (0.0, 0.25)], 0.0) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn the_pit_says_what_is_below_and_what_is_at_the_truth() {
        let found = scores(&[(1.0, 0.2), (2.0, 0.5), (3.0, 0.3)], &[], 2.0);
        assert!(found.pit.is_some_and(|(below, at)| (below - 0.2).abs() < 1e-12 && (at - 0.5).abs() < 1e-12));
    }

    #[test]
    fn calibration_counts_every_item_once() {
        let quantiles = [(0.5, Some(2.0)), (0.9, None)];
        let items: Vec<DistributionScores> =
            (1..=3).map(|truth| scores(&[(2.0, 1.0)], &quantiles, f64::from(truth))).collect();
        let found = Calibration::of(items.iter(), 0).unwrap();
        assert_eq!(found.pit.iter().sum::<usize>(), 3);
        // Below all mass, and above all.
        assert!(found.pit[0] >= 1 && found.pit[BINS - 1] >= 1);
        assert_eq!(found.coverage, [Coverage { q: 0.5, covered: 2, n: 3 }]);
        assert_eq!(Calibration::of([].iter(), 0), None);
    }
}
