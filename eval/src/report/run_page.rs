//! The page of one run.

use super::document::{Block, Document, Section};
use super::notes::{notes, warnings};
use super::{corrections, decisions, judgements, pictures, published, tables};
use crate::format::{count, number};
use crate::store::report::Report;
use crate::store::saved::Run;

/// Returns the page without the sections that have no data.
pub(super) fn document(run: &Run) -> Document {
    let report = &run.report;
    let optional = [
        Section::new("Cost", [paragraph(COST), Block::Table(tables::cost(report))]),
        Section::new("Simple methods", [paragraph(METHODS), Block::Table(tables::methods(report))]),
        Section::new("Estimates", [paragraph(ESTIMATES), Block::Table(tables::estimates(report))]),
        Section::new("Corrected by people", [paragraph(CORRECTED), Block::Table(corrections::table(report))]),
        Section::new("Drift", [paragraph(DRIFT), Block::Table(corrections::drift(report))]),
        Section::new("Judgements", [paragraph(JUDGEMENTS), Block::Table(judgements::least_certain(run))]),
        Section::new("Decisions", [paragraph(DECISIONS), Block::Table(decisions::worst(run))]),
        Section::new("The paper's quirks", [paragraph(QUIRKS), Block::Table(tables::quirks(report))]),
        Section::new("Pictures", [Block::Pictures(pictures::all(run))]),
        Section::new("Modules", [Block::Table(tables::modules(report))]),
        Section::new("Largest errors", [Block::Table(tables::largest_errors(run))]),
        Section::new("Without a number", [paragraph(UNREAD), Block::Table(tables::unread(run))]),
    ];
    let settings =
        Block::Folded("Everything that may change the result".to_owned(), tables::settings(report));
    let mut sections = vec![figures(report)];
    sections.extend(published::section(report));
    sections.extend(optional.into_iter().filter(Section::has_data));
    sections.push(Section::new("Settings", [settings]));
    Document { title: format!("{} {}", report.task, report.split), subtitle: subtitle(report), sections }
}

const COST: &str = "The cost of the answers, as the server reports it, without the requests of --score and --samples. Answers from \
                    --cache count like others.";
const METHODS: &str = "The metrics of simple methods on the answered items. The true function and the true distribution are the best \
                       predictions that are possible.";
const CORRECTED: &str = "What people would say about all items, estimated from the judge's scores of all and people's scores of some: \
                         prediction-powered inference for the mean, Rogan and Gladen's correction for the share that passes. The \
                         tuning is the factor of the judge's scores. The gain is the number of labels without the judge that one \
                         label is worth. The items with labels have to be a random part of all.";
const DRIFT: &str = "The scores of the prompts that an earlier run of the judge has as well. The test shows a change of the mean over \
                     these prompts, not its cause and not which scores are right; changes that cancel show in the distance only.";
const JUDGEMENTS: &str = "The least certain judgements: their scores have the largest standard deviations. Scores are expected scores.";
const DECISIONS: &str =
    "The questions whose correct option got the least probability, and refused questions.";
const QUIRKS: &str = "This run was scored like the paper's code. If that differs from the usual definition of a figure, \
                      the table has both values.";
const ESTIMATES: &str = "The metrics of every estimate of the same distributions, over the items that have all estimates; the best is in \
                         bold. The weighted sum is not divided by the closed mass. The run's own figures use the estimate in the column \
                         \"used\", which is tested against the mode.";
const UNREAD: &str = "The first items without a number.";

fn paragraph(text: &str) -> Block {
    Block::Paragraph(text.to_owned())
}

fn subtitle(report: &Report) -> String {
    let facts = [
        report.model.clone(),
        format!("{} mode", report.mode),
        format!("{} items", count(report.n)),
        report.started.clone(),
        format!("{} s", number(report.seconds)),
    ];
    facts.into_iter().filter(|fact| !fact.is_empty()).collect::<Vec<_>>().join(" · ")
}

fn figures(report: &Report) -> Section {
    let [answered, unparsed] = if report.may_be_refused() {
        ["were answered", "refused"]
    } else {
        ["were answered with a number", "without one"]
    };
    let mut counts = format!(
        "Of {} items, {} {answered}, {} {unparsed}, and {} failed.",
        count(report.n),
        count(report.n_valid),
        count(report.unparsed()),
        count(report.failed)
    );
    match &report.unparsed_rule {
        Some(rule) => counts += &format!(" {}", sentence(rule)),
        None => {
            counts +=
                " Accuracy counts items without a number as incorrect. Errors cover the items with a number."
        }
    }
    if let Some(mass) = report.mass_closed {
        counts += &format!(" Mean closed mass of the numbers: {}.", number(mass));
    }
    let (reasons, others) = report.main_reasons();
    for (reason, items) in reasons {
        counts += &format!(" No number for {} items: {}", count(items), sentence(reason));
    }
    if others > 0 {
        counts += &format!(" No number for {} items: other reasons, see samples.jsonl.", count(others));
    }
    for warning in warnings(report) {
        counts += &format!(" {}", sentence(&format!("warning: {warning}")));
    }
    for note in notes(report) {
        counts += &format!(" {}", sentence(&note));
    }
    Section::new("Figures", [Block::Table(tables::metrics(report)), Block::Paragraph(counts)])
}

/// Capitalises the first letter and adds a full stop.
fn sentence(text: &str) -> String {
    let mut characters = text.trim().trim_end_matches('.').chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", characters.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::{html, markdown};
    use crate::store::saved::tests::run;

    /// Five items: one exact, two off, one without a number, one failed. The report has every section.
    fn full_run() -> Run {
        let mut run =
            run(&[(7.0, Some(7.0)), (-12.0, Some(-10.0)), (40.0, Some(400.0)), (3.0, None), (5.0, None)]);
        run.samples[4].error = Some("endpoint is gone".to_owned());
        run.samples[0].more.insert("mass_closed".to_owned(), json!(0.9993));
        let metric =
            |value: f64| json!({ "value": value, "low": value - 0.125, "high": value + 0.125, "n": 5 });
        let report = json!({
            "task": "arithmetic", "split": "extrapolate", "model": "tiny", "mode": "paper", "endpoint": "http://h/v1",
            "n": 5, "n_valid": 3, "failed": 1, "seed": 7, "started": "2026-01-31T23:59:59Z", "seconds": 1.25,
            "settings": { "data": "generated", "request": { "temperature": 0.0 } },
            "metrics": { "accuracy": metric(0.2), "mae": metric(120.5), "novel": { "value": null, "n": 0 } },
            "baselines": { "constant_median": { "value": 5.0, "mae": { "value": 14.75, "n": 5 } } },
            "versions": { "ntl-eval": "0.1.0" }, "mass_closed": 0.9993, "unparsed_rule": "left out of errors",
            "quirks": [{ "name": "accuracy", "paper": 0.25, "sane": 0.2, "note": "numpy.isclose" }],
            "modules": {
                "add": { "n": 3, "n_valid": 2, "metrics": { "accuracy": metric(0.5), "mae": metric(1.5) } },
                "sub": { "n": 2, "n_valid": 1, "metrics": { "accuracy": metric(0.25), "mae": metric(2.5) } },
            },
            "calibration": { "pit": vec![1; 20], "coverage": [{ "q": 0.5, "covered": 2, "n": 3 }] },
        });
        run.report = serde_json::from_value(report).unwrap();
        run
    }

    #[test]
    fn a_report_shows_everything_that_the_run_holds() {
        insta::assert_snapshot!("report", markdown::render(&document(&full_run())));
        let page = html::render(&document(&full_run()));
        let titles: Vec<&str> =
            page.split("<h3>").skip(1).filter_map(|rest| rest.split("</h3>").next()).collect();
        assert_eq!(
            titles,
            [
                "Predicted against true",
                "Errors",
                "Accuracy by number of digits",
                "Calibration",
                "Coverage of quantiles",
                "Closed mass",
                "Accuracy by module"
            ]
        );
    }

    #[test]
    fn extreme_numbers_are_drawn() {
        let wild =
            run(&[(1e300, Some(-1e308)), (-1e308, Some(1e308)), (1.0, Some(0.0)), (0.0, Some(1e-300))]);
        let page = html::render(&document(&wild));
        assert!(page.contains("Predicted against true</h3>"));
        assert!(!page.contains("NaN") && !page.contains("inf\""), "{page}");
    }

    #[test]
    fn sections_without_data_are_left_out() {
        let empty = run(&[]);
        let text = markdown::render(&document(&empty));
        let titles: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(titles, ["## Figures", "## Comparison with the paper", "## Settings"]);
        assert!(!html::render(&document(&empty)).contains("<svg"));
    }
}
