//! Notes on the distributions of a run, in addition to its figures.

use std::collections::BTreeMap;

use super::corrections::{self, SELECTED};
use crate::format::{count, interval, number};
use crate::stats::Interval;
use crate::stats::difference::ITEMS_MIN;
use crate::stats::studentised::largest_items;
use crate::store::report::{MissingScores, Report, Unbounded};

/// Below this mean probability on the scale, a judge does not follow the rubric.
const MASS_ON_SCALE_MIN: f64 = 0.5;

/// Returns reasons not to rely on figures of a run, as fragments without a full stop.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    let on_scale = report.metrics.get("mass_closed");
    if let Some(mass) = on_scale.value.filter(|mass| *mass < MASS_ON_SCALE_MIN) {
        warnings.push(format!(
            "mass_closed: only {} of the judge's probability is on the scale, on average; it would rather write something else \
             (number_reason in samples.jsonl), so do not rely on its scores; examples in the rubric, --prefill or another model help",
            number(mass)
        ));
    }
    if report.corrected.score.as_ref().is_some_and(|mean| mean.is_selected) {
        warnings.push(format!("corrected_score: {SELECTED}"));
    }
    let mut decided: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (name, metric) in report.metrics_to_show() {
        if metric.share_of_largest.is_some() {
            decided.entry(metric.n).or_default().push(name);
        }
    }
    for (n, names) in decided {
        let largest = largest_items(n);
        warnings.push(format!(
            "{}: more than half of the sum over {} items is in the largest {}; the intervals are too narrow, and other items could give very \
             different values; use more items, or rely on {}",
            names.join(", "),
            count(n),
            if largest == 1 { "value".to_owned() } else { format!("{} values", count(largest)) },
            if report.may_be_refused() { "accuracy" } else { "median_ae, log_mae or accuracy" },
        ));
    }
    warnings
}

/// Returns the notes as fragments without a full stop.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let all = count(report.n);
    let mut notes = Vec::new();
    notes.extend(number_rule(report));
    let unprinted = report.unprinted_metrics();
    if !unprinted.is_empty() {
        notes.push(format!(
            "not shown, because they cover fewer than {ITEMS_MIN} items: {} (report.json has them)",
            unprinted.join(", ")
        ));
    }
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
    notes.extend(corrections::notes(report));
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
        "marked_number" => "the number after `####`, or the last one of a text without it",
        "first_line_number" => "the number that the first line with a number states",
        _ => return None,
    };
    Some(format!("numbers: {rule} (settings.estimates)"))
}

/// Explains the p-values of the estimates, or why there are none.
fn estimates(report: &Report) -> Option<String> {
    let n = report.estimated();
    match n {
        0 => None,
        1..ITEMS_MIN => Some(format!(
            "estimates: too few items to compare them (n = {n}; at least {ITEMS_MIN} needed)"
        )),
        _ => Some(
            "estimates: p is for the difference between the estimate that the metric uses and the mode, corrected for the number of \
             metrics (Holm)"
                .to_owned(),
        ),
    }
}
