//! The true share of items that pass, from the share that a judge passes and from how often the judge is
//! right about items that people passed or failed (Rogan and Gladen 1978).

use super::{Interval, Z_95};

/// How a judge and people decided.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassCounts {
    /// Items that the judge decided, and how many of them it passed.
    pub items: usize,
    pub passed: usize,
    /// Items that people passed, and how many of them the judge passed.
    pub human_passed: usize,
    pub both_passed: usize,
    /// Items that people failed, and how many of them the judge failed.
    pub human_failed: usize,
    pub both_failed: usize,
}

/// Why a share cannot be corrected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCorrectable {
    #[error("people passed no labelled item, so that the judge's sensitivity is unknown")]
    NonePassed,
    #[error("people failed no labelled item, so that the judge's specificity is unknown")]
    NoneFailed,
    #[error("the judge decides no better than chance: its sensitivity and specificity add up to at most 1")]
    Chance,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrueShare {
    /// Within 0 and 1.
    pub value: f64,
    /// 95% interval.
    pub interval: Interval,
}

impl PassCounts {
    /// Counts an item; `human` is people's decision, if they made one.
    pub fn add(&mut self, judge: bool, human: Option<bool>) {
        self.items += 1;
        self.passed += usize::from(judge);
        match human {
            Some(true) => {
                self.human_passed += 1;
                self.both_passed += usize::from(judge);
            }
            Some(false) => {
                self.human_failed += 1;
                self.both_failed += usize::from(!judge);
            }
            None => {}
        }
    }

    /// Returns the share of the items that people passed which the judge passes.
    pub fn sensitivity(&self) -> Option<f64> {
        (self.human_passed > 0).then(|| self.both_passed as f64 / self.human_passed as f64)
    }

    /// Returns the share of the items that people failed which the judge fails.
    pub fn specificity(&self) -> Option<f64> {
        (self.human_failed > 0).then(|| self.both_failed as f64 / self.human_failed as f64)
    }

    /// Returns the corrected share with the interval of Lang and Reiczigel (2014, Preventive Veterinary
    /// Medicine 113, 13-22), which adds items to every count and allows for the uncertainty of all three.
    pub fn true_share(&self) -> Result<TrueShare, NotCorrectable> {
        let sensitivity = self.sensitivity().ok_or(NotCorrectable::NonePassed)?;
        let specificity = self.specificity().ok_or(NotCorrectable::NoneFailed)?;
        let quality = sensitivity + specificity - 1.0;
        if quality <= 0.0 {
            return Err(NotCorrectable::Chance);
        }
        let apparent = self.passed as f64 / self.items as f64;
        let value = ((apparent + specificity - 1.0) / quality).clamp(0.0, 1.0);
        Ok(TrueShare { value, interval: self.interval().including(value) })
    }

    fn interval(&self) -> Interval {
        let z2 = Z_95 * Z_95;
        let items = self.items as f64 + z2;
        let apparent = (self.passed as f64 + z2 / 2.0) / items;
        let of_passed = self.human_passed as f64 + 2.0;
        let sensitivity = (self.both_passed as f64 + 1.0) / of_passed;
        let of_failed = self.human_failed as f64 + 2.0;
        let specificity = (self.both_failed as f64 + 1.0) / of_failed;
        let quality = sensitivity + specificity - 1.0;
        if quality <= 0.0 {
            return Interval { low: 0.0, high: 1.0 };
        }
        let share = (apparent + specificity - 1.0) / quality;
        let sensitivity_variance = sensitivity * (1.0 - sensitivity) / of_passed;
        let specificity_variance = specificity * (1.0 - specificity) / of_failed;
        let shift = 2.0 * z2 * (share * sensitivity_variance - (1.0 - share) * specificity_variance);
        let variance = apparent * (1.0 - apparent) / items
            + share * share * sensitivity_variance
            + (1.0 - share).powi(2) * specificity_variance;
        let half = Z_95 * variance.sqrt() / quality;
        Interval { low: (share + shift - half).clamp(0.0, 1.0), high: (share + shift + half).clamp(0.0, 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn known_rates_give_the_true_share() {
        // 300 of 1,000 items are good. The judge passes 80% of the good and 10% of the bad ones.
        let counts = PassCounts {
            items: 1000,
            passed: 310,
            human_passed: 50,
            both_passed: 40,
            human_failed: 100,
            both_failed: 90,
        };
        let share = counts.true_share().unwrap();
        assert!((share.value - 0.3).abs() < 1e-12, "{share:?}");
        // The formula of `prevSeSp` in the R package asht 1.0.3, computed in Python.
        assert!((share.interval.low - 0.210_979_460_632).abs() < 1e-9, "{share:?}");
        assert!((share.interval.high - 0.389_713_826_510).abs() < 1e-9, "{share:?}");
    }

    #[test]
    fn what_people_never_decide_and_what_a_judge_does_not_know_is_not_corrected() {
        let counts = PassCounts {
            items: 10,
            passed: 5,
            human_passed: 4,
            both_passed: 2,
            human_failed: 4,
            both_failed: 2,
        };
        assert_eq!(counts.true_share(), Err(NotCorrectable::Chance));
        let none_passed = PassCounts { human_passed: 0, both_passed: 0, ..counts };
        assert_eq!(none_passed.true_share(), Err(NotCorrectable::NonePassed));
        let none_failed = PassCounts { human_failed: 0, both_failed: 0, ..counts };
        assert_eq!(none_failed.true_share(), Err(NotCorrectable::NoneFailed));
        // A share outside of 0 and 1 is cut off, and its interval contains it.
        let strict = PassCounts { passed: 0, both_passed: 3, both_failed: 3, ..counts };
        let share = strict.true_share().unwrap();
        assert_eq!((share.value, share.interval.low), (0.0, 0.0));
        assert!(share.interval.high > 0.1 && share.interval.high <= 1.0, "{share:?}");
        // Three labels leave everything open.
        let few = PassCounts { human_passed: 1, both_passed: 1, human_failed: 2, both_failed: 1, ..counts };
        assert!(few.true_share().unwrap().interval.high > 0.9);
    }

    #[test]
    fn intervals_hold_for_random_labels_of_the_judged_items() {
        const REPETITIONS: usize = 2_000;
        for (seed, share, sensitivity, specificity, labels) in
            [(1, 0.3, 0.9, 0.7, 100), (2, 0.85, 0.75, 0.8, 100), (3, 0.5, 0.7, 0.95, 60)]
        {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut hits = 0;
            for _ in 0..REPETITIONS {
                let mut counts = PassCounts::default();
                for item in 0..600 {
                    let is_good = rng.random::<f64>() < share;
                    let rate = if is_good { sensitivity } else { 1.0 - specificity };
                    counts.add(rng.random::<f64>() < rate, (item < labels).then_some(is_good));
                }
                let found = counts.true_share().unwrap().interval;
                hits += usize::from((found.low..=found.high).contains(&share));
            }
            let coverage = hits as f64 / REPETITIONS as f64;
            assert!((0.94..=0.99).contains(&coverage), "{share}: {coverage}");
        }
    }
}
