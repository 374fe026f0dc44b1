//! Tests of the difference between two sides, A and B, of the same items.
//!
//! The p-value is the larger of two p-values. Each covers a weakness of the other:
//!
//! * The permutation test swaps A and B item by item (Fisher 1935, Pitman 1937). It is exact if the two sides
//!   of each item could be exchanged, for any statistic and any number of items. It enumerates all swaps if
//!   there are at most as many as resamples.
//! * The bootstrap draws the items again. It needs many items but no symmetry: it also holds if one side is
//!   mostly a little better and rarely much worse. Means and functions of means are studentised (Efron 1979,
//!   Hall 1988), and other statistics use percentiles.
//!
//! If each item of both sides is 0 or 1, as in accuracy, only the items that one side alone has matter. The
//! permutation test is then McNemar's exact test, which needs no symmetry, and the interval is Bonett and
//! Price's (2012). All other intervals come from the bootstrap. An interval excludes 0 exactly if p is at
//! most [`LEVEL`]: if p is larger, the interval is widened to include 0.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::bootstrap::Bootstrap;
use super::weighted::{Weighted, mean_in_lanes};
use super::{Interval, Z_95};

/// A difference is significant if its p-value is at most this.
pub const LEVEL: f64 = 0.05;

/// Minimum number of items for a test. `n` items have `2^n` swaps, two of which are the most extreme. The
/// smallest p-value is therefore `2 / 2^n`, which exceeds [`LEVEL`] for `n < 6`.
pub const ITEMS_MIN: usize = 6;

/// Maximum relative difference of two statistics that count as equal: the rounding error of sums.
const ROUNDING: f64 = 1e-12;

/// A statistic of both sides, each over the same items.
pub struct Contrast<'a> {
    pub a: Weighted<'a>,
    pub b: Weighted<'a>,
    /// The same statistic over the items of A followed by the items of B. Its weights select one of the two
    /// for each item.
    pub both: Weighted<'a>,
    pub spread: Spread,
}

/// How the interval of a difference is computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Spread {
    /// The mean of zeros and ones.
    Shares(OneSided),
    /// A function of means.
    Studentised(Terms),
    /// Any other statistic, and sides that do not differ.
    Percentiles,
}

/// The numbers of items that are 1 on one side and 0 on the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OneSided {
    pub only_a: usize,
    pub only_b: usize,
}

impl Spread {
    /// Returns the spread of the difference between the means of two columns.
    pub fn of_means(a: &[f64], b: &[f64]) -> Self {
        if !a.iter().chain(b).all(|value| [0.0, 1.0].contains(value)) {
            return Self::of_terms(Terms::new(a, b));
        }
        let mut one_sided = OneSided { only_a: 0, only_b: 0 };
        for (a, b) in a.iter().zip(b) {
            one_sided.only_a += usize::from(a > b);
            one_sided.only_b += usize::from(b > a);
        }
        Self::Shares(one_sided)
    }

    pub fn of_terms(terms: Option<Terms>) -> Self {
        terms.map_or(Self::Percentiles, Self::Studentised)
    }
}

impl OneSided {
    /// Returns the interval of the difference of two shares of the same `n` items (Bonett and Price 2012): a
    /// Wald interval of `z` standard errors with one more item on each side.
    pub(super) fn interval(self, n: usize, z: f64) -> Interval {
        let n = n as f64 + 2.0;
        let a = (self.only_a as f64 + 1.0) / n;
        let b = (self.only_b as f64 + 1.0) / n;
        let half = z * ((a + b - (b - a).powi(2)) / n).sqrt();
        Interval { low: (b - a - half).max(-1.0), high: (b - a + half).min(1.0) }
    }
}

impl Contrast<'static> {
    /// Returns the means of a column of A and of the same column of B.
    pub fn of_means(a: Vec<f64>, b: Vec<f64>) -> Self {
        let spread = Spread::of_means(&a, &b);
        let both = [&*a, &*b].concat();
        Self { a: weighted_mean(a), b: weighted_mean(b), both: weighted_mean(both), spread }
    }
}

fn weighted_mean(values: Vec<f64>) -> Weighted<'static> {
    Box::new(move |weights| mean_in_lanes(&values, weights))
}

impl Contrast<'_> {
    /// Returns the statistic of A and of B, with the same weights on both.
    pub fn sides(&self, weights: &[f64]) -> Option<[f64; 2]> {
        Some([(self.a)(weights)?, (self.b)(weights)?])
    }

    /// Returns the statistic of B minus that of A.
    pub(super) fn difference(&self, weights: &[f64]) -> Option<f64> {
        self.sides(weights).map(|[a, b]| b - a)
    }
}

/// The centred contribution of each item to a difference: the differences themselves for a mean, and the
/// influence function for a function of means. Their standard deviation is the standard error times the
/// square root of the number of items.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    centred: Vec<f64>,
    squares: Vec<f64>,
    variance: f64,
}

impl Terms {
    /// Returns `None` if either side is `None`.
    pub fn of(a: Option<Vec<f64>>, b: Option<Vec<f64>>) -> Option<Self> {
        Self::new(&a?, &b?)
    }

    /// Computes the terms from the influence of each item on A and on B. `None` if the items do not differ.
    pub fn new(a: &[f64], b: &[f64]) -> Option<Self> {
        let ones = vec![1.0; a.len()];
        let raw: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
        let mean = mean_in_lanes(&raw, &ones)?;
        let centred: Vec<f64> = raw.iter().map(|value| value - mean).collect();
        let squares: Vec<f64> = centred.iter().map(|value| value * value).collect();
        let variance = mean_in_lanes(&squares, &ones)?;
        let size = a.iter().chain(b).fold(0.0_f64, |size, value| size.max(value.abs()));
        (variance.sqrt() > ROUNDING * size).then_some(Self { centred, squares, variance })
    }

    /// Returns the standard deviation relative to the standard deviation of the plain items. A resample that
    /// only draws equal items uses the latter.
    fn relative_deviation(&self, weights: &[f64]) -> Option<f64> {
        let mean = mean_in_lanes(&self.centred, weights)?;
        let variance = (mean_in_lanes(&self.squares, weights)? - mean * mean) / self.variance;
        Some(if variance > ROUNDING { variance.sqrt() } else { 1.0 })
    }
}

/// A p-value of at most 1. If no resample was as extreme as the items, it is only an upper bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PValue {
    pub value: f64,
    pub is_bound: bool,
}

impl PValue {
    /// Computes the p-value from the number of `drawn` random resamples that are at least as extreme. The
    /// items themselves count as one more (Davison and Hinkley 1997, section 4.2). `tails` is 2 if only one
    /// tail was counted.
    fn of_random(extreme: usize, drawn: usize, tails: f64) -> Self {
        let value = tails * (extreme + 1) as f64 / (drawn + 1) as f64;
        Self { value: value.min(1.0), is_bound: extreme == 0 && value < 1.0 }
    }
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DifferenceTest {
    /// 95% interval of the difference.
    pub interval: Interval,
    /// Two-sided p-value of no difference.
    pub p: PValue,
}

/// Tests each statistic over the same `n` items. The two sides differ in the items at `differing`. `None` for
/// fewer than [`ITEMS_MIN`] items, and for a statistic that most resamples lack.
pub fn test_contrasts(
    contrasts: &[Contrast<'_>],
    n: usize,
    differing: &[usize],
    bootstrap: Bootstrap,
) -> Vec<Option<DifferenceTest>> {
    if n < ITEMS_MIN {
        return vec![None; contrasts.len()];
    }
    let plain = vec![1.0; n];
    let observed: Vec<Option<f64>> = contrasts.iter().map(|contrast| contrast.difference(&plain)).collect();
    let draws = bootstrap.resample_in_parallel(n, |weights| {
        let mut plausible = Vec::with_capacity(contrasts.len());
        for (contrast, observed) in contrasts.iter().zip(&observed) {
            plausible.push(observed.and_then(|observed| plausible_difference(contrast, observed, weights)));
        }
        plausible
    });
    let swapped = Swaps { n, differing, bootstrap }.test(contrasts);
    let mut tests = Vec::new();
    for (index, (contrast, swapped)) in contrasts.iter().zip(swapped).enumerate() {
        let test = observed[index].and_then(|observed| match contrast.spread {
            Spread::Shares(one_sided) => {
                Some(DifferenceTest { interval: one_sided.interval(n, Z_95).including(observed), p: swapped })
            }
            Spread::Studentised(_) | Spread::Percentiles => {
                let resampled = test_resampled(observed, draws.iter().map(|values| values[index]))?;
                let is_larger = swapped.value > resampled.p.value;
                Some(DifferenceTest { p: if is_larger { swapped } else { resampled.p }, ..resampled })
            }
        });
        tests.push(test.map(DifferenceTest::agreeing));
    }
    tests
}

impl DifferenceTest {
    /// Widens the interval to include 0 if the test shows no difference.
    fn agreeing(self) -> Self {
        let interval = if self.p.value > LEVEL { self.interval.including(0.0) } else { self.interval };
        Self { interval, ..self }
    }
}

/// Returns a plausible value of the true difference, given how far a resample is from the items: further if
/// its standard error is smaller. Without terms, it is the resample's own difference.
pub(super) fn plausible_difference(contrast: &Contrast<'_>, observed: f64, weights: &[f64]) -> Option<f64> {
    let resampled = contrast.difference(weights)?;
    let Spread::Studentised(terms) = &contrast.spread else { return Some(resampled) };
    Some(observed - (resampled - observed) / terms.relative_deviation(weights)?)
}

/// Runs the bootstrap test of a difference, which resamples may lack. The interval is widened to include the
/// difference. `None` if most resamples lack it.
fn test_resampled(
    difference: f64,
    resampled: impl ExactSizeIterator<Item = Option<f64>>,
) -> Option<DifferenceTest> {
    let drawn = resampled.len();
    let found: Vec<f64> = resampled.flatten().collect();
    if 2 * found.len() <= drawn {
        return None;
    }
    let tested = test_plausible(found)?;
    Some(DifferenceTest { interval: tested.interval.including(difference), ..tested })
}

/// Returns twice the share of plausible differences on the rarer side of 0 as the p-value. A difference of 0
/// counts on both sides. The ends of the interval are the order statistics that make it exclude 0 exactly if
/// p is at most [`LEVEL`]. `None` without values.
fn test_plausible(mut values: Vec<f64>) -> Option<DifferenceTest> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    let below = values.partition_point(|&value| value <= 0.0);
    let above = n - values.partition_point(|&value| value < 0.0);
    let outside = ((LEVEL / 2.0 * (n + 1) as f64).floor() as usize).saturating_sub(1);
    let interval = Interval { low: *values.get(outside)?, high: *values.get(n.checked_sub(outside + 1)?)? };
    Some(DifferenceTest { interval, p: PValue::of_random(below.min(above), n, 2.0) })
}

/// The permutation test: swaps the two sides of some items.
struct Swaps<'a> {
    n: usize,
    differing: &'a [usize],
    bootstrap: Bootstrap,
}

/// Weights over the items of A followed by the items of B. They select the values of each side.
struct Sides {
    a: Vec<f64>,
    b: Vec<f64>,
}

impl Sides {
    fn new(n: usize) -> Self {
        let ones = vec![1.0; n];
        let zeros = vec![0.0; n];
        Self { a: [&*ones, &zeros].concat(), b: [zeros, ones].concat() }
    }

    fn swap(&mut self, item: usize) {
        let n = self.a.len() / 2;
        self.a.swap(item, n + item);
        self.b.swap(item, n + item);
    }

    /// Returns the compared values, B minus A, and their rounding error.
    fn difference(&self, contrast: &Contrast<'_>) -> Option<(f64, f64)> {
        let a = (contrast.both)(&self.a)?;
        let b = (contrast.both)(&self.b)?;
        Some((b - a, ROUNDING * a.abs().max(b.abs())))
    }

    /// Returns for each contrast 1 if its difference is as extreme as the observed one, and 0 if not. A swap
    /// without the statistic counts against a difference.
    fn extreme(&self, contrasts: &[Contrast<'_>], observed: &[Option<(f64, f64)>]) -> Vec<usize> {
        let mut extreme = Vec::with_capacity(contrasts.len());
        for (contrast, observed) in contrasts.iter().zip(observed) {
            let is_extreme = match (self.difference(contrast), observed) {
                (Some((swapped, _)), Some((observed, rounding))) => {
                    swapped.abs() >= observed.abs() - rounding
                }
                _ => true,
            };
            extreme.push(usize::from(is_extreme));
        }
        extreme
    }
}

fn added(sums: Vec<usize>, counts: Vec<usize>) -> Vec<usize> {
    sums.into_iter().zip(counts).map(|(sum, count)| sum + count).collect()
}

impl Swaps<'_> {
    /// Returns the number of distinct swaps if that is at most the number of resamples. Swapping every item
    /// only changes the sign of a difference, so the last differing item is never swapped.
    fn enumerated(&self) -> Option<u32> {
        let swappable = u32::try_from(self.differing.len().saturating_sub(1)).ok()?;
        1_u32.checked_shl(swappable).filter(|&all| all <= self.bootstrap.resamples)
    }

    fn test(&self, contrasts: &[Contrast<'_>]) -> Vec<PValue> {
        let plain = Sides::new(self.n);
        let observed: Vec<Option<(f64, f64)>> =
            contrasts.iter().map(|contrast| plain.difference(contrast)).collect();
        let enumerated = self.enumerated();
        let drawn = enumerated.unwrap_or(self.bootstrap.resamples);
        // For each statistic, the number of swaps that are as extreme as the items.
        let counts = (0..drawn)
            .into_par_iter()
            .map(|index| {
                let mut sides = Sides::new(self.n);
                match enumerated {
                    Some(_) => self.swap_by_bits(&mut sides, index),
                    None => self.swap_at_random(&mut sides, index),
                }
                sides.extreme(contrasts, &observed)
            })
            .reduce(|| vec![0; contrasts.len()], added);
        let mut p_values = Vec::with_capacity(counts.len());
        for extreme in counts {
            p_values.push(match enumerated {
                Some(all) => PValue { value: extreme as f64 / f64::from(all), is_bound: false },
                None => PValue::of_random(extreme, drawn as usize, 1.0),
            });
        }
        p_values
    }

    /// Swaps the differing items whose bit in `index` is set.
    fn swap_by_bits(&self, sides: &mut Sides, index: u32) {
        for (bit, &item) in self.differing.iter().take(32).enumerate() {
            if (index >> bit) & 1 == 1 {
                sides.swap(item);
            }
        }
    }

    fn swap_at_random(&self, sides: &mut Sides, index: u32) {
        let mut generator = ChaCha8Rng::seed_from_u64(self.bootstrap.seed);
        // The bootstrap uses the streams up to `u32::MAX`.
        generator.set_stream((1 << 32) + u64::from(index));
        for &item in self.differing {
            if generator.random() {
                sides.swap(item);
            }
        }
    }
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
