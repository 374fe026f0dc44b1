//! Gates: conditions on metrics that determine the exit code.
//!
//! A metric without a value misses every bound. A baseline is an earlier report. A metric misses the baseline
//! if its whole 95% interval is worse than the baseline's value.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};

use crate::metrics::Metrics;
use crate::metrics::registry::{Better, better};
use crate::settings::gates::{Bound, Gates};
use crate::store::report::Report;
use crate::store::saved::{REPORT, read_report};

/// A condition on a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    pub name: String,
    /// Why the metric misses the gate, if it does.
    pub miss: Option<String>,
}

/// Checks all gates of a run.
pub fn check(gates: &Gates, baseline: Option<&Report>, metrics: &Metrics) -> Vec<Gate> {
    let mut checked = Vec::new();
    for Bound { metric, value: limit } in &gates.fail_under {
        let miss = match metrics.get(metric).value {
            Some(value) if value >= *limit => None,
            Some(value) => Some(format!("{metric} is {value}, below {limit}")),
            None => Some(format!("{metric} has no value to compare with {limit}")),
        };
        checked.push(Gate { name: format!("{metric} is at least {limit}"), miss });
    }
    for Bound { metric, value: limit } in &gates.fail_over {
        let miss = match metrics.get(metric).value {
            Some(value) if value <= *limit => None,
            Some(value) => Some(format!("{metric} is {value}, above {limit}")),
            None => Some(format!("{metric} has no value to compare with {limit}")),
        };
        checked.push(Gate { name: format!("{metric} is at most {limit}"), miss });
    }
    for (metric_name, metric) in metrics.iter() {
        let was = baseline.and_then(|baseline| baseline.metrics.get(metric_name).value);
        let (Some(was), Some(is)) = (was, metric.value) else { continue };
        let is_worse = match better(metric_name) {
            Better::Higher => metric.high.unwrap_or(is) < was,
            Better::Lower => metric.low.unwrap_or(is) > was,
            Better::Unknown => continue,
        };
        checked.push(Gate {
            name: format!("{metric_name} is not worse than the baseline"),
            miss: is_worse.then(|| format!("{metric_name} is {is}, worse than the baseline's {was}")),
        });
    }
    checked
}

/// Reads the report in a directory, or in its subdirectory that is named after the split. The report must
/// cover the items that `settings` describe: by their hash or, in reports without one, by data and limit.
pub fn read_baseline(
    folder: &Path,
    task: &str,
    split: &str,
    settings: &Map<String, Value>,
) -> anyhow::Result<Report> {
    let inner = folder.join(split).join(REPORT);
    let file = if inner.exists() { inner } else { folder.join(REPORT) };
    let failure = format!("could not use {} as a baseline", file.display());
    let report = read_report(&file).with_context(|| failure.clone())?;
    let Report { task: found_task, split: found_split, .. } = &report;
    ensure!(
        found_task == task && found_split == split,
        "{failure}: it covers {found_task} {found_split}, not {task} {split}"
    );
    let has_hash = report.settings.contains_key("items");
    let names: &[&str] = if has_hash { &["items"] } else { &["data", "limit"] };
    for name in names {
        let was = report.settings.get(*name);
        if was.is_some() && was != settings.get(*name) {
            let found = described(&report.settings);
            bail!("{failure}: it covers other items ({found}; this run: {})", described(settings));
        }
    }
    Ok(report)
}

/// Names the items of a run for a message.
fn described(settings: &Map<String, Value>) -> String {
    let [data, limit] =
        ["data", "limit"].map(|name| settings.get(name).map_or("unknown".to_owned(), Value::to_string));
    format!("data {data}, limit {limit}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::metrics::Row;

    fn missed(gates: &Gates, baseline: Option<&Report>, metrics: &Metrics) -> Vec<String> {
        check(gates, baseline, metrics).into_iter().filter_map(|gate| gate.miss).collect()
    }

    fn gates(fail_under: Vec<Bound>, fail_over: Vec<Bound>) -> Gates {
        Gates { fail_under, fail_over, baseline: None }
    }

    #[test]
    fn only_a_significantly_worse_metric_misses_a_baseline() {
        let folder = tempfile::tempdir().unwrap();
        let write = |accuracy: f64, mae: f64| {
            let report = serde_json::json!({
                "task": "t", "split": "s", "metrics": {
                    "accuracy": { "value": accuracy }, "mae": { "value": mae }, "r2": { "value": null },
                    "retired": { "value": 1.0 }
                }
            });
            fs::write(folder.path().join("report.json"), report.to_string()).unwrap();
            read_baseline(folder.path(), "t", "s", &Map::new()).unwrap()
        };
        // Accuracy 0.5 (0.15 to 0.85), mean absolute error 1 (0 to 2).
        let rows = [Row::read(1.0, 1.0), Row::read(2.0, 2.0), Row::read(3.0, 1.0), Row::read(4.0, 2.0)];
        let metrics = Metrics::of(&rows.each_ref(), 0);
        let worse = |baseline: &Report| missed(&gates(vec![], vec![]), Some(baseline), &metrics);
        assert!(worse(&write(0.8, 0.5)).is_empty());
        assert_eq!(worse(&write(0.9, 0.5)), ["accuracy is 0.5, worse than the baseline's 0.9"]);
        assert!(worse(&write(0.1, 9.0)).is_empty());
        let error = read_baseline(folder.path(), "t", "other", &Map::new()).unwrap_err().to_string();
        assert!(error.ends_with("it covers t s, not t other"), "{error}");
    }

    #[test]
    fn a_baseline_over_other_items_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let read = |was: Value, is: Value| {
            let report = serde_json::json!({ "task": "t", "split": "s", "settings": was });
            fs::write(folder.path().join("report.json"), report.to_string()).unwrap();
            read_baseline(folder.path(), "t", "s", is.as_object().unwrap())
        };
        let is = serde_json::json!({ "data": "/here", "limit": 9, "items": "abc" });
        for (was, same) in [
            (serde_json::json!({ "data": "/there", "limit": null, "items": "abc" }), true),
            (serde_json::json!({ "data": "/here", "limit": 9, "items": "def" }), false),
            (serde_json::json!({ "data": "/here", "limit": 9 }), true),
            (serde_json::json!({ "data": "/here", "limit": 4 }), false),
            (serde_json::json!({ "data": "/there", "limit": 9 }), false),
        ] {
            assert_eq!(read(was.clone(), is.clone()).is_ok(), same, "{was}");
        }
        let error = read(serde_json::json!({ "data": "/here", "limit": 4 }), is).unwrap_err().to_string();
        let want = "it covers other items (data \"/here\", limit 4; this run: data \"/here\", limit 9)";
        assert!(error.ends_with(want), "{error}");
    }

    #[test]
    fn a_gate_holds_at_its_value_and_misses_beyond_it_or_without_a_value() {
        let metrics = Metrics::of(&[&Row::read(1.0, 1.0), &Row::read(3.0, 1.0)], 0);
        let under =
            |metric, value| missed(&gates(vec![Bound { metric, value }], vec![]), None, &metrics).len();
        let over =
            |metric, value| missed(&gates(vec![], vec![Bound { metric, value }]), None, &metrics).len();
        assert_eq!((under("mae", 1.0), over("mae", 1.0)), (0, 0));
        assert_eq!((under("mae", 1.1), over("mae", 0.9)), (1, 1));
        assert_eq!(under("r2", -99.0), 1);
    }

    #[test]
    fn a_missed_gate_names_the_bound_and_the_value() {
        let metrics = Metrics::of(&[&Row::read(3.0, 1.0)], 0);
        let mae = Bound { metric: "mae", value: 1.0 };
        let r2 = Bound { metric: "r2", value: 0.5 };
        let texts = missed(&gates(vec![], vec![mae, r2]), None, &metrics);
        assert_eq!(texts, ["mae is 2, above 1", "r2 has no value to compare with 0.5"]);
    }
}
