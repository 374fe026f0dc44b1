//! Losses of a whole number: over a grid of values, each with the probability of the text that writes it.

/// RAFT (Lukasik et al., 2025): `(truth - sum of p v)^2`. The probabilities are those of the model, so that what it gives to texts
/// outside the grid counts as 0.
pub fn raft(grid: &[(f64, f64)], truth: f64) -> f64 {
    let expected: f64 = grid.iter().map(|&(value, logprob)| logprob.exp() * value).sum();
    (truth - expected).powi(2)
}

/// DIST2 (Chung et al., 2025): the Kullback-Leibler divergence of the grid's renormalised probabilities from a target that is
/// proportional to `exp(-|v - truth| / tau)`. Infinite where the model gives a value of the grid no probability.
///
/// `grid`: values with natural logarithms of their probabilities.
pub fn dist2(grid: &[(f64, f64)], truth: f64, tau: f64) -> f64 {
    let model = log_softmax(grid.iter().map(|&(_, logprob)| logprob));
    let target = log_softmax(grid.iter().map(|&(value, _)| -(value - truth).abs() / tau));
    let term = |(target, model): (f64, f64)| {
        let weight = target.exp();
        if weight > 0.0 { weight * (target - model) } else { 0.0 }
    };
    target.into_iter().zip(model).map(term).sum::<f64>().max(0.0)
}

/// Logarithms of the softmax; all are `-inf` where all of `scores` are.
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
    fn losses_over_a_grid_are_those_of_numpy_and_scipy() {
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
    fn a_value_without_probability_makes_the_divergence_infinite_and_not_nan() {
        let grid = [(1.0, f64::NEG_INFINITY), (2.0, -0.5)];
        assert!(dist2(&grid, 2.0, 1.0).is_infinite());
        assert!((raft(&grid, 2.0) - (2.0 - 2.0 * (-0.5_f64).exp()).powi(2)).abs() < 1e-12);
        let none = [(1.0, f64::NEG_INFINITY); 2];
        assert!(dist2(&none, 2.0, 1.0).is_infinite() && (raft(&none, 2.0) - 4.0).abs() < 1e-12);
        assert_eq!(log_softmax([f64::NEG_INFINITY; 2].into_iter()), [f64::NEG_INFINITY; 2]);
        // A target that is certain to the last bit leaves the other values out.
        assert!(dist2(&[(0.0, -9.0), (1e6, f64::NEG_INFINITY)], 0.0, 1e-3).abs() < 1e-12);
    }
}
