//! The program itself: errors of usage, and log lines.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

fn program(flags: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ntl-server"));
    command.args(flags).env_clear().envs(environment.iter().copied());
    command
}

/// Runs a program that cannot start, and returns its exit code and standard error.
fn failure(flags: &[&str], environment: &[(&str, &str)]) -> (i32, String) {
    let Output { status, stderr, .. } = program(flags, environment).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

/// A server of the demo model.
struct Server {
    child: Child,
    log: BufReader<ChildStderr>,
    port: u16,
    /// The port of `--admin-listen`, if it is given.
    admin_port: u16,
}

impl Server {
    /// Starts a server and waits until it is ready.
    fn start(flags: &[&str]) -> Self {
        let mut server = Self::listening(flags);
        server.line_with("ready");
        server
    }

    /// Starts a server that may wait for an engine.
    fn listening(flags: &[&str]) -> Self {
        Self::listening_in(&[], flags)
    }

    /// Starts a server with environment variables.
    fn listening_in(environment: &[(&str, &str)], flags: &[&str]) -> Self {
        let flags = [flags, &["--port=0"]].concat();
        let mut child = program(&flags, environment).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut server = Self { child, log, port: 0, admin_port: 0 };
        let listening = server.line_with("listening");
        let mut ports = listening
            .split("127.0.0.1:")
            .skip(1)
            .map(|text| text.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap());
        server.port = ports.next().unwrap();
        server.admin_port = ports.next().unwrap_or(0);
        server
    }

    /// Reads log lines up to one that contains a text.
    fn line_with(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log has no `{text}`");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends a request and returns the response.
    fn post(&self, path: &str, headers: &str, body: &Value) -> String {
        let body = body.to_string();
        self.exchange(&format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n{headers}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    /// Sends a request without a body and returns the response.
    fn get(&self, path: &str, headers: &str) -> String {
        self.exchange(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n"
        ))
    }

    fn exchange(&self, request: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends the server and returns the rest of its log.
    fn end(mut self) -> String {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        assert!(!rest.contains("did not end in time"), "{rest}");
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has ended already cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_error_about_a_value_of_the_environment_names_the_variable() {
    for (variable, value, flag) in [
        ("NTL_DTYPE", "f8", "--dtype"),
        ("NTL_CACHE_BYTES_MAX", "4G", "--cache-bytes-max"),
        ("NTL_BODY_LIMIT", "abc", "--body-bytes-max"),
        ("NTL_THREADS", "100000", "--threads"),
        ("NTL_LOG", "wran", "--log"),
        ("NTL_CORS_ORIGIN", "example.com", "--cors-origin"),
    ] {
        let (code, error) = failure(&["--port=0"], &[(variable, value)]);
        assert!(code == 2 && error.contains(variable) && error.contains(flag), "{variable}: {error}");
    }
    let (code, error) = failure(&[], &[("NTL_PORT", "abc")]);
    assert!(code == 2 && error.contains("NTL_PORT") && error.contains("--port"), "{error}");
    let (_, typed) = failure(&["--port=abc"], &[("NTL_PORT", "8000")]);
    assert!(typed.contains("--port") && !typed.contains("NTL_PORT"), "{typed}");
}

#[test]
fn a_misspelt_log_level_is_rejected_with_the_levels() {
    let (code, error) = failure(&["--log", "wran"], &[]);
    assert_eq!(code, 2);
    assert!(error.contains("`wran`") && error.contains("did you mean `warn`?"), "{error}");
    assert!(error.contains("off, error, warn, info, debug, trace"), "{error}");
    let (code, error) = failure(&[], &[("RUST_LOG", "ntl_server=loud")]);
    assert!(code == 2 && error.contains("RUST_LOG") && error.contains("`loud`"), "{error}");
}

#[test]
fn with_json_logs_the_line_about_a_fatal_error_is_json() {
    for (flags, code, text) in [
        (&["--log-format=json", "--port=0", "--model=gone=/no/such"][..], 1, "/no/such"),
        (&["--log-format", "json", "--threads=100000"], 2, "--threads"),
        (&["--log-format=json", "--wrong"], 2, "--wrong"),
        (&["--log-format=json", "--config=/no/such.toml"], 2, "/no/such.toml"),
        (&["--log-format=json", "--log=wran"], 2, "wran"),
    ] {
        let (got, log) = failure(flags, &[]);
        assert_eq!(got, code, "{log}");
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let last = lines.last().unwrap();
        assert_eq!(last["level"], "ERROR");
        assert!(last["message"].as_str().unwrap().contains(text) && last["timestamp"].is_string(), "{last}");
    }
    let (_, log) = failure(&["--wrong"], &[("NTL_LOG_FORMAT", "json")]);
    assert!(serde_json::from_str::<Value>(&log).is_ok(), "{log}");
}

#[test]
fn the_log_line_of_a_request_is_short_and_has_the_client_its_key_and_the_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "grafana secret-of-grafana\nanonymous-secret\n").unwrap();
    let keys = format!("--api-key-file={}", file.display());
    let body = json!({"prompt": "What is 1 + 1?", "temperature": 0, "max_tokens": 5});
    let id = "4bf92f3577b34da6a3ce929d0e0e4736";
    for format in ["compact", "json"] {
        let mut server = Server::start(&[&keys, &format!("--log-format={format}")]);
        let send = |server: &Server, secret: &str, body: &Value| {
            let headers = format!("Authorization: Bearer {secret}\r\nx-request-id: {id}\r\n");
            server.post("/v1/completions", &headers, body)
        };
        let response = send(&server, "secret-of-grafana", &body);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let usage: Value = serde_json::from_str(response.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let [prompt, completion] =
            ["prompt_tokens", "completion_tokens"].map(|count| usage["usage"][count].as_u64().unwrap());
        let named = server.line_with(id);
        send(&server, "anonymous-secret", &json!({"prompt": "x", "stream": true, "number": true}));
        let numbered = server.line_with(id);
        send(&server, "wrong", &body);
        let unauthorized = server.line_with(id);
        send(&server, "anonymous-secret", &json!({"prompt": "x", "n": "y".repeat(300)}));
        let rejected = server.line_with(id);
        send(&server, "anonymous-secret", &json!({"prompt": "x", "a\nINFO b": 1}));
        let forged = server.line_with(id);
        assert!(forged.contains("a\\nINFO b"), "{forged}");
        let rest = server.end();
        for line in [&named, &numbered, &unauthorized, &rejected, &rest] {
            assert!(!line.contains("secret"), "{line}");
        }
        if format == "json" {
            let [named, numbered, unauthorized, rejected] = [named, numbered, unauthorized, rejected]
                .map(|line| serde_json::from_str::<Value>(&line).unwrap());
            assert_eq!((&named["client"], &named["key"]), (&json!("127.0.0.1"), &json!("grafana")));
            assert_eq!((&named["prompt"], &named["completion"]), (&json!(prompt), &json!(completion)));
            assert_eq!((&named["code"], &named["id"]), (&json!(200), &json!(id)));
            assert_eq!((&numbered["key"], &named["model"]), (&json!("#2"), &json!("t5-ntl-was")));
            assert!(numbered["completion"].as_u64().unwrap() > 0, "{numbered}");
            assert_eq!((&unauthorized["code"], &unauthorized["key"]), (&json!(401), &Value::Null));
            assert!(rejected["reason"].as_str().unwrap().starts_with("`n`"), "{rejected}");
            continue;
        }
        for line in [&named, &numbered, &unauthorized, &rejected] {
            assert!(line.chars().count() <= 200, "{} characters: {line}", line.chars().count());
            assert!(line.contains(" INFO POST /v1/completions code="), "{line}");
            assert!(line.contains(" client=127.0.0.1 ") && line.contains(&format!(" id={id}")), "{line}");
        }
        let tokens = format!(" key=grafana prompt={prompt} completion={completion} ms=");
        assert!(named.contains(&tokens) && named.trim_end().ends_with(" model=t5-ntl-was"), "{named}");
        assert!(
            numbered.contains(" key=#2 ") && unauthorized.contains("code=401 client=127.0.0.1 ms="),
            "{numbered}"
        );
        assert!(rejected.contains("code=400") && rejected.contains(" reason=\"`n`"), "{rejected}");
    }
}

#[test]
fn a_log_that_nothing_reads_delays_neither_requests_nor_the_end() {
    let mut server = Server::start(&[]);
    let id = format!("x-request-id: {}\r\n", "i".repeat(128));
    // A pipe holds 64 KiB.
    for _ in 0..600 {
        assert!(server.get("/nothing", &id).starts_with("HTTP/1.1 404"));
    }
    assert!(server.get("/health/live", "").starts_with("HTTP/1.1 200"));
    assert!(server.get("/metrics", "").contains("\nntl_log_lines_dropped_total 0\n"));
    server.signal(Signal::TERM);
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn a_second_sigterm_ends_a_server_that_still_works_and_whose_log_nothing_reads() {
    let mut server = Server::start(&["--output-tokens-max=1000000", "--log=trace"]);
    let body = json!({"prompt": "x", "max_tokens": 900_000, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    server.signal(Signal::TERM);
    // The listener still answers, so the first signal has not ended the server.
    while !server.get("/health/ready", "").starts_with("HTTP/1.1 503") {}
    server.signal(Signal::TERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
}

#[test]
fn log_lines_have_a_maximum_length_and_no_text_that_a_client_made_up() {
    let mut server = Server::start(&["--log-format=json"]);
    let method = "M".repeat(60_000);
    let response =
        server.exchange(&format!("{method} /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    let line = server.line_with("code");
    assert!(line.contains("_OTHER /") || line.contains("_OTHER unmatched"), "{line}");
    let field = "f".repeat(1_900_000);
    assert!(
        server.post("/v1/completions", "", &json!({"prompt": "x", field: 1})).starts_with("HTTP/1.1 400")
    );
    let line = server.line_with("code");
    assert!(line.len() < 1000 && line.contains("ffff"), "{} bytes", line.len());
    let response = server.post("/v1/completions", "", &json!({"prompt": "x", "guided_regex": "(SECRET"}));
    assert!(response.contains("SECRET") || response.starts_with("HTTP/1.1 400"), "{response}");
    assert!(!server.end().contains("SECRET"));
}

#[test]
fn a_logged_body_is_cut() {
    for format in ["compact", "json"] {
        let mut server = Server::start(&["--log-prompts", &format!("--log-format={format}")]);
        let prompt = "\"\u{1}".repeat(100_000);
        server.post("/tokenize", "", &json!({"prompt": prompt}));
        let line = server.line_with("prompt");
        assert!(line.len() < 65_536 && line.len() > 10_000, "{} bytes", line.len());
        if format == "json" {
            assert!(serde_json::from_str::<Value>(&line).is_ok());
        }
        server.end();
    }
}

#[test]
fn no_level_of_the_log_shows_prompts_or_keys() {
    let server = Server::start(&["--log=trace", "--api-key=KEYMARK"]);
    let key = "Authorization: Bearer KEYMARK\r\n";
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "PROMPTMARK", "max_tokens": 3})),
        ("/v1/completions", json!({"prompt": "PROMPTMARK", "number": true, "stream": true})),
        ("/v1/completions", json!({"prompt": {"PROMPTMARK": 1}, "n": "PROMPTMARK"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "PROMPTMARK", "content": "PROMPTMARK"}]})),
        ("/v1/score", json!({"items": [{"prompt": "PROMPTMARK", "target": "PROMPTMARK"}]})),
        ("/tokenize", json!({"prompt": "PROMPTMARK"})),
    ] {
        let response = server.post(path, key, &body);
        assert!(response.starts_with("HTTP/1.1 200") || response.starts_with("HTTP/1.1 400"), "{response}");
    }
    let log = server.end();
    assert!(log.contains("/tokenize"), "{log}");
    assert!(!log.contains("PROMPTMARK") && !log.contains("KEYMARK"), "{log}");
}

#[test]
fn a_sighup_reads_the_keys_again_and_never_ends_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "old\n").unwrap();
    let mut server = Server::start(&[&format!("--api-key-file={}", file.display())]);
    let is_open = |server: &Server, key: &str| {
        let response = server.get("/v1/models", &format!("Authorization: Bearer {key}\r\n"));
        response.starts_with("HTTP/1.1 200")
    };
    assert!(is_open(&server, "old") && !is_open(&server, "new"));
    for (text, said, has_old) in
        [("new\n", "read again", false), ("broken key line\n", "not read again", false)]
    {
        std::fs::write(&file, text).unwrap();
        server.signal(Signal::HUP);
        let line = server.line_with(said);
        assert!(!line.contains("broken"), "{line}");
        assert_eq!((is_open(&server, "old"), is_open(&server, "new")), (has_old, true));
    }
    server.end();
    let mut without_file = Server::start(&[]);
    without_file.signal(Signal::HUP);
    without_file.line_with("there are none");
    without_file.end();
}

#[test]
fn requests_through_a_trusted_proxy_are_requests_of_its_clients() {
    let forwarded = "X-Forwarded-For: 198.51.100.7\r\n";
    for (flags, client) in [(&["--trusted-proxies=127.0.0.0/8"][..], "198.51.100.7"), (&[], "127.0.0.1")] {
        let server = Server::start(flags);
        assert!(server.get("/v1/models", forwarded).starts_with("HTTP/1.1 200"));
        let log = server.end();
        assert!(log.contains(&format!("client={client} ")), "{log}");
    }
    let (code, error) = failure(&["--port=0", "--trusted-proxies=10.0.0.0/33"], &[]);
    assert!(code == 2 && error.contains("such as 10.0.0.0/8"), "{error}");
}

#[test]
fn metrics_can_be_left_to_the_listener_for_operators() {
    let mut server = Server::start(&["--admin-listen=127.0.0.1:0", "--metrics-on-admin-only"]);
    assert!(server.get("/metrics", "").starts_with("HTTP/1.1 404"));
    server.port = server.admin_port;
    assert!(server.get("/metrics", "").contains("ntl_requests_total"));
    server.end();
    let (code, error) = failure(&["--port=0", "--metrics-on-admin-only"], &[]);
    assert!(code == 2 && error.contains("--admin-listen"), "{error}");
}

#[test]
fn the_tokens_of_each_key_are_counted() {
    let server = Server::start(&["--api-key=KEYMARK"]);
    let body = json!({"prompt": "2 + 3", "max_tokens": 3, "min_tokens": 3});
    for (key, status) in [("KEYMARK", 200), ("other", 401)] {
        let response = server.post("/v1/completions", &format!("Authorization: Bearer {key}\r\n"), &body);
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{response}");
    }
    let metrics = server.get("/metrics", "");
    assert!(
        metrics.contains("ntl_key_tokens_total{key=\"#1\",kind=\"completion\",model=\"t5-ntl-was\"} 3"),
        "{metrics}"
    );
    assert_eq!(metrics.matches("ntl_key_tokens_total{").count(), 2, "{metrics}");
    assert!(!metrics.contains("KEYMARK"));
    server.end();
}

#[test]
fn files_of_flags_are_regular_and_small() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let engine = "--model=engine=https://127.0.0.1:1";
    for (flag, model) in
        [("config", None), ("api-key-file", None), ("calibration", None), ("ca-file", Some(engine))]
    {
        for file in ["/dev/zero", pipe.to_str().unwrap()] {
            let flag_and_file = format!("--{flag}={file}");
            let flags: Vec<&str> = ["--port=0", &flag_and_file].into_iter().chain(model).collect();
            let (_, error) = failure(&flags, &[]);
            assert!(error.contains(file) && error.contains("not a regular file"), "{flag}: {error}");
        }
    }
    let (_, error) = failure(&["--port=0", "--tls-cert=/dev/zero", "--tls-key=/dev/zero"], &[]);
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn an_engine_with_a_certificate_of_a_private_authority_is_trusted_with_its_ca_file() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    let key = KeyPair::generate().unwrap();
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new([]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let ca_file = file("ca.pem", authority.self_signed(&authority_key).unwrap().pem());
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let own = own.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
    let tls_cert = format!("--tls-cert={}", file("cert.pem", own.pem()));
    let tls_key = format!("--tls-key={}", file("key.pem", key.serialize_pem()));
    let engine = Server::start(&[&format!("--model=tiny={TINY}"), &tls_cert, &tls_key]);

    let url = format!("--model=remote=https://127.0.0.1:{}", engine.port);
    let tokenizer = format!("--tokenizer={TINY}");
    let mut untrusting = Server::listening(&[&url, &tokenizer]);
    let refused = untrusting.line_with("waiting for the engine");
    assert!(refused.contains("certificate"), "{refused}");
    let trusting = Server::start(&[&url, &tokenizer, &format!("--ca-file=remote={ca_file}")]);
    let answer = trusting.post("/v1/completions", "", &json!({"prompt": "1 + 1 =", "number": {}}));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    trusting.end();
    let missing = format!("--ca-file={}", folder.path().join("none.pem").display());
    let (code, error) = failure(&["--port=0", &url, &tokenizer, &missing], &[]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("--ca-file: could not read"), "{error}");
}

#[test]
fn names_of_files_and_models_cannot_control_a_terminal() {
    for format in ["compact", "json"] {
        let flags = ["--port=0", &format!("--log-format={format}"), "--model=a\u{1b}[2J\nb=/no/\u{7}such"];
        let (code, error) = failure(&flags, &[]);
        assert_eq!(code, 1);
        assert!(error.contains("such") && !error.contains(['\u{1b}', '\u{7}']), "{error:?}");
    }
}

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/data/tiny/llama-ntl");

/// The path of the URL of a [`Proxy`].
const SECRET_PATH: &str = "/SECRETPATH-abc123";

/// Passes requests on to an engine, without [`SECRET_PATH`], and records them.
struct Proxy {
    port: u16,
    /// The first lines and the bodies of all requests.
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    /// The response to requests for completions in place of the engine's.
    response: Arc<Mutex<Option<String>>>,
}

impl Proxy {
    fn start(engine: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self { port, requests: Arc::default(), response: Arc::default() };
        let (requests, response) = (Arc::clone(&proxy.requests), Arc::clone(&proxy.response));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (requests, response) = (Arc::clone(&requests), Arc::clone(&response));
                // A client that leaves ends its thread.
                std::thread::spawn(move || Self::pass_on(client.unwrap(), engine, &requests, &response));
            }
        });
        proxy
    }

    /// Handles one request. The connection is closed after it.
    fn pass_on(
        client: TcpStream,
        engine: u16,
        requests: &Mutex<Vec<(String, Value)>>,
        response: &Mutex<Option<String>>,
    ) -> Option<()> {
        let mut reader = BufReader::new(client.try_clone().ok()?);
        let mut client = client;
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|&bytes| bytes > 0)?;
            match line.trim_end() {
                "" => break,
                line => head.push(line.replace(SECRET_PATH, "")),
            }
        }
        let length =
            head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        let parsed = serde_json::from_slice(&body).unwrap_or_default();
        requests.lock().unwrap().push((head[0].clone(), parsed));
        let replaced = response.lock().unwrap().clone();
        if let Some(response) = replaced
            && head[0].contains("completions")
        {
            return client.write_all(response.as_bytes()).ok();
        }
        head.push("connection: close".to_owned());
        let mut engine = TcpStream::connect(("127.0.0.1", engine)).ok()?;
        engine.write_all(format!("{}\r\n\r\n", head.join("\r\n")).as_bytes()).ok()?;
        engine.write_all(&body).ok()?;
        let mut response = Vec::new();
        engine.read_to_end(&mut response).ok()?;
        client.write_all(&response).ok()
    }

    fn reply(&self, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        *self.response.lock().unwrap() = Some(response);
    }

    /// A server of the model of this engine.
    fn front(&self, more: &[&str]) -> Server {
        let model = format!("--model=remote=http://127.0.0.1:{}{SECRET_PATH}", self.port);
        let tokenizer = format!("--tokenizer={TINY}");
        Server::start(&[&[&*model, &tokenizer], more].concat())
    }
}

/// Requests of all kinds for text, and for numbers.
fn requests_of_all_kinds() -> [(&'static str, Value); 8] {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"], "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let messages = json!([{"role": "user", "content": "1 + 1 ="}]);
    [
        ("/v1/completions", json!({"prompt": "1 + 1 =", "max_tokens": 4})),
        ("/v1/completions", json!({"prompt": "1 + 1 =", "max_tokens": 4, "stream": true})),
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 4})),
        ("/v1/responses", json!({"input": "1 + 1 =", "max_output_tokens": 4})),
        ("/v1/completions", json!({"prompt": "1 + 1 =", "number": {"nodes_max": 20}})),
        (
            "/v1/completions",
            json!({"prompt": "1 + 1", "max_tokens": 4, "number": {"after": "=", "nodes_max": 20}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "1", "response_format": schema, "max_tokens": 40, "number": {"nodes_max": 40}}),
        ),
        ("/v1/score", json!({"items": [{"prompt": "1 + 1 =", "target": " 2"}]})),
    ]
}

#[test]
fn keys_have_different_salts_at_the_engine_in_requests_of_every_kind() {
    let engine = Server::start(&[&format!("--model=tiny={TINY}")]);
    let proxy = Proxy::start(engine.port);
    let front = proxy.front(&["--api-key=a", "--api-key=b"]);
    let salts = |key: &str, given: Option<&str>| {
        let mut salts = BTreeSet::new();
        for (path, mut body) in requests_of_all_kinds() {
            if let Some(salt) = given
                && path != "/v1/score"
            {
                body["cache_salt"] = salt.into();
            }
            proxy.requests.lock().unwrap().clear();
            front.post(path, &format!("Authorization: Bearer {key}\r\n"), &body);
            let requests = proxy.requests.lock().unwrap();
            let sent: Vec<&Value> =
                requests.iter().filter(|(line, _)| line.starts_with("POST")).map(|(_, body)| body).collect();
            assert!(!sent.is_empty(), "{path} {body}");
            for sent in sent {
                let salt = sent["cache_salt"].as_str();
                assert!(salt.is_some_and(|salt| salt.len() == 16), "{path} {body} was sent as {sent}");
                if path != "/v1/score" {
                    salts.insert(salt.unwrap().to_owned());
                }
            }
        }
        assert_eq!(salts.len(), 1, "a text and its number share their prefix: {salts:?}");
        salts.pop_first().unwrap()
    };
    let all =
        BTreeSet::from([salts("a", None), salts("b", None), salts("a", Some("x")), salts("b", Some("x"))]);
    assert_eq!(all.len(), 4, "{all:?}");
    front.end();
}

#[test]
fn neither_clients_nor_the_log_nor_metrics_see_the_key_or_the_path_of_an_engine() {
    const KEY: &str = "sk-UPSTREAMSECRET-777";
    let engine = Server::start(&[&format!("--model=tiny={TINY}")]);
    let proxy = Proxy::start(engine.port);
    let front = proxy.front(&["--log=trace", &format!("--upstream-api-key={KEY}")]);
    let percent: String = KEY.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut shown = String::new();
    for form in [KEY, &percent, "c2stVVBTVFJFQU1TRUNSRVQtNzc3", "QmVhcmVyIHNrLVVQU1RSRUFNU0VDUkVULTc3Nw=="] {
        for status in ["400 Bad Request", "401 Unauthorized", "404 Not Found", "200 OK"] {
            let message = format!("no {SECRET_PATH}/v1 for \u{202e}{form}, KEY is {form}");
            proxy.reply(
                status,
                "Content-Type: application/json\r\n",
                &json!({"error": {"message": message}}).to_string(),
            );
            for (path, body) in requests_of_all_kinds() {
                let response = front.post(path, "", &body);
                assert!(!response.contains('\u{202e}') || response.starts_with("HTTP/1.1 200"), "{response}");
                if !response.starts_with("HTTP/1.1 200") {
                    assert!(!response.contains("SECRETPATH"), "{response}");
                }
                shown += &response;
            }
        }
    }
    *proxy.response.lock().unwrap() = None;
    let metrics = front.get("/metrics", "");
    assert!(metrics.contains(&format!("replica=\"127.0.0.1:{}\"", proxy.port)), "{metrics}");
    let log = front.end();
    for text in [&metrics, &log] {
        assert!(!text.contains("SECRETPATH"), "{text}");
    }
    for text in [shown, metrics, log] {
        for secret in ["UPSTREAMSECRET", "%53%54%52%45%41%4D", "VVBTVFJFQU1TRUN", "IHNrLVVQU1RSRUFNU0VD"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
    }
}

#[test]
fn an_overloaded_engine_has_its_status_and_its_retry_after() {
    let engine = Server::start(&[&format!("--model=tiny={TINY}")]);
    let proxy = Proxy::start(engine.port);
    let front = proxy.front(&[]);
    proxy.reply("429 Too Many Requests", "Retry-After: 7\r\n", r#"{"error": {"message": "busy"}}"#);
    for (path, body) in requests_of_all_kinds() {
        // The proxy replaces responses of completions only.
        if path == "/v1/responses" {
            continue;
        }
        proxy.requests.lock().unwrap().clear();
        let response = front.post(path, "", &body);
        assert!(response.starts_with("HTTP/1.1 429"), "{path} {body}: {response}");
        assert!(response.to_lowercase().contains("\r\nretry-after: 7\r\n"), "{response}");
        assert!(response.contains("upstream_overloaded") && response.contains("busy"), "{response}");
        let requests = proxy.requests.lock().unwrap();
        let sent: Vec<&Value> =
            requests.iter().filter(|(line, _)| line.starts_with("POST")).map(|(_, body)| body).collect();
        let again = sent.iter().enumerate().find(|(index, body)| sent[..*index].contains(body));
        assert_eq!(again, None, "{path} {body}: a request was sent again");
    }
}

#[test]
fn responses_of_a_model_elsewhere_name_the_fingerprint_of_its_engine() {
    let fingerprint_of = |server: &Server| {
        let list = server.get("/v1/models", "");
        let list: Value = serde_json::from_str(list.split_once("\r\n\r\n").unwrap().1).unwrap();
        list["data"][0]["fingerprint"].as_str().unwrap().to_owned()
    };
    let engine = Server::start(&[&format!("--model=tiny={TINY}")]);
    let front = Proxy::start(engine.port).front(&[]);
    let fingerprint = fingerprint_of(&engine);
    assert_eq!(fingerprint_of(&front), fingerprint);
    for (path, body) in requests_of_all_kinds() {
        let response = front.post(path, "", &body);
        let header = format!("\r\nntl-model-fingerprint: {fingerprint}\r\n");
        assert!(response.contains(&header), "{path} {body}: {response}");
        if path == "/v1/completions" {
            assert!(response.contains(&format!("\"system_fingerprint\":\"{fingerprint}\"")), "{response}");
        }
    }
}

/// Makes a copy of a directory the snapshot of a repository in a Hugging Face cache.
fn cache(home: &Path, name: &str, folder: &str, revision: &str) {
    let repository = home.join("hub").join(format!("models--org--{name}"));
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, snapshot.join(path.file_name().unwrap())).unwrap();
        }
    }
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs").join(revision), COMMIT).unwrap();
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[test]
fn a_model_of_the_hub_is_served_from_the_cache_with_its_commit() {
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/data/adapters/llama-ntl");
    let home = tempfile::tempdir().unwrap();
    cache(home.path(), "tiny", TINY, "main");
    cache(home.path(), "lora", adapter, "v1");
    let environment = [("HF_HOME", home.path().to_str().unwrap()), ("HF_HUB_OFFLINE", "1")];
    let flags = ["--model=hf:org/tiny", "--adapter=hf:org/lora@v1"];
    let mut server = Server::listening_in(&environment, &flags);
    server.line_with("ready");
    let models = server.get("/v1/models", "");
    let models: Value = serde_json::from_str(models.split_once("\r\n\r\n").unwrap().1).unwrap();
    let found = |index: usize| [&models["data"][index]["id"], &models["data"][index]["revision"]];
    assert_eq!(found(0), [&json!("tiny"), &json!(COMMIT)]);
    assert_eq!(found(1), [&json!("lora"), &json!(COMMIT)]);
    server.end();
    let inspected = program(&["inspect", "hf:org/tiny"], &environment).output().unwrap();
    assert!(inspected.status.success() && !inspected.stdout.is_empty());
    let (code, error) = failure(&["--model=hf:org/other", "--port=0"], &environment);
    let want = "ntl-server: cannot download hf:org/other: HF_HUB_OFFLINE is set, and ";
    assert!(code == 1 && error.contains(want), "{error}");
}
