//! Histograms: errors by size, accuracy by number of digits, and closed masses.

use crate::store::sample::Sample;

/// Maximum number of bars on one side of the histogram of errors.
const BARS_MAX: usize = 15;
/// Numbers with more digits are counted as numbers with this many.
pub(super) const DIGITS_MAX: usize = 20;

/// Counts of errors by sign and size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Errors {
    /// Ascending sizes. Bin `i` holds sizes from `edges[i]` up to `edges[i + 1]`. The last bin also holds all
    /// larger sizes.
    pub edges: Vec<f64>,
    /// Counts of predictions that are too low.
    pub below: Vec<usize>,
    /// Number of errors smaller than the first edge on either side.
    pub middle: usize,
    /// Counts of predictions that are too high.
    pub above: Vec<usize>,
}

impl Errors {
    /// Groups errors into bins with edges of 1, 2, 5, 10, ... units, or into whole decades if that would give
    /// too many bins. The unit is the power of ten below all errors except the smallest twentieth of the
    /// non-zero ones.
    pub(super) fn of(errors: &[f64]) -> Self {
        let mut sizes: Vec<f64> = errors.iter().map(|error| error.abs()).filter(|&size| size > 0.0).collect();
        sizes.sort_by(f64::total_cmp);
        let edges = match (sizes.get(sizes.len() / 20), sizes.last()) {
            (Some(&small), Some(&large)) => edges(small, large),
            _ => vec![1.0, 2.0],
        };
        let groups = edges.len() - 1;
        let mut grouped = Self { below: vec![0; groups], middle: 0, above: vec![0; groups], edges };
        for &error in errors {
            let passed = grouped.edges.partition_point(|&edge| edge <= error.abs());
            match passed.checked_sub(1) {
                None => grouped.middle += 1,
                Some(group) => {
                    let side = if error < 0.0 { &mut grouped.below } else { &mut grouped.above };
                    side[group.min(groups - 1)] += 1;
                }
            }
        }
        grouped
    }
}

fn edges(small: f64, large: f64) -> Vec<f64> {
    // Adds a little, so that the logarithm of a power of ten is not just below an integer.
    let first = (small.log10() + 1e-9).floor() as i32;
    let last = ((large.log10() + 1e-9).floor() as i32 + 1).max(first + 1);
    let fine = 3 * (last - first) as usize <= BARS_MAX;
    let steps: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let all = (first..last).flat_map(|exponent| steps.iter().map(move |step| step * 10_f64.powi(exponent)));
    let mut edges: Vec<f64> = all.take(BARS_MAX).collect();
    edges.push(10_f64.powi(first + (edges.len() / steps.len()) as i32));
    // Groups above the largest error would be empty.
    let used = edges.partition_point(|&edge| edge <= large) + 1;
    edges.truncate(used.max(2));
    edges
}

pub(super) fn is_decade(edge: f64) -> bool {
    let exponent = edge.log10();
    (exponent - exponent.round()).abs() < 1e-9
}

/// The number of correct answers among `n` items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub hits: usize,
    pub n: usize,
}

/// Groups answered items by the number of digits before the decimal point of the truth, starting at one
/// digit.
pub(super) fn by_digits(samples: &[Sample]) -> Vec<Share> {
    let mut groups: Vec<Share> = Vec::new();
    for sample in samples.iter().filter(|sample| !sample.failed() && !sample.is_decision()) {
        let Some(truth) = sample.truth() else { continue };
        let digits = format!("{:.0}", truth.trunc().abs()).len().min(DIGITS_MAX);
        if groups.len() < digits {
            groups.resize(digits, Share::default());
        }
        groups[digits - 1].hits += usize::from(sample.right());
        groups[digits - 1].n += 1;
    }
    groups
}

/// Edges of the bins of closed mass. The bins are finer towards 1, where most values are.
pub(super) const MASS_EDGES: [f64; 12] =
    [0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 1.0];

pub(super) fn by_mass(masses: impl Iterator<Item = f64>) -> [usize; 11] {
    let mut groups = [0; 11];
    for mass in masses {
        let passed = MASS_EDGES.partition_point(|&edge| edge <= mass);
        groups[passed.clamp(1, 11) - 1] += 1;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::saved::tests::run;

    #[test]
    fn errors_are_grouped_by_sign_and_size() {
        let errors = Errors::of(&[0.0, 0.0, 1.0, -1.0, -4.0, 7.0, 30.0]);
        assert_eq!(
            errors,
            Errors {
                edges: vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0],
                below: vec![1, 1, 0, 0, 0],
                middle: 2,
                above: vec![1, 0, 1, 0, 1],
            }
        );
    }

    #[test]
    fn small_units_and_huge_outliers_give_few_groups_with_all_errors() {
        for (errors, groups) in [
            (vec![0.003, -0.02, 0.5], 9),
            (vec![1.0, 1e6, -1e12], 13),
            (vec![1e-9, 1.0, 1e12, -1e300], 15),
            (vec![0.0; 4], 1),
            (vec![], 1),
        ] {
            let grouped = Errors::of(&errors);
            let all: usize = grouped.below.iter().chain(&grouped.above).sum();
            assert_eq!(all + grouped.middle, errors.len());
            assert_eq!((grouped.below.len(), grouped.edges.len()), (groups, groups + 1), "{grouped:?}");
            assert!(grouped.edges.is_sorted(), "{grouped:?}");
        }
    }

    #[test]
    fn digits_are_counted_before_the_decimal_point() {
        let run = run(&[(0.5, Some(0.5)), (-7.0, None), (10.0, Some(10.0)), (999.9, Some(1.0))]);
        let shares = by_digits(&run.samples).into_iter().map(|share| (share.hits, share.n));
        assert_eq!(shares.collect::<Vec<_>>(), [(1, 2), (1, 1), (0, 1)]);
    }

    #[test]
    fn bins_of_masses_are_narrow_near_one() {
        assert_eq!(by_mass([0.0, 0.5, 0.9991, 0.9999, 1.0].into_iter()), [1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
