//! Prediction-powered inference with power tuning (PPI++: Angelopoulos, Duchi and Zrnic 2023, arXiv
//! 2311.01453) of a mean: what people would say about all items on average, from people's values of a random
//! part of the items and a judge's values of all.
//!
//! The estimate is the mean of people's values, plus the tuning times the difference between the judge's mean
//! over the other items and over the labelled ones. It is unbiased for any judge: the tuning, the slope that
//! minimises the variance, only affects the width of the interval. Unlike in the paper, the slope may exceed
//! 1, because a judge's expected scores vary less than people's; and the interval uses Student's quantile
//! with a degree of freedom less for the slope, because labels are few.

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::{Interval, Z_95, varies};

/// The values of an item that people labelled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Labelled {
    pub human: f64,
    pub judge: f64,
}

/// The moments of labelled and other items that the estimate needs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictionPowered {
    labels: usize,
    others: usize,
    human_mean: f64,
    /// The judge's mean over the other items minus that over the labelled ones.
    judge_shift: f64,
    /// Sums of squares and products over the labelled items, around their means.
    human_squares: f64,
    judge_squares: f64,
    products: f64,
    /// Variance of the judge's values over all items.
    judge_variance: f64,
}

/// An estimate of people's mean over all items.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoweredMean {
    pub value: f64,
    /// 95% interval. `None` if people's values do not vary.
    pub interval: Option<Interval>,
    /// Factor of the judge's values; 0 if they do not help.
    pub tuning: f64,
    /// The variance of the labels' own mean, divided by the variance of the estimate: how many labels without
    /// the judge one label is worth.
    pub gain: Option<f64>,
}

impl PredictionPowered {
    /// Returns `None` for fewer than three labels, which leave no degree of freedom.
    pub fn new(labelled: &[Labelled], others: &[f64]) -> Option<Self> {
        if labelled.len() < 3 {
            return None;
        }
        let n = labelled.len() as f64;
        let human_mean = labelled.iter().map(|item| item.human).sum::<f64>() / n;
        let judge_mean = labelled.iter().map(|item| item.judge).sum::<f64>() / n;
        let (mut human_squares, mut judge_squares, mut products) = (0.0, 0.0, 0.0);
        for item in labelled {
            human_squares += (item.human - human_mean).powi(2);
            judge_squares += (item.judge - judge_mean).powi(2);
            products += (item.human - human_mean) * (item.judge - judge_mean);
        }
        let all: Vec<f64> = labelled.iter().map(|item| item.judge).chain(others.iter().copied()).collect();
        // Equal values have no variance and no covariance; rounding errors would look like one.
        if !varies(labelled.iter().map(|item| item.human)) {
            human_squares = 0.0;
            products = 0.0;
        }
        if !varies(labelled.iter().map(|item| item.judge)) {
            judge_squares = 0.0;
            products = 0.0;
        }
        let all_mean = all.iter().sum::<f64>() / all.len() as f64;
        let all_squares: f64 = if varies(all.iter().copied()) {
            all.iter().map(|value| (value - all_mean).powi(2)).sum()
        } else {
            0.0
        };
        let others_mean =
            if others.is_empty() { judge_mean } else { others.iter().sum::<f64>() / others.len() as f64 };
        Some(Self {
            labels: labelled.len(),
            others: others.len(),
            human_mean,
            judge_shift: others_mean - judge_mean,
            human_squares,
            judge_squares,
            products,
            judge_variance: all_squares / (all.len() - 1) as f64,
        })
    }

    pub fn mean(&self) -> PoweredMean {
        let n = self.labels as f64;
        let tuning = self.tuning();
        let residual_squares =
            self.human_squares - 2.0 * tuning * self.products + tuning * tuning * self.judge_squares;
        let freedom = if self.is_tuned() { n - 2.0 } else { n - 1.0 };
        let mut variance = residual_squares.max(0.0) / freedom / n;
        if self.is_tuned() {
            variance += tuning * tuning * self.judge_variance / self.others as f64;
        }
        let value = self.human_mean + tuning * self.judge_shift;
        let half = student(freedom) * variance.sqrt();
        let is_known = self.human_squares > 0.0;
        let variance_of_labels = self.human_squares / (n - 1.0) / n;
        PoweredMean {
            value,
            interval: is_known.then_some(Interval { low: value - half, high: value + half }),
            tuning,
            gain: is_known.then(|| variance_of_labels / variance),
        }
    }

    /// Returns the smallest number of labels among the same items whose interval is at most this wide, by the
    /// variances of the present labels. `None` if labels of all items do not suffice, or if people's values
    /// do not vary.
    pub fn labels_needed(&self, width: f64) -> Option<usize> {
        let items = self.labels + self.others;
        if self.human_squares <= 0.0 || self.width_with(items) > width {
            return None;
        }
        let (mut too_few, mut enough) = (2, items);
        while enough - too_few > 1 {
            let labels = usize::midpoint(too_few, enough);
            if self.width_with(labels) > width {
                too_few = labels;
            } else {
                enough = labels;
            }
        }
        Some(enough)
    }

    /// Returns the expected width of the interval with a number of labels, at least 3, among the same items.
    pub fn width_with(&self, labels: usize) -> f64 {
        let items = (self.labels + self.others) as f64;
        let variance = self.human_squares / (self.labels as f64 - 1.0);
        let explained = if self.products.abs() > 0.0 {
            (self.products.powi(2) / (self.human_squares * self.judge_squares)).min(1.0)
        } else {
            0.0
        };
        let of_mean = variance * ((1.0 - explained) / labels as f64 + explained / items);
        2.0 * student(labels as f64 - 2.0) * of_mean.sqrt()
    }

    /// Returns how far the judge's means over the labelled and over the other items are apart, in standard
    /// errors: beyond 3, the labelled items are hardly a random part.
    pub fn shift_in_standard_errors(&self) -> f64 {
        if self.others == 0 || self.judge_variance <= 0.0 {
            return 0.0;
        }
        let variance = self.judge_variance * (1.0 / self.labels as f64 + 1.0 / self.others as f64);
        self.judge_shift.abs() / variance.sqrt()
    }

    fn tuning(&self) -> f64 {
        if !self.is_tuned() {
            return 0.0;
        }
        let n = self.labels as f64;
        self.products / n / ((1.0 + n / self.others as f64) * self.judge_variance)
    }

    fn is_tuned(&self) -> bool {
        self.others > 0 && self.products.abs() > 0.0
    }
}

/// Returns the 97.5% quantile of Student's distribution.
fn student(freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(Z_95, |distribution| distribution.inverse_cdf(0.975))
}

#[cfg(test)]
#[path = "prediction_powered_tests.rs"]
mod tests;
