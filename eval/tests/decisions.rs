//! `ntl-eval decisions`: a scripted decision model, through both APIs.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail a test like the tests themselves"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Mock, Scripted, err, error, ntl_eval, out};
use ntl_api::{CalibratedDecision, CalibratedKind, DecisionCalibration, ReadName};
use ntl_eval::data::decisions::{Question, QuestionKind, read};
use ntl_eval::run::decisions::{Asked, Decision, DecisionApi, DecisionsBody};
use ntl_eval::settings::decisions::{DecisionSettings, Reordering};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tempfile::TempDir;

const APIS: [&str; 2] = ["decisions", "systemone"];

/// The answers of [`model`] are in the instructions: probabilities in the order of the options.
const ROWS: &str = r#"{"id": "p1", "type": "predicate", "input": "a", "instructions": "0.25 0.75", "expected": true, "tags": ["x"]}
{"type": "predicate", "input": "a", "instructions": "0.5 0.5", "criteria": {"true": "It is so."}, "expected": true}
{"type": "choice", "input": {"n": [1, "é"], "ok": true}, "instructions": "0.5 0.25 0.25", "choices": [{"value": "New York"}, {"value": "New Jersey", "description": "the state"}, {"value": false}], "expected": "New Jersey"}
{"type": "choice", "input": "b", "instructions": "0.125 0.875", "choices": [{"value": "x"}, {"value": "y"}], "expected": "y"}
{"type": "score", "input": "b", "instructions": "0.1 0.2 0.7", "levels": [{"label": "low"}, {"label": "middle", "description": "so so"}, {"label": "high"}], "expected": 2}
{"type": "score", "input": "c", "instructions": "0.5 0.5 0", "levels": [{"label": "low"}, {"label": "middle"}, {"label": "high"}], "expected": 1}
{"type": "number", "input": "d", "instructions": "12", "minimum": 0, "step": 0.5, "maximum": 20, "unit": "EUR", "expected": 10}
"#;

fn file(rows: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.v1.jsonl");
    fs::write(&file, rows).unwrap();
    (folder, file)
}

fn run(mock: &Mock, file: &Path, more: &[&str]) -> Output {
    let args = ["decisions", "--data", file.to_str().unwrap(), "--endpoint", &mock.url, "--json", "--quiet"];
    ntl_eval(&[&args, more].concat())
}

fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    serde_json::from_str(&out(output)).unwrap()
}

fn value(report: &Value, metric: &str) -> f64 {
    report["metrics"][metric]["value"].as_f64().unwrap_or_else(|| panic!("{metric}: {report}"))
}

fn close(found: f64, want: f64) {
    assert!((found - want).abs() < 1e-9, "{found}, not {want}");
}

/// The questions of a body, in order.
fn questions(body: &Value) -> Vec<Value> {
    match &body["questions"] {
        Value::Array(questions) => questions.clone(),
        Value::Object(questions) => questions.values().cloned().collect(),
        other => panic!("{other}"),
    }
}

/// Returns a question's options as a response names them, in the order of the request.
fn options(question: &Value) -> Vec<Value> {
    match (&question["choices"], &question["criteria"], &question["levels"]) {
        (Value::Array(choices), ..) => choices.iter().map(|choice| choice["value"].clone()).collect(),
        (_, Value::Object(options), _) => options.keys().map(|name| json!(name)).collect(),
        (_, Value::Array(levels), _) | (.., Value::Array(levels)) => {
            (0..levels.len()).map(Value::from).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the answer with these probabilities.
fn answer(question: &Value, probabilities: &[f64]) -> Value {
    let kind = question["type"].as_str().unwrap();
    match kind {
        "predicate" => json!({ "type": kind, "name": null, "probability": probabilities[1] }),
        "noul" => json!({ "type": kind, "noul": probabilities[1] }),
        "number" => json!({ "type": kind, "number": probabilities[0], "distribution": { "median": 11.5 } }),
        _ => {
            let named = options(question).into_iter().zip(probabilities);
            let probabilities: Value = if question.get("criteria").is_some() {
                let name = |option: Value| option.as_str().map_or_else(|| option.to_string(), str::to_owned);
                named.map(|(option, probability)| (name(option), json!(probability))).collect()
            } else {
                named
                    .map(|(value, probability)| json!({ "value": value, "probability": probability }))
                    .collect()
            };
            json!({ "type": kind, "confidence": 0.5, "probabilities": probabilities })
        }
    }
}

/// Returns a response with the answers to the questions of a body.
fn response(body: &str, answer: impl Fn(usize, &Value) -> Value) -> Scripted {
    let body: Value = serde_json::from_str(body).unwrap();
    let answers =
        questions(&body).iter().enumerate().map(|(index, question)| answer(index, question)).collect();
    let answers = match &body["questions"] {
        Value::Object(questions) => questions.keys().cloned().zip::<Vec<Value>>(answers).collect(),
        _ => Value::Array(answers),
    };
    Scripted(200, vec![], json!({ "model": "tiny", "answers": answers, "usage": {} }).to_string())
}

/// Returns the probabilities that the instructions of a question have.
fn stated(question: &Value) -> Vec<f64> {
    let line = question["instructions"].as_str().unwrap().lines().next().unwrap();
    line.split(' ').map(|number| number.parse().unwrap()).collect()
}

fn model() -> Mock {
    Mock::of_decisions(|body, _| response(body, |_, question| answer(question, &stated(question))))
}

fn samples(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn requests_have_the_form_of_each_api() {
    let (_folder, file) = file(ROWS);
    for api in APIS {
        let mock = model();
        report(&run(&mock, &file, &["--api", api, "--concurrency", "1"]));
        insta::assert_json_snapshot!(format!("wire_{api}"), mock.bodies());
    }
    let mock = model();
    report(&run(&mock, &file, &["--limit", "1", "--read", "texts", "--orders", "3"]));
    let body = &mock.bodies()[0];
    assert_eq!((&body["x_read"], &body["x_orders"]), (&json!("texts"), &json!(3)));
}

#[test]
fn metrics_agree_with_values_computed_by_hand() {
    let (folder, file) = file(ROWS);
    for api in APIS {
        let out = folder.path().join(api);
        let report = report(&run(&model(), &file, &["--api", api, "--out", out.to_str().unwrap()]));
        // Right are the first, fourth and fifth question. Ties go to the first option.
        close(value(&report, "accuracy"), 3.0 / 6.0);
        let brier = [0.125, 0.5, 0.875, 2.0 * 0.125 * 0.125, 0.01 + 0.04 + 0.09, 0.5];
        close(value(&report, "brier"), brier.iter().sum::<f64>() / 6.0);
        let given = [0.75, 0.5, 0.25, 0.875, 0.7, 0.5];
        close(value(&report, "log_loss"), -given.iter().map(|p: &f64| p.ln()).sum::<f64>() / 6.0);
        // The bins: 0.5 three times, 0.75 and 0.7, 0.875.
        close(value(&report, "calibration_error"), (1.5 + (2.0 - 1.45) + (1.0 - 0.875)) / 6.0);
        // The scores' expected levels are 1.6 and 0.5; the number's median is 11.5.
        close(value(&report, "mae"), (0.4 + 0.5 + 1.5) / 3.0);
        close(value(&report, "refused"), 0.0);
        let n = |metric: &str| report["metrics"][metric]["n"].clone();
        assert_eq!([n("accuracy"), n("brier"), n("mae"), n("refused")], [6, 6, 3, 7].map(Value::from));
        close(report["modules"]["score"]["metrics"]["mae"]["value"].as_f64().unwrap(), 0.45);
        close(report["modules"]["choice"]["metrics"]["accuracy"]["value"].as_f64().unwrap(), 0.5);
        assert_eq!(
            (&report["mode"], &report["split"], &report["n_valid"], &report["baselines"]),
            (&json!(api), &json!("cases"), &json!(7), &Value::Null)
        );
        let names: Vec<&String> = report["metrics"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["accuracy", "mae", "brier", "log_loss", "calibration_error", "refused"]);
        let samples = samples(&out);
        assert_eq!(samples[2]["probabilities"], json!([0.5, 0.25, 0.25]));
        assert_eq!(
            (&samples[2]["target"], &samples[2]["resps"]),
            (&json!("New Jersey"), &json!([["New York"]]))
        );
        assert_eq!((&samples[4]["truth"], &samples[4]["expected_index"]), (&json!(2.0), &json!(2)));
        assert_eq!((&samples[6]["accuracy"], &samples[6]["truth"]), (&Value::Null, &json!(10.0)));
    }
}

#[test]
fn refusals_are_incorrect_and_left_out_of_other_metrics() {
    let (folder, file) = file(ROWS);
    let out = folder.path().join("out");
    let mock = Mock::of_decisions(|body, _| {
        response(body, |_, question| match stated(question)[..] {
            [0.25, 0.75] => json!({ "type": "refusal", "name": null }),
            [0.1, ..] => {
                let mut answer = answer(question, &[0.25, 0.25, 0.5]);
                answer["x_mass"] = json!({ "closed": 0.0, "invalid": 1.0, "open": 0.0 });
                answer
            }
            [12.0] => json!({ "type": "number", "number": null, "distribution": {} }),
            ref stated => answer(question, stated),
        })
    });
    let report = report(&run(&mock, &file, &["--out", out.to_str().unwrap()]));
    close(value(&report, "accuracy"), 1.0 / 6.0);
    close(value(&report, "refused"), 3.0 / 7.0);
    assert_eq!((&report["n"], &report["n_valid"], &report["failed"]), (&json!(7), &json!(4), &json!(0)));
    assert_eq!((&report["metrics"]["brier"]["n"], &report["metrics"]["mae"]["n"]), (&json!(4), &json!(1)));
    assert_eq!(samples(&out)[0]["filtered_resps"], json!(["[refusal]"]));
    let written = ntl_eval(&["report", out.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", err(&written));
    let page = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(page.contains("Of 7 items, 4 were answered, 3 refused, and 0 failed."), "{page}");
    assert!(page.contains("## Decisions\n") && page.contains("`[refusal]`"), "{page}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<h3>Reliability</h3>"), "{page}");
}

/// The model prefers the first options. Its answers change a little when a request is repeated, and more when
/// a request has several questions.
fn fickle() -> Mock {
    Mock::of_decisions(|body, before| {
        let number = questions(&serde_json::from_str(body).unwrap()).len();
        response(body, |_, question| {
            let shift = before as f64 / 16.0 + (number - 1) as f64 / 8.0;
            match options_or_none(question) {
                2 => answer(question, &[0.75 - shift, 0.25 + shift]),
                3 => answer(question, &[0.5 - shift, 0.25 + shift, 0.25]),
                _ => answer(question, &[0.5 - shift, 0.5 + shift]),
            }
        })
    })
}

fn options_or_none(question: &Value) -> usize {
    if ["predicate", "noul"].contains(&question["type"].as_str().unwrap()) {
        0
    } else {
        options(question).len()
    }
}

#[test]
fn the_effects_of_order_repetition_and_batching_are_measured() {
    let (folder, file) = file(&ROWS.lines().take(6).map(|line| format!("{line}\n")).collect::<String>());
    for api in APIS {
        let mock = fickle();
        let out = folder.path().join(api);
        let more = ["--reorder", "reversed,rotated", "--repeat", "--batch", "--out", out.to_str().unwrap()];
        let report = report(&run(&mock, &file, &[&["--api", api], &more[..]].concat()));
        // Reversed, the three options have 0.25, 0.25 and 0.5; rotated by one, 0.25, 0.5 and 0.25. Both
        // orders of the two options are the same request, which the model answers differently the second
        // time.
        let samples = samples(&out);
        let column = |name: &str| samples.iter().map(|sample| sample[name].as_f64()).collect::<Vec<_>>();
        let order = column("order_change");
        assert_eq!(order, [None, None, Some(0.25), Some(0.5), None, None]);
        close(value(&report, "order_change"), 0.375);
        assert_eq!(column("repeat_change"), [Some(0.0625); 6]);
        close(value(&report, "repeat_change"), 0.0625);
        // The first two questions have the same state, and the fourth and the fifth.
        assert_eq!(column("batch_change"), [Some(0.125), Some(0.125), None, Some(0.125), Some(0.125), None]);
        assert_eq!(report["metrics"]["batch_change"]["n"], 4);
        assert_eq!(mock.bodies().len(), 6 + 2 + 2 + 6 + 2);
    }
}

#[test]
fn a_resumed_run_only_sends_what_its_journal_lacks() {
    let (folder, file) = file(ROWS);
    let out = folder.path().join("out");
    let out = ["--out", out.to_str().unwrap()];
    let mock = Mock::of_decisions(|body, before| {
        if body.contains("0.125 0.875") && before == 0 {
            return error(400, "too long");
        }
        response(body, |_, question| answer(question, &stated(question)))
    });
    let first = run(&mock, &file, &out);
    assert_eq!(first.status.code(), Some(4), "{}", err(&first));
    assert!(err(&first).contains("returned 400 Bad Request: too long"), "{}", err(&first));
    let resumed = report(&run(&mock, &file, &[&out[..], &["--resume", "--repeat"]].concat()));
    // The failed question again, and the six questions with options a second time.
    assert_eq!(mock.bodies().len(), 7 + 1 + 6);
    close(value(&resumed, "repeat_change"), 0.0);
    close(value(&resumed, "accuracy"), 0.5);
    let other = run(&mock, &file, &[&out[..], &["--resume", "--api", "systemone"]].concat());
    assert!(err(&other).contains("mode was \"decisions\", is \"systemone\""), "{}", err(&other));
}

#[test]
fn gates_and_comparisons_work_on_decisions() {
    let (folder, file) = file(&ROWS.repeat(2));
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let gated = run(&model(), &file, &["--fail-over", "brier=0.1", "--out", a.to_str().unwrap()]);
    assert_eq!(gated.status.code(), Some(3));
    assert!(err(&gated).contains("gate missed on decisions cases: brier is "), "{}", err(&gated));
    let better = Mock::of_decisions(|body, _| {
        response(body, |_, question| match stated(question)[..] {
            [0.5, 0.5] => answer(question, &[0.0, 1.0]),
            ref stated => answer(question, stated),
        })
    });
    report(&run(&better, &file, &["--out", b.to_str().unwrap()]));
    let compared = ntl_eval(&["compare", a.to_str().unwrap(), b.to_str().unwrap(), "--json"]);
    let compared: Value = serde_json::from_str(&out(&compared)).unwrap();
    let metrics: Vec<(&str, f64)> = compared["metrics"]
        .as_array()
        .unwrap()
        .iter()
        .map(|metric| (metric["name"].as_str().unwrap(), metric["difference"].as_f64().unwrap()))
        .collect();
    let names: Vec<&str> = metrics.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["accuracy", "brier", "log_loss", "mae", "calibration_error"]);
    // The second question is now certain and correct, so that the bin of 0.5 has one wrong answer less.
    let wants = [1.0 / 6.0, -0.5 / 6.0, 0.5_f64.ln() / 6.0, 0.0, -0.5 / 6.0];
    for ((_, found), want) in metrics.iter().zip(wants) {
        close(*found, want);
    }
}

/// Forty choices whose correct option has the probability 1/64 to 40/64, and twenty scores whose answer is
/// the middle one of five levels.
fn rows_to_calibrate() -> String {
    let mut rows = String::new();
    for index in 1..=40 {
        let given = f64::from(index) / 64.0;
        let choices = json!([{ "value": "x" }, { "value": "y" }]);
        let instructions = format!("{given} {}", 1.0 - given);
        let row = json!({ "type": "choice", "input": "a", "instructions": instructions, "choices": choices, "expected": "x" });
        rows += &format!("{row}\n");
    }
    for index in 0..20 {
        let levels: Vec<Value> = (0..5).map(|level| json!({ "label": format!("l{level}") })).collect();
        let row = json!({ "type": "score", "input": "a", "instructions": "0 0 1 0 0", "levels": levels, "expected": index % 5 });
        rows += &format!("{row}\n");
    }
    rows
}

#[test]
fn a_run_becomes_a_calibration_of_one_type() {
    let (folder, file) = file(&rows_to_calibrate());
    let run_folder = folder.path().join("run");
    report(&run(&model(), &file, &["--orders", "2", "--out", run_folder.to_str().unwrap()]));
    let written = folder.path().join("calibration.json");
    let calibrate = |more: &[&str]| {
        let args =
            ["calibrate", run_folder.to_str().unwrap(), "--out", written.to_str().unwrap(), "--overwrite"];
        ntl_eval(&[&args, more].concat())
    };
    let message = err(&calibrate(&[]));
    assert!(message.contains("types [\"choice\",\"score\"]: choose one with --type"), "{message}");
    // The ceil(41 * 0.9)-th smallest of the 40 scores 1 - p belongs to the probability 4/64.
    let shown = calibrate(&["--type", "choice", "--items", "40"]);
    assert_eq!(shown.status.code(), Some(0), "{}", err(&shown));
    let read = |text: String| DecisionCalibration::read(&text).unwrap();
    let found = read(fs::read_to_string(&written).unwrap());
    close(found.offset, 60.0 / 64.0);
    let want = CalibratedDecision { kind: CalibratedKind::Choice, read: ReadName::Labels, orders: 2 };
    assert_eq!((found.decision, found.n, &*found.task.route), (want, 40, "/v1/decisions"));
    assert_eq!((&*found.model.name, found.model.fingerprint.as_deref()), ("tiny", Some("00ff")));
    let shown = out(&shown);
    assert!(shown.contains("a set has every option with a probability of at least 0.0625"), "{shown}");
    assert!(shown.contains("20 items are of another type or have no answer and are left out"), "{shown}");
    // Four correct levels are in the middle, eight are one level away, and eight two levels.
    calibrate(&["--type", "score", "--items", "20", "--alpha", "0.2"]);
    close(read(fs::read_to_string(&written).unwrap()).offset, 2.0);
    let held_out = out(&calibrate(&["--type", "choice", "--items", "19", "--alpha", "0.1", "--json"]));
    let held_out: Value = serde_json::from_str(&held_out).unwrap();
    let offset = held_out["calibration"]["offset"].as_f64().unwrap();
    let figures = |name: &str, figure: &str| held_out["held_out"][name][figure]["value"].as_f64().unwrap();
    assert_eq!((&held_out["left_out"], &held_out["held_out"]["n"]), (&json!(20), &json!(21)));
    // Without a calibration, the second option alone is in the set if it has at least 0.9: p is 1/64 to 6/64.
    assert!(figures("quantiles", "width") < 2.0 && figures("quantiles", "coverage") < 1.0);
    let excluded = (1..=40).filter(|index| f64::from(*index) / 64.0 < 1.0 - offset).count();
    assert!((1.0 - figures("conformal", "coverage")) * 21.0 <= excluded as f64 + 1e-9, "{held_out}");
}

#[test]
fn an_answer_without_a_field_fails_with_the_name_of_the_field() {
    for (api, row, answers, said) in [
        ("decisions", 0, json!([]), "`answers[0]` is missing"),
        ("decisions", 0, json!([{}]), "`answers[0]` has no `type`"),
        ("decisions", 0, json!([{ "type": "predicate" }]), "`answers[0]` has no `probability`"),
        (
            "decisions",
            0,
            json!([{ "type": "predicate", "probability": "1" }]),
            "`answers[0]` has `probability` \"1\", not a number",
        ),
        (
            "decisions",
            0,
            json!([{ "type": "predicate", "probability": 1.5 }]),
            "`answers[0]` has the probability 1.5, expected 0 to 1",
        ),
        (
            "decisions",
            3,
            json!([{ "type": "score", "probabilities": [] }]),
            "`answers[0]` has the type \"score\", expected \"choice\"",
        ),
        (
            "decisions",
            3,
            json!([{ "type": "choice", "probabilities": [{ "value": "x", "probability": 1 }] }]),
            "`answers[0]` has no probability of \"y\"",
        ),
        (
            "decisions",
            3,
            json!([{ "type": "choice", "probabilities": [{ "value": "x", "probability": 0.5 }, { "value": "y", "probability": 0.75 }] }]),
            "`answers[0]` has probabilities that add up to 1.25",
        ),
        ("systemone", 0, json!({}), "`answers.q0` is missing"),
        ("systemone", 0, json!({ "q0": { "type": "noul" } }), "`answers.q0` has no `noul`"),
        ("systemone", 4, json!({ "q0": { "type": "score" } }), "`answers.q0` has no `probabilities`"),
        (
            "systemone",
            4,
            json!({ "q0": { "type": "score", "probabilities": { "0": 0.5, "1": 0.5 } } }),
            "`answers.q0` has no probability of 2",
        ),
    ] {
        let (_folder, file) = file(ROWS.lines().nth(row).unwrap());
        let body = json!({ "answers": answers }).to_string();
        let mock = Mock::of_decisions(move |_, _| Scripted(200, vec![], body.clone()));
        let output = run(&mock, &file, &["--api", api]);
        let want = format!("failed, the first with: the response has no usable answer: {said}");
        assert!(err(&output).contains(&want), "{}", err(&output));
    }
    let (_folder, file) = file(ROWS);
    let mock = Mock::of_decisions(|_, _| Scripted(200, vec![], "{}".to_owned()));
    let message = err(&run(&mock, &file, &[]));
    assert!(message.contains("could not be read: missing field `answers`"), "{message}");
}

#[test]
fn probabilities_with_two_decimals_are_scaled_to_a_sum_of_1() {
    let (_folder, file) = file(ROWS.lines().nth(4).unwrap());
    let mock =
        Mock::of_decisions(|body, _| response(body, |_, question| answer(question, &[0.33, 0.33, 0.33])));
    let report = report(&run(&mock, &file, &[]));
    close(value(&report, "mae"), 1.0);
    close(value(&report, "log_loss"), 3_f64.ln());
}

#[test]
fn unusable_flags_files_and_servers_are_rejected_with_the_reason() {
    let (folder, file) = file(ROWS);
    let mock = model();
    let twins = r#"{"type": "choice", "input": "a", "instructions": "Which?", "choices": [{"value": "true"}, {"value": true}], "expected": true}"#;
    let twins_file = folder.path().join("twins.jsonl");
    fs::write(&twins_file, twins).unwrap();
    let cache = folder.path().join("cache");
    for (file, more, said) in [
        (&file, &["--api", "chat"][..], "invalid value 'chat' for '--api <API>'"),
        (&file, &["--mode", "regress"], "leave out --mode"),
        (&file, &["--template", "{question}"], "leave out --template, --system and --after"),
        (&file, &["--max-tokens", "5"], "leave out --score, --max-tokens and --prompt-tokens"),
        (&file, &["--repeat", "--cache", cache.to_str().unwrap()], "--cache would send it once"),
        (&file, &["--limit", "1", "--batch"], "no two questions of the file have the same input"),
        (&twins_file, &["--api", "systemone"], "the options of \"Which?\" differ only in their types"),
    ] {
        let output = run(&mock, file, more);
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains(said), "{}", err(&output));
    }
    let prompts_only = Mock::start(&["tiny"], |_, _| common::text("1"));
    let message = err(&run(&prompts_only, &file, &["--api", "systemone"]));
    assert!(message.contains("the endpoint has no /v1/systemone, which --api systemone needs"), "{message}");
    let custom = ntl_eval(&["custom", "--data", "x", "--endpoint", &mock.url, "--api", "decisions"]);
    assert!(err(&custom).contains("[possible values: completions, chat]"), "{}", err(&custom));
    let unusable = folder.path().join("bad.jsonl");
    fs::write(&unusable, ROWS.replace("\"expected\": 2", "\"expected\": 3")).unwrap();
    let message = err(&run(&mock, &unusable, &[]));
    assert!(
        message.contains("bad.jsonl line 5: field `expected`: `3` is not the index of a level, 0 to 2"),
        "{message}"
    );
    assert!(mock.bodies().is_empty());
}

/// Returns a random row, the line of its file, and the index of the correct option.
fn random_row(rng: &mut ChaCha8Rng) -> Value {
    let words = ["x", "New York", "", "true", "東", "a \"b\"", "\n", "2"];
    let text = |rng: &mut ChaCha8Rng| words[rng.random_range(0..words.len())].to_owned();
    let state = match rng.random_range(0..3) {
        0 => json!(text(rng)),
        1 => json!({ "a": text(rng), "b": [1.5, null, false] }),
        _ => json!([text(rng)]),
    };
    let mut row = json!({ "input": state, "instructions": format!("i{}", text(rng)), "tags": [text(rng)] });
    let count = rng.random_range(2..9);
    let labels: Vec<String> = (0..count).map(|index| format!("{}{index}", text(rng))).collect();
    let expected = rng.random_range(0..count);
    match rng.random_range(0..4) {
        0 => {
            row["type"] = json!("predicate");
            row["expected"] = json!(expected % 2 == 0);
            row["criteria"] = if rng.random() { json!({ "true": text(rng) }) } else { Value::Null };
        }
        1 => {
            let mut choices: Vec<Value> = labels.iter().map(|label| json!({ "value": label })).collect();
            if rng.random() {
                choices[0] = json!({ "value": rng.random::<bool>(), "description": text(rng) });
            }
            row["type"] = json!("choice");
            row["expected"] = choices[expected]["value"].clone();
            row["choices"] = json!(choices);
        }
        2 => {
            row["type"] = json!("score");
            row["expected"] = json!(expected);
            row["levels"] = labels.iter().map(|label| json!({ "label": label })).collect();
        }
        _ => {
            row["type"] = json!("number");
            row["expected"] = json!(rng.random_range(-9.0..9.0));
            row["unit"] = json!(text(rng));
        }
    }
    row
}

/// A model that knows the correct option gets it back, in every order of the options, through both APIs.
#[test]
fn every_row_survives_its_file_and_both_apis() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let rows: Vec<Value> = (0..400).map(|_| random_row(&mut rng)).collect();
    let (_folder, file) = file(&rows.iter().map(|row| format!("{row}\n")).collect::<String>());
    let questions = read(&file).unwrap();
    let mut checked = 0;
    for (row, question) in rows.iter().zip(&questions) {
        assert_eq!(question.state, row["input"]);
        for api in [DecisionApi::OpenAi, DecisionApi::SystemOne] {
            for reordering in [None, Some(Reordering::Reversed), Some(Reordering::Rotated)] {
                let asked = [Asked { question, reordering }];
                let body = api.body("m", &asked, &DecisionSettings::default());
                let Scripted(_, _, text) =
                    response(&body.to_string(), |_, sent| answer(sent, &certain(question, sent)));
                let found = api.read(&asked, &serde_json::from_str::<DecisionsBody>(&text).unwrap()).unwrap();
                match (&question.kind, &found[0]) {
                    (QuestionKind::Number { expected, .. }, Decision::Number(number)) => {
                        assert_eq!(number.mean.to_bits(), expected.to_bits());
                    }
                    (_, Decision::Options(probabilities)) => {
                        let best = probabilities.iter().position(|probability| *probability > 0.5);
                        assert_eq!(best, question.expected_index(), "{row} {body}");
                        checked += 1;
                    }
                    (_, other) => panic!("{other:?} {row}"),
                }
            }
        }
    }
    assert!(checked > 1_000, "{checked}");
}

/// Returns a probability of 1 for the correct option of a question as it was sent, or the correct number.
fn certain(question: &Question, sent: &Value) -> Vec<f64> {
    let correct = match &question.kind {
        QuestionKind::Number { expected, .. } => return vec![*expected],
        QuestionKind::Predicate { expected, .. } => {
            return if *expected { vec![0.0, 1.0] } else { vec![1.0, 0.0] };
        }
        QuestionKind::Choice { choices, expected } => json!(choices[*expected].value),
        QuestionKind::Score { expected, .. } => json!(expected),
    };
    let name = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let is_correct = |option: &Value| *option == correct || name(option) == name(&correct);
    options(sent).iter().map(|option| if is_correct(option) { 1.0 } else { 0.0 }).collect()
}
