//! Comparisons as people read them: sentences and tables, in the terminal or as Markdown.

use super::{Comparison, Difference, ItemDifference, SettingDifference, Side};
use crate::format::{count, interval, number, p_value, shortened};
use crate::metrics::registry::Better;
use crate::report::document::{Block, Document, Section, Table, numbers, row, words};
use crate::report::markdown;
use crate::stats::Interval;

/// What the interval of a difference says.
pub fn verdict(difference: &Difference) -> String {
    let Difference { name, better, difference: by, interval, .. } = difference;
    let Some(interval) = interval else {
        return format!("no interval for {name}: B - A is {}", number(*by));
    };
    if !interval.excludes_zero() {
        return format!("no difference shown on {name}: B - A is {} {}", number(*by), brackets(*interval));
    }
    let above = interval.low > 0.0;
    let (winner, how) = match (better, above) {
        (Better::Higher, true) | (Better::Lower, false) => ("B", "better"),
        (Better::Higher, false) | (Better::Lower, true) => ("A", "better"),
        (Better::Unknown, true) => ("B", "higher"),
        (Better::Unknown, false) => ("A", "higher"),
    };
    let size = if above { *interval } else { Interval { low: -interval.high, high: -interval.low } };
    format!("{winner} is {how} on {name} by {} {}", number(by.abs()), brackets(size))
}

fn brackets(interval: Interval) -> String {
    format!("[{}, {}]", number(interval.low), number(interval.high))
}

/// For a terminal.
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

const ITEMS: &str = "The items whose absolute errors differ most; below 0 where B is closer:";

fn side(side: &Side) -> String {
    format!("{}, {} mode ({})", side.model, side.mode, side.run)
}

/// One sentence per metric, then one per test.
fn verdicts(comparison: &Comparison) -> Vec<String> {
    let all_items = comparison.counts.n;
    let sentence = |metric: &Difference| {
        let Difference { verdict, n, .. } = metric;
        let is_over_all = *n == all_items;
        let over = if is_over_all {
            String::new()
        } else {
            format!(", over {} of {} items", count(*n), count(all_items))
        };
        format!("{verdict}{over}")
    };
    let mut all: Vec<String> = comparison.metrics.iter().map(sentence).collect();
    all.extend(comparison.mcnemar.map(|test| {
        let kind = if test.exact { "exact" } else { "chi-squared, corrected" };
        format!(
            "McNemar on accuracy: A alone is right on {}, B alone on {}; p {} ({kind})",
            count(test.only_a),
            count(test.only_b),
            p_value(test.p)
        )
    }));
    all.extend(comparison.sign_test.map(|test| {
        format!(
            "sign test on absolute errors: A is closer on {}, B on {}, equal on {}; p {} (exact)",
            count(test.a_closer),
            count(test.b_closer),
            count(test.equal),
            p_value(test.p)
        )
    }));
    all
}

fn figures(comparison: &Comparison) -> Table {
    let columns = [words(&["metric"]), numbers(&["A", "B", "B - A", "95% interval", "p", "pairs"])];
    let rows = comparison.metrics.iter().map(|metric| {
        row![
            &metric.name,
            number(metric.a),
            number(metric.b),
            number(metric.difference),
            metric.interval.map_or_else(String::new, interval),
            metric.p.map_or_else(String::new, p_value),
            count(metric.n),
        ]
    });
    Table::new(columns, rows)
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
        "Accuracy and scores are over pairs where no request failed (an answer without a number is wrong), all else \
         over pairs where both gave a number. Intervals and p: paired bootstrap, {} resamples, seed {}, percentiles; \
         p-values are not corrected for the number of metrics.",
        count(comparison.resamples as usize),
        comparison.seed
    )
}

fn settings(comparison: &Comparison) -> Option<String> {
    let shown = |value: &str| if value.is_empty() { "not set".to_owned() } else { shortened(value, 40) };
    let one = |SettingDifference { name, a, b }: &SettingDifference| {
        format!("{name} (A: {}, B: {})", shown(a), shown(b))
    };
    let all: Vec<String> = comparison.settings.iter().map(one).collect();
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
