//! What an estimate could become if the open mass turned out to be numbers: rigorous, not statistical.
//!
//! Any part of the open mass may close, anywhere. Every estimate here rises when mass moves up, and the worst
//! case on either side is that all of it lies beyond the outermost value there: putting more mass below slides
//! the window of a trimmed mean, and the position of a quantile, further down. An estimate that such mass can
//! reach itself is not bounded at all.

use super::{Distribution, Objective};

/// A closed interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// Mass that is rounding: an open mass below it leaves estimates as they are.
const ROUNDING: f64 = 1e-12;

impl Distribution {
    /// Bounds of [`Distribution::estimate`].
    pub fn estimate_bounds(&self, objective: Objective, trim: f64) -> Option<Interval> {
        match objective {
            Objective::Mean => self.trimmed_mean_bounds(trim),
            Objective::Median => self.quantile_bounds(0.5),
            Objective::Quantile(q) => self.quantile_bounds(q),
            Objective::Mode => self.mode_bounds(),
        }
    }

    /// Bounds of [`Distribution::trimmed_mean`]; `None` when the open mass exceeds what is trimmed.
    pub fn trimmed_mean_bounds(&self, trim: f64) -> Option<Interval> {
        let (closed, open) = (self.mass().closed, self.open());
        let cut = trim * (closed + open);
        if open > cut {
            return None;
        }
        let low = self.mean_between(cut - open, closed - cut)?;
        let high = self.mean_between(cut, closed + open - cut)?;
        Some(Interval { low, high })
    }

    /// Bounds of [`Distribution::quantile`]; `None` when the open mass can push it off either end.
    pub fn quantile_bounds(&self, q: f64) -> Option<Interval> {
        let (closed, open) = (self.mass().closed, self.open());
        let position = q * (closed + open);
        if open > 0.0 && (position <= open || position > closed) {
            return None;
        }
        Some(Interval { low: self.value_at(position - open)?, high: self.value_at(position)? })
    }

    /// The mode, where no other value can still overtake it.
    pub fn mode_bounds(&self) -> Option<Interval> {
        let best = self.most_probable(2);
        let first = best.first()?;
        let second = best.get(1).map_or(0.0, |leaf| leaf.probability);
        let settled = self.open() <= 0.0 || first.probability > second + self.open();
        settled.then_some(Interval { low: first.value, high: first.value })
    }

    fn open(&self) -> f64 {
        let open = self.mass().open;
        if open > ROUNDING { open } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::distribution::tests::distribution;
    use super::*;

    const ROWS: [(&str, f64); 4] = [("1", 0.1), ("2", 0.5), ("3", 0.3), ("10", 0.05)];

    #[test]
    fn without_open_mass_the_bounds_are_the_estimates() {
        let numbers = distribution(&ROWS, 0.05, 0.0);
        for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.9)] {
            let (value, bounds) =
                (numbers.estimate(objective, 0.1).unwrap(), numbers.estimate_bounds(objective, 0.1).unwrap());
            assert!((bounds.low - value).abs() < 1e-9 && (bounds.high - value).abs() < 1e-9, "{objective:?}");
        }
    }

    #[test]
    fn wherever_the_open_mass_falls_the_estimates_stay_within_the_bounds() {
        let open = 0.04;
        let numbers = distribution(&ROWS, 0.01, open);
        for objective in [Objective::Mean, Objective::Median, Objective::Mode, Objective::Quantile(0.8)] {
            let bounds = numbers.estimate_bounds(objective, 0.05).unwrap();
            for (text, share) in
                [("-999", 1.0), ("999999", 1.0), ("2.5", 1.0), ("0", 0.3), ("4", 0.7), ("3", 1.0)]
            {
                let mut rows = ROWS.to_vec();
                rows.push((text, open * share));
                let later = distribution(&rows, 0.01 + open * (1.0 - share), 0.0);
                let value = later.estimate(objective, 0.05).unwrap();
                assert!(
                    bounds.low - 1e-9 <= value && value <= bounds.high + 1e-9,
                    "{objective:?}, open mass on {text}: {value} is outside {bounds:?}"
                );
            }
        }
    }

    #[test]
    fn what_the_open_mass_can_reach_has_no_bounds() {
        let numbers = distribution(&ROWS, 0.01, 0.04);
        assert_eq!(numbers.trimmed_mean_bounds(0.005), None);
        assert_eq!(numbers.trimmed_mean_bounds(0.0), None);
        assert_eq!(numbers.quantile_bounds(0.03), None);
        assert_eq!(numbers.quantile_bounds(0.99), None);
        assert_eq!(distribution(&[("1", 0.5), ("2", 0.45)], 0.0, 0.05).mode_bounds(), None);
        assert_eq!(distribution(&[], 0.5, 0.5).quantile_bounds(0.5), None);
    }
}
