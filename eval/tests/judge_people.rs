//! `ntl-eval judge` and `compare` with people's scores of some items, and with an earlier run.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use common::judging::{judge, report, scores};
use common::{Mock, err, ntl_eval, out};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Number of answers to judge.
const ITEMS: usize = 40;

/// Returns people's score of an answer, 1 to 9. Two systems have different `step`s.
fn human(index: usize, step: usize) -> usize {
    1 + index * step % 9
}

/// Writes answers whose text contains people's score of them.
fn answers(folder: &Path, name: &str, step: usize) -> PathBuf {
    let mut lines = String::new();
    for index in 0..ITEMS {
        let answer = format!("worth {}", human(index, step));
        let item = json!({ "key": format!("k{index}"), "input": format!("q{index}"), "answer": answer });
        writeln!(lines, "{item}").unwrap();
    }
    write(folder, name, &lines)
}

fn write(folder: &Path, name: &str, contents: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, contents).unwrap();
    file
}

/// Writes people's scores of every fourth item, as a sheet that also lists the others.
fn labels(folder: &Path, name: &str, step: usize) -> PathBuf {
    let mut lines = "id,score,comment\n".to_owned();
    for index in 0..ITEMS {
        let score = if index % 4 == 0 { human(index, step).to_string() } else { String::new() };
        writeln!(lines, "{index},{score},").unwrap();
    }
    write(folder, name, &lines)
}

/// A judge that is `kindness` points too kind, and errs by a quarter of a point in addition.
fn kind_judge(kindness: f64) -> Mock {
    Mock::start(&["tiny"], move |prompt, _| {
        let worth = prompt.split("worth ").nth(1).and_then(|rest| rest.split('\n').next()).unwrap();
        let worth: f64 = worth.parse().unwrap();
        let score = (worth + kindness + if worth % 2.0 > 0.5 { 0.25 } else { -0.25 }).min(10.0);
        scores(&[(score, 1.0)], 1.0)
    })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn people_correct_the_mean_and_the_pass_rate_of_a_kind_judge() {
    let folder = tempfile::tempdir().unwrap();
    let data = answers(folder.path(), "answers.jsonl", 7);
    let labels = labels(folder.path(), "labels.csv", 7);
    let results = folder.path().join("out");
    let mock = kind_judge(2.0);
    let plain = report(&judge(&mock, &data, &["--out", text(&results)]));
    assert_eq!((&plain["corrected"], &plain["metrics"]["corrected_score"]), (&Value::Null, &Value::Null));
    // Labels are added to the finished run, which sends no request again.
    let requests = mock.bodies().len();
    let flags = ["--resume", "--out", text(&results), "--labels", text(&labels), "--pass-from", "6"];
    let found = report(&judge(
        &mock,
        &data,
        &[&flags[..], &["--width", "0.5", "--fail-under", "corrected_score=4"]].concat(),
    ));
    assert_eq!(mock.bodies().len(), requests);
    let truth = (0..ITEMS).map(|index| human(index, 7) as f64).sum::<f64>() / ITEMS as f64;
    let score = &found["corrected"]["score"];
    assert_eq!((&score["labels"], &score["items"]), (&json!(10), &json!(40)));
    assert!(score["naive"].as_f64().unwrap() > truth + 1.5, "{score}");
    assert!((score["value"].as_f64().unwrap() - truth).abs() < 0.3, "{score} {truth}");
    assert!(score["gain"].as_f64().unwrap() > 1.3, "{score}");
    assert!((0.5..1.0).contains(&score["tuning"].as_f64().unwrap()), "{score}");
    assert_eq!(score["for_width"]["labels"], Value::Null);
    let metric = &found["metrics"]["corrected_score"];
    assert_eq!(
        (&metric["value"], &metric["low"], &metric["n"]),
        (&score["value"], &score["low"], &json!(40))
    );
    let passing = |least: f64| (0..ITEMS).filter(|index| human(*index, 7) as f64 >= least).count() as f64;
    let rate = &found["corrected"]["pass_rate"];
    assert_eq!(rate["naive"], json!(passing(5.0) / ITEMS as f64), "{rate}");
    assert_eq!(rate["sensitivity"], json!(1.0), "{rate}");
    assert!((rate["value"].as_f64().unwrap() - passing(6.0) / ITEMS as f64).abs() < 0.1, "{rate}");
    assert_eq!(found["metrics"]["corrected_pass_rate"]["value"], rate["value"]);
    let output = ntl_eval(&["report", text(&results)]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let page = fs::read_to_string(results.join("report.md")).unwrap();
    for part in
        ["## Corrected by people", "| mean score ", "score of at least 6", "labels of all 40 items give"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let gated = judge(&mock, &data, &[&flags[..], &["--fail-over", "corrected_score=4"]].concat());
    assert_eq!(gated.status.code(), Some(3), "{}", err(&gated));
    assert!(err(&gated).contains("corrected_score is "), "{}", err(&gated));
}

#[test]
fn two_systems_are_compared_by_the_judge_and_corrected_by_people() {
    let folder = tempfile::tempdir().unwrap();
    let mock = kind_judge(1.0);
    let runs = [("a", 7), ("b", 1)].map(|(name, step)| {
        let data = answers(folder.path(), "answers.jsonl", step);
        let labels = labels(folder.path(), &format!("{name}.csv"), step);
        let results = folder.path().join(name);
        report(&judge(&mock, &data, &["--out", text(&results), "--labels", text(&labels)]));
        results
    });
    let [a, b] = runs.each_ref().map(|run| text(run));
    let output = ntl_eval(&["compare", a, b, "--json"]);
    let compared = report(&output);
    let mean = |step| (0..ITEMS).map(|index| human(index, step) as f64).sum::<f64>() / ITEMS as f64;
    let truth = mean(1) - mean(7);
    let corrected = &compared["corrected"];
    assert_eq!((&corrected["labels"], &corrected["items"]), (&json!(10), &json!(40)));
    let interval = corrected["low"].as_f64().unwrap()..=corrected["high"].as_f64().unwrap();
    assert!(interval.contains(&truth), "{corrected} {truth}");
    let names: Vec<&str> = compared["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|metric| metric["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["score", "mode_score", "spread", "mass_closed"]);
    assert_eq!(
        (&compared["mcnemar"], &compared["sign_test"], &compared["items"]),
        (&Value::Null, &Value::Null, &json!([]))
    );
    let output = ntl_eval(&["compare", a, b]);
    let sentence =
        "By people's scores of both answers to 10 of 40 inputs, the mean score is corrected: B - A is ";
    assert!(out(&output).contains(sentence), "{}", out(&output));
    // Without people's scores of both answers, only the judge's difference is left.
    let data = answers(folder.path(), "answers.jsonl", 1);
    report(&judge(&mock, &data, &["--out", b, "--overwrite"]));
    let output = ntl_eval(&["compare", a, b]);
    assert!(out(&output).contains("the differences are those of the judge"), "{}", out(&output));
    // The same answers are compared as before.
    let same = report(&ntl_eval(&["compare", a, a, "--json"]));
    assert_eq!((&same["are_of_systems"], &same["corrected"]), (&Value::Null, &Value::Null));
    assert!(same["mcnemar"].is_object());
}

#[test]
fn a_changed_judge_is_found_on_repeated_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let data = answers(folder.path(), "answers.jsonl", 7);
    let before = folder.path().join("before");
    report(&judge(&kind_judge(1.0), &data, &["--out", text(&before)]));
    let same = report(&judge(&kind_judge(1.0), &data, &["--drift", text(&before)]));
    assert_eq!((&same["drift"]["unchanged"], &same["drift"]["difference"]), (&json!(40), &json!(0.0)));
    let later = kind_judge(0.5);
    let changed = report(&judge(&later, &data, &["--drift", text(&before), "--limit", "30"]));
    let drift = &changed["drift"];
    assert_eq!((&drift["items"], &drift["unchanged"]), (&json!(30), &json!(0)));
    assert!(
        (drift["difference"].as_f64().unwrap() + 0.5).abs() < 0.1 && drift["p"].as_f64().unwrap() < 0.01,
        "{drift}"
    );
    assert_eq!(changed["metrics"]["drift_distance"]["value"], drift["distance"]);
    let gated = judge(&later, &data, &["--drift", text(&before), "--fail-over", "drift_distance=0.1"]);
    assert_eq!(gated.status.code(), Some(3), "{}", err(&gated));
    let args =
        ["judge", "--data", text(&data), "--endpoint", &later.url, "--quiet", "--drift", text(&before)];
    let printed = out(&ntl_eval(&args));
    assert!(printed.contains("drift: the judge has changed"), "{printed}");
    for (more, complaint) in [
        (&["--template", "{answer}"][..], "it has no score of any prompt of this run"),
        (&["--scale", "1,5"], "it has no score of any prompt of this run"),
        (&["--interval", "0.5"], "its requests have another `number.interval`"),
    ] {
        let output = judge(&later, &data, &[&["--drift", text(&before)], more].concat());
        assert_eq!(output.status.code(), Some(1), "{more:?}");
        assert!(err(&output).contains(complaint), "{}", err(&output));
    }
    let nowhere = judge(&later, &data, &["--drift", "/nowhere"]);
    assert!(err(&nowhere).contains("could not use /nowhere for --drift"), "{}", err(&nowhere));
}

#[test]
fn unusable_labels_are_rejected_with_file_and_line() {
    let folder = tempfile::tempdir().unwrap();
    let data = answers(folder.path(), "answers.jsonl", 7);
    let mock = kind_judge(0.0);
    let by_key = ["--id-field", "key"];
    let many: String = (0..6).map(|id| format!("{id},5\n")).collect();
    for (contents, more, code, complaint) in [
        (
            "id,score\n1,5\n",
            &[] as &[&str],
            2,
            "--labels needs at least 6 items with a score of people: 1 of 40 have one",
        ),
        ("id,score\n1,\n", &[], 2, "0 of 40 have one"),
        ("", &[], 1, "labels.csv holds no"),
        (
            "id,score\n1,5\n99,5\n",
            &[],
            1,
            "labels.csv line 3: there is no item `99`: the data has the items 0 to 39",
        ),
        ("id,score\n1,5\n1,6\n", &[], 1, "labels.csv line 3: item `1` already has a score on line 2"),
        ("id,score\n1,11\n", &[], 1, "labels.csv line 2: field `score`: 11 is not on the scale from 1 to 10"),
        ("id,score\n1,good\n", &[], 1, "labels.csv line 2: field `score`: expected a number, found \"good\""),
        ("item,score\n1,5\n", &[], 1, "labels.csv line 2: there is no field `id`; it has item, score"),
        ("id,grade\n1,5\n", &[], 1, "labels.csv line 2: there is no field `score`; it has id, grade"),
        ("id,score\n1,5\n", &by_key, 1, "line 2: no item of the data has `1` in the field `key`"),
        (
            "id,score\nk1,5\n",
            &["--id-field", "answer"],
            1,
            "answers.jsonl line 10: the id `worth 1` is also that of the item on line 1",
        ),
        ("id,score\nk1,5\n", &["--id-field", "name"], 1, "answers.jsonl line 1: there is no field `name`"),
        ("id,score\n1,5\n", &["--width", "0"], 2, "must be above 0"),
        ("id,score\n1,5\n", &["--width", "1"], 2, "--width needs at least 6 items"),
        ("id,score\n1,5\n", &["--pass-from", "5", "--pairs"], 2, "cannot be used with"),
    ] {
        let labels = write(folder.path(), "labels.csv", contents);
        let output = judge(&mock, &data, &[&["--labels", text(&labels)], more].concat());
        assert_eq!(output.status.code(), Some(code), "{contents:?} {more:?}: {}", err(&output));
        assert!(err(&output).contains(complaint), "{contents:?} {more:?}: {}", err(&output));
    }
    let own = write(
        folder.path(),
        "own.jsonl",
        "{\"input\": \"q\", \"answer\": \"worth 3\", \"human_score\": 3}\n",
    );
    let labels = write(folder.path(), "labels.csv", "id,score\n0,5\n");
    let output = judge(&mock, &own, &["--labels", text(&labels)]);
    assert!(
        err(&output).contains("line 2: item `0` already has a score in the data (`human_score`)"),
        "{}",
        err(&output)
    );
    assert!(mock.bodies().is_empty());
    // Labels of items beyond the limit are not used, and equal scores leave no interval.
    let labels = write(folder.path(), "labels.csv", &format!("id,score\n{many}30,9\n"));
    let found = report(&judge(&mock, &data, &["--labels", text(&labels), "--limit", "20"]));
    let score = &found["corrected"]["score"];
    assert_eq!((&score["labels"], &score["value"], &score["low"]), (&json!(6), &json!(5.0), &Value::Null));
    // Ids of the data, and labels of a random part as JSON lines.
    let lines: String =
        (0..8).map(|id| format!("{{\"id\": \"k{}\", \"score\": {}}}\n", 5 * id, 1 + id)).collect();
    let labels = write(folder.path(), "labels.jsonl", &lines);
    let found = report(&judge(&mock, &data, &[&by_key[..], &["--labels", text(&labels)]].concat()));
    assert_eq!(found["corrected"]["score"]["labels"], json!(8));
}

#[test]
fn labels_of_the_best_answers_only_are_warned_about() {
    let folder: TempDir = tempfile::tempdir().unwrap();
    let data = answers(folder.path(), "answers.jsonl", 7);
    let mut lines = "id,score\n".to_owned();
    for index in (0..ITEMS).filter(|index| human(*index, 7) >= 7) {
        writeln!(lines, "{index},{}", human(index, 7)).unwrap();
    }
    let labels = write(folder.path(), "labels.csv", &lines);
    let output = judge(&kind_judge(0.0), &data, &["--labels", text(&labels)]);
    let warning =
        "warning: corrected_score: the judge scores the items with people's scores clearly differently";
    assert!(err(&output).contains(warning), "{}", err(&output));
    assert_eq!(report(&output)["corrected"]["score"]["is_selected"], true);
}
