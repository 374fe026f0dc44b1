//! Exact bounds of a probability from counts (Clopper and Pearson, 1934).

use crate::numbers::Interval;

/// Halvings of an interval that contains a bound.
const HALVINGS: u32 = 50;

/// Returns the bounds of the probability of an event that occurred in `hits` of `trials` trials. They miss
/// the probability with a probability of at most `error`.
pub(super) fn probability_bounds(hits: usize, trials: usize, error: f64) -> Interval {
    let low = least_probability(hits, trials, error / 2.0);
    let high = 1.0 - least_probability(trials.saturating_sub(hits), trials, error / 2.0);
    Interval { low, high }
}

/// The largest probability with which at least `hits` hits have a probability of at most `error`.
fn least_probability(hits: usize, trials: usize, error: f64) -> f64 {
    if hits == 0 || hits > trials {
        return 0.0;
    }
    let ways = (1..=hits).map(|index| ((trials - hits + index) as f64 / index as f64).ln()).sum();
    let mut low = 0.0;
    // With this probability, about half of all outcomes have as many hits.
    let mut high = hits as f64 / trials as f64;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if tail(hits, trials, ways, middle) <= error {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The probability of at least `hits` hits. `ways` is the logarithm of the number of ways to choose them.
fn tail(hits: usize, trials: usize, ways: f64, probability: f64) -> f64 {
    let misses = (trials - hits) as f64;
    let mut term = (ways + hits as f64 * probability.ln() + misses * (-probability).ln_1p()).exp();
    let odds = probability / (1.0 - probability);
    let mut sum = term;
    for count in hits..trials {
        term *= (trials - count) as f64 / (count + 1) as f64 * odds;
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quantiles of beta distributions by scipy 1.14 (`beta.ppf`), and closed forms at the ends.
    #[test]
    fn bounds_are_quantiles_of_beta_distributions() {
        for (hits, trials, low, high) in [
            (0, 10, 0.0, 1.0 - 0.025_f64.powf(0.1)),
            (10, 10, 0.025_f64.powf(0.1), 1.0),
            (1, 10, 0.002_528_578_5, 0.445_016_117),
            (5, 10, 0.187_086_028, 0.812_913_972),
            (0, 1, 0.0, 0.975),
            (1, 1, 0.025, 1.0),
        ] {
            let found = probability_bounds(hits, trials, 0.05);
            assert!(
                (found.low - low).abs() < 1e-6 && (found.high - high).abs() < 1e-6,
                "{hits}/{trials}: {found:?}"
            );
        }
        assert_eq!(probability_bounds(0, 0, 0.05), Interval { low: 0.0, high: 1.0 });
        let many = probability_bounds(2048, 4096, 0.05);
        assert!(
            many.low > 0.484 && many.low < 0.485 && (many.low + many.high - 1.0).abs() < 1e-9,
            "{many:?}"
        );
    }

    #[test]
    fn a_bound_is_where_the_tail_has_the_error() {
        let found = probability_bounds(37, 64, 0.05);
        let upper_tail = |probability: f64, from: usize| {
            let mut sum = 0.0;
            for count in from..=64_u32 as usize {
                let mut term = 1.0;
                for index in 0..count {
                    term *= (64 - index) as f64 / (count - index) as f64;
                }
                sum += term * probability.powi(count as i32) * (1.0 - probability).powi(64 - count as i32);
            }
            sum
        };
        assert!((upper_tail(found.low, 37) - 0.025).abs() < 1e-9);
        assert!((1.0 - upper_tail(found.high, 38) - 0.025).abs() < 1e-9);
    }
}
