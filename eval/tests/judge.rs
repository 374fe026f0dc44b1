//! `ntl-eval judge`: a scripted judge grades single answers and pairs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::judging::{judge, report, scores};
use common::{Mock, Scripted, err, ntl_eval, out};
use serde_json::{Value, json};
use tempfile::TempDir;

const ANSWERS: &str = r#"{"input": "2 + 2?", "answer": "4", "reference": "four", "human_score": 5}
{"input": "3 + 3?", "answer": "seven", "human_score": 1}
{"input": "5 + 5?", "answer": "about 10", "human_score": "4½"}
{"input": "6 + 6?", "answer": "12"}
"#;

const PAIRS: &str = r#"{"input": "p", "answer": "good one", "answer_b": "bad one", "human_score": "A"}
{"input": "q", "answer": "bad two", "answer_b": "good two", "human_score": 7}
{"input": "r", "answer": "even one", "answer_b": "even two", "human_score": "tie"}
{"input": "s", "answer": "good three", "answer_b": "bad three"}
"#;

fn file(contents: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("graded.jsonl");
    fs::write(&file, contents).unwrap();
    (folder, file)
}

fn value(report: &Value, metric: &str) -> f64 {
    report["metrics"][metric]["value"].as_f64().unwrap()
}

fn close(found: f64, want: f64) {
    assert!((found - want).abs() < 1e-9, "{found}, not {want}");
}

fn grader() -> Mock {
    Mock::start(&["tiny"], |prompt, _| match () {
        () if prompt.contains("2 + 2") => scores(&[(4.0, 0.4), (5.0, 0.6)], 0.9),
        () if prompt.contains("3 + 3") => scores(&[(1.0, 0.5), (2.0, 0.3), (5.0, 0.2)], 1.0),
        () if prompt.contains("5 + 5") => scores(&[(4.0, 1.0)], 0.8),
        () => scores(&[(3.0, 1.0)], 0.25),
    })
}

#[test]
fn a_score_with_little_mass_counts_and_its_sample_has_the_reason() {
    let said = "less than half of the mass, 0.25, is on the scale; the model would write \"The\" (0.75)";
    let (folder, file) = file(ANSWERS);
    let mock = Mock::start(&["tiny"], move |_, _| {
        let Scripted(status, headers, body) = scores(&[(3.0, 0.5), (4.0, 0.5)], 0.75);
        let mut answer: Value = serde_json::from_str(&body).unwrap();
        let number = &mut answer["choices"][0]["number"];
        number["mass"] = json!({ "closed": 0.25, "invalid": 0.75, "open": 0.0 });
        number["support"] = json!([
            { "value": 3.0, "text": "3", "probability": 0.125 }, { "value": 4.0, "text": "4", "probability": 0.125 }
        ]);
        number["reason"] = json!(said);
        Scripted(status, headers, answer.to_string())
    });
    let out = folder.path().join("out");
    let output = judge(&mock, &file, &["--scale", "1,5", "--out", out.to_str().unwrap()]);
    let warning = "warning: mass_closed: only 0.2500 of the judge's probability is on the scale";
    assert!(err(&output).starts_with(warning), "{}", err(&output));
    let report = report(&output);
    ntl_eval(&["report", out.to_str().unwrap()]);
    let page = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(page.contains("Warning: mass_closed: only 0.2500"), "{page}");
    close(value(&report, "score"), 3.5);
    close(value(&report, "mass_closed"), 0.25);
    close(value(&report, "unparsed"), 0.0);
    assert!(samples(&out).iter().all(|sample| sample["score"] == 3.5 && sample["number_reason"] == said));
}

/// Such a score has no probability, even for a good judge.
#[test]
fn a_human_score_between_the_values_of_the_scale_has_no_log_score() {
    let answer =
        |score: f64| format!("{{\"input\": \"q\", \"answer\": \"a{score}\", \"human_score\": {score}}}\n");
    let (_folder, file) = file(&[answer(5.0), answer(4.5), answer(4.0)].concat());
    let mock = Mock::start(&["tiny"], |_, _| scores(&[(4.0, 0.5), (5.0, 0.5)], 1.0));
    let integers = report(&judge(&mock, &file, &["--scale", "1,5"]));
    let halves = report(&judge(&mock, &file, &["--scale", "1,5,0.5"]));
    assert_eq!(integers["metrics"]["log_score"]["n"], 2);
    close(value(&integers, "log_score"), 2_f64.ln());
    // On a scale of halves the score has a probability, which is 0 here.
    assert_eq!(
        (&halves["metrics"]["log_score"]["n"], &halves["metrics"]["log_score"]["value"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(integers["metrics"]["crps"]["n"], 3);
}

#[test]
fn answers_are_graded_and_compared_with_human_scores() {
    let (folder, file) = file(ANSWERS);
    let mock = grader();
    let out = folder.path().join("out");
    let report = report(&judge(&mock, &file, &["--scale", "1,5", "--out", out.to_str().unwrap()]));
    let body =
        mock.bodies().into_iter().find(|body| body["prompt"].as_str().unwrap().contains("2 + 2")).unwrap();
    let prompt = body["prompt"].as_str().unwrap();
    assert!(prompt.starts_with("Grade an answer with a score from 1 to 5."), "{prompt}");
    assert!(prompt.contains("[Right answer]\nfour\n") && prompt.ends_with("\nScore:"), "{prompt}");
    assert_eq!((&body["number"]["scale"], &body["number"]["interval"]), (&json!([1.0, 5.0]), &json!(0.9)));
    // The scores are 4.6, 2.1 and 4, and people's scores are 5, 1 and 4.5. The fourth answer has no score.
    close(value(&report, "score"), (4.6 + 2.1 + 4.0) / 3.0);
    close(value(&report, "mode_score"), 10.0 / 3.0);
    let deviation = (0.5 * 1.1_f64.powi(2) + 0.3 * 0.1_f64.powi(2) + 0.2 * 2.9_f64.powi(2)).sqrt();
    close(value(&report, "spread"), (0.24_f64.sqrt() + deviation) / 3.0);
    close(value(&report, "interval_width"), 5.0 / 3.0);
    close(value(&report, "mass_closed"), 2.7 / 3.0);
    close(value(&report, "kendall"), 1.0);
    close(value(&report, "unparsed"), 0.25);
    assert_eq!(report["metrics"]["pearson"]["n"], 3);
    assert_eq!((&report["n"], &report["n_valid"]), (&json!(4), &json!(3)));
    // Only items with a human score are correct or incorrect: the first two of three are correct.
    assert_eq!((value(&report, "accuracy"), &report["metrics"]["accuracy"]["n"]), (2.0 / 3.0, &json!(3)));
    assert!(report["estimates"]["kappa"]["values"]["mode"]["value"].is_number(), "{}", report["estimates"]);
    assert_eq!(report["missing_numbers"].as_object().unwrap().len(), 1);
    assert_eq!(report["settings"]["default_rubrics"].as_array().unwrap().len(), 2);
    let samples = samples(&out);
    close(samples[1]["score"].as_f64().unwrap(), 2.1);
    assert_eq!(samples[1]["mode_score"], 1.0);
    assert_eq!(samples[1]["distribution"], json!([[1.0, 0.5], [2.0, 0.3], [5.0, 0.2]]));
    assert_eq!((&samples[1]["interval"]["high"], &samples[1]["truth"]), (&json!(5.0), &json!(1.0)));
    assert_eq!(
        (&samples[3]["score"], &samples[3]["accuracy"], &samples[3]["truth"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert!(samples[3]["number_reason"].as_str().unwrap().contains("\"The\""));
    let page = page(&out);
    assert!(page.contains("## Judgements") && page.contains("3 + 3?"), "{page}");
}

fn samples(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn page(out: &Path) -> String {
    let written = ntl_eval(&["report", out.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", err(&written));
    fs::read_to_string(out.join("report.md")).unwrap()
}

/// Prefers good answers, and slightly the answer that is shown second. Scores of 2 or 3 favour the first
/// answer, 5 or 6 the second.
fn comparer() -> Mock {
    Mock::start(&["tiny"], |prompt, _| {
        let shown = prompt.split("[First answer]\n").nth(1).unwrap();
        let (first, second) = shown.split_once("[Second answer]\n").unwrap();
        match (first.contains("good"), second.contains("good")) {
            (true, false) => scores(&[(2.0, 0.5), (3.0, 0.5)], 1.0),
            (false, true) => scores(&[(6.0, 1.0)], 0.9),
            _ => scores(&[(5.0, 1.0)], 1.0),
        }
    })
}

#[test]
fn pairs_are_judged_in_both_orders() {
    let (folder, file) = file(PAIRS);
    let mock = comparer();
    let out = folder.path().join("out");
    let report = report(&judge(&mock, &file, &["--pairs", "--out", out.to_str().unwrap()]));
    assert_eq!(mock.bodies().len(), 8);
    assert_eq!(mock.bodies()[0]["number"]["scale"], json!([1.0, 7.0]));
    // In the other order, the first and the last pair have the score 6, mirrored 2. The second pair has 2.5,
    // mirrored 5.5. The third pair has 5 in either order, mirrored 3.
    let samples = samples(&out);
    assert_eq!(samples[0]["orders"], json!([2.5, 2.0]));
    assert_eq!(samples[1]["orders"], json!([6.0, 5.5]));
    assert_eq!(samples[2]["orders"], json!([5.0, 3.0]));
    close(samples[0]["score"].as_f64().unwrap(), 2.25);
    for (sample, want) in [(0, [(2.0, 0.75), (3.0, 0.25)]), (2, [(3.0, 0.5), (5.0, 0.5)])] {
        let found = samples[sample]["distribution"].as_array().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        for (found, want) in found.iter().zip(want) {
            close(found[0].as_f64().unwrap(), want.0);
            close(found[1].as_f64().unwrap(), want.1);
        }
    }
    let verdicts: Vec<&str> = samples.iter().map(|sample| sample["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["a", "b", "tie", "a"]);
    close(value(&report, "consistent"), 0.75);
    close(value(&report, "order_difference"), (0.5 + 0.5 + 2.0 + 0.5) / 4.0);
    close(value(&report, "order_distance"), 3.5 / 4.0);
    close(value(&report, "wins"), 2.5 / 4.0);
    // The preference covers the first two pairs: people call the third a tie and did not judge the fourth.
    assert_eq!((value(&report, "preference"), &report["metrics"]["preference"]["n"]), (1.0, &json!(2)));
    // Only one human score is a number.
    assert_eq!((value(&report, "mae"), &report["metrics"]["mae"]["n"]), (1.0, &json!(1)));
    close(value(&report, "mass_closed"), (0.95 * 3.0 + 1.0) / 4.0);
    // Each order costs 3 positions in 2 passes, and nothing is drawn.
    let want = json!({
        "positions": { "per_item": 6.0, "total": 24, "n": 4 }, "passes": { "per_item": 4.0, "total": 16, "n": 4 }
    });
    assert_eq!(report["cost"], want);
    let before = mock.bodies().len();
    let again = judge(&mock, &file, &["--pairs", "--out", out.to_str().unwrap(), "--resume"]);
    assert_eq!((again.status.code(), mock.bodies().len() - before), (Some(0), 0));
    let calibrated = ntl_eval(&["calibrate", out.to_str().unwrap(), "--out", "nowhere.json"]);
    assert_eq!(calibrated.status.code(), Some(1));
    assert!(err(&calibrated).contains("is a run of `judge --pairs`"), "{}", err(&calibrated));
    let page = page(&out);
    assert!(page.contains("2.500, 2") && page.contains("## Cost\n"), "{page}");
}

#[test]
fn the_metrics_of_judgements_are_listed_after_the_requested_ones() {
    let (folder, file) = file(&ANSWERS.repeat(2));
    let mock = grader();
    let results = folder.path().join("out");
    let task =
        ["judge", "--data", file.to_str().unwrap(), "--endpoint", &mock.url, "--quiet", "--scale", "1,5"];
    let first_cells = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
        rows.map(|row| row.split('|').nth(1).unwrap().trim().to_owned()).take(3).collect()
    };
    let output = ntl_eval(&[&task[..], &["--out", results.to_str().unwrap()]].concat());
    assert_eq!(first_cells(&out(&output)), ["score", "corrected_score", "mode_score"], "{}", err(&output));
    assert_eq!(first_cells(&page(&results)), ["score", "corrected_score", "mode_score"]);
    let output = ntl_eval(&[&task[..], &["--metric", "rmse"]].concat());
    assert_eq!(first_cells(&out(&output)), ["rmse", "score", "corrected_score"], "{}", err(&output));
    // There are no human scores for these answers, so that there is no agreement to show.
    let (_folder, ungraded) = self::file("{\"input\": \"2 + 2?\", \"answer\": \"4\"}\n");
    let report = report(&judge(&mock, &ungraded, &[]));
    let first = ["score", "mode_score", "spread", "interval_width", "mass_closed", "unparsed"];
    assert_eq!(report["first_metrics"], json!(first));
}

#[test]
fn a_judge_without_scores_fails_the_run_with_its_reason() {
    let (folder, file) =
        file("{\"input\": \"a\", \"answer\": \"b\"}\n{\"input\": \"c\", \"answer\": \"d\"}\n");
    let results = folder.path().join("out");
    let output = judge(&grader(), &file, &["--out", results.to_str().unwrap()]);
    assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{}", err(&output));
    let message = "error: none of the 2 items of judge graded got a score; for 2 of them: closed mass 0.25 is below mass_min 0.5; the \
                   model would write \"The\" (0.75)\n";
    assert_eq!(err(&output), message);
    assert!(!results.join("report.json").exists());
}

#[test]
fn items_without_an_answer_are_skipped_and_counted() {
    let lines = "{\"input\": \"2 + 2?\", \"answer\": \"4\"}\n{\"input\": \"x\", \"answer\": null}\n{\"input\": \"y\", \"answer\": \"\"}\n";
    let (_folder, file) = file(lines);
    let output = judge(&grader(), &file, &["--skip-missing"]);
    assert_eq!(report(&output)["n"], 1);
    let notice = "--skip-missing left out 2 of 3 items: 2 without `answer`; the first is on line 2\n";
    assert_eq!(err(&output), notice);
    let message = err(&judge(&grader(), &file, &[]));
    assert!(
        message.contains("line 2: the answer is null; --skip-missing leaves out such items"),
        "{message}"
    );
}

#[test]
fn the_judged_answer_shadows_a_field_with_its_name() {
    let (_folder, file) = file("{\"question\": \"2 + 2 is 4\", \"answer\": 5}\n");
    let mock = Mock::start(&["tiny"], |prompt, _| {
        scores(&[(if prompt == "2 + 2 is 4" { 5.0 } else { 1.0 }, 1.0)], 1.0)
    });
    let fields = ["--input-field", "question", "--answer-field", "question", "--human-field", "answer"];
    let report = report(&judge(&mock, &file, &[&fields[..], &["--template", "{answer}"]].concat()));
    assert_eq!((value(&report, "score"), value(&report, "mae")), (5.0, 0.0));
}

#[test]
fn two_judges_are_compared_by_their_agreement_with_people() {
    let (folder, file) = file(ANSWERS);
    let careful = grader();
    let kind = Mock::start(&["tiny"], |_, _| scores(&[(4.0, 0.5), (5.0, 0.5)], 1.0));
    let runs = [("careful", &careful), ("kind", &kind)].map(|(name, mock)| {
        let out = folder.path().join(name);
        report(&judge(mock, &file, &["--scale", "1,5", "--out", out.to_str().unwrap()]));
        out
    });
    let [a, b] = runs.each_ref().map(|run| run.to_str().unwrap());
    let compared = ntl_eval(&["compare", a, b]);
    assert_eq!(compared.status.code(), Some(0), "{}", err(&compared));
    let text = out(&compared);
    let rows: Vec<&str> =
        text.lines().filter(|line| line.starts_with("| kappa ") || line.starts_with("| spread ")).collect();
    assert_eq!(rows.len(), 2, "{text}");
    // The kind judge has a standard deviation of 0.5 on every item.
    assert!(rows.iter().any(|row| row.contains("0.5000")), "{text}");
}

#[test]
fn a_custom_rubric_reasons_first_in_a_chat() {
    let contents = r#"{"q": "2 + 2?", "reply": "4", "unit": "kg", "stars": 60}"#;
    let (folder, file) = file(contents);
    let rubric = folder.path().join("rubric.txt");
    fs::write(&rubric, "{unit} from {low} to {high} by {step}:\n{input}\n{reply} \\n\n").unwrap();
    let mock = grader();
    let fields =
        ["--input-field", "q", "--answer-field", "reply", "--human-field", "stars", "--human-scale", "0,100"];
    let words = ["--template-file", rubric.to_str().unwrap(), "--api", "chat", "--system", "You grade."];
    let reasons = ["--after", "Score:", "--rationales", "3", "--seed", "9", "--scale", "0,5,0.5"];
    let report = report(&judge(&mock, &file, &[&fields[..], &words, &reasons].concat()));
    let body = &mock.bodies()[0];
    assert_eq!(body["messages"][1]["content"], "kg from 0 to 5 by 0.5:\n2 + 2?\n4 \\n");
    assert_eq!((&body["number"]["after"], &body["number"]["rationales"]), (&json!("Score:"), &json!(3)));
    assert_eq!(
        (&body["temperature"], &body["seed"], &body["max_tokens"]),
        (&json!(1.0), &json!(9), &json!(512))
    );
    // The human score is 60 of 100, which is 3 of 5. The judge's score is 4.6.
    close(value(&report, "rmse"), 1.6);
    assert_eq!(report["settings"]["human_scale"], json!([0.0, 100.0]));
    assert_eq!(
        report["settings"]["template"],
        "{unit} from {low} to {high} by {step}:\n{input}\n{reply} \\n"
    );
}

#[test]
fn a_prefill_begins_the_answer_of_the_judge() {
    let (_folder, file) = file(ANSWERS);
    let asked = |more: &[&str]| {
        let mock = Mock::start(&["tiny"], |_, _| scores(&[(4.0, 1.0)], 0.9));
        let settings = report(&judge(
            &mock,
            &file,
            &[&["--limit", "1", "--prefill", "Score: "], more].concat(),
        ))["settings"]
            .take();
        assert_eq!(settings["prefill"], "Score: ");
        mock.bodies().remove(0)
    };
    let plain = asked(&[]);
    assert!(plain["prompt"].as_str().unwrap().ends_with("\nWrite only the score.\nScore: "), "{plain}");
    let custom = asked(&["--template", "{answer}: "]);
    assert_eq!(custom["prompt"], "4: Score: ");
    let chat = asked(&["--api", "chat", "--system", "You grade."]);
    let [_, question, begun] = chat["messages"].as_array().unwrap().as_slice() else { panic!("{chat}") };
    assert!(question["content"].as_str().unwrap().ends_with("\nWrite only the score."), "{chat}");
    assert_eq!(*begun, json!({ "role": "assistant", "content": "Score: " }));
    assert_eq!(
        (&chat["continue_final_message"], &chat["add_generation_prompt"]),
        (&json!(true), &json!(false))
    );
    let reasoning = asked(&["--api", "chat", "--after", "Score:"]);
    let question = reasoning["messages"][0]["content"].as_str().unwrap();
    assert!(question.ends_with("Then write \"Score:\" and the score."), "{reasoning}");
}

#[test]
fn invalid_items_are_rejected_with_file_line_and_field() {
    let mock = grader();
    let line = |fields: &str| format!("{{\"input\": \"a\", \"answer\": \"b\"{fields}}}\n");
    let plain = line("");
    let high = line("") + &line(", \"human_score\": 12");
    let (word, pair) =
        (line(", \"human_score\": \"good\""), line(", \"answer_b\": \"c\", \"human_score\": \"left\""));
    let comma = line(", \"human_score\": \"4,5\"");
    for (contents, args, code, complaint) in [
        (
            plain.as_str(),
            &["--pairs"][..],
            1,
            "graded.jsonl line 1: there is no field `answer_b`; it has input, answer",
        ),
        (
            &high,
            &[],
            1,
            "graded.jsonl line 2: field `human_score`: 12 is not on the scale from 1 to 10; --human-scale LOW,HIGH",
        ),
        (&high, &["--human-scale", "0,11"], 1, "12 is not on the scale from 0 to 11\n"),
        (&word, &[], 1, "line 1: field `human_score`: expected a number, found \"good\""),
        (
            &comma,
            &[],
            1,
            "field `human_score`: expected a number, found \"4,5\"; decimals need a point, such as 4.5",
        ),
        (&pair, &["--pairs"], 1, "field `human_score`: expected a number, `a`, `b` or `tie`, found \"left\""),
        (&plain, &["--answer-field", "reply"], 1, "line 1: there is no field `reply`; it has input, answer"),
        (
            &plain,
            &["--template", "{answer} {style}"],
            1,
            "line 1: there is no field `style`; it has input, answer",
        ),
        (
            &plain,
            &["--template", "{answer} {human_score}"],
            2,
            "--template names {human_score}, the score of people",
        ),
        (&plain, &["--template", "{input}"], 2, "--template does not name {answer}"),
        (&plain, &["--template", "{answer}", "--pairs"], 2, "--template does not name {answer_b}"),
        (&plain, &["--rubric", "/nowhere/rubric.txt"], 2, "could not read /nowhere/rubric.txt"),
        (&plain, &["--mode", "text"], 2, "judge reads the distribution of the scores"),
        (&plain, &["--scale", "5,5"], 2, "--scale 5,5 has a single value"),
        (&plain, &["--human-scale", "1,1"], 2, "--human-scale 1,1 has a single value"),
        (&plain, &["--range", "1,5"], 2, "judge grades on --scale: leave out --range"),
        (&plain, &["--trim", "0.1"], 2, "leave out --trim"),
        (&plain, &["--score"], 2, "leave out --score"),
        (&plain, &["--prompt-tokens", "99"], 2, "--prompt-tokens would cut the rubric"),
        (&plain, &["--prefill", " "], 2, "expected a text such as `Score: `"),
        (&plain, &["--rationales", "2"], 2, "--rationales are texts before the number"),
    ] {
        let (_folder, file) = file(contents);
        let output = judge(&mock, &file, args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", err(&output));
        assert!(err(&output).contains(complaint), "{args:?}: {}", err(&output));
    }
    let without = ntl_eval(&["judge", "--endpoint", &mock.url]);
    assert!(err(&without).contains("judge needs --data FILE"), "{}", err(&without));
    assert!(mock.bodies().is_empty());
}
