//! What is to be said of the distributions of a run beside its figures.

use crate::format::{count, interval, number};
use crate::stats::Interval;
use crate::store::report::{MissingScores, Report, Unbounded};

/// Fragments without a full stop.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let all = count(report.n);
    let mut notes = Vec::new();
    if let Some(Unbounded { n, without_value }) = report.unbounded {
        notes.push(format!(
            "unbounded: for {} of {all} items the open mass is larger than the trim of the mean; {} have the median in \
             its place, and {} no value; --range, --trim, --digits-max and --tolerance change that",
            count(n),
            count(n.saturating_sub(without_value)),
            count(without_value),
        ));
    }
    if let Some(MissingScores { n, first }) = &report.missing_scores {
        notes.push(format!(
            "no likelihood of the true answer for {} of {all} items, the first: {first}",
            count(*n)
        ));
    }
    for (method, items) in &report.intervals {
        notes.push(format!("intervals: {} of {all} items from {method}", count(*items)));
    }
    let Some(unknown) = &report.unknown_mass else { return notes };
    if unknown.above > 0 {
        notes.push(format!(
            "crps and calibration: not computed for {} of {all} items, of which more than {}% of the mass is open or on values \
             beyond those that the server returns",
            count(unknown.above),
            number(100.0 * unknown.limit),
        ));
    }
    match (unknown.crps_low, unknown.crps_high) {
        (Some(low), Some(high)) => {
            notes.push(format!("crps: {} wherever the open mass lies", interval(Interval { low, high })));
        }
        (Some(low), None) => {
            notes.push(format!(
                "crps: at least {} wherever the open mass lies (--range gives an upper bound)",
                number(low)
            ));
        }
        (None, _) => {}
    }
    if unknown.log_score_bounds > 0 {
        notes.push(format!(
            "log_score: a lower bound for {} of {all} items, whose true value is not among the returned ones",
            count(unknown.log_score_bounds),
        ));
    }
    notes
}
