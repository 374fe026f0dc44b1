//! A run in paper mode, compared with the results of the paper's own code (`fixtures/metrics`).

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::Path;

use common::{Mock, err, ntl_eval, out, text};
use serde_json::{Value, json};

fn golden(file: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/reference").join(file);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Null represents NaN.
fn float(value: &Value) -> f64 {
    match value {
        Value::String(text) => text.parse().unwrap(),
        other => other.as_f64().unwrap_or(f64::NAN),
    }
}

fn assert_same(what: &str, got: f64, want: &Value, tolerance: f64) {
    let want = float(want);
    let equal = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
    let close = (got - want).abs() <= tolerance * want.abs();
    assert!(equal || close, "{what}: {got:?}, want {want:?}");
}

fn texts(pair: &Value) -> (&str, &str) {
    (pair["prediction"].as_str().unwrap(), pair["label"].as_str().unwrap())
}

/// Labels such as `A cat sleeps on a mat 5` are texts to this program and numbers to the paper's code.
#[test]
fn a_run_over_text_labels_has_the_paper_s_figures() {
    let golden = golden("metrics/metrics_golden.json");
    for group in golden["groups"].as_array().unwrap() {
        let indices =
            group["pair_indices"].as_array().unwrap().iter().map(|index| index.as_u64().unwrap() as usize);
        let pairs: Vec<(String, String)> = indices
            .map(|index| texts(&golden["pairs"][index]))
            .map(|(prediction, label)| (prediction.to_owned(), label.to_owned()))
            .collect();
        let item = |(index, (_, label)): (usize, &(String, String))| {
            format!("{}\n", json!({ "question": index, "answer": label }))
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("own.jsonl");
        fs::write(&file, pairs.iter().enumerate().map(item).collect::<String>()).unwrap();
        let mock =
            Mock::with_tokens(&["tiny"], move |prompt, _| text(&pairs[prompt.parse::<usize>().unwrap()].0));
        let data = ["custom", "--data", file.to_str().unwrap(), "--mode", "paper"];
        let output = ntl_eval(&[&data[..], &["--endpoint", &mock.url, "--json", "--quiet"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let report: Value = serde_json::from_str(&out(&output)).unwrap();
        let name = &group["name"];
        let want = &group["calculate_metrics"];
        for (metric, key, tolerance) in [
            ("mae", "MAE", 0.0),
            ("mse", "MSE", 0.0),
            ("r2", "R2", 0.0),
            ("accuracy", "number_accuracy", 0.0),
            ("unparsed", "average_count_not_produced_valid_results", 0.0),
            ("median_ae", "median_absolute_error", 0.0),
            ("log_mae", "log_mae", 1e-12),
        ] {
            // A report has no infinite figures.
            let want = Some(float(&want[key])).filter(|want| want.is_finite());
            let got = report["metrics"][metric]["value"].as_f64();
            assert_same(&format!("{name} {metric}"), got.unwrap_or(f64::NAN), &json!(want), tolerance);
        }
    }
}
