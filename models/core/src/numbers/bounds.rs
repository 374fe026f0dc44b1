//! Rigorous bounds of the estimates: what they could become if the open mass turned out to be numbers.
//!
//! Any part of the open mass may close, at any value. Every estimate except the mode rises when mass moves to
//! larger values. In the worst cases, all open mass is therefore below the smallest value or above the
//! largest one. Mass below moves the window of a trimmed mean, and the position of a quantile, down. An
//! estimate that can become one of these unknown values has no bounds.

use super::distribution::{Distribution, Estimation, Interval, Objective};

/// An open mass below this is rounding and leaves estimates as they are.
const ROUNDING: f64 = 1e-12;

impl Distribution {
    /// Returns the estimate of the objective if it has bounds, and otherwise the median if that has bounds. A
    /// mode needs none: it is always a number that the model writes.
    pub fn bounded_estimate(&self, objective: Objective, estimation: &Estimation) -> Option<f64> {
        let is_finite = |bounds: &Interval| bounds.low.is_finite() && bounds.high.is_finite();
        let is_bounded =
            || self.estimate_bounds(objective, estimation).is_some_and(|bounds| is_finite(&bounds));
        let value = if objective == Objective::Mode || is_bounded() {
            self.estimate(objective, estimation)
        } else {
            let bounds = self.quantile_bounds(0.5, estimation.range).filter(is_finite);
            bounds.and_then(|_| self.quantile(0.5))
        };
        value.filter(|value| value.is_finite())
    }

    /// Bounds of [`Distribution::estimate`].
    pub fn estimate_bounds(&self, objective: Objective, estimation: &Estimation) -> Option<Interval> {
        match objective {
            Objective::Mean => self.trimmed_mean_bounds(estimation),
            Objective::Median => self.quantile_bounds(0.5, estimation.range),
            Objective::Quantile(q) => self.quantile_bounds(q, estimation.range),
            Objective::Mode => self.mode_bounds(),
            Objective::Auto => self.auto_bounds(estimation),
        }
    }

    /// Bounds of [`Distribution::trimmed_mean`]; `None` when no range is known and more mass is open than
    /// trimmed.
    pub fn trimmed_mean_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let conditional = self.conditional_bounds(&Estimation { normalize: true, ..*estimation })?;
        if estimation.normalize {
            return Some(conditional);
        }
        // A raw sum is the conditional mean times the final closed mass, which is between these two.
        let (Interval { low, high }, least) = (conditional, self.mass().closed);
        let most = least + self.open();
        Some(Interval::around([low * least, low * most, high * least, high * most]))
    }

    fn conditional_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let closed = self.mass().closed;
        let open = self.open();
        if let (Some(range), true) = (estimation.range, open > 0.0) {
            let low = self.with_open_mass_at(range.low).trimmed_mean(estimation)?;
            return Some(Interval {
                low,
                high: self.with_open_mass_at(range.high).trimmed_mean(estimation)?,
            });
        }
        let cut = estimation.trim * (closed + open);
        if open > cut {
            return None;
        }
        let low = self.mean_between(cut - open, closed - cut)?;
        Some(Interval { low, high: self.mean_between(cut, closed + open - cut)? })
    }

    /// Bounds of [`Distribution::quantile`]; `None` when no range is known and the open mass can push it off
    /// either end.
    pub fn quantile_bounds(&self, q: f64, range: Option<Interval>) -> Option<Interval> {
        let closed = self.mass().closed;
        let open = self.open();
        if let (Some(range), true) = (range, open > 0.0) {
            let low = self.with_open_mass_at(range.low).quantile(q)?;
            return Some(Interval { low, high: self.with_open_mass_at(range.high).quantile(q)? });
        }
        let position = q * (closed + open);
        if open > 0.0 && (position <= open || position > closed) {
            return None;
        }
        Some(Interval { low: self.value_at(position - open)?, high: self.value_at(position)? })
    }

    /// The mode, unless another value can still overtake it.
    pub fn mode_bounds(&self) -> Option<Interval> {
        let best = self.most_probable(2);
        let first = best.first()?;
        let second = best.get(1).map_or(0.0, |leaf| leaf.probability);
        let settled = self.open() <= 0.0 || first.probability > second + self.open();
        settled.then_some(Interval { low: first.value, high: first.value })
    }

    /// Bounds of the majority if a value keeps it wherever the open mass falls. Otherwise they contain the
    /// trimmed mean and every value that may get the majority.
    fn auto_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let open = self.open();
        let half = 0.5 * (self.mass().closed + open);
        let best = self.most_probable(1).first().copied()?;
        if best.probability > half {
            return Some(Interval { low: best.value, high: best.value });
        }
        let mean = self.trimmed_mean_bounds(estimation)?;
        let may_win = self.leaves().iter().filter(|leaf| leaf.probability + open > half);
        let mut values: Vec<f64> = may_win.map(|leaf| leaf.value).collect();
        if open > half {
            let Interval { low, high } = estimation.range?;
            values.extend([low, high]);
        }
        Some(Interval::around(values.into_iter().chain([mean.low, mean.high])))
    }

    fn open(&self) -> f64 {
        let open = self.mass().open;
        if open > ROUNDING { open } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution_tests::distribution;
    use super::*;

    const ROWS: [(&str, f64); 4] = [("1", 0.1), ("2", 0.5), ("3", 0.3), ("10", 0.05)];

    fn trim(trim: f64) -> Estimation {
        Estimation { trim, ..Estimation::default() }
    }

    #[test]
    fn without_open_mass_the_bounds_are_the_estimates() {
        let numbers = distribution(&ROWS, 0.05, 0.0);
        let fixed = [Objective::Mean, Objective::Median, Objective::Mode, Objective::Auto];
        for objective in fixed.into_iter().chain([Objective::Quantile(0.9)]) {
            let value = numbers.estimate(objective, &trim(0.1)).unwrap();
            let bounds = numbers.estimate_bounds(objective, &trim(0.1)).unwrap();
            assert!((bounds.low - value).abs() < 1e-9 && (bounds.high - value).abs() < 1e-9, "{objective:?}");
        }
    }

    #[test]
    fn wherever_the_open_mass_falls_the_estimates_stay_within_the_bounds() {
        let open = 0.04;
        let numbers = distribution(&ROWS, 0.01, open);
        for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.8)] {
            let bounds = numbers.estimate_bounds(objective, &trim(0.05)).unwrap();
            for (text, share) in
                [("-999", 1.0), ("999999", 1.0), ("2.5", 1.0), ("0", 0.3), ("4", 0.7), ("3", 1.0)]
            {
                let mut rows = ROWS.to_vec();
                rows.push((text, open * share));
                let later = distribution(&rows, 0.01 + open * (1.0 - share), 0.0);
                let value = later.estimate(objective, &trim(0.05)).unwrap();
                assert!(
                    bounds.low - 1e-9 <= value && value <= bounds.high + 1e-9,
                    "{objective:?}, open mass on {text}: {value} is outside {bounds:?}"
                );
            }
        }
    }

    #[test]
    fn a_value_with_the_majority_is_certain_and_one_that_may_lose_it_is_not() {
        let range = Some(Interval { low: -10.0, high: 20.0 });
        let mut unsettled = 0;
        for best in [0.2, 0.43, 0.46, 0.48, 0.5, 0.6] {
            for (open, range) in [(0.04, None), (0.04, range), (0.3, range), (0.6, range)] {
                let rest = 0.9 - best;
                let rows = [("2", best), ("3", 0.6 * rest), ("7", 0.4 * rest)]
                    .map(|(text, p)| (text, p * (1.0 - open)));
                let estimation = Estimation { trim: 0.05, range, ..Estimation::default() };
                let numbers = distribution(&rows, 0.1 * (1.0 - open), open);
                let bounds = numbers.estimate_bounds(Objective::Auto, &estimation).unwrap();
                let mut majorities = 0;
                let places = ["-10", "20", "2", "3", "7", "5"];
                for (text, share) in
                    places.into_iter().flat_map(|text| [0.0, 0.4, 1.0].map(|share| (text, share)))
                {
                    let rows = [&rows[..], &[(text, open * share)]].concat();
                    let later = distribution(&rows, 1.0 - 0.9 * (1.0 - open) - open * share, 0.0);
                    let value = later.estimate(Objective::Auto, &estimation).unwrap();
                    let is_inside = bounds.low - 1e-9 <= value && value <= bounds.high + 1e-9;
                    assert!(is_inside, "{share} of {open} on {text}: {value} is outside {bounds:?}");
                    majorities += usize::from(later.majority().is_some());
                }
                let is_certain = bounds.high - bounds.low <= 0.0;
                assert!(!is_certain || majorities == 18, "{best} {open}: {majorities} of 18");
                unsettled += usize::from(majorities > 0 && majorities < 18);
            }
        }
        assert!(unsettled > 5, "{unsettled}");
        let open = distribution(&[("2", 0.3), ("3", 0.3)], 0.0, 0.4);
        assert_eq!(open.estimate_bounds(Objective::Auto, &trim(0.05)), None);
    }

    #[test]
    fn estimates_that_the_open_mass_can_move_anywhere_have_no_bounds() {
        let numbers = distribution(&ROWS, 0.01, 0.04);
        assert_eq!(numbers.trimmed_mean_bounds(&trim(0.005)), None);
        assert_eq!(numbers.trimmed_mean_bounds(&trim(0.0)), None);
        assert_eq!(numbers.quantile_bounds(0.03, None), None);
        assert_eq!(numbers.quantile_bounds(0.99, None), None);
        assert_eq!(distribution(&[("1", 0.5), ("2", 0.45)], 0.0, 0.05).mode_bounds(), None);
        assert_eq!(distribution(&[], 0.5, 0.5).quantile_bounds(0.5, None), None);
    }

    #[test]
    fn a_range_bounds_the_plain_mean_and_every_quantile() {
        let range = Interval { low: 0.0, high: 20.0 };
        let numbers = distribution(&ROWS, 0.01, 0.04);
        for normalize in [true, false] {
            let plain = Estimation { trim: 0.0, normalize, range: Some(range) };
            let bounds = numbers.trimmed_mean_bounds(&plain).unwrap();
            for (text, share) in [("0", 1.0), ("20", 1.0), ("7", 0.5), ("3", 0.0)] {
                let mut rows = ROWS.to_vec();
                rows.push((text, 0.04 * share));
                let later = distribution(&rows, 0.01 + 0.04 * (1.0 - share), 0.0);
                let value = later.mean(&plain).unwrap();
                let within = bounds.low - 1e-9 <= value && value <= bounds.high + 1e-9;
                assert!(within, "normalize {normalize}, {share} on {text}: {value} is not in {bounds:?}");
            }
        }
        let last = numbers.quantile_bounds(0.99, Some(range)).unwrap();
        assert!((last.high - 20.0).abs() < 1e-9 && last.low >= 3.0, "{last:?}");
    }
}
