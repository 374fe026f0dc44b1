//! Endpoints that disappear during a run, swap their weights, or have a certificate from a private CA.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use common::{HANG, Mock, Scripted, additions, command, err, ntl_eval, text};
use ntl_eval::run::client::{Client, ClientConfig, ClientError, RetryPolicy, Route};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

const ITEMS: usize = 40;

fn args<'a>(endpoints: &[&'a str], data: &'a str, out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["arithmetic", "--split", "interpolate", "--data", data, "--quiet"];
    args.extend(["--out", out.to_str().unwrap()]);
    args.extend(endpoints.iter().flat_map(|&url| ["--endpoint", url]));
    args.extend(more);
    args
}

/// Correct for two of three items, and off by one for the third.
fn answer(prompt: &str) -> Scripted {
    let a: usize = prompt.split(' ').next().unwrap().parse().unwrap();
    text(&(if a.is_multiple_of(3) { a } else { a + 1 }).to_string())
}

fn well() -> Mock {
    Mock::start(&["tiny"], |prompt, _| answer(prompt))
}

/// A server that answers `answered` requests. For each later request it sends a message and leaves the
/// request open.
fn stalling(answered: usize) -> (Mock, Receiver<()>) {
    let (sender, stalled) = mpsc::channel();
    let state = Mutex::new((0, sender));
    let mock = Mock::start(&["tiny"], move |prompt, _| {
        let mut state = state.lock().unwrap();
        state.0 += 1;
        if state.0 <= answered {
            return answer(prompt);
        }
        // The test may have ended.
        let _ = state.1.send(());
        Scripted(HANG, vec![], String::new())
    });
    (mock, stalled)
}

/// A report without its times and addresses.
fn report(out: &Path) -> Value {
    let mut report: Value = serde_json::from_slice(&fs::read(out.join("report.json")).unwrap()).unwrap();
    for field in ["started", "seconds", "endpoint"] {
        report.as_object_mut().unwrap().remove(field).unwrap();
    }
    report
}

/// The lines of the journal, after the line that describes the run.
fn answers(out: &Path) -> usize {
    fs::read_to_string(out.join("journal.jsonl")).unwrap().lines().count() - 1
}

fn has_result(out: &Path) -> bool {
    ["report.json", "samples.jsonl"].iter().any(|name| out.join(name).exists())
}

#[test]
fn a_run_whose_server_dies_writes_no_report_and_resumes_to_the_report_of_an_undisturbed_run() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out, whole) =
        (additions(&folder, ITEMS), folder.path().join("out"), folder.path().join("whole"));
    let (dying, stalled) = stalling(20);
    let url = dying.url.clone();
    let mut command =
        command(&args(&[&url], &data, &out, &["--concurrency", "3", "--unreachable-max", "1ms"]));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    (0..3).for_each(|_| stalled.recv().unwrap());
    drop(dying);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), common::out(&output)), (Some(4), String::new()), "{}", err(&output));
    let message = err(&output);
    let want = "error: 20 requests answered; continue with `--resume`: no endpoint was available for ";
    assert!(message.starts_with(want), "{message}");
    assert!(message.contains(&format!("endpoint {url}/v1 is not reachable: ")), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert_eq!((answers(&out), has_result(&out)), (20, false));

    let restarted = well();
    let undisturbed = well();
    let resumed = ntl_eval(&args(&[&restarted.url], &data, &out, &["--resume"]));
    assert_eq!(resumed.status.code(), Some(0), "{}", err(&resumed));
    assert_eq!(restarted.bodies().len(), ITEMS - 20);
    assert!(ntl_eval(&args(&[&undisturbed.url], &data, &whole, &[])).status.success());
    assert_eq!(report(&out), report(&whole));
}

#[test]
fn without_out_a_suspended_run_says_that_its_answers_are_lost() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let busy = Mock::start(&["tiny"], |_, _| Scripted(503, vec![], "{}".to_owned()));
    let run = ["arithmetic", "--split", "interpolate", "--data", &data, "--endpoint", &busy.url, "--quiet"];
    let output = ntl_eval(&[&run[..], &["--unreachable-max", "1ms"]].concat());
    assert_eq!(output.status.code(), Some(4));
    assert!(
        err(&output).starts_with("error: 0 requests answered; without --out their answers are lost: "),
        "{}",
        err(&output)
    );
}

#[test]
fn a_run_outlasts_a_restart_that_takes_more_than_the_retries_of_one_request() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let out = folder.path().join("out");
    let restarting = Mock::start(&["tiny"], |prompt, before| match (prompt, before) {
        ("9 + 1", 0..6) => Scripted(503, vec![("retry-after", "0")], "{}".to_owned()),
        _ => answer(prompt),
    });
    let output = ntl_eval(&args(&[&restarting.url], &data, &out, &["--concurrency", "1"]));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!((report(&out)["failed"].clone(), restarting.bodies().len()), (json!(0), ITEMS + 6));
}

#[test]
fn a_run_waits_for_a_model_that_takes_more_than_the_retries_of_one_request_to_load() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, 1);
    let out = folder.path().join("out");
    for (loads, wait, code, end) in [(5, "2m", 0, "; waiting for it\n"), (1_000, "1ms", 1, "\n")] {
        let loading = Mock::loading(loads, |prompt, _| answer(prompt));
        let output =
            ntl_eval(&args(&[&loading.url], &data, &out, &["--unreachable-max", wait, "--overwrite"]));
        assert_eq!(output.status.code(), Some(code), "{}", err(&output));
        let line = format!(
            "endpoint {}/v1 returned 503 Service Unavailable: the model is loading{end}",
            loading.url
        );
        assert_eq!(err(&output).matches(&line).count(), 1, "{}", err(&output));
    }
}

#[test]
fn a_request_that_fails_while_others_succeed_ends_after_four_retries() {
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        "bad" => Scripted(429, vec![("retry-after", "0")], "{}".to_owned()),
        _ => text("1"),
    });
    let client = Client::new(ClientConfig {
        endpoints: vec![mock.url.parse().unwrap()],
        api_key: None,
        timeout: Duration::from_secs(60),
        retry: RetryPolicy::new(Duration::from_secs(600)),
        ca_file: None,
    });
    let client = client.unwrap();
    let post = async |prompt| client.post::<Value>(Route::Completions, &json!({ "prompt": prompt })).await;
    let result = Runtime::new().unwrap().block_on(async {
        let others = async {
            loop {
                post("good").await.unwrap();
            }
        };
        tokio::select! {
            result = post("bad") => result,
            () = others => unreachable!(),
        }
    });
    assert!(matches!(result, Err(ClientError::Refused { .. })), "{result:?}");
    assert!(mock.bodies().iter().filter(|body| body["prompt"] == "bad").count() >= 5);
}

#[test]
fn a_server_that_rejects_everything_for_too_long_suspends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    for (status, header) in [(429, Some(("retry-after", "3600"))), (429, None), (502, None), (503, None)] {
        let out = folder.path().join(format!("{status}{header:?}"));
        let requests = AtomicUsize::new(0);
        let mock = Mock::start(&["tiny"], move |prompt, _| match requests.fetch_add(1, Ordering::SeqCst) {
            0..20 => answer(prompt),
            _ => Scripted(status, header.into_iter().collect(), "{}".to_owned()),
        });
        let flags = ["--concurrency", "1", "--unreachable-max", "1ms"];
        let output = ntl_eval(&args(&[&mock.url], &data, &out, &flags));
        assert_eq!(output.status.code(), Some(4), "{status}: {}", err(&output));
        assert!(
            err(&output).starts_with("error: 20 requests answered; continue with `--resume`: "),
            "{}",
            err(&output)
        );
        assert!(err(&output).contains(&format!("returned {status} ")), "{}", err(&output));
        assert_eq!((answers(&out), has_result(&out)), (20, false), "{status}");
    }
}

#[test]
fn an_item_that_never_gets_a_response_fails_alone_and_enters_no_metric() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let out = folder.path().join("out");
    let mock = Mock::start(&["tiny"], |prompt, _| match prompt {
        "1 + 1" => Scripted(HANG, vec![], String::new()),
        _ => answer(prompt),
    });
    let flags = ["--concurrency", "1", "--timeout", "1", "--unreachable-max", "1ms"];
    let output = ntl_eval(&args(&[&mock.url], &data, &out, &flags));
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).starts_with("1 of 40 items failed, the first with: endpoint "), "{}", err(&output));
    let report = report(&out);
    assert_eq!((&report["n"], &report["failed"], &report["n_valid"]), (&json!(40), &json!(1), &json!(39)));
    assert_eq!(report["metrics"]["accuracy"]["n"], 39);
    // 26 items of 40 have a correct answer, and this one would have been the 27th.
    assert_eq!(report["metrics"]["accuracy"]["value"], json!(25.0 / 39.0));
}

#[test]
fn a_slow_server_is_named_as_slow_and_does_not_get_the_same_request_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, 1);
    let out = folder.path().join("out");
    for (flags, streams) in [
        (&["--api", "chat"][..], vec![json!(true)]),
        // The second request is for a stream, which may take longer.
        (&[], vec![Value::Null, json!(true)]),
        (&["--mode", "regress"], vec![Value::Null]),
        (&["--mode", "regress", "--after", "#"], vec![Value::Null, json!(true)]),
    ] {
        let mock = Mock::start(&["tiny"], |_, _| Scripted(HANG, vec![], String::new()));
        let output =
            ntl_eval(&args(&[&mock.url], &data, &out, &[&["--timeout", "1", "--overwrite"], flags].concat()));
        assert_eq!(output.status.code(), Some(1), "{}", err(&output));
        let message = err(&output);
        assert!(message.contains("is slow: no response within 1 s after the last byte"), "{message}");
        assert!(!message.contains("not reachable"), "{message}");
        let sent: Vec<Value> = mock.bodies().iter().map(|body| body["stream"].clone()).collect();
        assert_eq!(sent, streams, "{flags:?}");
    }
}

#[test]
fn a_server_that_hangs_altogether_is_unreachable_and_its_requests_go_to_another_one() {
    let good = well();
    // Connections are accepted by the system, but nothing reads them.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::new(ClientConfig {
        endpoints: vec![hanging.parse().unwrap(), good.url.parse().unwrap()],
        api_key: None,
        timeout: Duration::from_secs(1),
        retry: RetryPolicy::new(Duration::from_secs(600)),
        ca_file: None,
    });
    let client = client.unwrap();
    let body = json!({ "prompt": "1 + 1" });
    let answer = Runtime::new().unwrap().block_on(client.post::<Value>(Route::Completions, &body)).unwrap();
    assert_eq!(answer["choices"][0]["text"], "2");
    assert_eq!(client.endpoint_failures(), [format!("endpoint {hanging}/v1 is not reachable")]);
}

#[test]
fn a_status_that_openai_s_sdk_retries_is_retried_twice() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, 5);
    let out = folder.path().join("out");
    for (status, fails_times, failed) in [
        (500, 2, 0),
        (500, 3, 1),
        (504, 2, 0),
        (408, 2, 0),
        (409, 2, 0),
        (501, 1, 0),
        (400, 1, 1),
        (422, 1, 1),
    ] {
        let mock = Mock::start(&["tiny"], move |prompt, before| match prompt {
            "3 + 1" if before < fails_times => Scripted(status, vec![("retry-after", "0")], "{}".to_owned()),
            _ => answer(prompt),
        });
        ntl_eval(&args(&[&mock.url], &data, &out, &["--overwrite"]));
        assert_eq!(report(&out)["failed"], json!(failed), "{status} {fails_times}");
    }
}

/// A completion that names the model's fingerprint in the header.
fn from_checkpoint(prompt: &str, fingerprint: &'static str) -> Scripted {
    let Scripted(status, _, body) = answer(prompt);
    Scripted(status, vec![("ntl-model-fingerprint", fingerprint)], body)
}

/// A completion that names the model's fingerprint in the body.
fn with_system_fingerprint(prompt: &str, fingerprint: &'static str) -> Scripted {
    let Scripted(status, headers, body) = answer(prompt);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    body["system_fingerprint"] = json!(fingerprint);
    Scripted(status, headers, body.to_string())
}

/// A server that lists `model` and answers with the fingerprint `0a` to ten requests, and with `0b`
/// afterwards.
fn swapping(model: &'static str, says: fn(&str, &'static str) -> Scripted) -> Mock {
    let requests = AtomicUsize::new(0);
    Mock::start(&[model], move |prompt, _| {
        let requests = if is_probe(prompt) { 0 } else { requests.fetch_add(1, Ordering::SeqCst) };
        says(prompt, if requests < 10 { "0a" } else { "0b" })
    })
}

/// Returns whether a prompt is not an item of [`additions`]: it checks the model.
fn is_probe(prompt: &str) -> bool {
    prompt.starts_with("1 2 3") || prompt.starts_with("12 + 30")
}

/// A completion of a model with this probability of its text.
fn with_probability(prompt: &str, probability: f64) -> Scripted {
    let Scripted(status, headers, body) = answer(prompt);
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let logprob = probability.ln();
    body["choices"][0]["logprobs"] = json!({"tokens": [" 8"], "token_logprobs": [logprob],
        "top_logprobs": [{" 8": logprob, " 9": (1.0 - probability).ln()}]});
    Scripted(status, headers, body.to_string())
}

#[test]
fn weights_that_change_without_a_fingerprint_are_noticed_after_the_run_and_none_of_its_answers_stays() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let (out, cache) = (folder.path().join("out"), folder.path().join("cache"));
    let cache = cache.to_str().unwrap();
    let run = |mock: &Mock, more: &[&str]| {
        ntl_eval(&args(&[&mock.url], &data, &out, &[&["--cache", cache], more].concat()))
    };
    let serve = |probability| Mock::start(&["tiny#"], move |prompt, _| with_probability(prompt, probability));
    let items = AtomicUsize::new(0);
    let swapped = Mock::start(&["tiny#"], move |prompt, _| {
        let items = if is_probe(prompt) {
            items.load(Ordering::SeqCst)
        } else {
            items.fetch_add(1, Ordering::SeqCst)
        };
        with_probability(prompt, if items < 10 { 0.9 } else { 0.4 })
    });
    let output = run(&swapped, &[]);
    assert_eq!((output.status.code(), has_result(&out)), (Some(4), false), "{}", err(&output));
    assert!(
        err(&output).contains("0 requests answered; continue with `--resume`: endpoint "),
        "{}",
        err(&output)
    );
    assert!(
        err(&output).contains("serves another model under the same name: the probabilities"),
        "{}",
        err(&output)
    );
    let first = serve(0.9);
    let output = run(&first, &["--resume"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let items =
        |mock: &Mock| mock.bodies().iter().filter(|body| !is_probe(body["prompt"].as_str().unwrap())).count();
    assert_eq!(items(&first), ITEMS, "no answer of the first run was kept");
    let again = serve(0.91);
    let output = run(&again, &["--overwrite"]);
    assert_eq!(
        (output.status.code(), items(&again)),
        (Some(0), 0),
        "the cache has the answers: {}",
        err(&output)
    );
}

#[test]
fn swapped_weights_suspend_a_run_and_the_journal_only_has_answers_of_the_first_weights() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    type Answer = fn(&str, &'static str) -> Scripted;
    for (name, model, says) in [
        ("header", "tiny#0a", from_checkpoint as Answer),
        ("body", "tiny#0a", with_system_fingerprint),
        ("unlisted", "tiny#", from_checkpoint),
    ] {
        let out = folder.path().join(name);
        let mock = swapping(model, says);
        let run = |mock: &Mock, more: &[&str]| {
            ntl_eval(&args(&[&mock.url], &data, &out, &[&["--concurrency", "1"], more].concat()))
        };
        let output = run(&mock, &[]);
        assert_eq!(output.status.code(), Some(4), "{name}: {}", err(&output));
        let want = format!(
            "error: 10 requests answered; continue with `--resume`: endpoint {}/v1 serves a different checkpoint under the same name: this \
             run began with the fingerprint 0a, but the response has 0b; serve the first checkpoint again, or restart the run with \
             --overwrite\n",
            mock.url
        );
        assert_eq!(err(&output), want, "{name}");
        assert_eq!((answers(&out), has_result(&out)), (10, false), "{name}");
        let first = Mock::start(&[model], |prompt, _| from_checkpoint(prompt, "0a"));
        assert_eq!(run(&first, &["--resume"]).status.code(), Some(0), "{name}");
        let items = |body: &&Value| !is_probe(body["prompt"].as_str().unwrap());
        assert_eq!(first.bodies().iter().filter(items).count(), ITEMS - 10, "{name}");
    }
}

#[test]
fn all_endpoints_of_a_run_must_answer_with_the_same_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let out = folder.path().join("out");
    let serve = |fingerprint| Mock::start(&["tiny#"], move |prompt, _| from_checkpoint(prompt, fingerprint));
    let one = serve("0a");
    let other = serve("0b");
    let output = ntl_eval(&args(&[&one.url, &other.url], &data, &out, &[]));
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("serves a different checkpoint"), "{}", err(&output));
}

#[test]
fn fingerprints_of_other_servers_may_change_and_be_missing() {
    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let out = folder.path().join("out");
    let (foreign, silent) =
        (swapping("tiny#", with_system_fingerprint), Mock::start(&["tiny#"], |p, _| answer(p)));
    let output = ntl_eval(&args(&[&foreign.url, &silent.url], &data, &out, &[]));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
}

#[test]
fn a_private_ca_is_trusted_if_a_flag_or_the_environment_names_it() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio_rustls::rustls::ServerConfig;
    let ca_key = KeyPair::generate().unwrap();
    let key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_pem = ca.self_signed(&ca_key).unwrap().pem();
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let tls = ServerConfig::builder().with_no_client_auth();
    let tls = tls.with_single_cert(vec![own.der().clone()], key.serialize_der().try_into().unwrap()).unwrap();
    let mock = Mock::start_tls(&["tiny"], |prompt, _| answer(prompt), tls);

    let folder = tempfile::tempdir().unwrap();
    let data = additions(&folder, ITEMS);
    let file = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let ca_file = file("ca.pem", &ca_pem);
    let missing = folder.path().join("none.pem").display().to_string();
    let empty = file("empty.pem", "no certificate");
    let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let run = |flag: &[&str], environment: &[(&str, &str)]| {
        let base =
            ["arithmetic", "--split", "interpolate", "--data", &data, "--endpoint", &mock.url, "--quiet"];
        let mut command = command(&[&base[..], &["--limit", "2"], flag].concat());
        command.envs(environment.iter().copied()).output().unwrap()
    };
    let refused = run(&[], &[]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(err(&refused).contains("certificate"), "{}", err(&refused));
    for (flag, environment) in [
        (&["--ca-file", ca_file.as_str()][..], &[][..]),
        (&[], &[("NTL_EVAL_CA_FILE", ca_file.as_str())]),
        (&[], &[("SSL_CERT_FILE", ca_file.as_str())]),
    ] {
        let trusted = run(flag, environment);
        assert_eq!(trusted.status.code(), Some(0), "{flag:?} {environment:?}: {}", err(&trusted));
    }
    for (file, problem) in [
        (missing, "could not read {}: No such file or directory"),
        (empty, "{} has no certificates in PEM format"),
        (broken, "{} has an invalid certificate: "),
    ] {
        for (name, flag, environment) in [
            ("--ca-file", &["--ca-file", file.as_str()][..], &[][..]),
            ("SSL_CERT_FILE", &[], &[("SSL_CERT_FILE", file.as_str())]),
        ] {
            let output = run(flag, environment);
            let want = format!("error: {name}: {}", problem.replace("{}", &file));
            assert_eq!(output.status.code(), Some(1), "{}", err(&output));
            assert!(err(&output).starts_with(&want), "{}", err(&output));
            assert_eq!(err(&output).lines().count(), 1, "{}", err(&output));
        }
    }
}
