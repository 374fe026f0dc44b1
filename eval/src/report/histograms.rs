//! Histograms: errors by size, accuracy by number of digits, closed masses.

use crate::store::sample::Sample;

/// Most bars on one side of the histogram of errors.
const BARS_MAX: usize = 15;
/// Numbers with more digits are counted with these.
pub(super) const DIGITS_MAX: usize = 20;

/// Counts of errors by sign and size.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Errors {
    /// Rising sizes. Bin `i` holds sizes from `edges[i]` up to `edges[i + 1]`, the last one all larger ones, too.
    pub edges: Vec<f64>,
    /// Of predictions that are too low.
    pub below: Vec<usize>,
    /// Smaller than the first edge on either side.
    pub middle: usize,
    /// Of predictions that are too high.
    pub above: Vec<usize>,
}

impl Errors {
    /// Bins have edges of 1, 2, 5, 10, ... units, or whole decades where these would be too many. The unit is the power of
    /// ten below all but the smallest twentieth of the errors that are not zero.
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
    // A little up, so that the logarithm of a power of ten is not just below a whole number.
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

/// Right answers among `n` items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub hits: usize,
    pub n: usize,
}

/// By the number of digits in front of the point of the truth, from one digit up.
pub(super) fn by_digits(samples: &[Sample]) -> Vec<Share> {
    let mut groups: Vec<Share> = Vec::new();
    for sample in samples {
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

/// Of bins of closed mass; finer towards 1, where most lie.
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
    fn small_units_and_huge_outliers_keep_the_groups_few_and_all_errors_in_them() {
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
    fn digits_are_counted_in_front_of_the_point() {
        let run = run(&[(0.5, Some(0.5)), (-7.0, None), (10.0, Some(10.0)), (999.9, Some(1.0))]);
        let shares = by_digits(&run.samples).into_iter().map(|share| (share.hits, share.n));
        assert_eq!(shares.collect::<Vec<_>>(), [(1, 2), (1, 1), (0, 1)]);
    }

    #[test]
    fn masses_are_told_apart_near_one() {
        assert_eq!(by_mass([0.0, 0.5, 0.9991, 0.9999, 1.0].into_iter()), [1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
