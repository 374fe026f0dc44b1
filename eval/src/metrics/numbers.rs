//! Predicted and true numbers, as columns that number metrics are computed from.
//!
//! Values that do not depend on the item weights (errors, orders) are computed once.

use ntl_paper::figures::signed_log;

use super::Estimates;
use crate::stats::kendall::Kendall;
use crate::stats::weighted::{Mean, Sorted};

/// A predicted number and the true one. All values are finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    pub truth: f64,
    pub estimates: Estimates,
    /// Absolute error of the median.
    pub absolute_error: f64,
}

impl Prediction {
    pub fn new(truth: f64, estimates: Estimates) -> Self {
        Self { truth, estimates, absolute_error: (estimates.median - truth).abs() }
    }
}

/// Columns with one value per prediction.
#[derive(Debug, Clone)]
pub struct NumberColumns {
    /// How the statistics form means.
    pub(super) mean: Mean,
    pub(super) truths: Vec<f64>,
    /// The estimates for squared errors.
    pub(super) means: Vec<f64>,
    pub(super) absolute_errors: Vec<f64>,
    pub(super) squared_errors: Vec<f64>,
    /// 0 if the truth is 0.
    relative_errors: Vec<f64>,
    pub(super) log_truths: Vec<f64>,
    pub(super) log_absolute_errors: Vec<f64>,
    pub(super) log_squared_errors: Vec<f64>,
    pub(super) sorted_absolute_errors: Sorted,
    pub(super) sorted_truths: Sorted,
    pub(super) sorted_means: Sorted,
    pub(super) kendall: Kendall,
}

impl NumberColumns {
    pub fn new(predictions: &[Prediction], mean: Mean) -> Self {
        let column = |value: fn(f64, Estimates) -> f64| -> Vec<f64> {
            predictions.iter().map(|prediction| value(prediction.truth, prediction.estimates)).collect()
        };
        // Adding 0 makes -0 equal to 0.
        let truths = column(|truth, _| truth + 0.0);
        let means = column(|_, estimates| estimates.mean + 0.0);
        let absolute_errors: Vec<f64> =
            predictions.iter().map(|prediction| prediction.absolute_error).collect();
        let mut relative_errors = Vec::with_capacity(truths.len());
        for (error, truth) in absolute_errors.iter().zip(&truths) {
            relative_errors.push(if truth.abs() > 0.0 { error / truth.abs() } else { 0.0 });
        }
        Self {
            mean,
            relative_errors,
            squared_errors: column(|truth, estimates| (estimates.mean - truth).powi(2)),
            log_truths: column(|truth, _| signed_log(truth)),
            log_absolute_errors: column(|truth, estimates| {
                (signed_log(estimates.median) - signed_log(truth)).abs()
            }),
            log_squared_errors: column(|truth, estimates| {
                (signed_log(estimates.mean) - signed_log(truth)).powi(2)
            }),
            sorted_absolute_errors: Sorted::new(&absolute_errors),
            sorted_truths: Sorted::new(&truths),
            sorted_means: Sorted::new(&means),
            kendall: Kendall::new(&means, &truths),
            truths,
            means,
            absolute_errors,
        }
    }

    pub(super) fn n(&self) -> usize {
        self.truths.len()
    }

    /// Returns the number of true numbers that are not 0.
    pub(super) fn nonzero(&self) -> usize {
        self.truths.iter().filter(|truth| truth.abs() > 0.0).count()
    }

    /// Returns the mean of the absolute errors relative to the size of the truth, without truths of 0.
    pub(super) fn mean_relative_error(&self, weights: &[f64]) -> Option<f64> {
        let counted = weights.iter().zip(&self.truths);
        let counted: Vec<f64> =
            counted.map(|(weight, truth)| if truth.abs() > 0.0 { *weight } else { 0.0 }).collect();
        (self.mean)(&self.relative_errors, &counted)
    }

    /// Returns the influence of each item on [`Self::mean_relative_error`], which is a ratio of two means.
    pub(super) fn relative_error_terms(&self, weights: &[f64]) -> Option<Vec<f64>> {
        let centre = self.mean_relative_error(weights)?;
        let counted: Vec<f64> =
            self.truths.iter().map(|truth| f64::from(u8::from(truth.abs() > 0.0))).collect();
        let share = (self.mean)(&counted, weights)?;
        let mut terms = Vec::with_capacity(counted.len());
        for (error, counted) in self.relative_errors.iter().zip(&counted) {
            terms.push(counted * (error - centre) / share);
        }
        Some(terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::registry::{METRICS, MetricInfo, Statistic, find};
    use crate::stats::weighted::mean_in_order;

    /// Columns of these predictions and truths.
    fn columns(rows: &[(f64, f64)]) -> NumberColumns {
        let predictions: Vec<Prediction> =
            rows.iter().map(|&(value, truth)| Prediction::new(truth, Estimates::point(value))).collect();
        NumberColumns::new(&predictions, mean_in_order)
    }

    fn figure(columns: &NumberColumns, name: &str, weights: &[f64]) -> Option<f64> {
        match find(name).unwrap().statistic {
            Statistic::Number(of) | Statistic::RelativeNumber(of) => of(columns, weights),
            _ => panic!("{name} is not computed from numbers"),
        }
    }

    #[test]
    fn a_row_counted_twice_is_two_rows() {
        let rows = [(1.0, 1.5), (4.0, 3.0), (-2.0, 5.0), (4.0, 7.5)];
        let weighted = columns(&rows);
        let repeated = columns(&[rows[0], rows[2], rows[2], rows[3]]);
        let numbers = |metric: &&MetricInfo| {
            matches!(metric.statistic, Statistic::Number(_) | Statistic::RelativeNumber(_))
        };
        let names: Vec<&str> = METRICS.iter().filter(numbers).map(|metric| metric.name).collect();
        assert_eq!(names.len(), 11);
        for name in names {
            let a = figure(&weighted, name, &[1.0, 0.0, 2.0, 1.0]);
            let b = figure(&repeated, name, &[1.0; 4]);
            assert!((a.unwrap() - b.unwrap()).abs() < 1e-12, "{name}: {a:?} {b:?}");
        }
    }

    /// By hand: ranks 1, 2.5, 2.5, 4 against 1, 2, 4, 3.
    #[test]
    fn ties_share_the_mean_of_their_ranks() {
        let table = columns(&[(1.0, 10.0), (2.0, 20.0), (2.0, 90.0), (3.0, 30.0)]);
        let want = (-1.5 * -1.5 + 0.0 + 0.0 + 1.5 * 0.5) / (4.5_f64.sqrt() * 5.0_f64.sqrt());
        assert!((figure(&table, "spearman", &[1.0; 4]).unwrap() - want).abs() < 1e-12);
    }

    #[test]
    fn relative_errors_leave_out_a_truth_of_zero() {
        let table = columns(&[(1.0, 2.0), (5.0, 0.0), (3.0, 4.0)]);
        assert!((figure(&table, "mape", &[1.0; 3]).unwrap() - 0.375).abs() < 1e-12);
        assert_eq!((table.nonzero(), table.n()), (2, 3));
    }

    #[test]
    fn correlations_need_variation_on_both_sides() {
        for rows in [[(1.0, 2.0), (1.0, 3.0)], [(1.0, 2.0), (3.0, 2.0)]] {
            let table = columns(&rows);
            assert_eq!(figure(&table, "pearson", &[1.0; 2]), None);
            assert_eq!(figure(&table, "spearman", &[1.0; 2]), None);
        }
        let two = figure(&columns(&[(1.0, 2.0), (3.0, 9.0)]), "pearson", &[1.0; 2]);
        assert!((two.unwrap() - 1.0).abs() < 1e-12);
    }

    /// The mean of three times 0.1 is not 0.1 in floating point.
    #[test]
    fn a_draw_of_equal_truths_has_no_r2_even_if_their_mean_is_rounded() {
        let table = columns(&[(0.3, 0.1), (0.2, 0.1), (0.4, 0.7)]);
        for name in ["r2", "log_r2", "pearson", "spearman", "kendall"] {
            assert_eq!(figure(&table, name, &[1.0, 2.0, 0.0]), None, "{name}");
            assert!(figure(&table, name, &[1.0; 3]).is_some(), "{name}");
        }
    }
}
