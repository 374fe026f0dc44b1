//! The figures that the NTL paper's evaluation code computes from numbers, bit-identical if the code is
//! deterministic.
//!
//! In: predictions and labels as [`number_pair`](super::numbers::number_pair) reads them, in file order. Out:
//! the figures that its trainer logs, including these peculiarities:
//!
//! * items whose prediction has no number are left out of all errors;
//! * "accurate" is `numpy.isclose`: within 1e-8 + 1e-5 times the label;
//! * R² is minus infinity or NaN if the labels do not vary; a correlation of fewer than two items is 0.

use crate::numpy;

/// `numpy.isclose`.
pub(crate) fn is_close(value: f64, label: f64) -> bool {
    (value - label).abs() <= 1e-8 + 1e-5 * label.abs()
}

/// Returns `sign(x) log10(|x| + 1)`, which is linear near 0 and logarithmic far from it: the scale of the
/// paper's logarithmic errors, in the paper's order of operations.
pub fn signed_log(value: f64) -> f64 {
    value.signum() * (value.abs() + 1.0).log10()
}

/// The trainer's `MAE`, `MSE`, and so on. NaN and infinities are possible.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NumberFigures {
    pub mae: f64,
    pub mse: f64,
    pub r2: f64,
    /// `number_accuracy`, over all rows.
    pub accuracy: f64,
    /// `count_not_produced_valid_results`.
    pub unparsed: usize,
    pub median_ae: f64,
    pub log_mae: f64,
    pub log_r2: f64,
    pub pearson: f64,
    pub spearman: f64,
}

impl NumberFigures {
    /// Computes the figures of pairs as `number_pair` reads them.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let valid: Vec<(f64, f64)> = pairs.iter().copied().filter(|(value, _)| !value.is_nan()).collect();
        let errors: Vec<f64> = valid.iter().map(|(value, label)| (value - label).abs()).collect();
        let logs: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (signed_log(*a), signed_log(*b))).collect();
        let log_errors = logs.iter().filter(|(value, _)| !value.is_nan()).map(|(a, b)| (a - b).abs());
        let close = pairs.iter().filter(|(value, label)| is_close(*value, *label)).count();
        let correlated = valid.len() >= 2;
        Self {
            mae: numpy::mean(&errors),
            mse: numpy::mean(&errors.iter().map(|error| error * error).collect::<Vec<_>>()),
            r2: r2(pairs),
            accuracy: close as f64 / pairs.len() as f64,
            unparsed: pairs.len() - valid.len(),
            median_ae: numpy::median(&errors),
            log_mae: numpy::mean(&log_errors.collect::<Vec<_>>()),
            log_r2: r2(&logs),
            pearson: if correlated { numpy::pearson(&valid) } else { 0.0 },
            spearman: if correlated { numpy::spearman(&valid) } else { 0.0 },
        }
    }
}

fn r2(pairs: &[(f64, f64)]) -> f64 {
    let centre = numpy::nan_mean(&pairs.iter().map(|(_, label)| *label).collect::<Vec<_>>());
    let left: Vec<f64> = pairs.iter().map(|(value, label)| (value - label) * (value - label)).collect();
    let total: Vec<f64> = pairs.iter().map(|(_, label)| (label - centre) * (label - centre)).collect();
    1.0 - numpy::nan_sum(&left) / numpy::nan_sum(&total)
}
