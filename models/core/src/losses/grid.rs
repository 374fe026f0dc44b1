//! Losses of a whole number over a grid of values.
//!
//! An entry of a grid is a value with the logarithm of the probability of a text that writes it. Several
//! texts of one value are several entries.

/// RAFT (Lukasik et al., 2025): `(truth - sum of p v)^2`. The probabilities are not renormalised, so the
/// mass of texts outside the grid counts as 0.
pub fn raft(grid: &[(f64, f64)], truth: f64) -> f64 {
    let expected: f64 = grid.iter().map(|&(value, logprob)| logprob.exp() * value).sum();
    (truth - expected).powi(2)
}

/// DIST2 (Chung et al., 2025): the Kullback-Leibler divergence of the grid's renormalised probabilities from
/// a target that is proportional to `exp(-|v - truth| / tau)`. Both are distributions over values: a value
/// with several entries has the sum of their probabilities. Infinite if the model gives a value of the grid
/// no probability.
///
/// `grid`: values with natural logarithms of their probabilities.
pub fn dist2(grid: &[(f64, f64)], truth: f64, tau: f64) -> f64 {
    let grid = by_value(grid);
    let model = log_softmax(grid.iter().map(|&(_, logprob)| logprob));
    let target = log_softmax(grid.iter().map(|&(value, _)| -(value - truth).abs() / tau));
    let mut sum = 0.0_f64;
    for (target, model) in target.into_iter().zip(model) {
        let weight = target.exp();
        if weight > 0.0 {
            sum += weight * (target - model);
        }
    }
    sum.max(0.0)
}

/// Returns the grid with one entry per value.
fn by_value(grid: &[(f64, f64)]) -> Vec<(f64, f64)> {
    // Adding 0 makes -0 equal to 0.
    let mut merged: Vec<(f64, f64)> = grid.iter().map(|&(value, logprob)| (value + 0.0, logprob)).collect();
    merged.sort_by(|a, b| a.0.total_cmp(&b.0));
    merged.dedup_by(|later, kept| {
        let is_same = later.0.total_cmp(&kept.0).is_eq();
        if is_same {
            kept.1 = log_sum(kept.1, later.1);
        }
        is_same
    });
    merged
}

/// Returns `log(exp(a) + exp(b))`.
fn log_sum(a: f64, b: f64) -> f64 {
    let max = a.max(b);
    if max == f64::NEG_INFINITY { max } else { max + ((a - max).exp() + (b - max).exp()).ln() }
}

/// Returns the logarithms of the softmax. All are `-inf` if all `scores` are.
pub fn log_softmax(scores: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let max = scores.clone().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return scores.collect();
    }
    let log_sum = scores.clone().map(|score| (score - max).exp()).sum::<f64>().ln();
    scores.map(|score| score - max - log_sum).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    }

    /// Made by `tests/data/grid/make.py` with numpy and scipy.
    #[test]
    fn losses_over_a_grid_equal_those_of_numpy_and_scipy() {
        let golden: Value = serde_json::from_str(include_str!("../../tests/data/grid/golden.json")).unwrap();
        let cases = golden.as_array().unwrap();
        for case in cases {
            let grid: Vec<(f64, f64)> =
                numbers(&case["values"]).into_iter().zip(numbers(&case["logprobs"])).collect();
            let field = |name: &str| case[name].as_f64().unwrap();
            let got = [raft(&grid, field("truth")), dist2(&grid, field("truth"), field("tau"))];
            for (got, want) in got.into_iter().zip([field("raft"), field("dist2")]) {
                assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{got} instead of {want}");
            }
        }
        assert!(cases.len() >= 8);
    }

    #[test]
    fn several_texts_of_one_value_have_the_sum_of_their_probabilities() {
        let none = f64::NEG_INFINITY;
        for (seven, spelled, merged) in [(0.5, 0.25, 0.75), (0.5, 0.0, 0.5), (0.0, 0.0, 0.0)] {
            let seven = f64::ln(seven);
            let spelled = f64::ln(spelled);
            let merged = f64::ln(merged);
            let apart = [(7.0, seven), (8.0, -3.0), (7.0, spelled), (-0.0, -2.0), (0.0, none)];
            let together = [(0.0, -2.0), (7.0, merged), (8.0, -3.0)];
            for (got, want) in [
                (raft(&apart, 7.0), raft(&together, 7.0)),
                (dist2(&apart, 7.0, 0.5), dist2(&together, 7.0, 0.5)),
            ] {
                assert!((got - want).abs() < 1e-12 || got.total_cmp(&want).is_eq(), "{got} {want}");
            }
        }
    }

    #[test]
    fn a_value_without_probability_makes_the_divergence_infinite_and_not_nan() {
        let grid = [(1.0, f64::NEG_INFINITY), (2.0, -0.5)];
        assert!(dist2(&grid, 2.0, 1.0).is_infinite());
        assert!((raft(&grid, 2.0) - (2.0 - 2.0 * (-0.5_f64).exp()).powi(2)).abs() < 1e-12);
        let none = [(1.0, f64::NEG_INFINITY); 2];
        assert!(dist2(&none, 2.0, 1.0).is_infinite() && (raft(&none, 2.0) - 4.0).abs() < 1e-12);
        assert_eq!(log_softmax([f64::NEG_INFINITY; 2].into_iter()), [f64::NEG_INFINITY; 2]);
        // A target that is 1 in f64 ignores the other values.
        assert!(dist2(&[(0.0, -9.0), (1e6, f64::NEG_INFINITY)], 0.0, 1e-3).abs() < 1e-12);
    }
}
