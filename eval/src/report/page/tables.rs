//! The tables of one run.

use serde_json::{Map, Value};

use super::document::{Cell, Grid, Kind};
use crate::figures::{count, figure, interval, optional, shortened};
use crate::metrics::Name;
use crate::store::saved::sample::plain;
use crate::store::saved::{Report, Run, Sample};

/// Items in a table of examples.
const WORST: usize = 20;
const UNREAD: usize = 10;

/// Every metric with interval, items and baselines.
pub fn metrics(report: &Report) -> Grid {
    let mut grid = Grid::new(&[
        ("metric", Kind::Words),
        ("value", Kind::Figures),
        ("95% interval", Kind::Figures),
        ("over", Kind::Figures),
        ("baselines", Kind::Words),
        ("meaning", Kind::Words),
    ]);
    for name in Name::in_order(report.metrics.keys().map(String::as_str)) {
        let Some(metric) = report.metrics.get(name) else { continue };
        grid.rows.push(vec![
            name.into(),
            Cell::strong(optional(metric.value)),
            interval(metric.low, metric.high).into(),
            format!("{} of {}", count(metric.n), count(report.n)).into(),
            baselines(report, name).into(),
            Name::parse(name).map_or("", Name::about).into(),
        ]);
    }
    grid.without_empty_columns()
}

/// What simple answers reach on that metric.
fn baselines(report: &Report, metric: &str) -> String {
    let reached = report.baselines.iter().filter_map(|(name, baseline)| {
        let value = baseline.get(metric)?.get("value")?.as_f64()?;
        Some(format!("{} {}", name.replace('_', " "), figure(value)))
    });
    reached.collect::<Vec<_>>().join(", ")
}

/// Where the paper's code and sane figures part.
pub fn quirks(report: &Report) -> Grid {
    let mut grid = Grid::new(&[
        ("quirk", Kind::Words),
        ("paper", Kind::Figures),
        ("sane", Kind::Figures),
        ("what it does", Kind::Words),
    ]);
    grid.rows = report
        .quirks
        .iter()
        .map(|quirk| {
            let [paper, sane] = [&quirk.paper, &quirk.sane].map(value_text);
            vec![quirk.name.as_str().into(), paper.into(), sane.into(), quirk.note.as_str().into()]
        })
        .collect();
    grid
}

fn value_text(value: &Value) -> String {
    value.as_f64().map_or_else(|| plain(value), figure)
}

/// One row per module; empty where there is one alone, whose figures are those of the run.
pub fn modules(report: &Report) -> Grid {
    let mut grid = Grid::new(&[
        ("module", Kind::Words),
        ("accuracy", Kind::Figures),
        ("95% interval", Kind::Figures),
        ("mae", Kind::Figures),
        ("log_mae", Kind::Figures),
        ("with a number", Kind::Figures),
    ]);
    let several = report.modules.iter().filter(|_| report.modules.len() > 1);
    for (name, module) in several {
        let metric = |name: &str| module.metrics.get(name).copied().unwrap_or_default();
        let accuracy = metric("accuracy");
        grid.rows.push(vec![
            name.as_str().into(),
            optional(accuracy.value).into(),
            interval(accuracy.low, accuracy.high).into(),
            optional(metric("mae").value).into(),
            optional(metric("log_mae").value).into(),
            format!("{} of {}", count(module.n_valid), count(module.n)).into(),
        ]);
    }
    grid.without_empty_columns()
}

/// The items with the largest errors; empty where all are exact.
pub fn worst(run: &Run) -> Grid {
    let mut wrong: Vec<(f64, &Sample)> = run
        .samples
        .iter()
        .filter_map(|sample| Some((sample.absolute_error()?, sample)))
        .filter(|&(error, _)| error > 0.0)
        .collect();
    wrong.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut grid = Grid::new(&[
        ("item", Kind::Figures),
        ("question", Kind::Literal),
        ("truth", Kind::Figures),
        ("predicted", Kind::Figures),
        ("error", Kind::Figures),
        ("answer", Kind::Literal),
    ]);
    grid.rows = wrong
        .into_iter()
        .take(WORST)
        .map(|(error, sample)| {
            vec![
                sample.doc_id.to_string().into(),
                shortened(&sample.doc.question, 160).into(),
                sample.truth().map_or_else(|| sample.target_text(), figure).into(),
                optional(sample.prediction.map(|read| read.median)).into(),
                figure(error).into(),
                shortened(&sample.response(), 120).into(),
            ]
        })
        .collect();
    grid
}

/// The first items without a number, with what came back instead.
pub fn unread(run: &Run) -> Grid {
    let mut grid = Grid::new(&[
        ("item", Kind::Figures),
        ("question", Kind::Literal),
        ("truth", Kind::Literal),
        ("answer", Kind::Literal),
        ("error", Kind::Words),
    ]);
    grid.rows = run
        .samples
        .iter()
        .filter(|sample| sample.prediction.is_none() && sample.truth().is_some())
        .take(UNREAD)
        .map(|sample| {
            vec![
                sample.doc_id.to_string().into(),
                shortened(&sample.doc.question, 160).into(),
                shortened(&sample.target_text(), 60).into(),
                shortened(&sample.response(), 160).into(),
                shortened(sample.error.as_deref().unwrap_or_default(), 160).into(),
            ]
        })
        .collect();
    grid.without_empty_columns()
}

/// Everything that may have changed the result.
pub fn settings(report: &Report) -> Grid {
    let mut grid = Grid::new(&[("setting", Kind::Words), ("value", Kind::Literal)]);
    let seed = report.seed.map(|seed| seed.to_string());
    let own = [
        ("model", Some(report.model.clone())),
        ("endpoint", Some(report.endpoint.clone())),
        ("mode", Some(report.mode.clone())),
        ("seed", seed),
        ("started", Some(report.started.clone())),
        ("seconds", Some(figure(report.seconds))),
    ];
    let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let all = own.chain(flat("", &report.settings)).chain(flat("version of ", &report.versions));
    grid.rows = all
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![name.into(), shortened(&value, 200).into()])
        .collect();
    grid
}

/// Names and values, those within others as `outer.inner`.
fn flat(prefix: &str, values: &Map<String, Value>) -> Vec<(String, String)> {
    let one = |(name, value): (&String, &Value)| match value {
        Value::Object(inner) => flat(&format!("{prefix}{name}."), inner),
        other => vec![(format!("{prefix}{name}"), plain(other))],
    };
    values.iter().flat_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::page::markdown::table;
    use crate::store::saved::tests::run;

    #[test]
    fn the_metric_table_has_intervals_baselines_and_no_empty_columns() {
        let report: Report = serde_json::from_value(json!({
            "n": 1200,
            "metrics": {
                "rmse": { "value": 1.8111, "low": null, "high": null, "n": 1100 },
                "accuracy": { "value": 0.25, "low": 0.2, "high": 0.3, "n": 1200 },
            },
            "baselines": { "constant_mean": { "value": 1.6, "rmse": { "value": 1.829, "n": 1200 } } },
        }))
        .unwrap();
        insta::assert_snapshot!(table(&metrics(&report)), @r##"
        | metric   |      value |     95% interval |           over | baselines           | meaning                              |
        |----------|------------|------------------|----------------|---------------------|--------------------------------------|
        | accuracy | **0.2500** | 0.2000 to 0.3000 | 1,200 of 1,200 |                     | share of items whose number is exact |
        | rmse     |  **1.811** |                  | 1,100 of 1,200 | constant mean 1.829 | root of the mean squared error       |
        "##);
    }

    #[test]
    fn the_worst_items_come_first_and_unread_ones_apart() {
        let run = run(&[(1.0, Some(1.0)), (2.0, Some(4.5)), (3.0, None), (4.0, Some(-6.0))]);
        insta::assert_snapshot!(table(&worst(&run)), @r##"
        | item | question | truth | predicted | error | answer |
        |------|----------|-------|-----------|-------|--------|
        |    3 | `item 3` |     4 |        -6 |    10 | `said` |
        |    1 | `item 1` |     2 |     4.500 | 2.500 | `said` |
        "##);
        insta::assert_snapshot!(table(&unread(&run)), @r##"
        | item | question | truth | answer |
        |------|----------|-------|--------|
        |    2 | `item 2` | `3`   | `said` |
        "##);
    }

    #[test]
    fn settings_within_settings_are_named_with_both_names() {
        let report = json!({ "settings": { "request": { "temperature": 0.0 }, "data": "x" }, "versions": { "ntl-eval": "1" } });
        let grid = settings(&serde_json::from_value(report).unwrap());
        let names: Vec<&str> = grid.rows.iter().map(|row| row[0].text.as_str()).collect();
        assert_eq!(names, ["seconds", "request.temperature", "data", "version of ntl-eval"]);
    }
}
