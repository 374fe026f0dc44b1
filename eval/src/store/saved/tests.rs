//! Facts about reading runs back, and a run to test with.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::metrics::Metric;

/// A run of one item per truth and prediction; `None` is an answer without a number.
pub(crate) fn run(pairs: &[(f64, Option<f64>)]) -> Run {
    let samples = pairs.iter().enumerate().map(|(doc_id, &(truth, read))| {
        let exact = read.is_some_and(|read| (read - truth).abs() < 1e-9);
        let prediction = read.map(|read| json!({ "mean": read, "median": read, "mode": read }));
        let sample = json!({
            "doc_id": doc_id, "doc": { "question": format!("item {doc_id}"), "answer": truth.to_string() },
            "target": truth.to_string(), "resps": [["said"]], "accuracy": u8::from(exact),
            "absolute_error": read.map(|read| (read - truth).abs()), "prediction": prediction,
        });
        serde_json::from_value(sample).unwrap()
    });
    let n_valid = pairs.iter().filter(|(_, read)| read.is_some()).count();
    let report = json!({
        "task": "arithmetic", "split": "interpolate", "model": "tiny", "mode": "text",
        "endpoint": "http://h/v1", "n": pairs.len(), "n_valid": n_valid, "seed": 0, "seconds": 1.5,
    });
    let report = serde_json::from_value(report).unwrap();
    Run { folder: "run".into(), report, samples: samples.collect() }
}

fn folder(report: &Value, samples: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(REPORT), report.to_string()).unwrap();
    fs::write(folder.path().join(SAMPLES), samples).unwrap();
    folder
}

fn message(path: &Path) -> String {
    let error = Run::load(path).unwrap_err();
    format!("{error:#}").replace(&path.display().to_string(), "DIR")
}

#[test]
fn unknown_keys_are_passed_over_and_optional_ones_may_be_missing() {
    let report = json!({ "task": "t", "n": 2, "new": 1, "metrics": { "mae": { "value": null, "n": 0 } } });
    let folder = folder(
        &report,
        "{\"doc_id\":1,\"target\":\"so #### 7\",\"strict\":1}\n\n{\"doc_id\":0,\"target\":3}\n",
    );
    let run = Run::load(folder.path()).unwrap();
    assert_eq!((run.report.task.as_str(), run.report.n, run.report.seed), ("t", 2, None));
    assert_eq!(run.report.metrics.get("mae"), Metric::default());
    let truths: Vec<_> = run.samples.iter().map(Sample::truth).collect();
    assert_eq!(truths, [Some(3.0), Some(7.0)]);
    assert_eq!((run.samples[1].score("strict"), run.samples[0].score("strict")), (Some(1.0), None));
}

#[test]
fn a_run_is_named_by_its_folder_or_by_its_report() {
    let folder = folder(&json!({ "task": "t" }), "");
    assert_eq!(Run::load(folder.path()).unwrap(), Run::load(&folder.path().join(REPORT)).unwrap());
}

#[test]
fn what_cannot_be_read_is_named() {
    let garbled = folder(&json!({ "n": "many" }), "");
    assert_eq!(
        message(garbled.path()),
        "DIR/report.json is no report: found the text \"many\", expected a whole number"
    );
    let cut = folder(&json!({}), "{\"doc_id\":0}\n{\"doc_id\":");
    assert!(message(cut.path()).starts_with("DIR/samples.jsonl line 2 is no sample: it is not JSON"));
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(message(empty.path()), "DIR holds no report.json");
    fs::create_dir(empty.path().join("test")).unwrap();
    fs::write(empty.path().join("test").join(REPORT), "{}").unwrap();
    assert_eq!(message(empty.path()), "DIR holds no report.json; there is one in DIR/test");
    assert!(message(&empty.path().join("gone")).starts_with("could not read DIR"));
}
