//! Runs over several servers of one model.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, mpsc};

use common::{HANG, Mock, Scripted, additions, command, err, error, ntl_eval, number};
use serde_json::Value;

const ITEMS: usize = 60;

/// Correct for two of three items, off by one for the third. Every tenth question is rejected.
fn answer(prompt: &str) -> Scripted {
    let a: f64 = prompt.split(' ').next().unwrap().parse().unwrap();
    if a % 10.0 < 1.0 {
        return error(400, "prompt: too long");
    }
    let value = if a % 3.0 < 1.0 { a } else { a + 1.0 };
    number(value + 0.1, value, value)
}

fn replica() -> Mock {
    Mock::start(&["tiny"], |prompt, _| answer(prompt))
}

/// A server that stops answering at its tenth request and sends a message.
fn stalling() -> (Mock, mpsc::Receiver<()>) {
    let (sender, stalled) = mpsc::channel();
    let state = Mutex::new((0, sender));
    let mock = Mock::start(&["tiny"], move |prompt, _| {
        let mut state = state.lock().unwrap();
        state.0 += 1;
        if state.0 < 10 {
            return answer(prompt);
        }
        // There is no receiver once the server is gone.
        let _ = state.1.send(());
        Scripted(HANG, vec![], String::new())
    });
    (mock, stalled)
}

fn args<'a>(endpoints: &[&'a str], data: &'a str, out: &'a Path) -> Vec<&'a str> {
    let mut args =
        vec!["arithmetic", "--split", "interpolate", "--data", data, "--concurrency", "6", "--quiet"];
    args.extend(["--out", out.to_str().unwrap()]);
    args.extend(endpoints.iter().flat_map(|&url| ["--endpoint", url]));
    args
}

/// The report without its times and addresses.
fn report(out: &Path) -> Value {
    let mut report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    for field in ["started", "seconds", "endpoint"] {
        report.as_object_mut().unwrap().remove(field).unwrap();
    }
    report
}

/// The samples, with the same address for all endpoints.
fn samples(out: &Path, endpoints: &[&str]) -> String {
    let samples = fs::read_to_string(out.join("samples.jsonl")).unwrap();
    endpoints.iter().fold(samples, |samples, url| samples.replace(url, "http://server"))
}

#[test]
fn an_endpoint_that_dies_during_a_run_loses_nothing_and_the_report_equals_that_of_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let (data, one, three) =
        (additions(&folder, ITEMS), folder.path().join("one"), folder.path().join("three"));
    let single = replica();
    assert_eq!(ntl_eval(&args(&[&single.url], &data, &one)).status.code(), Some(4));

    let (replicas, (dying, stalled)) = ([replica(), replica()], stalling());
    let dying_url = dying.url.clone();
    let urls = [replicas[0].url.clone(), replicas[1].url.clone()];
    let endpoints = [&*urls[0], &*dying_url, &*urls[1]];
    let mut command = command(&args(&endpoints, &data, &three));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    stalled.recv().unwrap();
    drop(dying);
    let output = child.wait_with_output().unwrap();

    let said = err(&output);
    assert_eq!(output.status.code(), Some(4), "{said}");
    let lost = format!("endpoint {dying_url}/v1 is not reachable; its items went to the other endpoints\n");
    assert!(said.contains(&lost), "{said}");
    assert_eq!(report(&three), report(&one));
    assert_eq!(samples(&three, &endpoints), samples(&one, &[&single.url]));
    let asked = replicas.iter().map(|replica| replica.bodies().len());
    assert_eq!(asked.sum::<usize>(), ITEMS - 9);
}

#[test]
fn endpoints_with_different_models_are_rejected_with_the_difference() {
    let text = replica();
    let xval = Mock::start(&["tiny=xval"], |prompt, _| answer(prompt));
    let output = ntl_eval(&["arithmetic", "--endpoint", &text.url, "--endpoint", &xval.url, "--limit", "1"]);
    assert_eq!(output.status.code(), Some(1));
    let want = format!(
        "error: endpoints {}/v1 and {}/v1 have different models with the name `tiny`: `number_encoding` is \"text\" and \"xval\"",
        text.url, xval.url
    );
    assert!(err(&output).starts_with(&want), "{}", err(&output));
    assert!(text.bodies().is_empty() && xval.bodies().is_empty());
}
