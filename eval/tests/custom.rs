//! `ntl-eval custom`, and the flags for the prompts of every task.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use common::{Mock, Scripted, err, ntl_eval, number, out, text};
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
fn rows_of_a_csv_fill_the_fields_of_a_template() {
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
    assert_eq!(mock.bodies()[0]["stop"], json!(["\n"]));
}

#[test]
fn the_first_number_is_read_unless_a_chain_of_thought_is_expected() {
    let (folder, file) = file("sums.csv", "question,answer\n1.1 + 103.3,104.4\n");
    let out = folder.path().join("out");
    // A server that ignores `stop`.
    let mock = Mock::start(&["tiny"], |_, _| text(" 104.4\nQ: What is 1.13"));
    let template = ["--template", r"Q: What is {question}\nA:"];
    for (more, rule, stop, accuracy) in [
        (&template[..], "first_number", json!(["\n"]), 1.0),
        (&[], "first_number", Value::Null, 1.0),
        (&["--template", "{question}"], "first_number", Value::Null, 1.0),
        (&[&template[..], &["--max-tokens", "32"]].concat(), "first_number", json!(["\n"]), 1.0),
        (&[&template[..], &["--max-tokens", "33"]].concat(), "last_number", Value::Null, 0.0),
        (&[&template[..], &["--api", "chat"]].concat(), "last_number", Value::Null, 0.0),
        (&[&template[..], &["--read", "last"]].concat(), "last_number", Value::Null, 0.0),
        (&["--api", "chat", "--read", "first"], "first_number", Value::Null, 1.0),
    ] {
        let task =
            ["custom", "--data", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--overwrite"];
        let report = report(&run(&mock, &[&task[..], more].concat()));
        assert_eq!(report["metrics"]["accuracy"]["value"], json!(accuracy), "{more:?}");
        assert_eq!(report["settings"]["estimates"]["accuracy"], rule, "{more:?}");
        assert_eq!(mock.bodies().last().unwrap()["stop"], stop, "{more:?}");
        let sample: Value =
            serde_json::from_str(&fs::read_to_string(out.join("samples.jsonl")).unwrap()).unwrap();
        assert_eq!(sample["filter"], rule.replace('_', "-"), "{more:?}");
    }
    let shown = ntl_eval(&["custom", "--data", file.to_str().unwrap(), "--endpoint", &mock.url, "--quiet"]);
    assert!(
        common::out(&shown).contains("numbers: the first number of each text"),
        "{}",
        common::out(&shown)
    );
}

#[test]
fn a_template_of_any_task_is_stopped_at_the_line_feed() {
    let (_folder, pairs) = file("pairs.txt", "1 + 1\n2\n");
    let mock = Mock::start(&["tiny"], |_, _| text(" 2\nQ: 3"));
    let task = ["arithmetic", "--split", "interpolate", "--data", pairs.to_str().unwrap()];
    let bare = report(&run(&mock, &task));
    let worded = report(&run(&mock, &[&task[..], &["--template", r"Q: {question}\nA:"]].concat()));
    let accuracy = [&bare, &worded].map(|report| report["metrics"]["accuracy"]["value"].clone());
    assert_eq!(accuracy, [json!(0.0), json!(1.0)]);
    let stops: Vec<Value> = mock.bodies().iter().map(|body| body["stop"].clone()).collect();
    assert_eq!(stops, [Value::Null, json!(["\n"])]);
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
    let notice = "1 of 2 answers are not numbers and are compared as text, such as \"none\" on line 2\n";
    assert_eq!(err(&output), notice);
}

#[test]
fn labels_and_answers_are_read_in_the_formats_of_many_countries() {
    let pairs = [
        ("₹1,00,000", "It costs ₹1,00,000."),
        ("１２", "答えは１２です"),
        ("1½", "about 1 ½ cups"),
        ("0.75", "¾"),
        ("1_000", "= 1_000"),
        ("-€5", "It fell by -€5"),
        ("٣", "الجواب ٣"),
        ("1,234.50", "£1,234.50"),
    ];
    let lines: String = pairs
        .iter()
        .enumerate()
        .map(|(index, (label, _))| format!("{}\n", json!({ "question": index, "answer": label })))
        .collect();
    let (_folder, file) = file("numbers.jsonl", &lines);
    let mock = Mock::start(&["tiny"], move |prompt, _| text(pairs[prompt.parse::<usize>().unwrap()].1));
    let output = run(&mock, &["custom", "--data", file.to_str().unwrap()]);
    let report = report(&output);
    assert_eq!(
        (&report["metrics"]["accuracy"]["value"], &report["metrics"]["accuracy"]["n"]),
        (&json!(1.0), &json!(8))
    );
    assert_eq!(err(&output), "");
}

#[test]
fn paper_mode_reads_the_last_number_of_text_labels_and_leaves_out_labels_without_one() {
    let lines = [("a", "12 apples"), ("b", "room 5, floor 1,234"), ("c", "none"), ("d", "#### 18")];
    let lines: String = lines
        .iter()
        .map(|(question, answer)| format!("{}\n", json!({ "question": question, "answer": answer })))
        .collect();
    let (_folder, file) = file("mixed.jsonl", &lines);
    let mock = Mock::with_tokens(&["tiny"], |prompt, _| {
        text(match prompt {
            "a" => "he has 10",
            "b" => "1,234",
            "c" => "7",
            _ => "no idea",
        })
    });
    let report = report(&run(&mock, &["custom", "--data", file.to_str().unwrap(), "--mode", "paper"]));
    let metric = |name: &str| {
        (report["metrics"][name]["value"].as_f64().unwrap(), report["metrics"][name]["n"].as_u64())
    };
    assert_eq!(metric("mae"), (1.0, Some(2)));
    assert_eq!(metric("accuracy"), (1.0 / 3.0, Some(3)));
    assert_eq!(metric("unparsed"), (1.0 / 3.0, Some(3)));
}

#[test]
fn data_may_be_tab_separated_or_one_json_array() {
    let array = r#"[{"question": "a, b?", "answer": 7, "unit": "m"},
        {"question": "c?", "answer": "1,000", "unit": "kg"}]"#;
    let tsv = "question\tanswer\tunit\na, b?\t7\tm\nc?\t1,000\tkg\n";
    for (name, contents) in [("own.json", array), ("own.jsonl", array), ("own.tsv", tsv)] {
        let (_folder, file) = file(name, contents);
        let mock = Mock::start(&["tiny"], |_, _| text("7"));
        let task = ["custom", "--data", file.to_str().unwrap(), "--template", "{question} ({unit})"];
        let report = report(&run(&mock, &task));
        assert_eq!(prompts(&mock), ["a, b? (m)", "c? (kg)"], "{name}");
        assert_eq!(report["metrics"]["accuracy"]["value"], json!(0.5), "{name}");
        assert_eq!(report["split"], "own");
    }
}

#[test]
fn skipped_items_are_counted_by_the_field_that_they_lack() {
    let lines = r#"{"question": "A?", "answer": 1}
{"question": "B?", "answer": null}
{"question": "C?"}
{"answer": 4}
{"question": "E?", "answer": " "}
{"question": "F?", "answer": 6}
"#;
    let (_folder, own) = file("own.jsonl", lines);
    let mock = Mock::start(&["tiny"], |_, _| text("1"));
    let task = ["custom", "--data", own.to_str().unwrap()];
    let output = run(&mock, &[&task[..], &["--skip-missing"]].concat());
    let skipping = report(&output);
    let notice = "--skip-missing left out 4 of 6 items: 3 without `answer`, 1 without `question`; the first is on line 2\n";
    assert_eq!(err(&output), notice);
    assert_eq!((&skipping["n"], prompts(&mock)), (&json!(2), vec!["A?".to_owned(), "F?".to_owned()]));
    assert_eq!(skipping["settings"]["skipped_items"], json!({ "answer": 3, "question": 1 }));
    let message = err(&run(&mock, &task));
    assert!(
        message.contains("own.jsonl line 2: the answer is null; --skip-missing leaves out such items"),
        "{message}"
    );
    let (_folder, complete) = file("own.csv", "question,answer\nA?,1\n");
    let output = run(&mock, &["custom", "--data", complete.to_str().unwrap(), "--skip-missing"]);
    assert_eq!(report(&output)["settings"]["skipped_items"], json!({}));
    assert_eq!(err(&output), "--skip-missing left out none of 1 items\n");
    let (_folder, empty) = file("own.csv", "question,answer\nA?,\n");
    let output = run(&mock, &["custom", "--data", empty.to_str().unwrap(), "--skip-missing"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains(
            "own.csv has no complete item: --skip-missing left out 1 of 1 items: 1 without `answer`"
        ),
        "{}",
        err(&output)
    );
}

#[test]
fn a_decimal_comma_is_reported_with_the_corrected_number() {
    let mock = Mock::start(&["tiny"], |_, _| text("1.5"));
    let (_folder, mixed) = file("rent.csv", "question,answer\nA?,2\nB?,none\nC?,\"1,5\"\n");
    let output = run(&mock, &["custom", "--data", mixed.to_str().unwrap()]);
    report(&output);
    let example = "\"1,5\" on line 4; decimals need a point, such as 1.5\n";
    assert_eq!(
        err(&output),
        format!("2 of 3 answers are not numbers and are compared as text, such as {example}")
    );
    let (_folder, all) = file("rent.csv", "question,answer\nA?,none\nB?,x\nC?,\"1,5\"\n");
    let output = run(&mock, &["custom", "--data", all.to_str().unwrap()]);
    assert!(err(&output).ends_with(example), "{}", err(&output));
    let output = run(&mock, &["custom", "--data", all.to_str().unwrap(), "--mode", "regress"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains(
            "rent.csv is a number, which --mode regress needs; for example \"1,5\" on line 4; decimals need"
        ),
        "{}",
        err(&output)
    );
}

#[test]
fn an_answer_that_is_neither_a_number_nor_a_text_is_rejected_with_its_line() {
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
        ("null", "the answer is null"),
    ] {
        let lines = format!(
            "{{\"question\": \"A?\", \"answer\": 1}}\n{{\"question\": \"B?\", \"answer\": {answer}}}\n"
        );
        let message = refused("a.jsonl", &lines);
        assert!(message.contains(&format!("a.jsonl line 2: {said}")), "{message}");
    }
    let message = refused("a.csv", "question,answer\nA?,1\nB?,\n");
    assert!(message.contains("a.csv line 3: the answer is empty"), "{message}");
    let message = refused("a.csv", "question,answer,answer\nA?,1,2\n");
    assert!(message.contains("a.csv line 1: the header has two fields `answer`"), "{message}");
    let message = refused(
        "a.json",
        "[{\"question\": \"A?\", \"answer\": 1},\n{\"question\": {\"a\": 1}, \"answer\": 1}]",
    );
    assert!(
        message.contains("a.json line 2: the question `{\"a\":1}` is neither a number nor a text"),
        "{message}"
    );
}

#[test]
fn every_task_accepts_a_template_a_system_message_and_a_marker() {
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
fn requested_metrics_are_listed_first() {
    // Tables show no metric of fewer items.
    let rows: String = ["A", "B", "C", "D", "E", "F"]
        .map(|name| format!("{{\"question\": \"{name}?\", \"answer\": 3}}\n"))
        .concat();
    let (folder, file) = file("words.jsonl", &rows);
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
    // The text of BLEU is not compared here, so the table has a dash.
    assert_eq!(first_cells(&out(&output)), ["crps", "mae", "bleu", "accuracy"]);
    ntl_eval(&["report", results.to_str().unwrap()]);
    let page = fs::read_to_string(results.join("report.md")).unwrap();
    assert_eq!(first_cells(&page), ["crps", "mae", "bleu", "accuracy"]);
    // The requested metrics are not a setting of the run.
    let resumed = ntl_eval(&[&task[..], &["--out", results.to_str().unwrap(), "--resume"]].concat());
    assert_eq!((resumed.status.code(), first_cells(&out(&resumed))[0].as_str()), (Some(0), "accuracy"));
    for (named, said) in [
        ("mae,throughput", "there is no metric `throughput`; there are accuracy, strict, "),
        ("mae,acuracy", "there is no metric `acuracy`; did you mean `accuracy`?"),
        ("RMSE", "there is no metric `RMSE`; did you mean `rmse`?"),
    ] {
        let unknown = run(&mock, &[&task[..5], &["--metric", named]].concat());
        assert_eq!(unknown.status.code(), Some(2));
        assert!(err(&unknown).contains(said), "{}", err(&unknown));
    }
}

#[test]
fn invalid_templates_and_flags_are_rejected() {
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
        (&["custom", "--data", json, "--shots", "2"], 2, "--shots 2 needs more than the 1 other items"),
        (
            &["rjokes", "--data", jokes, "--template", "{joke}"],
            2,
            "there is no field `joke`; there is {question}",
        ),
        (&["rjokes", "--data", jokes, "--template", "joke"], 2, "it names no field"),
        (&["rjokes", "--data", jokes, "--after", "x"], 2, "--after needs --mode regress"),
        (&["rjokes", "--data", jokes, "--system", "x"], 2, "--system is a chat message"),
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

#[test]
fn each_number_of_a_structured_answer_has_its_own_report_in_text_and_regress_mode() {
    const FLATS: &str = "{\"question\": \"A?\", \"price\": 250, \"rooms\": [{\"area\": 20}]}\n\
        {\"question\": \"B?\", \"price\": 300, \"rooms\": [{\"area\": 30}]}\n";
    let (folder, data) = file("flats.jsonl", FLATS);
    let schema = folder.path().join("schema.json");
    fs::write(&schema, r#"{"type": "object"}"#).unwrap();
    let field = |path: &str, value: f64| {
        let answer: Value = serde_json::from_str(&number(value, value, value).2).unwrap();
        json!({ "path": path, "token_range": [1, 2], "number": answer["choices"][0]["number"] })
    };
    let text = r#"{"price": 260, "rooms": [{"area": 20}]}"#;
    let numbers = json!([field("$.price", 260.0), field("$.rooms[0].area", 20.0)]);
    let answer =
        json!({ "choices": [{ "text": text, "finish_reason": "stop", "numbers": numbers }] }).to_string();
    for mode in ["text", "regress"] {
        let body = answer.clone();
        let mock = Mock::start(&["tiny"], move |_, _| Scripted(200, Vec::new(), body.clone()));
        let task = ["custom", "--data", data.to_str().unwrap(), "--mode", mode];
        let structured = ["--schema", schema.to_str().unwrap(), "--fields", "$.price,$.rooms[0].area"];
        let output = run(&mock, &[&task[..], &structured].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let reports: Vec<Value> =
            out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let figures: Vec<_> =
            reports.iter().map(|report| (&report["split"], &report["metrics"]["mae"]["value"])).collect();
        assert_eq!(
            figures,
            [(&json!("flats.price"), &json!(25.0)), (&json!("flats.rooms_0__area"), &json!(5.0))],
            "{mode}"
        );
        let body = &mock.bodies()[0];
        assert_eq!(body["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
        assert_eq!(body["number"].is_object(), mode == "regress");
    }
    let task = ["custom", "--data", data.to_str().unwrap(), "--endpoint", "http://127.0.0.1:9"];
    let schema = schema.to_str().unwrap();
    for (flags, message) in [
        (&["--schema", schema][..], "--fields"),
        (&["--schema", schema, "--fields", "price"], "is not a path"),
        (&["--schema", schema, "--fields", "$[0]"], "does not begin with the name"),
        (&["--schema", schema, "--fields", "$.price", "--after", "#"], "--after"),
    ] {
        let output = ntl_eval(&[&task[..], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{}", err(&output));
        assert!(err(&output).contains(message), "{}", err(&output));
    }
}

const FLATS: &str = "{\"question\": \"A?\", \"unit-price\": 250, \"a\": {\"b\": 1}, \"a_b\": 3, \"name\": \"7\"}\n\
    {\"question\": \"B?\", \"unit-price\": 300, \"a\": {\"b\": 2}, \"a_b\": 4, \"name\": \"8\"}\n";

/// A server whose structured answers have these numbers.
fn structured(numbers: &[(&'static str, f64)]) -> Mock {
    let field = |(path, value): &(&str, f64)| {
        let answer: Value = serde_json::from_str(&number(*value, *value, *value).2).unwrap();
        json!({ "path": path, "number": answer["choices"][0]["number"], "token_range": [1, 2] })
    };
    let numbers: Vec<Value> = numbers.iter().map(field).collect();
    let text = r#"{"unit-price": 250, "a": {"b": 1}, "a_b": 3}"#;
    let body = json!({ "choices": [{ "text": text, "numbers": numbers }] }).to_string();
    Mock::start(&["tiny"], move |_, _| Scripted(200, Vec::new(), body.clone()))
}

/// The flags of a task with structured answers, without `--fields`.
fn structured_task<'a>(data: &'a Path, schema: &'a Path, mode: &'a str) -> [&'a str; 7] {
    let [data, schema] = [data, schema].map(|file| file.to_str().unwrap());
    ["custom", "--data", data, "--schema", schema, "--mode", mode]
}

#[test]
fn a_field_may_be_named_in_any_spelling_and_a_name_that_no_answer_has_is_reported() {
    let (folder, data) = file("flats.jsonl", FLATS);
    let schema = folder.path().join("schema.json");
    fs::write(&schema, "{}").unwrap();
    let mock = structured(&[("$['unit-price']", 250.0), ("$.a.b", 1.0)]);
    for mode in ["text", "regress"] {
        let task = structured_task(&data, &schema, mode);
        for spelling in
            ["$.unit-price", "$['unit-price']", "$[\"unit-price\"]", "$['a'].b", "$['a']['b']", "$.a.b"]
        {
            let output = run(&mock, &[&task[..], &["--fields", spelling]].concat());
            let report = report(&output);
            assert_eq!(report["metrics"]["accuracy"]["value"], json!(0.5), "{mode} {spelling}: {report}");
            assert_eq!(err(&output), "", "{mode} {spelling}");
        }
    }
    let task = structured_task(&data, &schema, "regress");
    let output = run(&mock, &[&task[..], &["--fields", "$.a_b"]].concat());
    let want = "custom flats.a_b: no answer has a number at `$.a_b`; their numbers are at `$.a.b`, `$['unit-price']`\n";
    // The number of the text is read.
    assert_eq!((report(&output)["n_valid"].clone(), err(&output)), (json!(0), want.to_owned()));
}

#[test]
fn fields_whose_names_differ_in_punctuation_have_separate_directories() {
    let (folder, data) = file("d.jsonl", FLATS);
    let schema = folder.path().join("schema.json");
    fs::write(&schema, "{}").unwrap();
    let out = folder.path().join("out");
    let mock = structured(&[("$.a_b", 3.0), ("$.a.b", 1.0)]);
    let task = structured_task(&data, &schema, "regress");
    let fields = ["--fields", "$.a_b,$.a.b", "--out", out.to_str().unwrap()];
    let output = run(&mock, &[&task[..], &fields].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let field = |name: &str| {
        let report = fs::read_to_string(out.join(name).join("report.json")).unwrap();
        serde_json::from_str::<Value>(&report).unwrap()["settings"]["field"].clone()
    };
    assert_eq!((field("d.a_b"), field("d.a_b_2")), (json!("$.a_b"), json!("$.a.b")));
    let twice = run(&mock, &[&task[..], &["--fields", "$.a.b,$['a'].b"]].concat());
    assert_eq!(twice.status.code(), Some(2));
    assert!(err(&twice).contains("--fields names `$.a.b` twice"), "{}", err(&twice));
}

#[test]
fn examples_of_structured_answers_are_whole_and_a_cache_serves_all_fields() {
    let (folder, data) = file("flats.jsonl", FLATS);
    let schema = folder.path().join("schema.json");
    let properties = json!({ "properties": { "name": { "type": "string" }, "a": {}, "unit-price": { "type": "integer" } } });
    fs::write(&schema, properties.to_string()).unwrap();
    let cache = folder.path().join("cache");
    let mock = structured(&[("$['unit-price']", 250.0), ("$.a.b", 1.0)]);
    let task = structured_task(&data, &schema, "regress");
    let flags = ["--fields", "$.a.b,$.unit-price", "--shots", "1", "--cache", cache.to_str().unwrap()];
    let output = run(&mock, &[&task[..], &flags].concat());
    assert_eq!((output.status.code(), out(&output).lines().count()), (Some(0), 2), "{}", err(&output));
    let [first, second] = [
        r#"A? {"name":"7","a":{"b":1},"unit-price":250}"#,
        r#"B? {"name":"8","a":{"b":2},"unit-price":300}"#,
    ];
    assert_eq!(prompts(&mock), [format!("{first}\n\nB?"), format!("{second}\n\nA?")]);
    // Without properties, the examples have the fields of `--fields`.
    fs::write(&schema, "{}").unwrap();
    let plain = structured(&[("$['unit-price']", 250.0), ("$.a.b", 1.0)]);
    run(&plain, &[&task[..], &flags].concat());
    assert_eq!(prompts(&plain)[0], "A? {\"a\":{\"b\":1},\"unit-price\":250}\n\nB?");
}

#[test]
fn data_in_other_formats_is_named_and_a_pipe_is_not_waited_for() {
    let mock = Mock::start(&["tiny"], |_, _| text("7"));
    for (name, contents, flags, said) in [
        (
            "own.txt",
            "1 + 1\n2\n",
            &[][..],
            "holds neither JSON lines nor a JSON array; it may also be CSV or TSV",
        ),
        ("own.xlsx", "PK\u{3}\u{4}", &[], "own.xlsx is a spreadsheet (.xlsx"),
        ("own.csv", "question;answer\r\nA?;7\r\nB?;\r\n", &[], "own.csv line 3: the answer is empty"),
        ("own.txt", "question|answer\nA?|\n", &["--delimiter", "|"], "own.txt line 2: the answer is empty"),
        ("own.csv", "question,answer\nA?,7\n", &["--delimiter", "ab"], "expected one character"),
    ] {
        let (_folder, file) = file(name, contents);
        let output = run(&mock, &[&["custom", "--data", file.to_str().unwrap()], flags].concat());
        assert_ne!(output.status.code(), Some(0), "{name}");
        assert!(err(&output).contains(said), "{name}: {}", err(&output));
    }
    let (_folder, tabs) = file("own.csv", "question\tanswer\nA?\t7\n");
    let task = ["custom", "--data", tabs.to_str().unwrap(), "--delimiter", "tab"];
    assert_eq!(report(&run(&mock, &task))["metrics"]["accuracy"]["value"], json!(1.0));
    let folder = tempfile::tempdir().unwrap();
    for name in ["own.csv", "own.jsonl", "own.csv.gz"] {
        let pipe = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let output = run(&mock, &["custom", "--data", pipe.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).contains(&format!("{name}: it is not a regular file")), "{}", err(&output));
    }
}
