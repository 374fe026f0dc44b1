//! Figures of predicted numbers against true ones, each row counted so many times.
//!
//! In: the estimates and the truth of rows that have both. Out: the ten figures of [`NAMES`]. Everything that does not
//! depend on how often a row counts (errors, orders) is computed once.

use super::{Estimates, Name};
use crate::stats::{signed_log, varies};

/// The figures, in the order of [`Columns::figures`].
pub const NAMES: [Name; 10] = [
    Name::Mae,
    Name::Mse,
    Name::Rmse,
    Name::R2,
    Name::MedianAe,
    Name::LogMae,
    Name::LogR2,
    Name::Pearson,
    Name::Spearman,
    Name::Mape,
];

/// Columns of a table with one row an item.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    truth: Vec<f64>,
    /// The estimate for squared errors.
    mean: Vec<f64>,
    absolute: Vec<f64>,
    squared: Vec<f64>,
    log_truth: Vec<f64>,
    log_absolute: Vec<f64>,
    log_squared: Vec<f64>,
    /// Absolute error over the size of the truth; 0 where the truth is 0.
    relative: Vec<f64>,
    /// 1, or 0 where the truth is 0.
    nonzero: Vec<u32>,
    /// Indices by rising absolute error.
    by_error: Vec<usize>,
    by_truth: Vec<usize>,
    by_mean: Vec<usize>,
}

impl Columns {
    /// Fills the columns.
    pub fn of(rows: &[(Estimates, f64)]) -> Self {
        let column = |get: &dyn Fn(&(Estimates, f64)) -> f64| -> Vec<f64> { rows.iter().map(get).collect() };
        let truth = column(&|(_, truth)| truth + 0.0);
        let mean = column(&|(numbers, _)| numbers.mean + 0.0);
        let absolute = column(&|(numbers, truth)| (numbers.median - truth).abs());
        let nonzero: Vec<u32> = truth.iter().map(|truth| u32::from(truth.abs() > 0.0)).collect();
        Self {
            squared: column(&|(numbers, truth)| (numbers.mean - truth).powi(2)),
            log_truth: column(&|(_, truth)| signed_log(*truth)),
            log_absolute: column(&|(numbers, truth)| (signed_log(numbers.median) - signed_log(*truth)).abs()),
            log_squared: column(&|(numbers, truth)| (signed_log(numbers.mean) - signed_log(*truth)).powi(2)),
            relative: column(&|(numbers, truth)| {
                if truth.abs() > 0.0 { (numbers.median - truth).abs() / truth.abs() } else { 0.0 }
            }),
            nonzero,
            by_error: order(&absolute),
            by_truth: order(&truth),
            by_mean: order(&mean),
            truth,
            mean,
            absolute,
        }
    }

    /// How many rows.
    pub fn len(&self) -> usize {
        self.truth.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.truth.is_empty()
    }

    /// Over how many rows a figure is.
    pub fn n(&self, name: Name) -> usize {
        match name {
            Name::Mape => self.nonzero.iter().filter(|&&counts| counts > 0).count(),
            _ => self.len(),
        }
    }

    /// The figures, row `i` counted `times[i]` times; `None` where one is not defined or not finite.
    pub fn figures(&self, times: &[u32]) -> Vec<Option<f64>> {
        let mse = mean(&self.squared, times);
        let counted: Vec<u32> = self.nonzero.iter().zip(times).map(|(one, times)| one * times).collect();
        let ranks = (ranks(&self.mean, &self.by_mean, times), ranks(&self.truth, &self.by_truth, times));
        let figures = [
            mean(&self.absolute, times),
            mse,
            mse.map(f64::sqrt),
            explained(&self.squared, &self.truth, times),
            median(&self.absolute, &self.by_error, times),
            mean(&self.log_absolute, times),
            explained(&self.log_squared, &self.log_truth, times),
            correlation(&self.mean, &self.truth, times),
            correlation(&ranks.0, &ranks.1, times),
            mean(&self.relative, &counted),
        ];
        figures.map(|value| value.filter(|value| value.is_finite())).to_vec()
    }
}

fn order(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    order
}

fn count(times: &[u32]) -> u64 {
    times.iter().map(|&times| u64::from(times)).sum()
}

/// `None` of nothing, or where the sum overflows.
pub fn mean(values: &[f64], times: &[u32]) -> Option<f64> {
    let sum: f64 = values.iter().zip(times).map(|(value, &times)| value * f64::from(times)).sum();
    let mean = sum / count(times) as f64;
    mean.is_finite().then_some(mean)
}

/// The middle value, or the mean of the two middle ones. `order` sorts `values`.
pub fn median(values: &[f64], order: &[usize], times: &[u32]) -> Option<f64> {
    let n = count(times);
    let (lower, upper) = (n.checked_sub(1)? / 2, n / 2);
    let mut seen = 0;
    let mut low = None;
    for &index in order {
        seen += u64::from(times[index]);
        if low.is_none() && seen > lower {
            low = Some(values[index]);
        }
        if seen > upper {
            return Some(low? / 2.0 + values[index] / 2.0);
        }
    }
    None
}

/// The values that count at all.
fn counted(values: &[f64], times: &[u32]) -> impl Iterator<Item = f64> {
    values.iter().zip(times).filter(|&(_, &times)| times > 0).map(|(&value, _)| value)
}

/// R²; `None` where the truth does not vary: there is no variance to explain.
fn explained(squared: &[f64], truth: &[f64], times: &[u32]) -> Option<f64> {
    if !varies(counted(truth, times)) {
        return None;
    }
    let centre = mean(truth, times)?;
    let (mut left, mut total) = (0.0, 0.0);
    for ((squared, truth), &times) in squared.iter().zip(truth).zip(times) {
        left += squared * f64::from(times);
        total += (truth - centre).powi(2) * f64::from(times);
    }
    Some(1.0 - left / total)
}

/// Pearson's; `None` where either side does not vary.
fn correlation(a: &[f64], b: &[f64], times: &[u32]) -> Option<f64> {
    if !varies(counted(a, times)) || !varies(counted(b, times)) {
        return None;
    }
    let (centre_a, centre_b) = (mean(a, times)?, mean(b, times)?);
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for ((a, b), &times) in a.iter().zip(b).zip(times) {
        let (a, b, times) = (a - centre_a, b - centre_b, f64::from(times));
        aa += a * a * times;
        bb += b * b * times;
        ab += a * b * times;
    }
    Some((ab / (aa.sqrt() * bb.sqrt())).clamp(-1.0, 1.0))
}

/// Ranks, ties at the middle of theirs. `order` sorts `values`.
fn ranks(values: &[f64], order: &[usize], times: &[u32]) -> Vec<f64> {
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0.0;
    for tied in order.chunk_by(|&a, &b| values[a].total_cmp(&values[b]).is_eq()) {
        let size: f64 = tied.iter().map(|&index| f64::from(times[index])).sum();
        for &index in tied {
            ranks[index] = before + (size + 1.0) / 2.0;
        }
        before += size;
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(rows: &[(f64, f64)]) -> Columns {
        Columns::of(&rows.iter().map(|&(p, y)| (Estimates::point(p), y)).collect::<Vec<_>>())
    }

    fn figure(columns: &Columns, name: Name, times: &[u32]) -> Option<f64> {
        let at = NAMES.iter().position(|known| *known == name).unwrap();
        columns.figures(times)[at]
    }

    #[test]
    fn a_row_counted_twice_is_two_rows() {
        let rows = [(1.0, 1.5), (4.0, 3.0), (-2.0, 5.0), (4.0, 7.5)];
        let (weighted, repeated) = (columns(&rows), columns(&[rows[0], rows[2], rows[2], rows[3]]));
        for name in NAMES {
            let (a, b) = (figure(&weighted, name, &[1, 0, 2, 1]), figure(&repeated, name, &[1; 4]));
            assert!((a.unwrap() - b.unwrap()).abs() < 1e-12, "{name:?}: {a:?} {b:?}");
        }
    }

    /// By hand: ranks 1, 2.5, 2.5, 4 against 1, 2, 4, 3.
    #[test]
    fn ranks_of_ties_are_in_their_middle() {
        let table = columns(&[(1.0, 10.0), (2.0, 20.0), (2.0, 90.0), (3.0, 30.0)]);
        let want = (-1.5 * -1.5 + 0.0 + 0.0 + 1.5 * 0.5) / (4.5_f64.sqrt() * 5.0_f64.sqrt());
        assert!((figure(&table, Name::Spearman, &[1; 4]).unwrap() - want).abs() < 1e-12);
    }

    #[test]
    fn relative_errors_leave_out_a_truth_of_zero() {
        let table = columns(&[(1.0, 2.0), (5.0, 0.0), (3.0, 4.0)]);
        assert!((figure(&table, Name::Mape, &[1; 3]).unwrap() - 0.375).abs() < 1e-12);
        assert_eq!((table.n(Name::Mape), table.n(Name::Mae)), (2, 3));
    }

    #[test]
    fn correlations_need_variation_on_both_sides() {
        for rows in [[(1.0, 2.0), (1.0, 3.0)], [(1.0, 2.0), (3.0, 2.0)]] {
            let table = columns(&rows);
            assert_eq!(figure(&table, Name::Pearson, &[1; 2]), None);
            assert_eq!(figure(&table, Name::Spearman, &[1; 2]), None);
        }
        let two = figure(&columns(&[(1.0, 2.0), (3.0, 9.0)]), Name::Pearson, &[1; 2]);
        assert!((two.unwrap() - 1.0).abs() < 1e-12);
    }

    /// The mean of three times 0.1 is not 0.1 in floating point.
    #[test]
    fn a_draw_of_equal_truths_has_no_r2_whatever_their_mean_rounds_to() {
        let table = columns(&[(0.3, 0.1), (0.2, 0.1), (0.4, 0.7)]);
        for name in [Name::R2, Name::LogR2, Name::Pearson, Name::Spearman] {
            assert_eq!(figure(&table, name, &[1, 2, 0]), None, "{name:?}");
            assert!(figure(&table, name, &[1, 1, 1]).is_some(), "{name:?}");
        }
    }
}
