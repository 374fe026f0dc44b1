//! Notes on the distributions of a run, in addition to its figures.

use crate::format::{count, interval, number};
use crate::stats::Interval;
use crate::stats::difference::ITEMS_MIN;
use crate::store::report::{MissingScores, Report, Unbounded};

/// Returns the notes as fragments without a full stop.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let all = count(report.n);
    let mut notes = Vec::new();
    notes.extend(number_rule(report));
    if let Some(Unbounded { n, without_value }) = report.unbounded {
        notes.push(format!(
            "unbounded: for {} of {all} items the open mass is larger than the trim of the mean; {} use the median \
             instead, and {} have no value; --range, --trim, --digits-max and --tolerance change that",
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
    notes.extend(estimates(report));
    let Some(unknown) = &report.unknown_mass else { return notes };
    if unknown.above > 0 {
        notes.push(format!(
            "crps and calibration: not computed for {} of {all} items, because more than {}% of the mass is open or on values \
             that the server did not return",
            count(unknown.above),
            number(100.0 * unknown.limit),
        ));
    }
    match (unknown.crps_low, unknown.crps_high) {
        (Some(low), Some(high)) => {
            notes.push(format!(
                "crps: {} for any location of the open mass",
                interval(Interval { low, high })
            ));
        }
        (Some(low), None) => {
            notes.push(format!(
                "crps: at least {} for any location of the open mass (--range gives an upper bound)",
                number(low)
            ));
        }
        (None, _) => {}
    }
    if unknown.log_score_bounds > 0 {
        notes.push(format!(
            "log_score: a lower bound for {} of {all} items, whose true value is not among the returned values",
            count(unknown.log_score_bounds),
        ));
    }
    notes
}

/// Says which number of a text the metrics use.
fn number_rule(report: &Report) -> Option<String> {
    let rule = match report.settings.get("estimates")?.get("accuracy")?.as_str()? {
        "first_number" => "the first number of each text",
        "last_number" => "the last number of each text",
        "first_line_number" => "the number that the first line with a number states",
        _ => return None,
    };
    Some(format!("numbers: {rule} (settings.estimates)"))
}

/// Explains the p-values of the estimates, or why there are none.
fn estimates(report: &Report) -> Option<String> {
    let (_, first) = report.estimates.first()?;
    let n = first.values.first().map_or(0, |(_, metric)| metric.n);
    let tests = report.estimates.values().filter(|scores| scores.p_holm.is_some()).count();
    if n < ITEMS_MIN {
        Some(format!("estimates: too few items to test which is best (n = {n}; at least {ITEMS_MIN} needed)"))
    } else {
        (tests > 0).then(|| {
            format!("estimates: p is for the lead over the next best, corrected for the {tests} metrics tested (Holm)")
        })
    }
}
