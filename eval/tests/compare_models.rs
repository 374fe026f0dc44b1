//! `ntl-eval compare` with a task: runs two models of one or two servers and compares them with one command.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use common::{Mock, err, error, ntl_eval, out, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Twenty problems `i + i`, and the directory for their runs.
struct Fixture {
    folder: TempDir,
    data: PathBuf,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("arithmetic_test_interpolate.txt");
    let pairs: Vec<String> = (1..=20).map(|i| format!("{i} + {i}\n{}\n", 2 * i)).collect();
    fs::write(&data, pairs.concat()).unwrap();
    Fixture { folder, data }
}

impl Fixture {
    /// Compares on the problems. The arguments `before` come before the task, and `behind` at the end.
    fn compare(&self, before: &[&str], behind: &[&str]) -> Output {
        let [data, out] = [self.data.clone(), self.folder.path().join("out")];
        let task = ["arithmetic", "--split", "interpolate", "--data", data.to_str().unwrap()];
        let kept = ["--quiet", "--out", out.to_str().unwrap()];
        ntl_eval(&[&["compare", "--resamples", "2000"], before, &task, &kept, behind].concat())
    }

    fn holds(&self, file: &str) -> bool {
        self.folder.path().join("out").join(file).is_file()
    }
}

fn sum(prompt: &str) -> f64 {
    2.0 * prompt.split(' ').next().unwrap().parse::<f64>().unwrap()
}

/// A server with two models: the first is 3 too high on every other problem, the second is always correct.
fn two_models() -> Mock {
    Mock::start(&["ce", "ntl"], |prompt, before| match sum(prompt) {
        sum if before == 0 && sum % 4.0 < 1.0 => text(&format!(" {}", sum + 3.0)),
        sum => text(&format!(" {sum}")),
    })
}

#[test]
fn two_models_of_one_server_are_run_one_after_the_other_and_compared() {
    let mock = two_models();
    let fixture = fixture();
    let before = ["--endpoint", &mock.url, "--models", "ce, ntl"];
    let output = fixture.compare(&before, &[]);
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
    let text = out(&output);
    assert!(text.starts_with("arithmetic interpolate, 20 items\nA: ce, text mode ("), "{text}");
    assert!(text.contains("B is better on mae: B - A is -1.500 ["), "{text}");
    let asked: Vec<Value> = mock.bodies().iter().map(|body| body["model"].clone()).collect();
    assert_eq!(asked, [vec![json!("ce"); 20], vec![json!("ntl"); 20]].concat());
    for file in ["a/journal.jsonl", "a/report.json", "b/journal.jsonl", "b/report.json", "b/samples.jsonl"] {
        assert!(fixture.holds(file), "{file}");
    }
    let again = fixture.compare(&before, &["--resume"]);
    assert_eq!((out(&again), mock.bodies().len()), (text, 40), "no request is repeated");
}

#[test]
fn the_models_and_the_format_may_be_named_after_the_task() {
    let mock = two_models();
    let output = fixture().compare(&[], &["--endpoint", &mock.url, "--models", "ce,ntl", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let found: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&found["a"]["model"], &found["b"]["model"]), (&json!("ce"), &json!("ntl")));
}

#[test]
fn the_only_models_of_two_servers_need_no_names() {
    let [a, b] = ["ce", "ntl"].map(|model| Mock::start(&[model], |prompt, _| text(&sum(prompt).to_string())));
    let before = ["--endpoint", &a.url, "--endpoint", &b.url, "--json"];
    let output = fixture().compare(&before, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let found: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((&found["a"]["model"], &found["b"]["model"]), (&json!("ce"), &json!("ntl")));
    assert_eq!((a.bodies().len(), b.bodies().len()), (20, 20));
}

#[test]
fn a_server_may_be_named_after_the_task_as_in_a_run() {
    let mock = two_models();
    let output = fixture().compare(&["--models", "ce,ntl"], &["--endpoint", &mock.url, "--limit", "4"]);
    assert_eq!((output.status.code(), mock.bodies().len()), (Some(0), 8), "{}", err(&output));
}

#[test]
fn failed_items_and_missed_gates_of_either_model_show_in_the_exit_code() {
    let fails = Mock::start(&["ce", "ntl"], |prompt, before| match (prompt, before) {
        ("1 + 1", 1) => error(422, "too odd"),
        _ => text(&sum(prompt).to_string()),
    });
    let before = ["--endpoint", &fails.url, "--models", "ce,ntl"];
    let output = fixture().compare(&before, &[]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(out(&output).contains("requests failed: 0 of A, 1 of B"), "{}", out(&output));
    let mock = two_models();
    let before = ["--endpoint", &mock.url, "--models", "ce,ntl"];
    let output = fixture().compare(&before, &["--fail-under", "accuracy=0.9"]);
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
}

#[test]
fn missing_flags_are_reported() {
    let one = ["--endpoint", "http://127.0.0.1:9"];
    let named = [&one[..], &["--models", "a,b"]].concat();
    let task = ["arithmetic", "--out", "unused"];
    for (args, complaint) in [
        ([&one[..], &task].concat(), "name the two models with --models A,B"),
        ([&["--models", "a,b"], &task[..]].concat(), "--endpoint URL is missing"),
        ([&named[..], &["arithmetic"]].concat(), "two models need --out DIR"),
        ([&named[..], &task, &["--model", "c"]].concat(), "leave out --model"),
        ([&one[..], &one, &one, &task].concat(), "one server for both models or one for each"),
        ([&["--models", "a"], &task[..]].concat(), "expected the names of two models, A,B"),
        (named.clone(), "name the task"),
        ([&one[..], &["x", "y"]].concat(), "cannot be used with"),
        (vec!["--models", "a,b", "x", "y"], "cannot be used with the directories of runs"),
        (vec!["x"], "required arguments were not provided"),
    ] {
        let output = ntl_eval(&[&["compare"], &args[..]].concat());
        assert!(err(&output).contains(complaint), "{args:?}: {}", err(&output));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}
