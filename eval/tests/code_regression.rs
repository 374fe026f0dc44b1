//! `ntl-eval code-regression`: prompts, rank correlations by space, and drawn numbers in the same report.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{Mock, err, ntl_eval, number, out};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Targets and predictions, drawn and exact. scipy 1.17 computed the correlations below.
const ITEMS: [(&str, f64, f64, f64); 8] = [
    ("KBSS", 3.5, 3.0, 3.0),
    ("KBSS", 1e-5, 0.5, 40.0),
    ("KBSS", 42.0, 40.0, 0.5),
    ("KBSS", 7.0, 8.0, 8.0),
    ("APPS", 7.0, 6.0, 8.0),
    ("APPS", 120.0, 90.0, 90.0),
    ("APPS", 0.25, 8.0, 6.0),
    ("APPS", 9.0, 9.5, 1.0),
];

fn file(name: &str, contents: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, contents).unwrap();
    (folder, file)
}

fn items() -> String {
    let line = |(index, (space, target, ..)): (usize, &(&str, f64, f64, f64))| {
        json!({ "space": space, "input": format!("f({index})"), "target": target, "metadata": "{}" })
            .to_string()
    };
    ITEMS.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn value(metrics: &Value, name: &str) -> f64 {
    metrics[name]["value"].as_f64().unwrap()
}

#[test]
fn the_medians_of_trees_and_of_samples_are_compared_in_one_report() {
    let (_folder, file) = file("test.jsonl", &items());
    // The first request of a prompt is for the tree, the second one for samples.
    let mock = Mock::start(&["tiny"], |prompt, before| {
        let index: usize = prompt.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap();
        let (_, _, exact, drawn) = ITEMS[index];
        let median = if before == 0 { exact } else { drawn };
        number(1e9, median, -5.0)
    });
    let args = ["code-regression", "--data", file.to_str().unwrap(), "--samples", "8", "--top-p", "0.95"];
    let output = ntl_eval(&[&args[..], &["--endpoint", &mock.url, "--json", "--quiet"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let report: Value = serde_json::from_str(&out(&output)).unwrap();
    for (metrics, name, want) in [
        (&report["metrics"], "spearman", 0.885_542_168_674_698_8),
        (&report["metrics"], "kendall", 0.814_814_814_814_814_8),
        (&report["metrics"], "mae", 5.406_248_75),
        (&report["baselines"]["median_of_samples"], "spearman", -0.132_530_120_481_927_7),
        (&report["baselines"]["median_of_samples"], "kendall", -0.185_185_185_185_185_17),
        (&report["baselines"]["median_of_samples"], "mae", 15.968_748_75),
        (&report["modules"]["KBSS"]["metrics"], "spearman", 1.0),
        (&report["modules"]["KBSS"]["metrics"], "kendall", 1.0),
        (&report["modules"]["APPS"]["metrics"], "spearman", 0.8),
        (&report["modules"]["APPS"]["metrics"], "kendall", 2.0 / 3.0),
    ] {
        let got = value(metrics, name);
        assert!((got - want).abs() < 1e-9, "{name}: {got}, {want}");
    }
    assert_eq!(report["settings"]["estimates"]["spearman"], "median");
    assert_eq!(report["settings"]["draws"], json!({ "samples": 8, "top_p": 0.95 }));
    let drawn: Vec<Value> =
        mock.bodies().into_iter().filter(|body| body["number"]["method"] == "sample").collect();
    assert_eq!((drawn.len(), mock.bodies().len()), (8, 16));
    for body in drawn {
        assert_eq!((&body["number"]["samples"], &body["number"]["objective"]), (&json!(8), &json!("median")));
        assert_eq!((&body["temperature"], &body["top_p"]), (&json!(1.0), &json!(0.95)));
    }
}

#[test]
fn prompts_are_worded_for_each_space_and_a_limit_counts_for_each() {
    let lines = [
        json!({ "space": "APPS", "input": "a", "target": 1 }),
        json!({ "space": "CDSS", "input": "b", "target": 2, "metadata": r#"{"language": "Java"}"# }),
        json!({ "space": "CDSS", "input": "c", "target": [3, 8], "language": "C" }),
        json!({ "space": "ENAS", "input": "d", "target": 4 }),
    ];
    let (_folder, file) = file("all.json", &Value::from(lines.to_vec()).to_string());
    let prompts = |more: &[&str]| {
        let mock = Mock::start(&["tiny"], |_, _| number(1.0, 1.0, 1.0));
        let args = ["code-regression", "--data", file.to_str().unwrap(), "--endpoint", &mock.url, "--quiet"];
        let output = ntl_eval(&[&args[..], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let prompt = |body: &Value| body["prompt"].as_str().unwrap().to_owned();
        let mut prompts: Vec<String> = mock.bodies().iter().map(prompt).collect();
        prompts.sort();
        prompts
    };
    let java = "# CDSS\n# Language: Java\nb";
    assert_eq!(prompts(&[]), ["# CDSS\n# Language: C\nc", java, "APPS\na", "ENAS\n\nd"]);
    assert_eq!(prompts(&["--limit", "1", "--space", "CDSS"]), [java]);
    assert_eq!(prompts(&["--template", "{question}", "--space", "APPS"]), ["a"]);
}

#[test]
fn unusable_files_and_flags_are_rejected_with_a_reason() {
    let one = |item: &Value| file("x.jsonl", &item.to_string());
    let bad = json!({ "space": "APPS", "input": "a", "target": "fast" });
    let lacks = json!({ "space": "APPS", "target": 1 });
    let no_language = json!({ "space": "CDSS", "input": "a", "target": 1 });
    let good = json!({ "space": "APPS", "input": "a", "target": 1 });
    for ((_folder, file), more, reason) in [
        (one(&bad), &[][..], "line 1: the target `fast` is neither a finite number nor a list of numbers"),
        (one(&lacks), &[], "line 1: there is no field `input`"),
        (one(&no_language), &[], "line 1: a prompt of CDSS names the language"),
        (one(&good), &["--space", "KBSS"], "has no `KBSS`; it has APPS"),
        (one(&good), &["--mode", "text"], "code-regression needs --mode regress"),
        (one(&good), &["--top-p", "0"], "must be above 0 and at most 1"),
        (file("x.parquet", "PAR1"), &[], "x.parquet is Parquet, which is not read"),
    ] {
        let args = ["code-regression", "--data", file.to_str().unwrap(), "--endpoint", "http://127.0.0.1:1"];
        let output = ntl_eval(&[&args[..], more].concat());
        assert_ne!(output.status.code(), Some(0));
        assert!(err(&output).contains(reason), "{}", err(&output));
    }
}
