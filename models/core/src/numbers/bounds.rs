//! Rigorous bounds of the estimates: what they could become if the open mass turned out to be numbers.
//!
//! Any part of the open mass may close, at any value of its interval. The share of the numbers up to `x` is
//! largest if all parts that may close at or below `x` do so, and the others are not numbers. It is smallest
//! if all parts that may close above `x` do so. A part that is certain to be numbers closes in any case.
//! These two functions of `x` are the [`Extremes`]. Quantiles of every possible distribution lie between
//! their quantiles, and so do means of quantiles, which a trimmed mean is. An estimate that can become an
//! unknown value has no bounds.

use super::distribution::{Distribution, Estimation, Interval, Objective, OpenPart};

/// An open mass below this is rounding and leaves estimates as they are.
const ROUNDING: f64 = 1e-12;

impl Distribution {
    /// Returns the estimate of the objective if it has bounds, and otherwise the median if that has bounds. A
    /// mode needs none: it is always a number that the model writes.
    pub fn bounded_estimate(&self, objective: Objective, estimation: &Estimation) -> Option<f64> {
        let is_bounded = objective == Objective::Mode
            || self.estimate_bounds(objective, estimation).is_some_and(|bounds| bounds.is_finite());
        let value = if is_bounded {
            self.estimate(objective, estimation)?
        } else if self.quantile_bounds(0.5, estimation.range)?.is_finite() {
            self.quantile(0.5)?
        } else {
            return None;
        };
        value.is_finite().then_some(value)
    }

    /// Bounds of [`Distribution::estimate`].
    pub fn estimate_bounds(&self, objective: Objective, estimation: &Estimation) -> Option<Interval> {
        match objective {
            Objective::Mean => self.trimmed_mean_bounds(estimation),
            Objective::Median => self.quantile_bounds(0.5, estimation.range),
            Objective::Quantile(q) => self.quantile_bounds(q, estimation.range),
            Objective::Mode => self.mode_bounds(estimation.range),
            Objective::Auto => self.auto_bounds(estimation),
        }
    }

    /// Bounds of [`Distribution::trimmed_mean`]; `None` if more open mass than is trimmed may close at any
    /// value.
    pub fn trimmed_mean_bounds(&self, estimation: &Estimation) -> Option<Interval> {
        let trim = estimation.trim;
        // A mean is conditional on the closed mass, as if all open mass were invalid.
        let mut parts = self.all_open_parts(estimation.range);
        parts.iter_mut().for_each(|part| part.is_certain = false);
        let [low, high] = Extreme::BOTH.map(|extreme| self.extreme(extreme, &parts).mean(trim));
        let (low, high) = (low?, high?);
        if estimation.normalize {
            return Some(Interval { low, high });
        }
        // A raw sum is the conditional mean times the final closed mass, which is between these two.
        let least = self.mass().closed;
        let most = least + self.open();
        Some(Interval::around([low * least, low * most, high * least, high * most]))
    }

    /// Bounds of [`Distribution::quantile`]; `None` if the open mass can push it off either end.
    pub fn quantile_bounds(&self, q: f64, range: Option<Interval>) -> Option<Interval> {
        let parts = self.all_open_parts(range);
        let [low, high] = Extreme::BOTH.map(|extreme| self.extreme(extreme, &parts).quantile(q));
        Some(Interval { low: low?, high: high? })
    }

    /// The values that may become the mode; `None` if that may be any value.
    pub fn mode_bounds(&self, range: Option<Interval>) -> Option<Interval> {
        let best = self.most_probable(2);
        let first = best.first()?;
        let second = best.get(1).map_or(0.0, |leaf| leaf.probability);
        let open = self.open();
        if open <= 0.0 || first.probability > second + open {
            return Some(Interval { low: first.value, high: first.value });
        }
        let parts = self.all_open_parts(range);
        if !parts.iter().all(|part| part.interval.is_finite()) {
            return None;
        }
        let may_win = self.leaves().iter().filter(|leaf| leaf.probability + open >= first.probability);
        let mut values: Vec<f64> = may_win.map(|leaf| leaf.value).collect();
        if open >= first.probability {
            values.extend(parts.iter().flat_map(|part| [part.interval.low, part.interval.high]));
        }
        Some(Interval::around(values))
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
            let parts = self.all_open_parts(estimation.range);
            let ends = parts.iter().flat_map(|part| [part.interval.low, part.interval.high]);
            values.extend(ends);
        }
        let all = Interval::around(values.into_iter().chain([mean.low, mean.high]));
        all.is_finite().then_some(all)
    }

    /// All parts of the open mass; `range` contains the rest.
    fn all_open_parts(&self, range: Option<Interval>) -> Vec<OpenPart> {
        let open = self.open();
        if open <= 0.0 {
            return Vec::new();
        }
        let anywhere = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
        let known: f64 = self.open_parts().iter().map(|part| part.probability).sum();
        let interval = range.unwrap_or(anywhere);
        let rest = OpenPart { interval, probability: open - known, is_certain: false };
        let is_rest = rest.probability > ROUNDING;
        self.open_parts().iter().copied().chain(is_rest.then_some(rest)).collect()
    }

    fn extreme(&self, extreme: Extreme, parts: &[OpenPart]) -> Extremes {
        let leaves = self.leaves().iter().map(|leaf| (leaf.value, leaf.probability, 0.0));
        let open = parts.iter().map(|&OpenPart { interval, probability, is_certain }| {
            let end = match extreme {
                Extreme::Lowest => interval.low,
                Extreme::Highest => interval.high,
            };
            if is_certain { (end, probability, 0.0) } else { (end, 0.0, probability) }
        });
        let mut ends: Vec<(f64, f64, f64)> = leaves.chain(open).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let closed: f64 = ends.iter().map(|(_, closed, _)| closed).sum();
        let all_open: f64 = ends.iter().map(|(_, _, open)| open).sum();
        let (mut closed_below, mut open_below) = (0.0, 0.0);
        let mut steps = Vec::with_capacity(ends.len());
        for (value, closed_here, open_here) in ends {
            closed_below += closed_here;
            open_below += open_here;
            let share = match extreme {
                Extreme::Lowest => (closed_below + open_below) / (closed + open_below),
                Extreme::Highest => closed_below / (closed + all_open - open_below),
            };
            steps.push((value, share));
        }
        if let Some((_, share)) = steps.last_mut() {
            // Without closed mass, this is 0 divided by 0.
            *share = 1.0;
        }
        Extremes { steps }
    }

    fn open(&self) -> f64 {
        let open = self.mass().open;
        if open > ROUNDING { open } else { 0.0 }
    }
}

#[derive(Debug, Clone, Copy)]
enum Extreme {
    Lowest,
    Highest,
}

impl Extreme {
    const BOTH: [Self; 2] = [Self::Lowest, Self::Highest];
}

/// The extreme conditional distribution function at each value. No split of the open mass has a quantile
/// beyond its quantile.
#[derive(Debug)]
pub(crate) struct Extremes {
    /// Values, ascending, and the share of the mass up to there.
    pub(crate) steps: Vec<(f64, f64)>,
}

impl Extremes {
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        // Sums of many small probabilities: one part in 1e12 is rounding, not mass.
        let reached = self.steps.iter().find(|(_, share)| *share >= q - ROUNDING);
        reached.or(self.steps.last()).map(|(value, _)| *value).filter(|value| value.is_finite())
    }

    /// The mean of the quantiles from `trim` to `1 - trim`.
    pub(crate) fn mean(&self, trim: f64) -> Option<f64> {
        let (mut below, mut sum, mut weight) = (0.0_f64, 0.0, 0.0);
        for &(value, share) in &self.steps {
            let overlap = share.min(1.0 - trim) - below.max(trim);
            below = share;
            if overlap > 0.0 && (value.is_finite() || overlap > ROUNDING) {
                sum += overlap * value;
                weight += overlap;
            }
        }
        (weight > 0.0).then(|| sum / weight).filter(|mean| mean.is_finite())
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
        assert_eq!(distribution(&[("1", 0.5), ("2", 0.45)], 0.0, 0.05).mode_bounds(None), None);
        assert_eq!(distribution(&[], 0.5, 0.5).quantile_bounds(0.5, None), None);
    }

    #[test]
    fn a_range_bounds_the_plain_mean_the_mode_and_every_quantile() {
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
        let close = distribution(&[("1", 0.5), ("2", 0.45)], 0.0, 0.05);
        let open = distribution(&[("1", 0.03), ("2", 0.02)], 0.0, 0.95);
        for (numbers, low, high) in [(close, 1.0, 2.0), (open, 0.0, 20.0)] {
            let mode = Estimation { range: Some(range), ..Estimation::default() };
            let bounds = numbers.estimate_bounds(Objective::Mode, &mode);
            assert_eq!(bounds, Some(Interval { low, high }));
        }
        let last = numbers.quantile_bounds(0.99, Some(range)).unwrap();
        assert!((last.high - 20.0).abs() < 1e-9 && last.low >= 3.0, "{last:?}");
    }
}
