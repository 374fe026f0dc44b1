//! `ntl-eval data`: interrupted downloads, files that differ from the original, and generated data.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail a test like the tests themselves")]

mod common;

use std::fs;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use common::{err, ntl_eval, out};
use futures::stream;
use ntl_eval::data::DataError;
use ntl_eval::data::fetch::{Source, fetch, sha256};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// The contents of every file on the server.
const CONTENTS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// SHA-256 of [`CONTENTS`].
const SHA256: &str = "74e7e5bb9d22d6db26bf76946d40fff3ea9f0346b884fd0694920fccfad15e33";

/// The requested ranges. The first response breaks off in the middle.
type Ranges = Arc<Mutex<Vec<Option<String>>>>;

async fn serve(State(ranges): State<Ranges>, Path(_): Path<String>, headers: HeaderMap) -> Response {
    let range = headers.get("range").map(|value| value.to_str().unwrap().to_owned());
    let first = {
        let mut ranges = ranges.lock().unwrap();
        ranges.push(range.clone());
        ranges.len() == 1
    };
    if first {
        let broken = std::io::Error::other("gone");
        let parts = stream::iter([Ok(Bytes::from_static(&CONTENTS[..10])), Err(broken)]);
        return Body::from_stream(parts).into_response();
    }
    let from: usize = range.map_or(0, |text| text["bytes=".len()..text.len() - 1].parse().unwrap());
    let status = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    (status, Body::from(CONTENTS[from..].to_vec())).into_response()
}

async fn mirror() -> (String, Ranges) {
    let ranges = Ranges::default();
    let app = Router::new().route("/{name}", get(serve)).with_state(Arc::clone(&ranges));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, ranges)
}

async fn fetch_into(folder: &TempDir, source: Source, url: &str) -> (Result<(), DataError>, String) {
    let mut said = Vec::new();
    let result = fetch(&[source], folder.path(), Some(url), None, &mut said).await;
    (result, String::from_utf8(said).unwrap())
}

#[tokio::test]
async fn an_interrupted_download_is_continued_and_checked() {
    let (url, ranges) = mirror().await;
    let folder = tempfile::tempdir().unwrap();
    let source = Source::pinned("https://example.org/a/test.jsonl", SHA256);
    let (result, said) = fetch_into(&folder, source, &url).await;
    result.unwrap();
    assert!(said.contains("(as published)"), "{said}");
    assert_eq!(fs::read(folder.path().join("test.jsonl")).unwrap(), CONTENTS);
    let asked = ranges.lock().unwrap().clone();
    assert_eq!(asked[0], None);
    // The network determines how much arrives before the break. The client requests the rest.
    assert!(asked.len() == 2, "{asked:?}");
    // A complete file is not fetched again.
    fetch_into(&folder, source, &url).await.0.unwrap();
    assert_eq!(ranges.lock().unwrap().len(), 2);
    // Ten bytes are left from a run that was killed.
    let file = folder.path().join("test.jsonl");
    fs::remove_file(&file).unwrap();
    fs::write(folder.path().join("test.jsonl.part"), &CONTENTS[..10]).unwrap();
    fetch_into(&folder, source, &url).await.0.unwrap();
    assert_eq!(ranges.lock().unwrap().last().unwrap().as_deref(), Some("bytes=10-"));
    assert_eq!(fs::read(&file).unwrap(), CONTENTS);
}

#[tokio::test]
async fn a_file_that_differs_from_the_original_is_rejected_and_deleted() {
    let (url, _) = mirror().await;
    let folder = tempfile::tempdir().unwrap();
    let source = Source::pinned("https://example.org/a/test.jsonl", "00");
    let (result, _) = fetch_into(&folder, source, &url).await;
    let message = result.unwrap_err().to_string();
    assert!(message.contains(&format!("has sha256 {SHA256}, expected 00")), "{message}");
    assert!(!folder.path().join("test.jsonl").exists());
}

#[tokio::test]
async fn without_a_known_checksum_the_first_one_is_recorded_and_checked_afterwards() {
    let (url, _) = mirror().await;
    let folder = tempfile::tempdir().unwrap();
    let source = Source { url: "https://example.org/x.bin", sha256: None, members: &[] };
    let (result, said) = fetch_into(&folder, source, &url).await;
    result.unwrap();
    assert!(said.contains(&format!("sha256 {SHA256} (recorded; ")), "{said}");
    let (result, said) = fetch_into(&folder, source, &url).await;
    result.unwrap();
    assert!(said.contains("(as when it was downloaded)"), "{said}");
    fs::write(folder.path().join("x.bin"), "changed").unwrap();
    let message = fetch_into(&folder, source, &url).await.0.unwrap_err().to_string();
    assert!(message.contains(&format!("expected {SHA256}")), "{message}");
}

#[test]
fn generated_data_is_written_in_the_original_format_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let data = |task: &str, seed: &str| {
        let output = ntl_eval(&["data", task, "--dir", folder.path().to_str().unwrap(), "--seed", seed]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output)
    };
    assert!(data("arithmetic", "3").contains("(10000 items from seed 3)"));
    let file = folder.path().join("arithmetic_test_extrapolate.txt");
    let first = sha256(&file).unwrap();
    data("arithmetic", "4");
    assert_ne!(sha256(&file).unwrap(), first);
    assert!(data("multiplication", "0").contains("multiplication_test_interpolate.jsonl sha256 "));
    let mock = common::Mock::start(&["tiny"], |_, _| common::text("1"));
    let args = ["multiplication", "--endpoint", &mock.url, "--limit", "3", "--quiet", "--data"];
    let output = ntl_eval(&[&args[..], &[folder.path().to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(mock.bodies().len(), 6);
}

#[test]
fn a_failed_download_names_the_address_and_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    // The port is free again once the listener is dropped.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mirror, dir) = (format!("http://{address}/files"), folder.path().to_str().unwrap());
    let output = ntl_eval(&["data", "rjokes", "--mirror", &mirror, "--dir", dir]);
    assert_eq!(output.status.code(), Some(1));
    let message = err(&output);
    assert!(message.starts_with(&format!("error: could not download {mirror}/test.tsv.gz: ")), "{message}");
    assert!(message.contains("tcp connect error: Connection refused"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}
