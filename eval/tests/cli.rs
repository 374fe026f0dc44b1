//! The binary against a scripted server: its requests, its reports and its exit codes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::{Mock, Scripted, command, err, error, ntl_eval, number, out, text};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Four questions with the answers 2, 4, 6 and 8.
struct Fixture {
    folder: TempDir,
    file: PathBuf,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pairs.txt");
    fs::write(&file, "1 + 1\n2\n2 + 2\n4\n3 + 3\n6\n4 + 4\n8\n").unwrap();
    Fixture { folder, file }
}

impl Fixture {
    /// Runs the interpolate split on the four questions.
    fn run(&self, mock: &Mock, more: &[&str]) -> Output {
        let file = self.file.to_str().unwrap();
        let mut args = vec!["arithmetic", "--endpoint", &mock.url, "--split", "interpolate", "--data", file];
        args.extend(more);
        ntl_eval(&args)
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }
}

fn report(output: &Output) -> Value {
    serde_json::from_str(&out(output)).unwrap()
}

fn lines(file: &Path) -> Vec<Value> {
    fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Rounds floats to six decimals, because the last bits of a logarithm may differ between machines.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!((number.as_f64().unwrap() * 1e6).round() / 1e6),
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, rounded(value))).collect(),
        other => other,
    }
}

/// Replies of a model that is correct twice, off by one once, and gives no number once.
fn mixed(prompt: &str, _: usize) -> Scripted {
    text(match prompt {
        "1 + 1" => " 2",
        "2 + 2" => "It is 4.",
        "3 + 3" => "- 1 + 8, so 7",
        _ => "I cannot say",
    })
}

#[test]
fn a_report_holds_the_agreed_fields() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let dir = fixture.out();
    let output = fixture.run(&mock, &["--out", dir.to_str().unwrap(), "--json", "--quiet"]);
    assert_eq!((output.status.code(), err(&output)), (Some(0), String::new()));
    let mut report = report(&output);
    assert_eq!(
        report,
        serde_json::from_str::<Value>(&fs::read_to_string(dir.join("report.json")).unwrap()).unwrap()
    );
    assert!(report["seconds"].as_f64().is_some() && report["started"].as_str().is_some());
    report["seconds"] = json!("[seconds]");
    report["started"] = json!("[time]");
    report["endpoint"] = json!("[url]");
    report["settings"]["data"] = json!("[file]");
    assert_eq!(report["settings"]["exact_tolerance"].take(), json!(1e-9));
    report["versions"]["ntl-eval"] = json!("[version]");
    report.sort_all_objects();
    insta::assert_json_snapshot!("report", rounded(report));
    let samples = lines(&dir.join("samples.jsonl"));
    assert_eq!(samples.len(), 4);
    assert_eq!(samples[3]["resps"], json!([["I cannot say"]]));
    assert_eq!(samples[2]["filtered_resps"], json!(["7"]));
}

#[test]
fn text_mode_decodes_greedily_and_sends_the_key() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let output = fixture.run(&mock, &["--limit", "1", "--max-tokens", "9", "--api-key", "secret"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let body = json!({ "model": "tiny", "prompt": "1 + 1", "max_tokens": 9, "temperature": 0.0 });
    assert_eq!(mock.bodies(), [body]);
    assert_eq!(mock.keys(), [Some("Bearer secret".to_owned())]);
    assert!(!out(&output).contains("secret") && !err(&output).contains("secret"));
}

#[test]
fn regress_mode_uses_the_best_estimate_for_each_metric() {
    let mock =
        Mock::start(
            &["tiny"],
            |prompt, _| if prompt == "4 + 4" { without_value() } else { number(3.0, 5.0, 6.0) },
        );
    let output = fixture().run(&mock, &["--mode", "regress", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let report = report(&output);
    let metric = |name: &str| report["metrics"][name]["value"].as_f64().unwrap();
    assert!((metric("accuracy") - 0.25).abs() < 1e-9);
    assert!((metric("mse") - 11.0 / 3.0).abs() < 1e-9);
    assert!((metric("mae") - 5.0 / 3.0).abs() < 1e-9);
    assert!((metric("unparsed") - 0.25).abs() < 1e-9);
    assert_eq!(report["mass_closed"], json!(0.75));
    assert_eq!(report["settings"]["estimates"]["rmse"], "trimmed_mean");
    assert_eq!(
        mock.bodies()[0]["number"],
        json!({ "objective": "mean", "quantiles": [0.05, 0.25, 0.5, 0.75, 0.95], "support": 1000 })
    );
    // The truths are 2, 4 and 6, and the interval is [2, 7]. The last truth equals the mode.
    assert!((metric("coverage") - 1.0).abs() < 1e-9);
    let calibration = &report["calibration"];
    assert_eq!(calibration["coverage"][0], json!({ "q": 0.05, "covered": 1, "n": 3 }));
    let counted: u64 =
        calibration["pit"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!((calibration["pit"].as_array().unwrap().len(), counted), (20, 3));
}

/// A number that was rejected for lack of mass.
fn without_value() -> Scripted {
    let Scripted(status, headers, body) = number(1.0, 1.0, 1.0);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body["choices"][0]["number"]["value"] = Value::Null;
    Scripted(status, headers, body.to_string())
}

#[test]
fn a_server_without_numbers_ends_a_regress_run() {
    let mock = Mock::start(&["tiny"], mixed);
    let output = fixture().run(&mock, &["--mode", "regress", "--quiet"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("no number support"), "{}", err(&output));
}

#[test]
fn a_request_to_a_busy_server_is_retried_after_retry_after() {
    let mock = Mock::start(&["tiny"], |prompt, before| match before {
        0 => Scripted(429, vec![("retry-after", "0")], "{}".to_owned()),
        1 => Scripted(503, vec![("retry-after", "0")], "{}".to_owned()),
        _ => mixed(prompt, before),
    });
    let output = fixture().run(&mock, &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!((report(&output)["failed"].clone(), mock.bodies().len()), (json!(0), 12));
}

#[test]
fn failed_items_are_counted_and_the_run_continues() {
    let mock = Mock::start(&["tiny"], |prompt, before| match prompt {
        "1 + 1" => error(500, "engine dead"),
        "2 + 2" => Scripted(200, vec![], "garbage".to_owned()),
        _ => mixed(prompt, before),
    });
    let fixture = fixture();
    let dir = fixture.out();
    let output = fixture.run(&mock, &["--json", "--quiet", "--out", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(4));
    assert!(
        err(&output).starts_with("2 of 4 items failed, the first with: endpoint http"),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("500 Internal Server Error: engine dead"), "{}", err(&output));
    let report = report(&output);
    assert_eq!((&report["n"], &report["failed"], &report["n_valid"]), (&json!(4), &json!(2), &json!(1)));
    // Both answers are incorrect, and one of them has a number.
    assert_eq!(
        (&report["metrics"]["accuracy"]["value"], &report["metrics"]["accuracy"]["n"]),
        (&json!(0.0), &json!(2))
    );
    assert_eq!((&report["metrics"]["unparsed"]["n"], &report["metrics"]["mae"]["n"]), (&json!(2), &json!(1)));
    assert_eq!(report["baselines"]["constant_mean"]["accuracy"]["n"], 2);
    // The status 500 is retried twice, as in OpenAI's SDK.
    assert_eq!(mock.bodies().len(), 6);
    let samples = lines(&dir.join("samples.jsonl"));
    assert!(samples[0]["error"].as_str().unwrap().contains("engine dead"));
    assert_eq!((&samples[0]["resps"], &samples[0]["accuracy"]), (&json!([]), &json!(null)));
}

#[test]
fn a_missed_gate_determines_the_exit_code() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let held = fixture.run(&mock, &["--fail-under", "accuracy=0.5", "--fail-over", "mae=0.4", "--quiet"]);
    assert_eq!((held.status.code(), err(&held)), (Some(0), String::new()));
    let missed = fixture.run(&mock, &["--fail-under", "accuracy=0.9", "--fail-over", "mae=0.1", "--quiet"]);
    assert_eq!(missed.status.code(), Some(3));
    insta::assert_snapshot!(err(&missed), @r#"
    gate missed on arithmetic interpolate: accuracy is 0.5, below 0.9
    gate missed on arithmetic interpolate: mae is 0.3333333333333333, above 0.1
    "#);
}

#[test]
fn the_junit_file_has_a_case_for_each_gate_and_no_old_result() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let file = fixture.out().with_extension("xml");
    let junit = ["--quiet", "--junit", file.to_str().unwrap()];
    let gates = ["--fail-under", "accuracy=0.9", "--fail-over", "mae=9"];
    assert_eq!(fixture.run(&mock, &[&junit[..], &gates].concat()).status.code(), Some(3));
    let xml = fs::read_to_string(&file).unwrap();
    assert!(
        xml.contains("<testsuite name=\"arithmetic interpolate\" tests=\"3\" failures=\"1\" errors=\"0\""),
        "{xml}"
    );
    assert!(
        xml.contains("name=\"accuracy is at least 0.9\"><failure message=\"accuracy is 0.5, below 0.9\"/>"),
        "{xml}"
    );
    assert!(xml.contains("name=\"mae is at most 9\"/>"), "{xml}");
    let broken = Mock::start(&["tiny"], |_, _| error(400, "no"));
    assert_eq!(fixture.run(&broken, &junit).status.code(), Some(1));
    let xml = fs::read_to_string(&file).unwrap();
    assert!(
        xml.contains("errors=\"1\"") && xml.contains("all 4 items of arithmetic interpolate failed"),
        "{xml}"
    );
    assert_eq!(fixture.run(&mock, &[&junit[..], &["--model", "none"]].concat()).status.code(), Some(1));
    let xml = fs::read_to_string(&file).unwrap();
    assert!(xml.contains("<error message=") && xml.contains("has no model `none`"), "{xml}");
    let both = ntl_eval(&[
        "compare",
        "--models",
        "a,b",
        "--endpoint",
        &mock.url,
        "arithmetic",
        "--endpoint",
        &mock.url,
        "--out",
        "x",
        "--junit",
        "y",
    ]);
    assert_eq!(
        (both.status.code(), err(&both).contains("--junit has the gates of one run")),
        (Some(2), true)
    );
}

#[test]
fn limits_of_a_number_are_sent_only_if_they_are_given() {
    let mock = Mock::start(&["tiny"], |_, _| number(3.0, 5.0, 6.0));
    let limits = ["--nodes-max", "64", "--precision", "0", "--time-max", "2.5", "--trim", "0"];
    let output = fixture().run(&mock, &[&["--mode", "regress", "--limit", "1"][..], &limits].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let number = &mock.bodies()[0]["number"];
    let sent = ["nodes_max", "precision", "time_max"].map(|name| number[name].clone());
    assert_eq!(sent, [json!(64), json!(0.0), json!(2.5)]);
    for (flag, value) in [
        ("--nodes-max", "0"),
        ("--nodes-max", "65537"),
        ("--precision", "-1"),
        ("--time-max", "0"),
        ("--time-max", "inf"),
    ] {
        let output = fixture().run(&mock, &["--mode", "regress", &format!("{flag}={value}")]);
        assert_eq!(output.status.code(), Some(2), "{flag} {value}");
    }
    assert!(
        err(&fixture().run(&mock, &["--time-max", "1"]))
            .contains("--time-max and --rationales need --mode regress")
    );
}

#[test]
fn bad_usage_exits_with_2_before_anything_is_sent() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let url = mock.url.as_str();
    let file = fixture.file.to_str().unwrap();
    for (args, complaint) in [
        (vec!["arithmetic"], "--endpoint"),
        (vec!["arithmetic", "--endpoint", "localhost:1"], "http://127.0.0.1:8000"),
        (vec!["arithmetic", "--endpoint", url, "--data", file], "is one file"),
        (vec!["arithmetic", "--endpoint", url, "--mode", "guess"], "guess"),
        (vec!["multirc", "--endpoint", url, "--mode", "regress"], "has no meaning"),
        (vec!["arithmetic", "--endpoint", url, "--resume"], "--out"),
        (vec!["arithmetic", "--endpoint", url, "--mode", "paper", "--api", "chat"], "no --api chat"),
        (vec!["arithmetic", "--endpoint", url, "--api", "chat", "--prompt-tokens", "9"], "no --api chat"),
        (
            vec!["arithmetic", "--endpoint", url, "--mode", "paper", "--prompt-tokens", "9"],
            "first 512 tokens",
        ),
        (vec!["data", "speed"], "no task `speed`"),
        (vec!["arithmetic", "--endpoint", url, "--fail-under", "speed=1"], "no metric `speed`"),
        (vec!["arithmetic", "--endpoint", url, "--limit", "0"], "'--limit <N>': must be at least 1"),
        (vec!["nonsense"], "nonsense"),
        (vec![], "Usage"),
    ] {
        let output = ntl_eval(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(err(&output).contains(complaint), "{args:?}: {}", err(&output));
    }
    assert!(mock.bodies().is_empty());
}

#[test]
fn an_endpoint_that_is_down_is_one_clear_error() {
    // The port is free again once the listener is dropped.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = ntl_eval(&["arithmetic", "--endpoint", &format!("http://{address}"), "--limit", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(
        message.starts_with(&format!("error: endpoint http://{address}/v1 is not reachable: ")),
        "{message}"
    );
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn invalid_data_is_reported_with_its_line() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    fs::write(&fixture.file, "1 + 1\ntwo\n").unwrap();
    let output = fixture.run(&mock, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).ends_with("line 2: the answer \"two\" is not a number\n"), "{}", err(&output));
}

#[test]
fn the_model_is_named_or_the_only_one() {
    let mock = Mock::start(&["small", "large"], mixed);
    let fixture = fixture();
    let open = fixture.run(&mock, &[]);
    assert_eq!(open.status.code(), Some(1));
    assert!(err(&open).contains("has the models small, large; name one with --model"), "{}", err(&open));
    let unknown = fixture.run(&mock, &["--model", "huge"]);
    assert!(
        err(&unknown).contains("has no model `huge`; it has the models small, large"),
        "{}",
        err(&unknown)
    );
    let named = fixture.run(&mock, &["--model", "large", "--json"]);
    assert_eq!(report(&named)["model"], "large");
    assert!(mock.bodies().iter().all(|body| body["model"] == "large"));
}

#[test]
fn requests_are_spread_over_all_endpoints_and_moved_from_a_busy_one() {
    let busy = Mock::start(&["tiny"], |_, _| Scripted(429, vec![("retry-after", "0")], "{}".to_owned()));
    let ready = Mock::start(&["tiny"], mixed);
    let output =
        fixture().run(&busy, &["--endpoint", &format!("{}/v1/", ready.url), "--concurrency", "1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!((busy.bodies().len(), ready.bodies().len()), (4, 4));
}

#[test]
fn both_splits_are_reported_separately() {
    let mock = Mock::start(&["tiny"], |_, _| text("0"));
    let fixture = fixture();
    let dir = fixture.out();
    for split in ["interpolate", "extrapolate"] {
        fs::copy(&fixture.file, fixture.folder.path().join(format!("arithmetic_test_{split}.txt"))).unwrap();
    }
    let data = fixture.folder.path().to_str().unwrap();
    let output = ntl_eval(&[
        "arithmetic",
        "--endpoint",
        &mock.url,
        "--data",
        data,
        "--limit",
        "2",
        "--json",
        "--out",
        dir.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let splits: Vec<Value> = out(&output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["split"].clone())
        .collect();
    assert_eq!(splits, ["interpolate", "extrapolate"]);
    for split in ["interpolate", "extrapolate"] {
        assert_eq!(lines(&dir.join(split).join("samples.jsonl")).len(), 2);
        assert!(dir.join(split).join("report.json").is_file());
    }
}

#[test]
fn without_data_items_are_generated_from_the_seed() {
    let mock = Mock::start(&["tiny"], |_, _| text("0"));
    let ask = |seed: &str| {
        let split = ["--split", "extrapolate", "--limit", "5", "--concurrency", "1", "--seed", seed];
        let before = mock.bodies().len();
        let output = ntl_eval(&[&["arithmetic", "--endpoint", &mock.url], &split[..]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        mock.bodies().split_off(before)
    };
    let first = ask("1");
    assert_eq!(first.len(), 5);
    assert_eq!(first, ask("1"));
    assert_ne!(first, ask("2"));
}

#[test]
fn the_table_is_for_people_and_progress_goes_to_standard_error() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let output = fixture.run(&mock, &[]);
    assert!(out(&output).starts_with("arithmetic interpolate: tiny, text mode\n"), "{}", out(&output));
    assert!(out(&output).contains("4 items: 3 read, 1 without a number, 0 failed"), "{}", out(&output));
    assert!(err(&output).contains("arithmetic interpolate: 4/4, "), "{}", err(&output));
}

#[test]
fn tasks_are_listed() {
    let output = ntl_eval(&["list"]);
    assert_eq!(output.status.code(), Some(0));
    let names: Vec<String> =
        out(&output).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [
            "arithmetic",
            "code-regression",
            "gsm8k",
            "mathematics",
            "multiplication",
            "multirc",
            "nupa",
            "regression-in-context",
            "densities",
            "rjokes",
            "custom",
            "judge",
            "verify",
            "decisions"
        ]
    );
}

#[test]
fn every_command_has_a_man_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    assert!(ntl_eval(&["manual", folder.path().to_str().unwrap()]).status.success());
    let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
    let completions = read("bash-completion/completions/ntl-eval.bash");
    let tasks = out(&ntl_eval(&["list"]));
    for command in
        tasks.lines().map(|line| line.split(' ').next().unwrap()).chain(["data", "compare", "report"])
    {
        assert!(read(&format!("man/man1/ntl-eval-{command}.1")).contains(".TH"), "{command}");
        assert!(completions.contains(&format!("ntl__eval,{command})")), "{command}");
    }
    assert!(read("man/man1/ntl-eval-gsm8k.1").contains("\\-\\-endpoint"));
    let nowhere = ntl_eval(&["manual", "/dev/null/share"]);
    assert!(err(&nowhere).starts_with("error: could not write below /dev/null/share: "), "{}", err(&nowhere));
}

#[test]
fn a_run_that_fails_completely_ends_with_the_server_s_message_and_no_table() {
    let mock = Mock::start(&["tiny"], |prompt, _| error(500, &format!("engine dead at {prompt}")));
    let fixture = fixture();
    let dir = fixture.out();
    let output = fixture.run(&mock, &["--quiet", "--out", dir.to_str().unwrap()]);
    assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{}", err(&output));
    let message = err(&output);
    assert!(
        message.starts_with("error: all 4 items of arithmetic interpolate failed, the first with: "),
        "{message}"
    );
    assert!(message.contains("500 Internal Server Error: engine dead at 1 + 1"), "{message}");
    assert!(!dir.join("report.json").exists());
    // Only the first of many items are requested. Their error messages only differ in numbers.
    let many: String = (0..500).map(|a| format!("{a} + 1\n{}\n", a + 1)).collect();
    fs::write(&fixture.file, many).unwrap();
    let before = mock.bodies().len();
    let output = fixture.run(&mock, &["--quiet", "--concurrency", "4"]);
    assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{}", err(&output));
    assert!(err(&output).contains("the first 32 requests failed in the same way"), "{}", err(&output));
    // Each of them is retried twice.
    let sent = mock.bodies().len() - before;
    assert!(sent <= 3 * (32 + 4), "{sent}");
}

#[test]
fn a_run_continues_after_many_failures_once_an_item_was_answered() {
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        "0 + 1" => text("1"),
        _ => error(400, "too long"),
    });
    let fixture = fixture();
    fs::write(&fixture.file, (0..100).map(|a| format!("{a} + 1\n{}\n", a + 1)).collect::<String>()).unwrap();
    let output = fixture.run(&mock, &["--quiet", "--json", "--concurrency", "1"]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert_eq!(report(&output)["failed"], 99);
}

#[test]
fn numbers_without_a_value_show_the_server_s_reason_instead_of_dashes() {
    let mock = Mock::start(&["tiny"], |_, _| {
        let Scripted(status, headers, body) = number(1.0, 1.0, 1.0);
        let mut body: Value = serde_json::from_str(&body).unwrap();
        let found = &mut body["choices"][0]["number"];
        for name in ["value", "mean", "trimmed_mean", "median", "mode", "std"] {
            found[name] = Value::Null;
        }
        found["mass"] = json!({ "closed": 0.0, "invalid": 1.0, "open": 0.0 });
        found["support"] = json!([]);
        found["reason"] = json!("the model puts no mass on numbers");
        Scripted(status, headers, body.to_string())
    });
    let fixture = fixture();
    let dir = fixture.out();
    let output = fixture.run(&mock, &["--mode", "regress", "--quiet", "--out", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let shown = out(&output);
    assert!(shown.contains("no number for 4 of 4 items: the model puts no mass on numbers"), "{shown}");
    assert!(!shown.contains("| mae") && !shown.contains(" - "), "{shown}");
    let samples = lines(&dir.join("samples.jsonl"));
    assert_eq!(samples[0]["number_reason"], "the model puts no mass on numbers");
}

/// Like [`number`], with an interval around the mode.
fn with_interval(mode: f64, method: &str) -> Scripted {
    let Scripted(status, headers, body) = number(mode, mode, mode);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body["choices"][0]["number"]["interval"] =
        json!({ "low": mode - 1.0, "high": mode + 0.5, "coverage": 0.8, "method": method });
    Scripted(status, headers, body.to_string())
}

#[test]
fn ratings_and_intervals_are_requested_and_scored() {
    // The truths are 2, 4, 6 and 8.
    let mock = Mock::start(&["tiny"], |prompt, _| {
        with_interval(3.0, if prompt == "1 + 1" { "quantiles" } else { "conformal" })
    });
    let fixture = fixture();
    let dir = fixture.out();
    let flags = [
        "--mode",
        "regress",
        "--json",
        "--scale",
        "-1,4.5,0.5",
        "--interval",
        "0.8",
        "--out",
        dir.to_str().unwrap(),
    ];
    let report = report(&fixture.run(&mock, &flags));
    let asked = mock.bodies()[0]["number"].clone();
    assert_eq!((&asked["scale"], &asked["interval"]), (&json!([-1.0, 4.5, 0.5]), &json!(0.8)));
    let metric = |name: &str| (&report["metrics"][name]["value"], &report["metrics"][name]["n"]);
    assert_eq!(metric("interval_coverage"), (&json!(0.25), &json!(4)));
    assert_eq!(metric("interval_width"), (&json!(1.5), &json!(4)));
    assert_eq!(report["intervals"], json!({ "a calibration": 3, "the quantiles of the distribution": 1 }));
    // Numbers of a scale lie in its range, so the score is bounded.
    assert!(report["unknown_mass"]["crps_high"].is_f64(), "{}", report["unknown_mass"]);
    let sample = &lines(&dir.join("samples.jsonl"))[0];
    assert_eq!(
        sample["interval"],
        json!({ "low": 2.0, "high": 3.5, "coverage": 0.8, "method": "quantiles" })
    );
    let shown = out(&fixture.run(&mock, &["--mode", "regress", "--interval", "0.8"]));
    assert!(shown.contains("intervals: 3 of 4 items from a calibration"), "{shown}");
    for (flags, complaint) in [
        (&["--scale", "1"][..], "expected two or three numbers"),
        (&["--scale", "5,1"], "its first value must not be above its last one"),
        (&["--scale", "1,5,0.3"], "its last value must be its first one plus a whole number of steps"),
        (&["--interval", "1"], "expected a probability between 0 and 1"),
        (&["--scale", "1,5", "--range", "1,5"], "cannot be used with"),
    ] {
        let refused = fixture.run(&mock, &[&["--mode", "regress"][..], flags].concat());
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        assert!(err(&refused).contains(complaint), "{flags:?}: {}", err(&refused));
    }
}

#[test]
fn the_flags_of_numbers_are_sent_and_kept_in_the_settings() {
    let mock = Mock::start(&["tiny"], |_, _| number(3.0, 5.0, 6.0));
    let fixture = fixture();
    let flags = ["--range", "-10,20.5", "--trim", "0.1", "--digits-max", "3", "--tolerance", "1e-4"];
    let dir = fixture.out();
    let out = ["--mode", "regress", "--quiet", "--json", "--out", dir.to_str().unwrap()];
    let output = fixture.run(&mock, &[&out[..], &flags].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let number = mock.bodies()[0]["number"].clone();
    assert_eq!(
        [&number["range"], &number["trim"], &number["digits_max"], &number["tolerance"]],
        [&json!([-10.0, 20.5]), &json!(0.1), &json!(3), &json!(1e-4)]
    );
    assert_eq!(report(&output)["settings"]["request"]["number"], number);
    // A run with different settings is a different run.
    let resumed = fixture.run(&mock, &[&out[..], &["--resume", "--trim", "0.2"]].concat());
    assert_eq!(resumed.status.code(), Some(1));
    assert!(err(&resumed).contains("of a run with other settings: request was "), "{}", err(&resumed));
    for (flags, complaint) in [
        (["--range", "3,1"], "3 is above 1"),
        (["--range", "3"], "expected two numbers, LOW,HIGH"),
        (["--trim", "0.5"], "expected a share from 0 to 0.49"),
        (["--digits-max", "21"], "1..=20"),
        (["--tolerance", "0"], "expected a mass between 0 and 1"),
    ] {
        let refused = fixture.run(&mock, &[&["--mode", "regress"][..], &flags].concat());
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
        assert!(err(&refused).contains(complaint), "{flags:?}: {}", err(&refused));
    }
    let text = fixture.run(&mock, &["--trim", "0.1"]);
    assert_eq!(text.status.code(), Some(2));
    assert!(err(&text).contains("need --mode regress"), "{}", err(&text));
}

/// A number whose mean the open mass leaves unbounded.
fn unbounded(median: Option<f64>) -> Scripted {
    let Scripted(status, headers, body) = number(1.0, 1.0, 1.0);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let found = &mut body["choices"][0]["number"];
    found["value"] = json!(median);
    found["median"] = json!(median);
    found["estimate"] = json!(median.map(|_| "median"));
    found["mass"] = json!({ "closed": 0.75, "invalid": 0.2, "open": 0.05 });
    found["bounds"] = json!({ "value": null, "trimmed_mean": null, "median": null, "quantiles": [] });
    found["reason"] = json!("open mass 0.05 exceeds trim 0.005: the trimmed mean is unbounded");
    Scripted(status, headers, body.to_string())
}

#[test]
fn unbounded_numbers_are_counted_and_listed_among_the_largest_errors() {
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        "1 + 1" => unbounded(Some(9.0)),
        "2 + 2" => unbounded(None),
        _ => number(6.0, 6.0, 6.0),
    });
    let fixture = fixture();
    let dir = fixture.out();
    let output = fixture.run(&mock, &["--mode", "regress", "--quiet", "--out", dir.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let shown = out(&output);
    assert!(
        shown
            .contains("unbounded: for 2 of 4 items the open mass is larger than the trim of the mean; 1 use"),
        "{shown}"
    );
    assert!(
        shown.contains(
            "crps and calibration: not computed for 1 of 4 items, because more than 1% of the mass"
        ),
        "{shown}"
    );
    let report: Value = serde_json::from_str(&fs::read_to_string(dir.join("report.json")).unwrap()).unwrap();
    assert_eq!(report["unbounded"], json!({ "n": 2, "without_value": 1 }));
    assert_eq!(report.get("missing_numbers"), None);
    assert_eq!(ntl_eval(&["report", dir.to_str().unwrap()]).status.code(), Some(0));
    let page = fs::read_to_string(dir.join("report.md")).unwrap();
    let (_, largest) = page.split_once("## Largest errors").unwrap();
    let rows: Vec<&str> = largest.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(rows[0].contains("`2 + 2`") && rows[0].contains("the trimmed mean is unbounded"), "{}", rows[0]);
    assert!(rows[1].contains("`1 + 1`") && rows[1].contains("the trimmed mean is unbounded"), "{}", rows[1]);
}

#[test]
fn a_switch_in_the_environment_is_1_or_0() {
    let fixture = fixture();
    let mock = Mock::with_tokens(&["tiny"], mixed);
    for (value, scored) in [("1", true), ("0", false), ("true", true), ("off", false)] {
        let file = fixture.file.to_str().unwrap();
        let args =
            ["arithmetic", "--endpoint", &mock.url, "--split", "interpolate", "--data", file, "--json"];
        let output = command(&args).env("NTL_EVAL_SCORE", value).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{value}: {}", err(&output));
        assert_eq!(report(&output)["metrics"].get("perplexity").is_some(), scored, "{value}");
    }
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_silent() {
    // The reader closes the pipe before the first line.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["list"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((output.status.code(), err(&output)), (Some(141), String::new()));
}

#[test]
fn a_file_in_place_of_a_directory_is_named() {
    let mock = Mock::start(&["tiny"], mixed);
    let fixture = fixture();
    let file = fixture.file.to_str().unwrap();
    let output = fixture.run(&mock, &["--out", file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains(&format!("--out: {file} is a file, not a directory")), "{}", err(&output));
    let output = ntl_eval(&["report", file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains(&format!("{file} is a file; name the folder of a run")),
        "{}",
        err(&output)
    );
}
