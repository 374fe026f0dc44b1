//! A distribution whose open mass was sampled, and the standard errors of its estimates.
//!
//! The open mass is cut into strata of equal mass, in an order that puts similar prefixes together, and one
//! prefix of each stratum is drawn. Every draw carries the mass of its stratum, so sums over numbers are
//! unbiased. Two neighbouring strata form a pair. The variance of a sum is estimated by the sum of the
//! squared differences within pairs: its expectation is the variance plus the squared differences of the
//! strata's means, so it is not too small. For other estimates, each balanced replicate (McCarthy, 1969)
//! counts one draw of every pair twice and the other one not at all. The mean squared deviation of the
//! replicates is the same as above for sums, and consistent for ratios, trimmed means and quantiles.

use super::distribution::{Distribution, DrawnNumber, Estimation, Objective};

/// Number of replicates. A power of two, so that the signs of different pairs are orthogonal. Further pairs
/// share the signs of others, from which they are independent.
const REPLICATES: u32 = 64;

/// The numbers that a tree found, and draws from its open mass.
#[derive(Debug, Clone, PartialEq)]
pub struct SampledDistribution {
    distribution: Distribution,
    drawn: Vec<DrawnNumber>,
    draws: u32,
}

impl SampledDistribution {
    /// `open`: the part of the open mass of `found` that no draw represents.
    pub fn new(found: &Distribution, drawn: Vec<DrawnNumber>, draws: u32, open: f64) -> Self {
        Self { distribution: found.with_drawn(&drawn, open), drawn, draws }
    }

    /// A distribution without draws.
    pub fn exact(found: &Distribution) -> Self {
        Self { distribution: found.clone(), drawn: Vec::new(), draws: 0 }
    }

    /// The average of several distributions of equal weight.
    pub fn average(all: &[Self]) -> Self {
        let share = 1.0 / all.len().max(1) as f64;
        let distributions: Vec<&Distribution> = all.iter().map(|one| &one.distribution).collect();
        let mut average =
            Self { distribution: Distribution::average(&distributions), drawn: Vec::new(), draws: 0 };
        for Self { drawn, draws, .. } in all {
            let first = average.draws;
            average.drawn.extend(drawn.iter().map(|drawn| DrawnNumber {
                draw: first + drawn.draw,
                mass: drawn.mass * share,
                ..*drawn
            }));
            average.draws += draws;
        }
        average
    }

    /// The distribution for estimates: its closed and invalid mass contain the draws.
    pub fn distribution(&self) -> &Distribution {
        &self.distribution
    }

    pub fn drawn(&self) -> &[DrawnNumber] {
        &self.drawn
    }

    /// Number of draws.
    pub fn draws(&self) -> u32 {
        self.draws
    }

    /// Returns the standard error of [`Distribution::estimate`] over draws; `None` without an estimate and
    /// for a mode, which has none.
    pub fn standard_error(&self, objective: Objective, estimation: &Estimation) -> Option<f64> {
        if objective == Objective::Mode {
            return None;
        }
        let estimate = self.distribution.estimate(objective, estimation)?;
        let mut varied = self.distribution.clone();
        let mut squares = 0.0;
        for replicate in 0..REPLICATES {
            varied.set_probabilities(&self.replicate(replicate));
            squares += (varied.estimate(objective, estimation)? - estimate).powi(2);
        }
        Some((squares / f64::from(REPLICATES)).sqrt()).filter(|error| error.is_finite())
    }

    /// The probability of each leaf if one draw of each pair counts twice and the other one does not count.
    fn replicate(&self, replicate: u32) -> Vec<f64> {
        let leaves = self.distribution.leaves();
        let mut probabilities: Vec<f64> = leaves.iter().map(|leaf| leaf.probability).collect();
        for &DrawnNumber { draw, value, mass } in &self.drawn {
            // A row of a Hadamard matrix, without its first column, whose signs are all equal.
            let column = 1 + draw / 2 % (REPLICATES - 1);
            let is_counted = (draw + (replicate & column).count_ones()).is_multiple_of(2);
            let value = value.to_f64();
            if let Ok(leaf) = leaves.binary_search_by(|leaf| leaf.value.total_cmp(&value)) {
                probabilities[leaf] += if is_counted { mass } else { -mass };
            }
        }
        // Rounding may leave a little less than 0.
        probabilities.iter_mut().for_each(|probability| *probability = probability.max(0.0));
        probabilities
    }
}
