//! `ntl-eval custom`, and the flags that word the prompts of every task.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use common::{Mock, err, ntl_eval, number, out, text};
use serde_json::{Value, json};
use tempfile::TempDir;

const CSV: &str = "city,asked,price\nBonn,a flat,12\nKiel,\"a house, large\",7/2\nUlm,a shed,3\n";

const JSONL: &str = r#"{"question": "A?", "answer": "yes", "unit": "kg"}
{"question": "B?", "answer": "no", "unit": "m"}
"#;

fn file(name: &str, contents: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::write(&file, contents).unwrap();
    (folder, file)
}

fn run(mock: &Mock, task: &[&str]) -> Output {
    ntl_eval(&[task, &["--endpoint", &mock.url, "--json", "--quiet"]].concat())
}

fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    serde_json::from_str(&out(output)).unwrap()
}

fn prompts(mock: &Mock) -> Vec<String> {
    let mut prompts: Vec<String> =
        mock.bodies().iter().map(|body| body["prompt"].as_str().unwrap().to_owned()).collect();
    prompts.sort();
    prompts
}

#[test]
fn rows_of_a_csv_are_asked_by_a_template_with_their_fields() {
    let (_folder, file) = file("prices.csv", CSV);
    let mock =
        Mock::start(&["tiny"], |prompt, _| text(if prompt.contains("Kiel") { "It is 3.50" } else { "12" }));
    let fields = ["--question-field", "asked", "--answer-field", "price"];
    let template = ["custom", "--data", file.to_str().unwrap(), "--prompt", r"{city}: {question}?\nPrice:"];
    let report = report(&run(&mock, &[&template[..], &fields].concat()));
    assert_eq!(
        prompts(&mock),
        ["Bonn: a flat?\nPrice:", "Kiel: a house, large?\nPrice:", "Ulm: a shed?\nPrice:"]
    );
    assert_eq!(
        (&report["task"], &report["split"], &report["n"]),
        (&json!("custom"), &json!("prices"), &json!(3))
    );
    assert!((report["metrics"]["accuracy"]["value"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-12);
    assert_eq!(report["metrics"]["mae"]["value"], json!(3.0));
    assert_eq!(report["settings"]["template"], r"{city}: {question}?\nPrice:");
    assert_eq!(mock.bodies()[0]["stop"], Value::Null);
}

#[test]
fn answers_in_words_are_compared_as_texts_and_examples_are_other_items() {
    let (_folder, file) = file("words.jsonl", JSONL);
    let mock = Mock::start(&["tiny"], |_, _| text(" Yes."));
    let task =
        ["custom", "--data", file.to_str().unwrap(), "--template", "{question} ({unit})", "--shots", "1"];
    let report = report(&run(&mock, &task));
    assert_eq!(prompts(&mock), ["A? (kg) yes\n\nB? (m)", "B? (m) no\n\nA? (kg)"]);
    assert_eq!(mock.bodies()[0]["stop"], json!(["\n\n"]));
    assert_eq!(
        (&report["metrics"]["exact"]["value"], &report["settings"]["shots"]),
        (&json!(0.5), &json!(1))
    );
}

#[test]
fn answers_may_be_written_numbers_and_texts_among_numbers_are_counted() {
    let lines =
        "{\"question\": \"A?\", \"answer\": \"$1,000\"}\n{\"question\": \"B?\", \"answer\": \"none\"}\n";
    let (_folder, file) = file("mixed.jsonl", lines);
    let mock = Mock::start(&["tiny"], |_, _| text("1000"));
    let output = run(&mock, &["custom", "--data", file.to_str().unwrap()]);
    assert_eq!(report(&output)["metrics"]["mae"]["value"], json!(0.0));
    assert_eq!(err(&output), "1 of 2 answers are no numbers: they are compared as text\n");
}

#[test]
fn an_answer_that_is_neither_a_number_nor_a_text_is_refused_with_its_line() {
    let mock = Mock::start(&["tiny"], |_, _| text("1"));
    let refused = |name: &str, contents: &str| {
        let (_folder, file) = file(name, contents);
        let output = run(&mock, &["custom", "--data", file.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", err(&output));
        err(&output)
    };
    for (answer, said) in [
        ("true", "the answer `true` is neither a number nor a text"),
        ("[1]", "the answer `[1]` is neither a number nor a text"),
        ("\" \"", "the answer is empty"),
    ] {
        let lines = format!(
            "{{\"question\": \"A?\", \"answer\": 1}}\n{{\"question\": \"B?\", \"answer\": {answer}}}\n"
        );
        let message = refused("a.jsonl", &lines);
        assert!(message.contains(&format!("a.jsonl line 2: {said}")), "{message}");
    }
    let message = refused("a.csv", "question,answer\nA?,1\nB?,\n");
    assert!(message.contains("a.csv line 3: the answer is empty"), "{message}");
}

#[test]
fn every_task_takes_a_template_a_system_message_and_a_marker() {
    let (_folder, file) = file("test.tsv", "1\tone\n");
    let mock = Mock::start(&["tiny"], |_, _| number(1.0, 1.0, 1.0));
    let task = ["rjokes", "--data", file.to_str().unwrap(), "--mode", "regress", "--api", "chat"];
    let words = ["--template", r"Q: {question}\nA:", "--system", r"Rate.\n", "--after", r"\nScore: "];
    let report = report(&run(&mock, &[&task[..], &words].concat()));
    let body = &mock.bodies()[0];
    let messages =
        json!([{ "role": "system", "content": "Rate.\n" }, { "role": "user", "content": "Q: one\nA:" }]);
    assert_eq!(body["messages"], messages);
    assert_eq!(body["number"]["after"], "\nScore: ");
    assert_eq!((&body["max_tokens"], &body["temperature"]), (&json!(8), &json!(0.0)));
    assert_eq!(report["settings"]["request"]["messages"][0], messages[0]);
}

#[test]
fn metrics_that_are_asked_for_come_first() {
    let (folder, file) = file("words.jsonl", "{\"question\": \"A?\", \"answer\": 3}\n");
    let mock = Mock::start(&["tiny"], |_, _| number(2.0, 2.0, 3.0));
    let results = folder.path().join("out");
    let task =
        ["custom", "--data", file.to_str().unwrap(), "--mode", "regress", "--endpoint", &mock.url, "--quiet"];
    let more = ["--metric", "crps, mae,bleu,mae", "--out", results.to_str().unwrap()];
    let output = ntl_eval(&[&task[..], &more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let first_cells = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
        rows.map(|row| row.split('|').nth(1).unwrap().trim().to_owned()).take(4).collect()
    };
    // The text of BLEU is not compared here, which the table says with a dash.
    assert_eq!(first_cells(&out(&output)), ["crps", "mae", "bleu", "accuracy"]);
    ntl_eval(&["report", results.to_str().unwrap()]);
    let page = fs::read_to_string(results.join("report.md")).unwrap();
    assert_eq!(first_cells(&page), ["crps", "mae", "bleu", "accuracy"]);
    // They are no setting of the run.
    let resumed = ntl_eval(&[&task[..], &["--out", results.to_str().unwrap(), "--resume"]].concat());
    assert_eq!((resumed.status.code(), first_cells(&out(&resumed))[0].as_str()), (Some(0), "accuracy"));
    let unknown = run(&mock, &[&task[..5], &["--metric", "mae,speed"]].concat());
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        err(&unknown).contains("there is no metric `speed`; there are accuracy, strict, "),
        "{}",
        err(&unknown)
    );
}

#[test]
fn wording_that_cannot_be_is_refused() {
    let (_csv, csv) = file("prices.csv", CSV);
    let (_json, json) = file("words.jsonl", JSONL);
    let (_jokes, jokes) = file("test.tsv", "1\tone\n");
    let (_gsm8k, gsm8k) = file("test.jsonl", "{\"question\": \"A?\", \"answer\": \"#### 1\"}\n");
    let [csv, json, jokes, gsm8k] = [&csv, &json, &jokes, &gsm8k].map(|file| file.to_str().unwrap());
    let mock = Mock::start(&["tiny"], |_, _| text("1"));
    for (args, code, complaint) in [
        (&["custom"][..], 2, "custom needs --data FILE"),
        (&["custom", "--data", csv], 1, "line 2: there is no field `question`; it has city, asked, price"),
        (
            &["custom", "--data", json, "--template", "{text}"],
            1,
            "line 1: there is no field `text`; it has question",
        ),
        (&["custom", "--data", json, "--template", "{question} {answer}"], 2, "--template names the answer"),
        (&["custom", "--data", json, "--mode", "regress"], 2, "no answer in "),
        (&["custom", "--data", json, "--shots", "2"], 2, "--shots 2 asks for more than the 1 other items"),
        (
            &["rjokes", "--data", jokes, "--template", "{joke}"],
            2,
            "there is no field `joke`; there is {question}",
        ),
        (&["rjokes", "--data", jokes, "--template", "joke"], 2, "it names no field"),
        (&["rjokes", "--data", jokes, "--after", "x"], 2, "--after is about --mode regress"),
        (&["rjokes", "--data", jokes, "--system", "x"], 2, "--system is a message of chats"),
        (
            &["gsm8k", "--data", gsm8k, "--shots", "0", "--template", "{question}"],
            2,
            "--template and --shots both",
        ),
    ] {
        let output = run(&mock, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(complaint), "{args:?}: {}", err(&output));
    }
    let data = ntl_eval(&["data", "custom"]);
    assert_eq!(data.status.code(), Some(2));
    assert!(err(&data).contains("the data of custom are your own"), "{}", err(&data));
    assert!(mock.bodies().is_empty());
}
