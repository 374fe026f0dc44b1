//! `ntl-bench load` with a server that rejects every request.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;

/// Responds to one request with status 400.
fn refuse(mut connection: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = text.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let body = r#"{"error": {"message": "no model `large`", "type": "t", "param": null, "code": null}}"#;
    let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length:";
    write!(connection, "{head} {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_load_without_answers_fails_with_the_server_s_message_and_no_table() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || refuse(connection));
        }
    });
    let program = Command::new(env!("CARGO_BIN_EXE_ntl-bench"))
        .args(["load", "--endpoint", &url, "--concurrency", "2", "--requests", "5"])
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&program.stdout);
    let err = String::from_utf8_lossy(&program.stderr);
    assert_eq!((program.status.code(), &*out), (Some(1), ""), "{err}");
    assert!(err.contains("all requests failed: 5 times status 400: no model `large`"), "{err}");
}
