//! Samples of answers that are numbers: bounds of the estimates of [`Distribution`].
//!
//! The samples that are numbers are independent draws from the distribution given that an answer is a number.
//! Their empirical distribution function is nowhere further than `sqrt(ln(2 / error) / 2n)` from the true one
//! (Dvoretzky, Kiefer and Wolfowitz, 1956, with the constant of Massart, Annals of Probability 18, 1990). All
//! functions in this band together bound quantiles, trimmed means, and the mean of a bounded variable
//! (Anderson, "Confidence limits for the expected value of an arbitrary bounded random variable", 1969). The
//! mean of a bounded variable has narrower bounds by [`betting`](super::betting).

use std::collections::HashMap;

use super::betting::mean_bounds;
use super::binomial::probability_bounds;
use super::looks::Look;
use crate::numbers::{Decimal, Distribution, Estimation, Extremes, Interval, NumberReading, Objective};

#[derive(Debug, Clone, PartialEq)]
pub struct NumberSamples {
    /// The numbers, in the order of the samples.
    values: Vec<f64>,
    /// Their distinct values, ascending, each with the number of values up to it.
    steps: Vec<(f64, usize)>,
    open: usize,
    look: Look,
}

impl NumberSamples {
    /// `readings` has one entry for each sample of the look, in their order. Also returns the empirical
    /// distribution.
    pub fn new(readings: &[NumberReading], look: Look) -> (Self, Distribution) {
        let mut counts: HashMap<Decimal, usize> = HashMap::new();
        let mut values = Vec::new();
        let (mut open, mut invalid) = (0, 0);
        for reading in readings {
            match reading {
                NumberReading::Number(value) => {
                    *counts.entry(*value).or_default() += 1;
                    values.push(value.to_f64());
                }
                NumberReading::Invalid => invalid += 1,
                NumberReading::Open => open += 1,
            }
        }
        let total = readings.len().max(1) as f64;
        let closed: HashMap<Decimal, f64> =
            counts.into_iter().map(|(value, count)| (value, count as f64 / total)).collect();
        let distribution = Distribution::new(&closed, f64::from(invalid) / total, open as f64 / total);
        (Self::of_values(values, open, look), distribution)
    }

    pub(super) fn of_values(values: Vec<f64>, open: usize, look: Look) -> Self {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let mut steps: Vec<(f64, usize)> = Vec::new();
        for (index, value) in sorted.into_iter().enumerate() {
            match steps.last_mut() {
                Some(last) if last.0.total_cmp(&value).is_eq() => last.1 = index + 1,
                _ => steps.push((value, index + 1)),
            }
        }
        Self { values, steps, open, look }
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.look.samples
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Bounds of the probability that an answer has this value.
    pub fn probability_bounds(&self, value: f64) -> Interval {
        let hits = self.values.iter().filter(|own| own.total_cmp(&value).is_eq()).count();
        let Look { samples, error, .. } = self.look;
        let low = probability_bounds(hits, samples, error).low;
        let high = probability_bounds(hits + self.open, samples, error).high;
        Interval { low, high }
    }

    /// Bounds of [`Distribution::estimate`].
    pub fn estimate_bounds(&self, objective: Objective, estimation: &Estimation) -> Option<Interval> {
        match objective {
            Objective::Mean => self.mean_bounds(estimation),
            Objective::Median => self.quantile_bounds(0.5, estimation.range),
            Objective::Quantile(q) => self.quantile_bounds(q, estimation.range),
            Objective::Mode => self.mode_bounds(estimation.range),
            Objective::Auto => self.auto_bounds(estimation),
        }
    }

    /// Bounds of [`Distribution::trimmed_mean`]; `None` if it is not conditional on the closed mass, and if
    /// the values have no range and less is trimmed than the band is wide.
    pub fn mean_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let Estimation { trim, normalize, range } = *estimation;
        if !normalize {
            return None;
        }
        match range {
            Some(range) if trim <= 0.0 && self.open == 0 => {
                let planned = self.look.is_only.then_some(self.values.len());
                mean_bounds(&self.values, range, self.look.error_of_all, planned)
            }
            _ => self.mean_in_band(estimation),
        }
    }

    fn mean_in_band(&self, estimation: &Estimation) -> Option<Interval> {
        let [lowest, highest] = self.band(estimation.range)?;
        Some(Interval { low: lowest.mean(estimation.trim)?, high: highest.mean(estimation.trim)? })
    }

    /// Bounds of [`Distribution::quantile`].
    pub fn quantile_bounds(&self, q: f64, range: Option<Interval>) -> Option<Interval> {
        let [lowest, highest] = self.band(range)?;
        Some(Interval { low: lowest.quantile(q)?, high: highest.quantile(q)? })
    }

    /// The values that may be the mode; `None` if that may be any value.
    fn mode_bounds(&self, range: Option<Interval>) -> Option<Interval> {
        let shares = self.shares()?;
        let least = shares.iter().map(|(_, share)| share.low).fold(0.0, f64::max);
        if self.unseen_max()? >= least {
            return range.filter(Interval::is_finite);
        }
        let may_win = shares.iter().filter(|(_, share)| share.high >= least);
        Some(Interval::around(may_win.map(|(value, _)| *value)))
    }

    /// Bounds of the majority if one value surely has it. Otherwise they contain the trimmed mean and every
    /// value that may have the majority.
    fn auto_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let shares = self.shares()?;
        if let Some((value, _)) = shares.iter().find(|(_, share)| share.low > 0.5) {
            return Some(Interval { low: *value, high: *value });
        }
        if self.unseen_max()? > 0.5 {
            return estimation.range.filter(Interval::is_finite);
        }
        if !estimation.normalize {
            return None;
        }
        // All of it follows from the band, so that all of it holds together.
        let mean = self.mean_in_band(estimation)?;
        let may_win = shares.iter().filter(|(_, share)| share.high > 0.5);
        Some(Interval::around(may_win.map(|(value, _)| *value).chain([mean.low, mean.high])))
    }

    /// Bounds of the probabilities of all values that were seen, given that an answer is a number. They hold
    /// together.
    fn shares(&self) -> Option<Vec<(f64, Interval)>> {
        let (width, known) = (self.band_width()?, self.known());
        let open = self.open as f64 / known;
        let mut below = 0;
        let mut shares = Vec::with_capacity(self.steps.len());
        for &(value, up_to) in &self.steps {
            let share = (up_to - below) as f64 / known;
            below = up_to;
            let [low, high] = [share - open - 2.0 * width, share + open + 2.0 * width];
            shares.push((value, Interval { low: low.max(0.0), high: high.min(1.0) }));
        }
        Some(shares)
    }

    /// Maximum probability of a value that was not seen.
    fn unseen_max(&self) -> Option<f64> {
        Some(self.open as f64 / self.known() + 2.0 * self.band_width()?)
    }

    /// Number of samples that are or may be numbers.
    fn known(&self) -> f64 {
        (self.values.len() + self.open) as f64
    }

    /// The distance from the empirical distribution function to each side of its band.
    fn band_width(&self) -> Option<f64> {
        let closed = self.values.len();
        (closed > 0).then(|| ((2.0 / self.look.error).ln() / (2.0 * closed as f64)).sqrt())
    }

    /// The distributions in the band with the smallest and with the largest values. Open samples may lie at
    /// either end, or not be numbers.
    fn band(&self, range: Option<Interval>) -> Option<[Extremes; 2]> {
        let (width, known) = (self.band_width()?, self.known());
        let open = self.open as f64;
        let range = range.unwrap_or(Interval { low: f64::NEG_INFINITY, high: f64::INFINITY });
        let mut lowest = vec![(range.low, (open / known + width).min(1.0))];
        let mut highest = Vec::with_capacity(self.steps.len() + 1);
        for &(value, up_to) in &self.steps {
            lowest.push((value, ((up_to as f64 + open) / known + width).min(1.0)));
            highest.push((value, (up_to as f64 / known - width).max(0.0)));
        }
        highest.push((range.high, 1.0));
        Some([lowest, highest].map(|steps| Extremes { steps }))
    }
}

#[cfg(test)]
#[path = "coverage_tests.rs"]
mod tests;
