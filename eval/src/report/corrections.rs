//! Tables and notes of a judge's corrected figures, and of its changes since an earlier run.

use super::document::{Table, numbers, row, words};
use crate::format::{count, interval, number, optional_number, p_value};
use crate::metrics::corrected::ForWidth;
use crate::stats::difference::LEVEL;
use crate::store::report::Report;

/// The warning about labels of items that were not drawn at random.
pub const SELECTED: &str = "the judge scores the items with people's scores clearly differently from the others; if they are no random \
                            part of the items, the correction is wrong";

/// Returns a row for each corrected figure. Empty without people's scores.
pub(super) fn table(report: &Report) -> Table {
    let columns = [
        words(&["figure"]),
        numbers(&["judge alone", "corrected", "95% interval", "labels", "items"]),
        numbers(&["tuning", "gain", "sensitivity", "specificity"]),
    ];
    let mut rows = Vec::new();
    if let Some(mean) = &report.corrected.score {
        rows.push(row![
            "mean score",
            number(mean.naive),
            number(mean.value),
            mean.interval().map_or_else(String::new, interval),
            count(mean.labels),
            count(mean.items),
            number(mean.tuning),
            mean.gain.map_or_else(String::new, number),
            "",
            "",
        ]);
    }
    if let Some(rate) = &report.corrected.pass_rate
        && rate.labels > 0
    {
        rows.push(row![
            format!("score of at least {}", number(rate.pass_from)),
            number(rate.naive),
            optional_number(rate.value),
            rate.interval().map_or_else(String::new, interval),
            count(rate.labels),
            count(rate.items),
            "",
            "",
            rate.sensitivity.map_or_else(String::new, number),
            rate.specificity.map_or_else(String::new, number),
        ]);
    }
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the comparison with the earlier run, or nothing without `--drift`.
pub(super) fn drift(report: &Report) -> Table {
    let columns = [
        numbers(&["repeated prompts", "unchanged", "before", "now", "now - before", "95% interval", "p"]),
        numbers(&["mean distance"]),
    ];
    let mut rows = Vec::new();
    if let Some(drift) = &report.drift {
        rows.push(row![
            count(drift.items),
            count(drift.unchanged),
            number(drift.before),
            number(drift.now),
            number(drift.difference),
            drift.interval().map_or_else(String::new, interval),
            drift.p.map_or_else(String::new, |p| p_value(p, drift.p_is_bound)),
            number(drift.distance),
        ]);
    }
    Table::new(columns, rows).without_empty_columns()
}

/// Returns notes on both tables, as fragments without a full stop.
pub(super) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(mean) = &report.corrected.score {
        if mean.interval().is_none() {
            notes.push(
                "corrected_score: people's scores are all the same, so that it has no interval".to_owned(),
            );
        }
        if let Some(for_width) = mean.for_width {
            notes.push(labels_needed(for_width, mean.items));
        }
    }
    if let Some(reason) = report.corrected.pass_rate.as_ref().and_then(|rate| rate.reason.as_ref()) {
        notes.push(format!("corrected_pass_rate: {reason}"));
    }
    if let Some(drift) = &report.drift {
        let verdict = match drift.p {
            _ if drift.unchanged == drift.items => "the judge gives every repeated prompt the same score",
            None => "too few repeated prompts to test",
            Some(p) if p <= LEVEL => "the judge has changed: its mean score of the same prompts differs",
            Some(_) => "no change of the mean score shown; changes that cancel are only in drift_distance",
        };
        notes.push(format!("drift: {verdict} (compared with {})", drift.baseline));
    }
    notes
}

fn labels_needed(for_width: ForWidth, items: usize) -> String {
    let width = number(for_width.width);
    match for_width.labels {
        Some(labels) => format!(
            "width: about {} labels, a random part of the {} items, give the corrected mean a 95% interval of {width}",
            count(labels),
            count(items)
        ),
        None => format!(
            "width: labels of all {} items give an interval of about {}, not {width}; more items are needed",
            count(items),
            number(for_width.width_min)
        ),
    }
}
