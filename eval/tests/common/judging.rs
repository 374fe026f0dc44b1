//! A judge of answers: its scripted scores, and runs of `ntl-eval judge`.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::{Mock, Scripted, err, ntl_eval, out};

/// Returns a number with these values and their shares of the closed mass.
pub(crate) fn scores(shares: &[(f64, f64)], closed: f64) -> Scripted {
    let mean: f64 = shares.iter().map(|(value, share)| value * share).sum();
    let mode = shares.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
    let support: Vec<Value> = shares
        .iter()
        .map(|(value, share)| json!({ "value": value, "text": value.to_string(), "probability": share * closed }))
        .collect();
    let has_value = closed >= 0.5;
    let number = json!({
        "value": has_value.then_some(mean), "objective": "mean", "method": "tree", "mean": mean, "trimmed_mean": mean,
        "median": mode, "mode": mode, "std": 1.0,
        "quantiles": [{ "q": 0.05, "value": shares[0].0 }, { "q": 0.95, "value": shares[shares.len() - 1].0 }],
        "support": support, "mass": { "closed": closed, "invalid": 1.0 - closed, "open": 0.0 },
        "bounds": { "value": [mean, mean], "quantiles": [] }, "nodes": 3, "forward_passes": 2, "truncated": false,
        "interval": { "low": shares[0].0, "high": shares[shares.len() - 1].0, "coverage": 0.9, "method": "quantiles" },
        "reason": (!has_value).then_some("closed mass 0.25 is below mass_min 0.5; the model would write \"The\" (0.75)")
    });
    Scripted(200, vec![], json!({ "choices": [{ "index": 0, "text": "x", "number": number }] }).to_string())
}

/// Judges the answers of a file.
pub(crate) fn judge(mock: &Mock, file: &Path, more: &[&str]) -> Output {
    let args = ["judge", "--data", file.to_str().unwrap(), "--endpoint", &mock.url, "--json", "--quiet"];
    ntl_eval(&[&args, more].concat())
}

/// Returns the report of a successful run with `--json`.
pub(crate) fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    serde_json::from_str(&out(output)).unwrap()
}
