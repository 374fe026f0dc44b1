//! Where the quantiles that a tree is expanded for may be.
//!
//! Invariant: the intervals only shrink, so a prefix that does not matter never matters later.

use std::cmp::Ordering;

use crate::contract::Precision;
use crate::numbers::{Interval, Objective, OpenPart};

/// The requested quantiles. `None` if other estimates are requested, which depend on all numbers.
pub(super) struct Sought(Option<Vec<Quantile>>);

#[derive(Clone)]
struct Quantile {
    within: Interval,
    /// Whether it is known well enough.
    is_reached: bool,
}

impl Quantile {
    /// Returns on which side of the quantile an interval is. `Equal` if it may contain the quantile.
    fn side(&self, interval: &Interval) -> Ordering {
        if interval.high < self.within.low {
            Ordering::Less
        } else if interval.low > self.within.high {
            Ordering::Greater
        } else {
            Ordering::Equal
        }
    }
}

impl Sought {
    const ANYWHERE: Interval = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };

    pub(super) fn new(precision: Option<&Precision>) -> Self {
        let is_quantile =
            |objective: &Objective| matches!(objective, Objective::Median | Objective::Quantile(_));
        let quantiles = precision.filter(|precision| precision.objectives.iter().all(is_quantile));
        let anywhere = Quantile { within: Self::ANYWHERE, is_reached: false };
        Self(quantiles.map(|precision| vec![anywhere; precision.objectives.len()]))
    }

    /// Returns whether the quantiles that are not known well enough depend on the numbers in an open part.
    /// They do not if all of it is numbers on one side of each quantile: their mass is known.
    pub(super) fn may_depend_on(&self, part: &OpenPart) -> bool {
        let Some(quantiles) = &self.0 else { return true };
        !part.is_certain
            || quantiles.iter().any(|quantile| !quantile.is_reached && quantile.side(&part.interval).is_eq())
    }

    /// Returns on which side of each quantile an open part is. Parts on the same sides can be joined, and no
    /// bounds of a quantile become wider.
    pub(super) fn sides(&self, part: &OpenPart) -> Vec<Ordering> {
        self.0.iter().flatten().map(|quantile| quantile.side(&part.interval)).collect()
    }

    /// `bounds`: the present bounds of each quantile.
    pub(super) fn narrow(&mut self, bounds: &[Option<Interval>], precision: &Precision) {
        for (quantile, bounds) in self.0.iter_mut().flatten().zip(bounds) {
            quantile.is_reached |= precision.is_reached(*bounds);
            let Interval { low, high } = bounds.unwrap_or(Self::ANYWHERE);
            let within = quantile.within;
            quantile.within = Interval { low: within.low.max(low), high: within.high.min(high) };
        }
    }
}
