//! Malicious or broken servers: every run ends with one clear line and an exit code.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use common::{err, ntl_eval, out};
use flate2::Compression;
use flate2::write::GzEncoder;

/// Writes everything after the request line to a connection. An error means that the client has disconnected.
type Answer = fn(&mut TcpStream) -> std::io::Result<()>;

/// A server that lists one model and answers completions as the test specifies. Its threads end with the
/// test's process.
struct Server {
    url: String,
    asked: Arc<AtomicUsize>,
}

fn serve(answer: Answer) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    thread::spawn(move || {
        for connection in listener.incoming() {
            let counter = Arc::clone(&counter);
            thread::spawn(move || one_request(connection?, &counter, answer));
        }
    });
    Server { url, asked }
}

fn one_request(mut connection: TcpStream, asked: &AtomicUsize, answer: Answer) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut first = String::new();
    let mut length = 0;
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(text) = line.strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    if first.starts_with("GET /v1/models") {
        return whole(&mut connection, "200 OK", "", br#"{"data": [{"id": "tiny", "fingerprint": "f"}]}"#);
    }
    asked.fetch_add(1, Ordering::SeqCst);
    answer(&mut connection)
}

/// Writes a complete response. `headers` are lines with their line ends.
fn whole(to: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(to, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n")?;
    to.write_all(body)
}

/// Runs four items, at most three of them concurrently.
fn run(server: &Server, more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pairs.txt");
    fs::write(&file, "1 + 1\n2\n2 + 2\n4\n3 + 3\n6\n4 + 4\n8\n").unwrap();
    let args = ["arithmetic", "--split", "interpolate", "--quiet", "--concurrency", "3", "--data"];
    let server = ["--endpoint", &server.url];
    ntl_eval(&[&args[..], &[file.to_str().unwrap()], &server, more].concat())
}

/// Checks that the run fails on every item, and that its only line contains `complaint`.
fn fails(answer: Answer, more: &[&str], complaint: &str) {
    let server = serve(answer);
    let output = run(&server, more);
    assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{}", err(&output));
    let message = err(&output);
    assert!(message.contains(complaint), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(server.asked.load(Ordering::SeqCst) > 0);
}

#[test]
fn an_endless_body_is_read_up_to_a_limit() {
    fails(
        |to| {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{{\"text\": \"")?;
            let chunk = [b'x'; 1 << 16];
            loop {
                to.write_all(&chunk)?;
            }
        },
        &[],
        "is longer than 16 MiB",
    );
    // Error messages have a separate limit, and their beginning is shown.
    fails(
        |to| {
            write!(to, "HTTP/1.1 500 No\r\n\r\n")?;
            let chunk = [b'x'; 1 << 16];
            loop {
                to.write_all(&chunk)?;
            }
        },
        &[],
        "returned 500 Internal Server Error: xxxx",
    );
}

#[test]
fn control_characters_of_a_server_do_not_reach_the_terminal() {
    fails(
        |to| whole(to, "400 Bad Request", "", "\u{1b}[2J\u{9b}2Jno\u{7}".as_bytes()),
        &[],
        "\\u{1b}[2J\\u{9b}2Jno\\u{7}",
    );
}

#[cfg(unix)]
#[test]
fn a_journal_that_is_no_regular_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink("/dev/full", out.join("journal.jsonl")).unwrap();
    let server = serve(|_| Ok(()));
    let output = run(&server, &["--overwrite", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("journal.jsonl: it is not a regular file"), "{}", err(&output));
    assert_eq!(server.asked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stream_may_take_longer_than_the_timeout_if_its_bytes_keep_coming() {
    let server = serve(|to| {
        write!(to, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n")?;
        to.set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 3_000 {
            to.write_all(b": busy\n\n")?;
            if matches!(to.read(&mut [0]), Ok(0)) {
                return Ok(());
            }
        }
        to.write_all(b"data: {\"choices\":[{\"delta\":{\"content\":\"2\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
    });
    let output = run(&server, &["--api", "chat", "--timeout", "2", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("\"failed\":0"), "{}", out(&output));
    assert_eq!(server.asked.load(Ordering::SeqCst), 4);
}

#[test]
fn an_error_at_the_end_of_a_stream_is_the_server_s_message() {
    fails(
        |to| {
            let event = b"data: {\"choices\":[{\"text\":\"2\"}]}\n\ndata: {\"error\":{\"message\":\"out of cache\",\"code\":400}}\n\n";
            whole(to, "200 OK", "content-type: text/event-stream; charset=utf-8\r\n", event)
        },
        &["--api", "chat"],
        "returned 400 Bad Request: out of cache",
    );
}

#[test]
fn a_slow_body_without_an_end_ends_with_the_deadline() {
    fails(
        |to| {
            write!(to, "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")?;
            // Sends a byte now and then until the client disconnects.
            to.set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
            loop {
                to.write_all(b" ")?;
                if matches!(to.read(&mut [0]), Ok(0)) {
                    return Ok(());
                }
            }
        },
        &["--timeout", "1", "--deadline", "2"],
        "all 4 items of arithmetic interpolate failed",
    );
}

#[test]
fn a_gzip_bomb_is_not_unpacked() {
    fails(
        |to| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&vec![b' '; 8 << 20])?;
            whole(to, "200 OK", "content-encoding: gzip\r\n", &encoder.finish()?)
        },
        &[],
        "it is not JSON",
    );
}

#[test]
fn a_redirect_to_another_server_is_not_followed() {
    fails(
        |to| {
            let header = "location: http://127.0.0.2:9/v1/completions\r\n";
            whole(to, "307 Temporary Redirect", header, b"")
        },
        &[],
        "redirects to http://127.0.0.2:9/v1/completions, which is another server or one redirect too many",
    );
    // Redirects in a loop on one server.
    fails(
        |to| whole(to, "307 Temporary Redirect", "location: /v1/completions\r\n", b""),
        &[],
        "redirects to /v1/completions",
    );
}

#[test]
fn wrong_counts_and_wrong_types_are_named() {
    fails(|to| whole(to, "200 OK", "", br#"{"choices": []}"#), &[], "the response has no choices");
    fails(
        |to| whole(to, "200 OK", "", br#"{"choices": {"text": "2"}}"#),
        &[],
        "could not be read: found an object, expected a list",
    );
    fails(|to| whole(to, "200 OK", "", b"{}"), &[], "could not be read: missing field `choices`");
    fails(|to| whole(to, "200 OK", "", b""), &[], "could not be read: it is empty");
}

#[test]
fn invalid_numbers_are_rejected() {
    fails(
        |to| whole(to, "200 OK", "", br#"{"choices": [{"text": "2", "number": {"value": NaN}}]}"#),
        &["--mode", "regress"],
        "it is not JSON",
    );
    fails(
        |to| whole(to, "200 OK", "", br#"{"choices": [{"text": "2", "number": {"value": 1e999}}]}"#),
        &["--mode", "regress"],
        "a number is out of range",
    );
    fails(
        |to| {
            let number = br#"{"value": 2, "objective": "mean", "method": "tree", "quantiles": [], "nodes": 1,
                "support": [{"value": 2, "text": "2", "probability": 7}], "bounds": {"quantiles": []},
                "mass": {"closed": 1, "invalid": 0, "open": 0}, "forward_passes": 1, "truncated": false}"#;
            let body = [br#"{"choices": [{"text": "2", "number": "#.as_slice(), number, b"}]}"].concat();
            whole(to, "200 OK", "", &body)
        },
        &["--mode", "regress"],
        "the response's `number` is impossible: its support has a total probability of 7, but the closed mass is 1",
    );
}

#[test]
fn text_that_is_not_utf_8_is_rejected() {
    fails(|to| whole(to, "200 OK", "", b"{\"choices\": [{\"text\": \"\xff\xfe\"}]}"), &[], "it is not JSON");
}

#[test]
fn a_web_page_is_reported_as_a_wrong_address() {
    fails(
        |to| whole(to, "200 OK", "", b"<!doctype html><title>Sign in</title>"),
        &[],
        "it is a web page \"Sign in\" instead of JSON; is this the address of an OpenAI-style server?",
    );
}

#[test]
fn a_connection_that_breaks_off_is_one_clear_line() {
    fails(
        |to| write!(to, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{{"),
        &["--deadline", "1"],
        "all 4 items of arithmetic interpolate failed",
    );
    fails(
        |to| write!(to, "SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        &["--deadline", "1"],
        "all 4 items of arithmetic interpolate failed",
    );
}

#[test]
fn an_invalid_certificate_ends_the_run() {
    use tokio_rustls::rustls::{ServerConfig, ServerConnection};
    let made = rcgen::generate_simple_self_signed(["example.com".to_owned()]).unwrap();
    let key = made.signing_key.serialize_der().try_into().unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![made.cert.der().clone()], key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            // Fails once the client has seen the certificate.
            let _ = tls.complete_io(&mut connection?);
        }
        std::io::Result::Ok(())
    });
    let output = run(&Server { url, asked: Arc::default() }, &["--deadline", "1"]);
    assert_eq!((output.status.code(), out(&output)), (Some(1), String::new()), "{}", err(&output));
    let message = err(&output);
    assert!(message.contains("certificate"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}
