//! Where the quantiles that a tree is expanded for may be.
//!
//! Invariant: the intervals only shrink, so a prefix that does not matter never matters later.

use crate::contract::Precision;
use crate::numbers::{Interval, Objective, OpenPart};

/// The intervals of the quantiles that are not known well enough. `None` if other estimates are requested,
/// which depend on all numbers.
pub(super) struct Sought(Option<Vec<Interval>>);

impl Sought {
    const ANYWHERE: Interval = Interval { low: f64::NEG_INFINITY, high: f64::INFINITY };
    const NOWHERE: Interval = Interval { low: f64::INFINITY, high: f64::NEG_INFINITY };

    pub(super) fn new(precision: Option<&Precision>) -> Self {
        let is_quantile =
            |objective: &Objective| matches!(objective, Objective::Median | Objective::Quantile(_));
        let quantiles = precision.filter(|precision| precision.objectives.iter().all(is_quantile));
        Self(quantiles.map(|precision| vec![Self::ANYWHERE; precision.objectives.len()]))
    }

    /// Returns whether the quantiles depend on the numbers in an open part. They do not if all of it is numbers
    /// on one side of each quantile: their mass is known.
    pub(super) fn may_depend_on(&self, part: &OpenPart) -> bool {
        let OpenPart { interval, is_certain, .. } = *part;
        let overlaps = |own: &Interval| interval.low <= own.high && interval.high >= own.low;
        !is_certain || self.0.as_ref().is_none_or(|all| all.iter().any(overlaps))
    }

    /// `bounds`: the present bounds of each quantile.
    pub(super) fn narrow(&mut self, bounds: &[Option<Interval>], precision: &Precision) {
        for (own, bounds) in self.0.iter_mut().flatten().zip(bounds) {
            let Interval { low, high } = match *bounds {
                bounds if precision.is_reached(bounds) => Self::NOWHERE,
                bounds => bounds.unwrap_or(Self::ANYWHERE),
            };
            *own = Interval { low: own.low.max(low), high: own.high.min(high) };
        }
    }
}
