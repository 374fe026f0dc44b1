//! Renders comparisons as sentences and tables, for the terminal or as Markdown.

use super::{Comparison, Difference, ItemDifference, SettingDifference, Side};
use crate::format::{count, interval, number, p_value, shortened};
use crate::metrics::registry::Better;
use crate::report::corrections::SELECTED;
use crate::report::document::{Block, Document, Section, Table, numbers, row, words};
use crate::report::markdown;
use crate::stats::Interval;
use crate::stats::difference::{ITEMS_MIN, LEVEL};

/// Returns the result of a test as a sentence without its full stop.
pub fn verdict(difference: &Difference) -> String {
    let Difference { name, better, difference: by, n, .. } = difference;
    if *n < ITEMS_MIN {
        let by = number(*by);
        return format!(
            "too few items to compare on {name} (n = {n}; at least {ITEMS_MIN} needed): B - A is {by}"
        );
    }
    let Some(interval) = difference.interval else {
        return format!("no interval for {name}: B - A is {}", number(*by));
    };
    let figures = format!("B - A is {} {}, {}", number(*by), brackets(interval), p_holm(difference));
    if !difference.is_shown() {
        let despite = match difference.p {
            _ if difference.p_holm_is_bound => "; more --resamples are needed to show one".to_owned(),
            Some(p) if p <= LEVEL => {
                format!("; without the correction p {}", p_value(p, difference.p_is_bound))
            }
            _ => String::new(),
        };
        return format!("no difference shown on {name}: {figures}{despite}");
    }
    let above = interval.low > 0.0;
    let (winner, how) = match (better, above) {
        (Better::Higher, true) | (Better::Lower, false) => ("B", "better"),
        (Better::Higher, false) | (Better::Lower, true) => ("A", "better"),
        (Better::Unknown, true) => ("B", "higher"),
        (Better::Unknown, false) => ("A", "higher"),
    };
    format!("{winner} is {how} on {name}: {figures}")
}

/// Returns the corrected p-value, introduced by `p`.
fn p_holm(difference: &Difference) -> String {
    difference.p_holm.map_or_else(String::new, |p| format!("p {}", p_value(p, difference.p_holm_is_bound)))
}

fn brackets(interval: Interval) -> String {
    format!("[{}, {}]", number(interval.low), number(interval.high))
}

/// Renders a comparison for a terminal.
pub fn text(comparison: &Comparison) -> String {
    let Comparison { task, split, a, b, .. } = comparison;
    let items = count(comparison.counts.n);
    let head = format!("{task} {split}, {items} items\nA: {}\nB: {}", side(a), side(b));
    let sections = document(comparison).sections;
    std::iter::once(head).chain(sections.iter().map(markdown::plain_section)).collect::<Vec<_>>().join("\n\n")
}

pub fn document(comparison: &Comparison) -> Document {
    let Comparison { task, split, a, b, .. } = comparison;
    let [pair_counts, method] = [pair_counts(comparison), method(comparison)].map(Block::Paragraph);
    let settings = settings(comparison).map(Block::Paragraph);
    let figures = [Block::Table(figures(comparison)), pair_counts, method].into_iter().chain(settings);
    let mut sections = vec![
        Section::new("Verdicts", verdicts(comparison).into_iter().map(Block::Paragraph)),
        Section::new("Figures", figures),
    ];
    if !comparison.items.is_empty() {
        let blocks = [Block::Paragraph(ITEMS.to_owned()), Block::Table(items(&comparison.items))];
        sections.push(Section::new("Items", blocks));
    }
    Document {
        title: format!("{task} {split}: A against B"),
        subtitle: format!("A is {}; B is {}", side(a), side(b)),
        sections,
    }
}

const ITEMS: &str = "The items whose absolute errors differ most. The difference is below 0 if B is closer.";

fn side(side: &Side) -> String {
    format!("{}, {} mode ({})", side.model, side.mode, side.run)
}

/// Returns a sentence about the number of tests and their correction, if there are several metrics.
fn tests(comparison: &Comparison) -> Option<String> {
    let tests = comparison.tests;
    (tests > 1).then(|| {
        format!(
            "{} metrics are tested together. Their p-values are corrected for that (Holm). A difference is shown if p is at most \
             {LEVEL}.",
            count(tests)
        )
    })
}

/// Returns the difference between two systems that people's scores correct, or what is missing for it.
fn systems(comparison: &Comparison) -> Option<String> {
    if !comparison.are_of_systems {
        return None;
    }
    let Some(corrected) = &comparison.corrected else {
        return Some(format!(
            "A and B are answers of two systems to the same inputs. Fewer than {ITEMS_MIN} items have people's scores of both \
             answers: the differences are those of the judge, with its errors."
        ));
    };
    let range = corrected.interval().map_or_else(String::new, |interval| format!(" {}", brackets(interval)));
    let gain = corrected.gain.map_or_else(String::new, |gain| format!(", gain {}", number(gain)));
    Some(format!(
        "A and B are answers of two systems to the same inputs. By people's scores of both answers to {} of {} inputs, the mean score \
         is corrected: B - A is {}{range}. The judge alone gives {} (tuning {}{gain}).{}",
        count(corrected.labels),
        count(corrected.items),
        number(corrected.value),
        number(corrected.naive),
        number(corrected.tuning),
        if corrected.is_selected { format!(" Warning: {SELECTED}.") } else { String::new() },
    ))
}

/// Returns the sentence about the number of tests, a sentence per metric, and one per test of pairs.
fn verdicts(comparison: &Comparison) -> Vec<String> {
    let all_items = comparison.counts.n;
    let mut all: Vec<String> = systems(comparison).into_iter().collect();
    all.extend(tests(comparison));
    for Difference { verdict, n, .. } in &comparison.metrics {
        if *n == all_items {
            all.push(verdict.clone());
        } else {
            all.push(format!("{verdict}, over {} of {} items", count(*n), count(all_items)));
        }
    }
    all.extend(comparison.mcnemar.map(|test| {
        format!(
            "McNemar on accuracy: A alone is correct on {}, B alone on {}; p {} (exact)",
            count(test.only_a),
            count(test.only_b),
            p_value(test.p, false)
        )
    }));
    all.extend(comparison.sign_test.map(|test| {
        format!(
            "sign test on absolute errors: A is closer on {}, B on {}, equal on {}; p {} (exact)",
            count(test.a_closer),
            count(test.b_closer),
            count(test.equal),
            p_value(test.p, false)
        )
    }));
    all
}

fn figures(comparison: &Comparison) -> Table {
    let columns = [
        words(&["metric", "estimate"]),
        numbers(&["A", "B", "B - A", "95% interval", "p", "p (Holm)", "pairs"]),
    ];
    let rows = comparison.metrics.iter().map(|metric| {
        row![
            &metric.name,
            estimates(&metric.estimates),
            number(metric.a),
            number(metric.b),
            number(metric.difference),
            metric.interval.map_or_else(String::new, interval),
            metric.p.map_or_else(String::new, |p| p_value(p, metric.p_is_bound)),
            metric.p_holm.map_or_else(String::new, |p| p_value(p, metric.p_holm_is_bound)),
            count(metric.n),
        ]
    });
    Table::new(columns, rows).without_empty_columns()
}

/// Returns the estimate of both sides, or of each side if they differ.
fn estimates([a, b]: &[Option<String>; 2]) -> String {
    let named =
        |estimate: &Option<String>| estimate.clone().unwrap_or_else(|| "the text's number".to_owned());
    match (a, b) {
        (None, None) => String::new(),
        _ if a == b => named(a),
        _ => format!("A: {}, B: {}", named(a), named(b)),
    }
}

fn pair_counts(comparison: &Comparison) -> String {
    let counts = comparison.counts;
    format!(
        "{} items: both gave a number on {}, A alone on {}, B alone on {}, neither on {}; requests failed: {} of A, {} of B.",
        count(counts.n),
        count(counts.both_read),
        count(counts.only_a_read),
        count(counts.only_b_read),
        count(counts.neither_read),
        count(counts.failed_a),
        count(counts.failed_b),
    )
}

fn method(comparison: &Comparison) -> String {
    format!(
        "Accuracy and scores cover the pairs without a failed request; an answer without a number is incorrect. All other metrics \
         cover the pairs with a number on both sides. Every difference is B minus A. p is the larger of the p-values of a permutation \
         test and a paired bootstrap ({} resamples, seed {}), which also gives the intervals. For metrics that are 0 or 1 on each item, p is \
         McNemar's and the interval Bonett and Price's. Intervals are not corrected for the number of metrics.",
        count(comparison.resamples as usize),
        comparison.seed
    )
}

fn settings(comparison: &Comparison) -> Option<String> {
    let mut all = Vec::with_capacity(comparison.settings.len());
    for SettingDifference { name, a, b } in &comparison.settings {
        let [a, b] = [a, b].map(|value| match value.as_str() {
            "" => "not set".to_owned(),
            value => shortened(value, 40),
        });
        all.push(format!("{name} (A: {a}, B: {b})"));
    }
    (!all.is_empty()).then(|| format!("The settings differ: {}.", all.join("; ")))
}

fn items(items: &[ItemDifference]) -> Table {
    let columns = [numbers(&["item"]), words(&["question"]), numbers(&["truth", "A", "B", "difference"])];
    let rows = items.iter().map(|item| {
        row![
            item.doc_id.to_string(),
            shortened(&item.question, 60),
            number(item.truth),
            number(item.a),
            number(item.b),
            number(item.difference),
        ]
    });
    Table::new(columns, rows)
}
