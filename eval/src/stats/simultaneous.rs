//! Simultaneous intervals of several differences over the same items.
//!
//! The max-t bootstrap (Romano and Wolf 2005): each resample gives one deviation per difference, in multiples
//! of its standard deviation. All intervals are as wide as the largest deviation of a resample is with 95%
//! probability, so that all of them hold together with this probability. As in [`super::difference`],
//! functions of means are studentised, and differences of shares have Bonett and Price's intervals.

use super::bootstrap::Bootstrap;
use super::difference::{Contrast, ITEMS_MIN, LEVEL, Spread, plausible_difference};
use super::{Interval, Z_95};

/// Returns the interval of each difference, B minus A. `None` for fewer than [`ITEMS_MIN`] items, and for a
/// statistic that most resamples lack.
pub fn simultaneous_intervals(
    contrasts: &[Contrast<'_>],
    n: usize,
    bootstrap: Bootstrap,
) -> Vec<Option<Interval>> {
    if n < ITEMS_MIN {
        return vec![None; contrasts.len()];
    }
    let plain = vec![1.0; n];
    let observed: Vec<Option<f64>> = contrasts.iter().map(|contrast| contrast.difference(&plain)).collect();
    let draws = bootstrap.resample_in_parallel(n, |weights| {
        let mut deviations = Vec::with_capacity(contrasts.len());
        for (contrast, observed) in contrasts.iter().zip(&observed) {
            deviations.push(observed.and_then(|observed| {
                Some((plausible_difference(contrast, observed, weights)? - observed).abs())
            }));
        }
        deviations
    });
    let mut scales = Vec::with_capacity(contrasts.len());
    for index in 0..contrasts.len() {
        scales.push(root_mean_square(draws.iter().map(|deviations| deviations[index])));
    }
    let largest = largest_deviation(&draws, &scales);
    let mut intervals = Vec::with_capacity(contrasts.len());
    for ((contrast, observed), scale) in contrasts.iter().zip(observed).zip(scales) {
        intervals.push(observed.zip(scale).map(|(observed, scale)| match &contrast.spread {
            Spread::Shares(one_sided) => one_sided.interval(n, largest).including(observed),
            Spread::Studentised(_) | Spread::Percentiles => {
                Interval { low: observed - largest * scale, high: observed + largest * scale }
            }
        }));
    }
    intervals
}

/// `None` if most values are missing.
fn root_mean_square(values: impl ExactSizeIterator<Item = Option<f64>>) -> Option<f64> {
    let drawn = values.len();
    let mut squares = 0.0;
    let mut count = 0_usize;
    for value in values.flatten() {
        squares += value * value;
        count += 1;
    }
    (2 * count > drawn).then(|| (squares / count as f64).sqrt())
}

/// Returns the 95% quantile of the largest deviation of a resample, in multiples of its scale. It is at least
/// that of one normal difference.
fn largest_deviation(draws: &[Vec<Option<f64>>], scales: &[Option<f64>]) -> f64 {
    let mut largest = Vec::with_capacity(draws.len());
    for deviations in draws {
        let mut own = 0.0_f64;
        for (deviation, scale) in deviations.iter().zip(scales) {
            if let (Some(deviation), Some(scale)) = (deviation, scale)
                && *scale > 0.0
            {
                own = own.max(deviation / scale);
            }
        }
        largest.push(own);
    }
    largest.sort_by(f64::total_cmp);
    let rank = ((1.0 - LEVEL) * (largest.len() + 1) as f64).ceil() as usize;
    let quantile = largest.get(rank.saturating_sub(1)).or(largest.last());
    quantile.copied().unwrap_or(Z_95).max(Z_95)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use rayon::prelude::*;

    use super::*;

    /// Returns the differences of all pairs of columns.
    fn all_pairs(columns: &[Vec<f64>]) -> Vec<Contrast<'static>> {
        let mut contrasts = Vec::new();
        for (index, a) in columns.iter().enumerate() {
            for b in &columns[index + 1..] {
                contrasts.push(Contrast::of_means(a.clone(), b.clone()));
            }
        }
        contrasts
    }

    /// Returns the score of a simulated model from two standard normal numbers: the difficulty of the item,
    /// which all models share, and its own luck.
    type Score = fn(difficulty: f64, own: f64, model: usize) -> f64;

    fn uniform(rng: &mut ChaCha8Rng) -> f64 {
        1.0 - rng.random::<f64>()
    }

    fn normal(rng: &mut ChaCha8Rng) -> f64 {
        (-2.0 * uniform(rng).ln()).sqrt() * (std::f64::consts::TAU * uniform(rng)).cos()
    }

    /// Returns the share of simulated leaderboards of which every interval holds.
    fn coverage(models: usize, n: usize, sets: u64, resamples: u32, score: Score) -> f64 {
        // The means of many items are the true ones.
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let truth: Vec<f64> = columns(models, 200_000, &mut rng, score)
            .iter()
            .map(|column| column.iter().sum::<f64>() / column.len() as f64)
            .collect();
        let holds = |set: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(1_000_000 + set);
            let contrasts = all_pairs(&columns(models, n, &mut rng, score));
            let bootstrap = Bootstrap { resamples, seed: 7 };
            let mut intervals = simultaneous_intervals(&contrasts, n, bootstrap).into_iter();
            let mut all = true;
            for (index, a) in truth.iter().enumerate() {
                for b in &truth[index + 1..] {
                    let Interval { low, high } = intervals.next().unwrap().unwrap();
                    all &= (low..=high).contains(&(b - a));
                }
            }
            all
        };
        (0..sets).into_par_iter().filter(|&set| holds(set)).count() as f64 / sets as f64
    }

    fn columns(models: usize, n: usize, rng: &mut ChaCha8Rng, score: Score) -> Vec<Vec<f64>> {
        let mut columns = vec![Vec::with_capacity(n); models];
        for _ in 0..n {
            let difficulty = normal(rng);
            for (model, column) in columns.iter_mut().enumerate() {
                column.push(score(difficulty, normal(rng), model));
            }
        }
        columns
    }

    /// Correct or not: models of which each is a little better than the one before.
    fn right(difficulty: f64, own: f64, model: usize) -> f64 {
        f64::from(u8::from(difficulty + 0.7 * own < 0.2 * model as f64))
    }

    /// Lognormal errors.
    fn error(difficulty: f64, own: f64, model: usize) -> f64 {
        (0.5 * difficulty + 0.5 * own - 0.1 * model as f64).exp()
    }

    fn equal(difficulty: f64, own: f64, _: usize) -> f64 {
        difficulty + own
    }

    /// The bounds allow for three standard errors of a simulated share.
    #[test]
    fn all_intervals_of_a_leaderboard_hold_together() {
        let scores: [(&str, Score, f64); 3] =
            [("right", right, 0.95), ("equal", equal, 0.95), ("error", error, 0.93)];
        for (name, score, nominal) in scores {
            for (models, n, sets) in [(2, 40, 200), (6, 60, 100)] {
                let share = coverage(models, n, sets, 199, score);
                let error = (nominal * (1.0 - nominal) / sets as f64).sqrt();
                assert!(share >= nominal - 3.0 * error, "{name}, {models} models, {n} items: {share}");
            }
        }
    }

    #[test]
    fn more_models_widen_intervals_and_equal_models_have_no_width() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let scores = columns(8, 50, &mut rng, error);
        let bootstrap = Bootstrap { resamples: 999, seed: 1 };
        let width = |models: usize| {
            let first = simultaneous_intervals(&all_pairs(&scores[..models]), 50, bootstrap)[0].unwrap();
            first.high - first.low
        };
        assert!(width(8) > 1.2 * width(2), "{} {}", width(8), width(2));
        let same = all_pairs(&[scores[0].clone(), scores[0].clone(), scores[1].clone()]);
        let intervals = simultaneous_intervals(&same, 50, bootstrap);
        assert_eq!(intervals[0], Some(Interval { low: 0.0, high: 0.0 }));
        assert_eq!(intervals[1], intervals[2]);
        assert_eq!(simultaneous_intervals(&all_pairs(&[vec![0.0; 5], vec![1.0; 5]]), 5, bootstrap), [None]);
    }
}
