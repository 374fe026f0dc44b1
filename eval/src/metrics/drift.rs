//! Whether a judge has changed: its scores of the same prompts in two runs.

use serde::{Deserialize, Serialize};

use super::{Metric, same};
use crate::stats::Interval;
use crate::stats::bootstrap::Bootstrap;
use crate::stats::difference::{Contrast, test_contrasts};

/// Number of resamples of the test.
const RESAMPLES: u32 = 10_000;

/// The difference between the scores of a judge and its earlier scores of the same prompts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Drift {
    /// The directory of the earlier run.
    pub baseline: String,
    /// Number of prompts with a score in both runs.
    pub items: usize,
    /// Number of them whose score is the same.
    pub unchanged: usize,
    /// Mean score in the earlier run.
    pub before: f64,
    pub now: f64,
    /// `now` minus `before`.
    pub difference: f64,
    /// 95% interval of the difference. Missing, like `high` and `p`, for fewer than 6 items.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Two-sided p-value of no difference: the larger one of a sign-flip test and a paired bootstrap.
    pub p: Option<f64>,
    /// Whether `p` is only an upper bound.
    pub p_is_bound: bool,
    /// Mean absolute difference of the scores of a prompt. Changes that cancel in the mean show here.
    pub distance: f64,
}

impl Drift {
    /// Compares scores of the same prompts, each before and now. `None` without any.
    pub fn of(scores: &[[f64; 2]], baseline: String, seed: u64) -> Option<Self> {
        let mut before = Vec::new();
        let mut now = Vec::new();
        let mut differing = Vec::new();
        let mut distance = 0.0;
        for (index, &[earlier, later]) in scores.iter().enumerate() {
            // Sums of probabilities differ in their last digits on other machines.
            let later = if same(later, earlier) { earlier } else { later };
            if (later - earlier).abs() > 0.0 {
                differing.push(index);
            }
            distance += (later - earlier).abs();
            before.push(earlier);
            now.push(later);
        }
        let items = scores.len();
        let contrast = Contrast::of_means(before, now);
        let [mean_before, mean_now] = contrast.sides(&vec![1.0; items])?;
        let bootstrap = Bootstrap { resamples: RESAMPLES, seed };
        let test = test_contrasts(&[contrast], items, &differing, bootstrap).into_iter().next().flatten();
        Some(Self {
            baseline,
            items,
            unchanged: items - differing.len(),
            before: mean_before,
            now: mean_now,
            difference: mean_now - mean_before,
            low: test.map(|test| test.interval.low),
            high: test.map(|test| test.interval.high),
            p: test.map(|test| test.p.value),
            p_is_bound: test.is_some_and(|test| test.p.is_bound),
            distance: distance / items as f64,
        })
    }

    pub fn interval(&self) -> Option<Interval> {
        Some(Interval { low: self.low?, high: self.high? })
    }

    /// Returns the figures as metrics, by name.
    pub fn metrics(&self) -> [(&'static str, Metric); 2] {
        let difference = Metric::plain(Some(self.difference), self.items).with_interval(self.interval());
        [("drift", difference), ("drift_distance", Metric::plain(Some(self.distance), self.items))]
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn drift(scores: &[[f64; 2]]) -> Drift {
        Drift::of(scores, "before".to_owned(), 1).unwrap()
    }

    #[test]
    fn a_shift_is_found_and_changes_that_cancel_only_show_in_the_distance() {
        let shifted: Vec<[f64; 2]> =
            (0..50).map(|index| [f64::from(index % 9), f64::from(index % 9) + 0.5]).collect();
        let found = drift(&shifted);
        assert!((found.difference - 0.5).abs() < 1e-9 && found.p.unwrap() < 0.01, "{found:?}");
        assert!(found.interval().unwrap().excludes_zero());
        let cancelling: Vec<[f64; 2]> =
            (0..50).map(|index| [5.0, if index % 2 == 0 { 7.0 } else { 3.0 }]).collect();
        let found = drift(&cancelling);
        assert!(found.p.unwrap() > 0.5 && (found.distance - 2.0).abs() < 1e-12, "{found:?}");
        assert_eq!((found.unchanged, found.difference), (0, 0.0));
    }

    #[test]
    fn equal_scores_and_few_prompts_have_a_defined_result() {
        let equal = drift(&[[4.0, 4.0 + 1e-12]; 8]);
        assert_eq!((equal.unchanged, equal.difference, equal.p), (8, 0.0, Some(1.0)));
        assert_eq!((equal.low, equal.high), (Some(0.0), Some(0.0)));
        let few = drift(&[[1.0, 2.0]; 5]);
        assert_eq!((few.items, few.p, few.low), (5, None, None));
        assert!((few.difference - 1.0).abs() < 1e-12);
        assert_eq!(Drift::of(&[], String::new(), 0), None);
    }

    #[test]
    fn noise_alone_is_called_a_drift_in_about_one_of_twenty_runs() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut found = 0;
        for seed in 0..100 {
            let scores: Vec<[f64; 2]> = (0..12).map(|_| [rng.random(), rng.random()]).collect();
            let drift = Drift::of(&scores, String::new(), seed).unwrap();
            found += usize::from(drift.p.is_some_and(|p| p <= 0.05));
        }
        assert!(found <= 10, "{found} of 100");
    }
}
