//! Every task against a scripted server: the requests of each mode, and the scores of the answers.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Mock, Scripted, err, error, ids, ntl_eval, number, out, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory with one data file.
fn data(name: &str, contents: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, contents).unwrap();
    (folder, file)
}

/// Returns the report of a successful run.
fn run(mock: &Mock, task: &str, data: &Path, more: &[&str]) -> Value {
    let data = data.to_str().unwrap();
    let args = [&[task, "--endpoint", &mock.url, "--data", data, "--json", "--quiet"], more].concat();
    let output = ntl_eval(&args);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

fn value(report: &Value, name: &str) -> f64 {
    let value = report["metrics"][name]["value"].as_f64();
    assert!(value.is_some(), "no {name} in {}", report["metrics"]);
    value.unwrap()
}

fn assert_close(report: &Value, name: &str, want: f64) {
    let got = value(report, name);
    assert!((got - want).abs() < 1e-9, "{name}: {got}, want {want}");
}

fn prompts(mock: &Mock) -> Vec<String> {
    let mut prompts: Vec<String> =
        mock.bodies().iter().map(|body| body["prompt"].as_str().unwrap().to_owned()).collect();
    prompts.sort();
    prompts
}

const GSM8K: &str = r#####"{"question": "A?", "answer": "so 3*6=<<3*6=18>>18\n#### 18"}
{"question": "B?", "answer": "#### 1,000"}
{"question": "C?", "answer": "#### 7"}
"#####;

/// The three answers are correct by every rule, by the flexible rule and by value, and only by value.
fn solve(prompt: &str, _: usize) -> Scripted {
    text(match prompt.chars().rev().find(|c| c.is_ascii_uppercase() && *c != 'Q' && *c != 'A') {
        Some('B') => "It is $1000",
        Some('C') => "7.00 apples",
        _ => "3 times 6\n#### 18",
    })
}

#[test]
fn gsm8k_is_read_in_three_ways() {
    let (_folder, file) = data("test.jsonl", GSM8K);
    let mock = Mock::start(&["tiny"], solve);
    let report = run(&mock, "gsm8k", &file, &[]);
    assert_close(&report, "strict", 1.0 / 3.0);
    assert_close(&report, "flexible", 2.0 / 3.0);
    assert_close(&report, "accuracy", 1.0);
    assert_eq!(prompts(&mock), ["A?", "B?", "C?"]);
    let body = &mock.bodies()[0];
    assert_eq!(
        (&body["stop"], &body["max_tokens"]),
        (&json!(["Question:", "</s>", "<|im_end|>"]), &json!(256))
    );
}

#[test]
fn gsm8k_shots_are_the_solved_questions_next_to_the_data() {
    let (folder, file) = data("test.jsonl", GSM8K);
    let train =
        "{\"question\": \"Q0\", \"answer\": \"#### 0\"}\n{\"question\": \"Q1\", \"answer\": \"#### 1\"}\n";
    fs::write(folder.path().join("train.jsonl"), train).unwrap();
    let mock = Mock::start(&["tiny"], |_, _| text("#### 18"));
    let report = run(&mock, "gsm8k", &file, &["--shots", "2", "--limit", "1"]);
    assert_eq!(report["settings"]["shots"], 2);
    let prompt = mock.bodies()[0]["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("Question: Q1\nAnswer: #### 1\n\n"), "{prompt}");
    assert!(prompt.ends_with("\n\nQuestion: A?\nAnswer:"), "{prompt}");
}

#[test]
fn gsm8k_numbers_are_requested_after_the_solution() {
    let (_folder, file) = data("test.jsonl", GSM8K);
    let mock = Mock::start(&["tiny"], |_, _| number(18.2, 18.0, 18.0));
    let report = run(&mock, "gsm8k", &file, &["--mode", "regress"]);
    assert_close(&report, "accuracy", 1.0 / 3.0);
    assert!(report["metrics"]["strict"].is_null());
    let body = &mock.bodies()[0];
    assert_eq!((&body["number"]["after"], &body["max_tokens"]), (&json!("#### "), &json!(256)));
}

#[test]
fn jokes_are_compared_with_constant_answers() {
    let (_folder, file) = data("test.tsv", "0\tone\n1\ttwo\n5\tthree\n2\tfour\n");
    let mock = Mock::start(&["tiny"], |prompt, _| {
        let value = if prompt == "three" { 4.0 } else { 1.0 };
        number(value, value, value)
    });
    let report = run(&mock, "rjokes", &file, &["--mode", "regress"]);
    assert_close(&report, "rmse", 0.75_f64.sqrt());
    assert_eq!(report["baselines"]["constant_mean"]["value"], 2.0);
    let best = report["baselines"]["constant_mean"]["rmse"]["value"].as_f64().unwrap();
    assert!((best - 3.5_f64.sqrt()).abs() < 1e-12);
    for name in ["pearson", "spearman", "pinball", "crps", "coverage"] {
        assert!(value(&report, name).is_finite());
    }
    assert_eq!(prompts(&mock), ["four", "one", "three", "two"]);
}

#[test]
fn mathematics_is_scored_per_module_and_split() {
    let (folder, _) = data("interpolate/arithmetic__div.txt", "7/2\n7/2\n8/2\n4\n");
    fs::write(folder.path().join("interpolate/comparison__kth.txt"), "which?\na\n").unwrap();
    fs::create_dir(folder.path().join("extrapolate")).unwrap();
    fs::write(folder.path().join("extrapolate/arithmetic__div.txt"), "9/2\n9/2\n").unwrap();
    let mock = Mock::start(&["tiny"], |prompt, _| text(if prompt == "8/2" { "5" } else { "7/2" }));
    let args = ["mathematics", "--endpoint", &mock.url, "--data", folder.path().to_str().unwrap(), "--json"];
    let output = ntl_eval(&args);
    let reports: Vec<Value> = out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(reports.len(), 2, "{}", err(&output));
    assert_eq!(reports[0]["split"], "interpolate");
    assert_close(&reports[0], "accuracy", 1.0 / 3.0);
    let modules = &reports[0]["modules"];
    assert_close(&modules["arithmetic__div"], "accuracy", 0.5);
    assert_close(&modules["arithmetic__div"], "mae", 0.5);
    assert_eq!(modules["comparison__kth"]["metrics"]["mae"], Value::Null);
    let one =
        run(&mock, "mathematics", folder.path(), &["--split", "extrapolate", "--module", "arithmetic__div"]);
    assert_eq!((&one["n"], &one["settings"]["modules"]), (&json!(1), &json!(["arithmetic__div"])));
}

#[test]
fn multirc_answers_are_compared_as_texts() {
    let (_folder, file) = data(
        "val_clean.jsonl",
        "{\"question\": \"P.\\n\\nQuestion: Who?\", \"answer\": \"The cat | A dog\"}\n{\"question\": \"Why?\", \"answer\": \"because it ran away from home\"}\n",
    );
    let mock = Mock::start(&["tiny"], |prompt, _| {
        text(if prompt == "Why?" { "it ran away from" } else { "cat | dog" })
    });
    let report = run(&mock, "multirc", &file, &[]);
    assert_close(&report, "exact", 0.5);
    assert_close(&report, "f1", (1.0 + 0.8) / 2.0);
    // All 7 words are correct, 4 of 5 pairs, 2 of 3 triples, and the only run of four; the truth has 11
    // words.
    let bleu = (1.0_f64 * (4.0 / 5.0) * (2.0 / 3.0) * 1.0).powf(0.25) * (1.0_f64 - 11.0 / 7.0).exp();
    assert_close(&report, "bleu", 100.0 * bleu);
    assert_close(&report, "rouge1", (2.0 / 3.0 + 0.8) / 2.0);
    assert_close(&report, "rouge2", (0.0 + 0.75) / 2.0);
    assert_close(&report, "rougeL", (2.0 / 3.0 + 0.8) / 2.0);
    assert!(report["baselines"].is_null() && report["metrics"]["mae"].is_null());
    assert_eq!((&report["n_valid"], &report["metrics"]["accuracy"]["value"]), (&json!(2), &json!(0.5)));
}

#[test]
fn multiplication_is_a_grid_of_relative_errors() {
    let mock = Mock::start(&["tiny"], |prompt, _| {
        let factors: Vec<f64> =
            prompt.split(|c: char| !c.is_ascii_digit()).filter_map(|text| text.parse().ok()).collect();
        text(&(factors[0] * factors[1] * 2.0).to_string())
    });
    let args =
        ["multiplication", "--endpoint", &mock.url, "--split", "extrapolate", "--per-cell", "2", "--json"];
    let report: Value = serde_json::from_str(&out(&ntl_eval(&args))).unwrap();
    assert_eq!((&report["n"], report["modules"].as_object().unwrap().len()), (&json!(22), 11));
    assert_close(&report, "mape", 1.0);
    assert_close(&report["modules"]["6x1"], "mape", 1.0);
}

/// Returns the text with its token ids, as beam search does.
fn beam(text: &str, finish: &str) -> Scripted {
    let choice = json!({ "index": 0, "text": text, "finish_reason": finish, "token_ids": ids(text) });
    Scripted(200, vec![], json!({ "choices": [choice] }).to_string())
}

#[test]
fn paper_mode_decodes_xval_greedily_and_reports_it() {
    let (_folder, file) = data("pairs.txt", "a\n12\nb\n7\n");
    let mock = Mock::with_tokens(&["xval"], |_, _| beam("12", "stop"));
    let report = run(&mock, "arithmetic", &file, &["--mode", "paper", "--split", "interpolate"]);
    let body = &mock.bodies()[0];
    let asked =
        (&body["max_tokens"], &body["temperature"], &body["paper_decoding"], &body["use_beam_search"]);
    assert_eq!(asked, (&json!(12), &json!(0.0), &json!(true), &Value::Null));
    let beams = report["quirks"].as_array().unwrap().iter().find(|quirk| quirk["name"] == "beams").unwrap();
    assert_eq!(beams["paper"], json!(1.0));
}

#[test]
fn paper_mode_keeps_whole_labels_of_models_without_an_end_of_sequence() {
    let (_folder, file) = data("pairs.txt", "a\n-142\nb\n1234\n");
    let mock = Mock::with_tokens(&["decoder"], |prompt, _| {
        let text = if prompt == "a" { "-142" } else { "1234" };
        let ids: Vec<u32> = text.chars().map(u32::from).collect();
        let choice = json!({ "index": 0, "text": text, "finish_reason": "stop", "token_ids": ids });
        Scripted(200, vec![], json!({ "choices": [choice] }).to_string())
    });
    let report = run(&mock, "arithmetic", &file, &["--mode", "paper", "--split", "interpolate"]);
    for name in ["accuracy", "token_accuracy", "exact"] {
        assert_close(&report, name, 1.0);
    }
    // Four tokens, the end of sequence and nine more.
    assert_eq!(mock.bodies()[0]["max_tokens"], json!(14));
}

#[test]
fn paper_mode_requests_and_scores_like_the_paper_s_code() {
    let (_folder, file) = data("pairs.txt", "a\n1234\nb\n1000000\nc\n7\nd\n8\n");
    let mock = Mock::with_tokens(&["tiny"], |prompt, _| match prompt {
        "a" => beam("1,234", "stop"),
        "b" => beam("1000009", "stop"),
        "c" => beam("7", "stop"),
        _ => beam("none at all, no", "length"),
    });
    let report = run(&mock, "arithmetic", &file, &["--mode", "paper", "--split", "interpolate"]);
    let body = &mock.bodies()[0];
    // The longest label is 1000000 and the end of sequence: 8 tokens.
    assert_eq!(
        (&body["max_tokens"], &body["use_beam_search"], &body["beam_width"], &body["return_token_ids"]),
        (&json!(17), &json!(true), &json!(4), &json!(true))
    );
    assert!(body["temperature"].is_null() && body["stop"].is_null() && body["paper_decoding"].is_null());
    assert_close(&report, "accuracy", 0.5);
    assert_close(&report, "unparsed", 0.25);
    assert_close(&report, "invalid", 0.25);
    assert_close(&report, "no_number", 0.25);
    assert_close(&report, "mae", (1000.0 + 9.0) / 3.0);
    let quirk = |name: &str| {
        let quirks = report["quirks"].as_array().unwrap().iter();
        quirks.clone().find(|quirk| quirk["name"] == name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    assert_eq!((&quirk("accuracy")["paper"], &quirk("accuracy")["sane"]), (&json!(0.5), &json!(0.5)));
    assert_eq!((&quirk("unparsed")["paper"], &quirk("unparsed")["sane"]), (&json!(0.25), &json!(0.25)));
    assert_eq!(quirk("mae")["sane"], json!(3.0));
    assert_eq!((&quirk("cut")["paper"], &quirk("clipped")["paper"]), (&json!(1.0), &json!(0.0)));
    // Correct tokens: 1 of 5 (1,234), 7 of 8 (1000009), 2 of 2 (7) and 0 of 2 (the last answer). The 40
    // padding positions are correct, except those that the last text fills.
    let right = 1 + 7 + 2 + (10 + 10 + 10 + 2);
    assert_close(&report, "token_accuracy", f64::from(right) / f64::from(5 + 8 + 2 + 2 + 40));
    assert!((quirk("token_accuracy")["sane"].as_f64().unwrap() - 10.0 / 17.0).abs() < 1e-9);
    let routes: Vec<&str> = mock.others().iter().map(|(route, _)| *route).collect();
    // Requests for four labels, and for one text with and without special tokens.
    assert_eq!(routes.iter().filter(|route| **route == "tokenize").count(), 6);
}

#[test]
fn paper_mode_truncates_long_questions_like_its_tokenizer() {
    let long = "x".repeat(600);
    let (_folder, file) = data("pairs.txt", &format!("{long}\n5\n"));
    let mock = Mock::with_tokens(&["tiny"], |_, _| beam("5", "stop"));
    run(&mock, "arithmetic", &file, &["--mode", "paper", "--split", "interpolate"]);
    let sent = mock.bodies()[0]["prompt"].as_array().unwrap().clone();
    assert_eq!((sent.len(), &sent[510], &sent[511]), (512, &json!(u32::from('x')), &json!(1)));
}

#[test]
fn prompts_are_truncated_in_other_modes_on_request() {
    let (_folder, file) = data("pairs.txt", "abcdef\n5\nabc\n6\n");
    let mock = Mock::with_tokens(&["tiny"], |_, _| text("5"));
    let flags = ["--prompt-tokens", "4", "--split", "interpolate", "--concurrency", "1"];
    let report = run(&mock, "arithmetic", &file, &flags);
    let sent: Vec<Value> = mock.bodies().iter().map(|body| body["prompt"].clone()).collect();
    // The mock does not report a side: vLLM's default is left.
    assert_eq!(sent, [json!([100, 101, 102, 1]), json!("abc")]);
    assert_eq!(report["settings"]["prompt_tokens"], 4);
    assert_eq!(report["settings"]["truncation_side"], "left");
}

#[test]
fn prompts_are_cut_on_the_side_that_the_server_reports() {
    let (_folder, file) = data("pairs.txt", "abcdef\n5\n");
    let flags = ["--prompt-tokens", "4", "--split", "interpolate"];
    for (model, side, want) in [("right", "right", [97, 98, 99, 1]), ("left", "left", [100, 101, 102, 1])] {
        let mock = Mock::with_tokens(&[model], |_, _| text("5"));
        let report = run(&mock, "arithmetic", &file, &flags);
        assert_eq!(mock.bodies()[0]["prompt"], json!(want));
        assert_eq!(report["settings"]["truncation_side"], side);
    }
}

#[test]
fn an_item_that_cannot_be_tokenized_fails_and_is_not_requested() {
    let long = format!("HUGE {}", "x".repeat(600));
    let (data_folder, _) = data("interpolate/words.txt", &format!("a\nHUGE label\nb\n5\n{long}\n5\n"));
    let all = ["--split", "interpolate", "--json", "--quiet"];
    for (flags, refused, asked) in [
        (&["--mode", "paper"][..], vec!["label", "prompt"], vec!["b"]),
        (&["--prompt-tokens", "4"], vec!["prompt"], vec!["a", "b"]),
    ] {
        let mock = Mock::with_tokens(&["tiny"], |_, _| beam("5", "stop"));
        let out_folder = tempfile::tempdir().unwrap();
        let args = ["mathematics", "--endpoint", &mock.url, "--data", data_folder.path().to_str().unwrap()];
        let args = [&args, &all[..], flags, &["--out", out_folder.path().to_str().unwrap()]].concat();
        let output = ntl_eval(&args);
        let report: Value = serde_json::from_str(&out(&output)).unwrap();
        assert_eq!(
            (output.status.code(), &report["failed"], prompts(&mock)),
            (Some(4), &json!(refused.len()), asked.into_iter().map(str::to_owned).collect()),
            "{}",
            err(&output)
        );
        let samples = fs::read_to_string(out_folder.path().join("samples.jsonl")).unwrap();
        for what in refused {
            let said = format!("its {what} could not be tokenized: ");
            assert!(samples.contains(&said) && samples.contains("too large"), "{samples}");
        }
    }
}

#[test]
fn true_answers_are_scored_on_request() {
    let (_folder, file) = data("pairs.txt", "a\n12\nb\n13\n");
    let mock =
        Mock::with_tokens(&["tiny"], |prompt, _| beam(if prompt == "a" { "12" } else { "14" }, "stop"));
    let report = run(&mock, "arithmetic", &file, &["--score", "--split", "interpolate"]);
    assert_close(&report, "perplexity", 0.5_f64.exp());
    assert_close(&report, "token_accuracy", 5.0 / 6.0);
    assert_close(&report, "ce", 0.5);
    assert_close(&report, "ntl-was", 0.25);
    assert!(report["metrics"]["ntl-mse"].is_null());
    let (route, body) =
        mock.others().into_iter().find(|(_, body)| body["items"][0]["prompt"] == "a").unwrap();
    assert_eq!((route, &body["items"][0]["target"], &body["model"]), ("score", &json!("12"), &json!("tiny")));
}

#[test]
fn a_number_is_also_scored_and_requested_without_tokens() {
    let (_folder, file) = data("pairs.txt", "a\n12\n");
    let mock = Mock::with_tokens(&["tiny"], |_, _| number(12.0, 12.0, 12.0));
    let report = run(&mock, "arithmetic", &file, &["--score", "--mode", "regress", "--split", "interpolate"]);
    assert_close(&report, "ce", 0.5);
    // Servers reject token ids together with `number`.
    assert!(mock.bodies()[0]["return_token_ids"].is_null());
}

#[test]
fn true_answers_that_are_not_scored_are_counted_with_the_reason() {
    let (data_folder, _) = data("interpolate/words.txt", "a\nHUGE label\nb\n5\n");
    let mock = Mock::with_tokens(&["tiny"], |_, _| text("5"));
    let out_folder = tempfile::tempdir().unwrap();
    let args =
        ["mathematics", "--endpoint", &mock.url, "--data", data_folder.path().to_str().unwrap(), "--score"];
    let more = ["--split", "interpolate", "--quiet", "--out", out_folder.path().to_str().unwrap()];
    let output = ntl_eval(&[&args[..], &more].concat());
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    let said = out(&output);
    assert!(said.contains("no likelihood of the true answer for 1 of 2 items, the first: "), "{said}");
    let samples = fs::read_to_string(out_folder.path().join("samples.jsonl")).unwrap();
    assert_eq!(samples.matches("\"score_error\"").count(), 1, "{samples}");
    assert!(samples.contains("too large"), "{samples}");
}

#[test]
fn a_true_answer_is_scored_after_the_truncated_prompt() {
    let (_folder, file) = data("pairs.txt", "abcdef\n5\nabc\n6\n");
    let flags = ["--score", "--prompt-tokens", "4", "--split", "interpolate", "--concurrency", "1"];
    let item = |prompt: Value, target: Value| json!({ "prompt": prompt, "target": target });
    // The answer of a decoder-only model is a separate word and has the tokens that follow the whole prompt.
    for (model, want) in [
        ("tiny", [item(json!([100, 101, 102, 1]), json!("5")), item(json!("abc"), json!("6"))]),
        ("decoder", [item(json!([2, 100, 101, 102]), json!([32, 53])), item(json!("abc"), json!(" 6"))]),
    ] {
        let mock = Mock::with_tokens(&[model], |_, _| text("5"));
        run(&mock, "arithmetic", &file, &flags);
        let scored = mock.others().into_iter().filter(|(route, _)| *route == "score");
        let scored: Vec<Value> = scored.map(|(_, body)| body["items"][0].clone()).collect();
        assert_eq!(scored, want, "{model}");
    }
}

#[test]
fn a_route_that_the_server_lacks_is_one_clear_error() {
    let (_folder, file) = data("pairs.txt", "a\n12\nb\n13\n");
    let mock = Mock::start(&["tiny"], |_, _| text("12"));
    let file = file.to_str().unwrap();
    for (flags, complaint) in [
        (["--mode", "paper"], "no /tokenize and /detokenize, which paper mode and --prompt-tokens need"),
        (["--score", "--quiet"], "no /v1/score, which --score needs"),
    ] {
        let args = ["arithmetic", "--endpoint", &mock.url, "--data", file, "--split", "interpolate"];
        let output = ntl_eval(&[&args[..], &flags].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(err(&output).contains(complaint), "{}", err(&output));
    }
}

#[test]
fn a_server_without_beam_search_cannot_run_paper_mode() {
    let (_folder, file) = data("pairs.txt", "a\n12\nb\n13\n");
    let mock = Mock::with_tokens(&["tiny"], |_, _| error(400, "`use_beam_search` is not supported"));
    let args = ["arithmetic", "--endpoint", &mock.url, "--data", file.to_str().unwrap(), "--mode", "paper"];
    let output = ntl_eval(&[&args[..], &["--split", "interpolate"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("no beam search, which paper mode needs"), "{}", err(&output));
}

#[test]
fn a_server_that_rejects_numbers_ends_the_run_with_its_message() {
    let (_folder, file) = data("pairs.txt", "a\n12\nb\n13\n");
    let mock = Mock::start(&["tiny"], |_, _| error(400, "Unrecognized request argument supplied: number"));
    let args = ["arithmetic", "--endpoint", &mock.url, "--data", file.to_str().unwrap(), "--mode", "regress"];
    let output = ntl_eval(&[&args[..], &["--split", "interpolate"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(message.contains("no number support: it says: Unrecognized request argument"), "{message}");
}

#[test]
fn a_chat_server_gets_messages() {
    let (_folder, file) = data("pairs.txt", "a\n12\n");
    let mock = Mock::start(&["tiny"], |_, _| {
        let message = json!({ "role": "assistant", "content": "It is 12." });
        Scripted(200, vec![], json!({ "choices": [{ "index": 0, "message": message }] }).to_string())
    });
    let report = run(&mock, "arithmetic", &file, &["--api", "chat", "--split", "interpolate"]);
    assert_close(&report, "accuracy", 1.0);
    assert_eq!(mock.bodies()[0]["messages"], json!([{ "role": "user", "content": "a" }]));
}

#[test]
fn a_worse_metric_misses_the_baseline() {
    let (folder, file) = data("pairs.txt", "a\n1\nb\n2\nc\n3\nd\n4\ne\n5\nf\n6\n");
    let good = Mock::start(&["tiny"], |prompt, _| text(&(prompt.as_bytes()[0] - b'a' + 1).to_string()));
    let out = folder.path().join("good");
    run(&good, "arithmetic", &file, &["--split", "interpolate", "--out", out.to_str().unwrap()]);
    let bad = Mock::start(&["tiny"], |_, _| text("99"));
    let args = ["arithmetic", "--split", "interpolate", "--data", file.to_str().unwrap(), "--quiet"];
    let gate = ["--baseline", out.to_str().unwrap(), "--endpoint"];
    let output = ntl_eval(&[&args[..], &gate, &[&bad.url]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(err(&output).contains("accuracy is 0, worse than the baseline's 1\n"), "{}", err(&output));
    assert_eq!(ntl_eval(&[&args[..], &gate, &[&good.url]].concat()).status.code(), Some(0));
    let before = good.bodies().len();
    let output = ntl_eval(&[&args[..], &["--limit", "4"], &gate, &[&good.url]].concat());
    assert_eq!((output.status.code(), good.bodies().len()), (Some(1), before));
    assert!(err(&output).contains("it covers other items (data "), "{}", err(&output));
}

#[test]
fn missing_data_is_reported_with_the_expected_files() {
    let mock = Mock::start(&["tiny"], solve);
    let folder = tempfile::tempdir().unwrap();
    let output = common::command(&["rjokes", "--endpoint", &mock.url])
        .env("NTL_EVAL_DATA_CACHE", folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(
        message.contains("run `ntl-eval data rjokes`, put test.tsv.gz or test.tsv or test.jsonl there"),
        "{message}"
    );
    assert!(message.contains(folder.path().join("rjokes").to_str().unwrap()), "{message}");
}

#[test]
fn a_limit_selects_a_seeded_sample_of_each_module() {
    let folder = tempfile::tempdir().unwrap();
    for module in ["arithmetic__mul", "numbers__gcd"] {
        let lines: String = (0..200).map(|index| format!("{module} {index}\n{index}\n")).collect();
        fs::write(folder.path().join(format!("{module}.txt")), lines).unwrap();
    }
    let mock = Mock::start(&["tiny"], |_, _| text("0"));
    let asked = |seed: &str| -> Vec<String> {
        let before = mock.bodies().len();
        let flags = ["--limit", "20", "--seed", seed, "--concurrency", "1"];
        run(&mock, "mathematics", folder.path(), &flags);
        let bodies = mock.bodies().split_off(before);
        bodies.iter().map(|body| body["prompt"].as_str().unwrap().to_owned()).collect()
    };
    let first = asked("1");
    for module in ["arithmetic__mul ", "numbers__gcd "] {
        let places: Vec<u32> =
            first.iter().filter_map(|prompt| prompt.strip_prefix(module)?.parse().ok()).collect();
        assert_eq!(places.len(), 20, "{module}");
        assert!(places.is_sorted() && places[19] > 100, "{places:?}");
    }
    assert_eq!(asked("1"), first);
    assert_ne!(asked("2"), first);
}
