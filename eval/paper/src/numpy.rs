//! Sums, quantiles and correlations in numpy's and scipy's order of operations, for figures that must be
//! bit-identical.

/// Numpy splits longer sums in two.
const BLOCK: usize = 128;

/// `numpy.sum`: pairwise, in blocks of eight running sums.
pub fn sum(values: &[f64]) -> f64 {
    if values.len() < 8 {
        return values.iter().fold(0.0, |sum, value| sum + value);
    }
    if values.len() > BLOCK {
        let half = values.len() / 2;
        let (left, right) = values.split_at(half - half % 8);
        return sum(left) + sum(right);
    }
    let (eights, rest) = values.as_chunks::<8>();
    let mut running = [0.0; 8];
    for eight in eights {
        for (running, value) in running.iter_mut().zip(eight) {
            *running += value;
        }
    }
    let [a, b, c, d, e, f, g, h] = running;
    rest.iter().fold(((a + b) + (c + d)) + ((e + f) + (g + h)), |sum, value| sum + value)
}

/// `numpy.mean`. NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    sum(values) / values.len() as f64
}

/// `numpy.nansum`: NaN counts as 0.
pub fn nan_sum(values: &[f64]) -> f64 {
    sum(&values.iter().map(|value| if value.is_nan() { 0.0 } else { *value }).collect::<Vec<_>>())
}

/// `numpy.nanmean`. NaN without other values.
pub fn nan_mean(values: &[f64]) -> f64 {
    nan_sum(values) / values.iter().filter(|value| !value.is_nan()).count() as f64
}

/// `numpy.median`. NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.get(sorted.len() / 2), sorted.len() % 2) {
        (Some(upper), 1) => *upper,
        (Some(upper), _) => mean(&[sorted[sorted.len() / 2 - 1], *upper]),
        (None, _) => f64::NAN,
    }
}

/// `numpy.quantile`, which is linear between the two nearest of the sorted values. `None` without values.
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let lower = sorted[at.floor() as usize];
    let upper = sorted[at.ceil() as usize];
    Some(lower + (upper - lower) * at.fract())
}

/// `numpy.average`, added in order. `None` if all weights are 0, or if the sum overflows.
pub fn average(pairs: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    // The neutral element of `Iterator::sum`.
    let mut sum = -0.0;
    let mut total = 0.0;
    for (value, weight) in pairs {
        sum += value * weight;
        total += weight;
    }
    Some(sum / total).filter(|mean| mean.is_finite())
}

/// `scipy.stats.pearsonr`. NaN if either side does not vary.
pub fn pearson(pairs: &[(f64, f64)]) -> f64 {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let a = centred(&a);
    let b = centred(&b);
    let norm_a = norm(&a);
    let norm_b = norm(&b);
    if norm_a <= 0.0 || norm_b <= 0.0 {
        return f64::NAN;
    }
    let products: Vec<f64> = a.iter().zip(&b).map(|(a, b)| (a / norm_a) * (b / norm_b)).collect();
    sum(&products).clamp(-1.0, 1.0)
}

fn centred(values: &[f64]) -> Vec<f64> {
    let centre = mean(values);
    values.iter().map(|value| value - centre).collect()
}

fn norm(values: &[f64]) -> f64 {
    sum(&values.iter().map(|value| value * value).collect::<Vec<_>>()).sqrt()
}

/// `scipy.stats.spearmanr`. NaN if either side does not vary.
pub fn spearman(pairs: &[(f64, f64)]) -> f64 {
    // Adding 0 makes -0 equal to 0.
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().map(|(a, b)| (a + 0.0, b + 0.0)).unzip();
    pearson(&ranks(&a).into_iter().zip(ranks(&b)).collect::<Vec<_>>())
}

/// `scipy.stats.rankdata`: equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut ranks = Vec::with_capacity(values.len());
    for value in values {
        let below = sorted.partition_point(|other| other.total_cmp(value).is_lt());
        let up_to = sorted.partition_point(|other| other.total_cmp(value).is_le());
        ranks.push(f64::midpoint((below + 1) as f64, up_to as f64));
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From numpy: `np.sum(1.0 / np.arange(1, n + 1))`. A plain loop gives 9.787606036044348 for the last
    /// one.
    #[test]
    fn sums_are_pairwise() {
        let harmonic = |n: u32| (1..=n).map(|k| 1.0 / f64::from(k)).collect::<Vec<f64>>();
        for (n, want) in [(7, 2.5928571428571425), (1000, 7.485470860550345), (10_000, 9.787606036044382)] {
            let want: f64 = want;
            assert_eq!(sum(&harmonic(n)).to_bits(), want.to_bits(), "{n}");
        }
    }

    #[test]
    fn an_empty_slice_has_no_mean_and_nan_is_left_out() {
        assert!(mean(&[]).is_nan() && median(&[]).is_nan() && nan_mean(&[f64::NAN]).is_nan());
        assert_eq!(nan_mean(&[1.0, f64::NAN, 3.0]).to_bits(), 2.0_f64.to_bits());
        assert_eq!(median(&[4.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
    }

    #[test]
    fn quantiles_match_numpy() {
        // np.quantile([1, 2, 4, 8, 16], [0, 0.1, 0.5, 0.95, 1])
        let sorted = [1.0, 2.0, 4.0, 8.0, 16.0];
        for (q, want) in [(0.0, 1.0), (0.1, 1.4), (0.5, 4.0), (0.95, 14.4), (1.0, 16.0)] {
            assert!((quantile(&sorted, q).unwrap() - want).abs() < 1e-12, "{q}");
        }
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn equal_values_share_a_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
    }
}
