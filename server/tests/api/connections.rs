//! Connections whose clients are slow, silent or too many; request ids, HTTPS and other origins.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderName, Method, Request, Response, header};
use futures::FutureExt;
use h2::RecvStream;
use h2::client::SendRequest;
use ntl_core::contract::BatchModel;
use ntl_engine::EngineLimits;
use ntl_server::app;
use ntl_server::listen::{Certificate, ConnectionSettings, Listener, TlsFiles};
use ntl_server::metrics::Metrics;
use ntl_server::reload::Reloaded;
use ntl_server::serve;
use ntl_server::settings::{HttpSettings, Origins};
use ntl_server::state::AppState;
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::hooked::gated;
use crate::support::{
    Answer, babbles, call, get, loaded, metric, metric_becomes, says, scripted, server, state_of,
};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum wait for an event that needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on the loopback that says 1, until the sender of its signals is dropped with the runtime.
struct Server {
    address: SocketAddr,
    app: axum::Router,
    _signals: mpsc::Sender<()>,
}

async fn bound(settings: ConnectionSettings) -> Listener {
    Listener::new(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), settings)
}

fn start(listener: Listener, http: HttpSettings, script: ntl_core::scripted::Script) -> Server {
    start_model(listener, http, Box::new(scripted(script)))
}

fn start_model(listener: Listener, http: HttpSettings, model: Box<dyn BatchModel>) -> Server {
    let models = vec![("scripted", loaded(model))];
    let state = state_of(models, http, EngineLimits::default());
    let address = listener.local_addr().unwrap();
    let app = app::router(state.clone());
    let (signal, signals) = mpsc::channel(2);
    tokio::spawn(serve::serve(listener, state, signals, Duration::ZERO));
    Server { address, app, _signals: signal }
}

/// Settings with this many slots, whose connections may be evicted as soon as the server waits for their
/// clients.
fn places(connections_max: usize) -> ConnectionSettings {
    ConnectionSettings {
        connections_max,
        evict_after: Duration::ZERO,
        ..crate::support::config(&[]).connections
    }
}

async fn serving(settings: ConnectionSettings) -> Server {
    start(bound(settings).await, crate::support::settings(), says("1"))
}

/// Sends bytes and reads until the server closes the connection.
async fn until_closed(address: SocketAddr, bytes: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(bytes).await.unwrap();
    rest_of(&mut connection).await
}

async fn rest_of(connection: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A connection that is closed with bytes still unread is reset, which is an end, too.
    let _ = tokio::time::timeout(PATIENCE, connection.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Requests the health on a connection that stays open.
async fn is_healthy(connection: &mut TcpStream) -> bool {
    if connection.write_all(HEALTH).await.is_err() {
        return false;
    }
    let mut answer = [0; 512];
    let read = tokio::time::timeout(PATIENCE, connection.read(&mut answer)).await.unwrap();
    read.is_ok_and(|bytes| answer[..bytes].starts_with(b"HTTP/1.1 200"))
}

const SHORT: Duration = Duration::from_millis(40);

#[tokio::test]
async fn connections_that_send_nothing_or_only_half_a_header_are_closed() {
    let settings = ConnectionSettings { header_time_max: SHORT, ..crate::support::config(&[]).connections };
    let server = serving(settings).await;
    for bytes in [&b""[..], b"GET", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "] {
        assert_eq!(until_closed(server.address, bytes).await, "", "{bytes:?}");
    }
}

#[tokio::test]
async fn idle_connections_are_closed_and_others_stay() {
    let settings = ConnectionSettings { idle_time_max: SHORT, ..crate::support::config(&[]).connections };
    let server = serving(settings).await;
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    assert!(is_healthy(&mut connection).await);
    assert_eq!(rest_of(&mut connection).await, "");
    let patient = serving(crate::support::config(&[]).connections).await;
    let mut connection = TcpStream::connect(patient.address).await.unwrap();
    assert!(is_healthy(&mut connection).await && is_healthy(&mut connection).await);
}

#[tokio::test]
async fn a_body_that_drips_is_answered_408_and_its_connection_closed() {
    let http = HttpSettings { body_time_max: SHORT, ..crate::support::settings() };
    let server = start(bound(crate::support::config(&[]).connections).await, http, says("1"));
    let request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 1000\r\n\r\n{\"prompt\":";
    let answer = until_closed(server.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_too_slow"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
}

#[tokio::test]
async fn a_length_over_the_limit_is_refused_before_the_body_arrives() {
    let server = serving(crate::support::config(&[]).connections).await;
    let request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Expect: 100-continue\r\nContent-Length: 2097153\r\n\r\n";
    let answer = until_closed(server.address, request).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("body_too_large"), "{answer}");
}

async fn ask_for_endless_texts(connection: &mut TcpStream, n: u32) {
    let body = json!({"prompt": "x", "n": n, "max_tokens": 1_u64 << 40, "stream": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all((head + &body).as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_write_that_fails_ends_the_jobs_of_its_client_and_no_other() {
    let http = crate::support::endless();
    let server = start(bound(crate::support::config(&[]).connections).await, http, babbles());
    let mut clients = Vec::new();
    for n in [3, 1] {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        ask_for_endless_texts(&mut connection, n).await;
        connection.read_exact(&mut [0; 1000]).await.unwrap();
        clients.push(connection);
    }
    let broken = clients.remove(0);
    let mut other = clients.remove(0);
    // Reset instead of closed: the next write is an error.
    SockRef::from(&broken).set_linger(Some(Duration::ZERO)).unwrap();
    drop(broken);
    metric_becomes(&server.app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 3.0).await;
    other.read_exact(&mut [0; 100_000]).await.unwrap();
    metric_becomes(&server.app, "ntl_requests_in_flight", 1.0).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_its_stream_loses_it_and_its_rows() {
    let settings = ConnectionSettings { write_time_max: SHORT, ..crate::support::config(&[]).connections };
    let http = crate::support::endless();
    let server = start(bound(settings).await, http, babbles());
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut connection = socket.connect(server.address).await.unwrap();
    // Many texts fill the buffers of the operating system soon, even where they are large.
    ask_for_endless_texts(&mut connection, 128).await;
    metric_becomes(&server.app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 128.0).await;
    metric_becomes(&server.app, "ntl_requests_in_flight", 0.0).await;
    // The system's buffer is limited. Otherwise, the server could not distinguish a slow client from one that
    // does not read.
    assert!(rest_of(&mut connection).await.len() < 512 << 10);
}

/// The sending half of an HTTP/2 connection whose streams begin with a window of this many bytes, and the
/// task of the connection.
async fn http2(address: SocketAddr, window: u32) -> (SendRequest<Bytes>, JoinHandle<()>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake(stream).await.unwrap();
    // How a connection ends is checked by what its streams say.
    (client, tokio::spawn(connection.map(drop)))
}

/// The beginning of an answer over HTTP/2 to a request with this body.
async fn ask_http2(
    client: &SendRequest<Bytes>,
    method: Method,
    path: &str,
    body: &str,
) -> Response<RecvStream> {
    let request = Request::builder().method(method).uri(format!("http://localhost{path}"));
    let request = request.header(header::CONTENT_TYPE, "application/json").body(()).unwrap();
    let mut client = client.clone().ready().await.unwrap();
    let (response, mut sending) = client.send_request(request, false).unwrap();
    sending.send_data(body.to_owned().into(), true).unwrap();
    tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_stream_that_nobody_reads_is_ended_with_its_jobs_and_its_connection_stays() {
    let settings = ConnectionSettings { write_time_max: SHORT, ..crate::support::config(&[]).connections };
    let http = crate::support::endless();
    let server = start(bound(settings).await, http, babbles());
    let (client, _connection) = http2(server.address, 0).await;
    let body = json!({"prompt": "x", "n": 128, "max_tokens": 1_u64 << 40, "stream": true}).to_string();
    for (method, path, body) in [(Method::GET, "/health", ""), (Method::POST, "/v1/completions", &body)] {
        let answer = ask_http2(&client, method, path, body).await;
        assert_eq!(answer.status(), 200, "{path}");
        let error = answer.into_body().data().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL), "{path}");
    }
    metric_becomes(&server.app, "ntl_finished_total{model=\"scripted\",reason=\"abort\"}", 128.0).await;
    metric_becomes(&server.app, "ntl_requests_in_flight", 0.0).await;
    let answer = ask_http2(&client, Method::HEAD, "/health", "").await;
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn a_loopback_server_without_keys_rejects_the_names_of_other_sites() {
    let serving = async |flags: &[&str]| {
        let config = crate::support::config(flags);
        start(bound(config.connections).await, config.http, says("1"))
    };
    let status = async |server: &Server, host: &str| {
        let request = format!("GET /v1/models HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = until_closed(server.address, request.as_bytes()).await;
        let said = answer.contains("--allowed-hosts");
        (answer.get(9..12).map(str::to_owned).unwrap_or_default(), said)
    };
    let open = serving(&[]).await;
    let port = open.address.port();
    for host in ["localhost", &format!("127.0.0.1:{port}"), "[::1]:80", &format!("LOCALHOST:{port}")] {
        assert_eq!(status(&open, host).await, ("200".to_owned(), false), "{host}");
    }
    for host in ["evil.example", "localhost.evil.example", "192.0.2.1", "evil.example:127"] {
        assert_eq!(status(&open, host).await, ("403".to_owned(), true), "{host}");
    }
    let (client, _connection) = http2(open.address, 1 << 16).await;
    let request = Request::get("http://evil.example/health").body(()).unwrap();
    let (response, _) = client.ready().await.unwrap().send_request(request, true).unwrap();
    assert_eq!(tokio::time::timeout(PATIENCE, response).await.unwrap().unwrap().status(), 403);
    let named = serving(&["--allowed-hosts=models.example", "--api-key=secret"]).await;
    assert_eq!(status(&named, "Models.Example:8000").await.0, "401");
    assert_eq!(status(&named, "evil.example").await, ("403".to_owned(), true));
    for flags in [&["--api-key=secret"][..], &["--allowed-hosts=*"]] {
        assert_ne!(status(&serving(flags).await, "evil.example").await.0, "403", "{flags:?}");
    }
}

#[tokio::test]
async fn connections_whose_streams_nobody_reads_make_room() {
    let server = serving(places(3)).await;
    let mut unread = Vec::new();
    for _ in 0..3 {
        let (client, connection) = http2(server.address, 0).await;
        unread.push((ask_http2(&client, Method::GET, "/health", "").await, client, connection));
    }
    // Their deadline is 30 seconds away.
    assert!(is_healthy(&mut TcpStream::connect(server.address).await.unwrap()).await);
    let (_answer, _client, first) = unread.swap_remove(0);
    tokio::time::timeout(PATIENCE, first).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_client_of_an_idle_http_2_connection_is_told_that_it_closes() {
    let settings = ConnectionSettings { idle_time_max: SHORT, ..crate::support::config(&[]).connections };
    let server = serving(settings).await;
    let (client, connection) = http2(server.address, 1 << 16).await;
    let mut answer = ask_http2(&client, Method::GET, "/health", "").await.into_body();
    assert!(answer.data().await.unwrap().unwrap().starts_with(b"{"));
    tokio::time::timeout(PATIENCE, connection).await.unwrap().unwrap();
    let error = client.ready().await.err().unwrap();
    assert!(error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR), "{error}");
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_the_slowest_connection() {
    let server = serving(places(3)).await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
        slow.push(connection);
    }
    let mut newcomer = TcpStream::connect(server.address).await.unwrap();
    assert!(is_healthy(&mut newcomer).await);
    assert_eq!(rest_of(&mut slow[0]).await, "", "the first one had to go");
    slow[2].write_all(b"Host: localhost\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    slow[2].read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn hundreds_of_slow_connections_do_not_delay_a_request() {
    let server = serving(places(64)).await;
    let mut slow = Vec::new();
    for number in 0..300 {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let body: &[u8] =
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                            Content-Length: 99\r\n\r\n{";
        let bytes = if number % 2 == 0 { b"GET / HTTP/1.1\r\nX: " } else { body };
        // Those that had to go again do not take it.
        let _ = connection.write_all(bytes).await;
        slow.push(connection);
    }
    let started = Instant::now();
    assert!(is_healthy(&mut TcpStream::connect(server.address).await.unwrap()).await);
    // Were they not sent away, it would wait for their deadline of ten seconds.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

/// The response to a request for the health on a separate connection.
async fn health(address: SocketAddr) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection
        .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    rest_of(&mut connection).await
}

#[tokio::test]
async fn clients_beyond_the_places_wait_and_all_of_them_are_answered() {
    let patient = ConnectionSettings { evict_after: PATIENCE, ..places(8) };
    let sharing = ConnectionSettings { connections_max: 100, address_connections_max: 3, ..patient };
    for settings in [patient, sharing] {
        let server = serving(settings).await;
        let asked = (0..64).map(|_| health(server.address));
        for answer in futures::future::join_all(asked).await {
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
}

#[tokio::test]
async fn hundreds_of_clients_connect_before_the_first_is_accepted() {
    // Other systems have no such file, and a limit that is as high.
    let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
    let queue = somaxconn.map_or(300, |max| max.trim().parse().unwrap()).min(300);
    let listener = bound(places(9)).await;
    let mut connections = Vec::new();
    for _ in 0..queue {
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        connections.push(tokio::time::timeout(PATIENCE, connecting).await.unwrap().unwrap());
    }
}

/// Starts a completion that is answered when a gate opens.
async fn ask_slowly(address: SocketAddr) -> TcpStream {
    let body = json!({"prompt": "x"}).to_string();
    let length = body.len();
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn the_work_of_one_address_leaves_places_to_others_and_operators_have_their_own() {
    let settings = ConnectionSettings { address_connections_max: 3, evict_after: PATIENCE, ..places(4) };
    let listener = bound(settings).await;
    let listener = listener.with_admin(TcpListener::bind(("127.0.0.1", 0)).await.unwrap());
    let admin = listener.admin_addr().unwrap();
    let (model, gate) = gated(says("1"));
    let server = start_model(listener, crate::support::settings(), Box::new(model));
    let asked = futures::future::join_all((0..6).map(|_| ask_slowly(server.address))).await;
    metric_becomes(&server.app, "ntl_requests_in_flight", 3.0).await;
    let elsewhere = TcpSocket::new_v4().unwrap();
    elsewhere.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    assert!(is_healthy(&mut elsewhere.connect(server.address).await.unwrap()).await);
    assert!(health(admin).await.starts_with("HTTP/1.1 200"));
    let refused = rest_of(&mut ask_slowly(admin).await).await;
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    // The playground would request routes that do not exist.
    let mut connection = TcpStream::connect(admin).await.unwrap();
    connection.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let refused = rest_of(&mut connection).await;
    assert!(refused.starts_with("HTTP/1.1 404"), "{refused}");
    drop(gate);
    for mut connection in asked {
        let answer = rest_of(&mut connection).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

#[tokio::test]
async fn operators_are_served_while_the_main_runtime_is_blocked() {
    let listener = bound(crate::support::config(&[]).connections).await;
    let listener = listener.with_admin(TcpListener::bind(("127.0.0.1", 0)).await.unwrap());
    let admin = listener.admin_addr().unwrap();
    let _server = start(listener, crate::support::settings(), says("1"));
    assert!(health(admin).await.starts_with("HTTP/1.1 200"), "it has started");
    // From here on, this test blocks the only thread of the main runtime.
    for path in ["/health/live", "/health/ready", "/metrics"] {
        let mut connection = std::net::TcpStream::connect(admin).unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn idle_connections_to_the_operators_port_do_not_delay_its_probes() {
    let evict_after = Duration::from_secs(2);
    let settings = ConnectionSettings { evict_after, ..crate::support::config(&[]).connections };
    let listener = bound(settings).await.with_admin(TcpListener::bind(("127.0.0.1", 0)).await.unwrap());
    let admin = listener.admin_addr().unwrap();
    let _server = start(listener, crate::support::settings(), says("1"));
    let mut idle = Vec::new();
    for _ in 0..250 {
        idle.push(TcpStream::connect(admin).await.unwrap());
    }
    assert!(health(admin).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_connection_is_closed_after_a_response_to_an_unread_body_and_the_response_says_so() {
    let keys = ntl_server::keys::ApiKeys::read(vec!["secret".to_owned()], None).unwrap();
    let http = HttpSettings { api_keys: keys, ..crate::support::settings() };
    let server = start(bound(crate::support::config(&[]).connections).await, http, says("1"));
    let post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
        Content-Length: 2\r\n\r\n";
    let refused = until_closed(server.address, post).await.to_lowercase();
    assert!(refused.starts_with("http/1.1 401") && refused.contains("connection: close"), "{refused}");
    // Without a body, the next request can follow.
    let get = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n";
    let two = format!("{get}\r\n{get}Connection: close\r\n\r\n");
    let refused = until_closed(server.address, two.as_bytes()).await.to_lowercase();
    assert_eq!(refused.matches("http/1.1 401").count(), 2, "{refused}");
    assert_eq!(refused.matches("connection: close").count(), 1, "{refused}");
}

/// Sends a text to be tokenized from this address, and reads the beginning of the response.
async fn tokenize_from(from: &str, server: SocketAddr, text: &str) -> (TcpStream, String) {
    let body = json!({"prompt": text}).to_string();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let mut connection = socket.connect(server).await.unwrap();
    let length = body.len();
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    connection.write_all((head + &body).as_bytes()).await.unwrap();
    let mut status = [0; 12];
    connection.read_exact(&mut status).await.unwrap();
    (connection, String::from_utf8(status.to_vec()).unwrap())
}

#[tokio::test]
async fn a_response_holds_its_memory_until_it_is_read_and_leaves_a_quarter_to_other_clients() {
    let config = crate::support::config(&["--response-bytes-max=4MiB", "--responses-bytes-max=4MiB"]);
    let server = start(bound(config.connections).await, config.http, says("1"));
    let long = "1".repeat(120_000);
    let bytes = async || metric(&server.app, "ntl_response_bytes").await;
    let (mut slow, status) = tokenize_from("127.0.0.1", server.address, &long).await;
    assert_eq!(status, "HTTP/1.1 200");
    let held = bytes().await;
    assert!(held > 500_000.0, "{held}");
    let (mut refused, status) = tokenize_from("127.0.0.1", server.address, &long).await;
    assert_eq!(status, "HTTP/1.1 503");
    assert!(rest_of(&mut refused).await.contains("responses_full"));
    let (mut other, status) = tokenize_from("127.0.0.2", server.address, &long[..20_000]).await;
    assert_eq!(status, "HTTP/1.1 200");
    assert!(rest_of(&mut other).await.ends_with('}'));
    assert!(bytes().await > 500_000.0, "the first response is still there");
    assert!(rest_of(&mut slow).await.ends_with('}'));
    metric_becomes(&server.app, "ntl_response_bytes", 0.0).await;
    metric_becomes(&server.app, "ntl_requests_rejected_total{reason=\"responses_full\"}", 1.0).await;
    let (mut again, status) = tokenize_from("127.0.0.1", server.address, &long).await;
    assert_eq!(status, "HTTP/1.1 200");
    assert!(rest_of(&mut again).await.ends_with('}'));
}

#[tokio::test]
async fn connections_of_an_address_that_may_not_even_wait_are_closed() {
    let settings =
        ConnectionSettings { address_connections_max: 1, waiting_max: 1, evict_after: PATIENCE, ..places(9) };
    let server = serving(settings).await;
    let mut connections = Vec::new();
    for _ in 0..3 {
        connections.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(rest_of(&mut connections[2]).await, "");
    assert!(is_healthy(&mut connections[0]).await);
    drop(connections.swap_remove(0));
    assert!(health(server.address).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_header_of_megabytes_is_refused() {
    let server = serving(crate::support::config(&[]).connections).await;
    let request =
        format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: {}\r\n\r\n", "x".repeat(10 << 20));
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    // The server stops reading long before the end.
    let _ = connection.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = connection.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert!(is_healthy(&mut TcpStream::connect(server.address).await.unwrap()).await);
}

#[tokio::test]
async fn every_response_names_its_request() {
    let app = server(says("1"));
    let ask = async |method: Method, path: &str, id: Option<&str>| -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(id) = id {
            request = request.header(REQUEST_ID, id);
        }
        call(&app, request.body(axum::body::Body::empty()).unwrap()).await
    };
    for (method, path, status) in [
        (Method::GET, "/health", 200),
        (Method::GET, "/nothing", 404),
        (Method::DELETE, "/v1/completions", 405),
        (Method::POST, "/v1/completions", 415),
    ] {
        let answer = ask(method.clone(), path, Some("my-request.1")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header(REQUEST_ID)),
            (status, Some("my-request.1")),
            "{path}"
        );
        let made = ask(method.clone(), path, None).await.header(REQUEST_ID).unwrap().to_owned();
        assert!(made.len() == 32 && made.bytes().all(|byte| byte.is_ascii_hexdigit()), "{made}");
        let replaced = ask(method, path, Some("two words")).await;
        assert_ne!(replaced.header(REQUEST_ID), Some("two words"));
    }
}

#[tokio::test]
async fn only_pages_of_allowed_origins_may_ask_and_may_ask_for_a_key() {
    let keys = ntl_server::keys::ApiKeys::read(vec!["secret".to_owned()], None).unwrap();
    let serve = |origins| {
        let settings =
            HttpSettings { cors_origins: origins, api_keys: keys.clone(), ..crate::support::settings() };
        app::router(state_of(
            vec![("s", loaded(Box::new(scripted(says("1")))))],
            settings,
            EngineLimits::default(),
        ))
    };
    let preflight = async |app: &axum::Router, origin: &str| {
        let request = Request::options("/v1/completions")
            .header(header::ORIGIN, origin)
            .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST")
            .header(header::ACCESS_CONTROL_REQUEST_HEADERS, "authorization,content-type");
        call(app, request.body(axum::body::Body::empty()).unwrap()).await
    };
    let page = "https://a.example";
    let these = serve(Origins::These(vec![page.parse().unwrap()]));
    let answer = preflight(&these, page).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), Some(page));
    assert!(answer.header(header::ACCESS_CONTROL_ALLOW_HEADERS).unwrap().contains("authorization"));
    let other = preflight(&these, "https://b.example").await;
    assert_eq!(other.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
    let any = preflight(&serve(Origins::Any), "https://b.example").await;
    assert_eq!(any.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), Some("*"));
    let none = serve(Origins::None);
    assert_eq!(preflight(&none, page).await.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
    assert_eq!(get(&none, "/health").await.header(header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
}

/// A self-signed certificate for localhost and its key, in a temporary directory.
fn certificate() -> (tempfile::TempDir, TlsFiles, Vec<u8>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let files = TlsFiles { certificate: folder.path().join("cert.pem"), key: folder.path().join("key.pem") };
    std::fs::write(&files.certificate, made.cert.pem()).unwrap();
    std::fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    (folder, files, made.cert.der().to_vec())
}

/// Sends a request over TLS and returns the response.
async fn health_over_tls(server: &Server, root: Vec<u8>) -> std::io::Result<String> {
    use tokio_rustls::rustls;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.into()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(client));
    let stream = TcpStream::connect(server.address).await?;
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn https_is_spoken_where_there_are_a_certificate_and_a_key() {
    let (_folder, files, root) = certificate();
    let read = Certificate::read(files).unwrap();
    let listener = bound(crate::support::config(&[]).connections).await.with_tls(&read).unwrap();
    let server = start(listener, crate::support::settings(), says("1"));
    let answer = health_over_tls(&server, root).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let impatient = ConnectionSettings { header_time_max: SHORT, ..crate::support::config(&[]).connections };
    let listener = bound(impatient).await.with_tls(&read).unwrap();
    let server = start(listener, crate::support::settings(), says("1"));
    assert_eq!(until_closed(server.address, b"").await, "", "a handshake that never comes");
}

#[tokio::test]
async fn a_request_by_plain_http_to_a_port_for_https_is_told_so() {
    let (_folder, files, _) = certificate();
    let read = Certificate::read(files).unwrap();
    let listener = bound(crate::support::config(&[]).connections).await.with_tls(&read).unwrap();
    let server = start(listener, crate::support::settings(), says("1"));
    for request in
        ["GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "POST /x HTTP/1.0\r\n\r\n"]
    {
        let answer = until_closed(server.address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.0 400"), "{answer}");
        assert!(answer.contains("not_https") && answer.contains("https://"), "{answer}");
    }
}

#[tokio::test]
async fn new_connections_get_a_certificate_that_was_read_again() {
    let (_folder, files, old) = certificate();
    let (_other_folder, others, new) = certificate();
    let read = Certificate::read(files.clone()).unwrap();
    let listener = bound(crate::support::config(&[]).connections).await.with_tls(&read).unwrap();
    let server = start(listener, crate::support::settings(), says("1"));
    let state = AppState::new(crate::support::settings(), Arc::new(Metrics::new().unwrap()));
    let reloaded = Reloaded { app: state.downgrade(), certificate: Some(read) };
    std::fs::copy(&others.certificate, &files.certificate).unwrap();
    // The key does not belong to the new certificate yet.
    reloaded.reload();
    assert!(health_over_tls(&server, old.clone()).await.is_ok());
    std::fs::copy(&others.key, &files.key).unwrap();
    reloaded.reload();
    assert!(health_over_tls(&server, new).await.unwrap().starts_with("HTTP/1.1 200"));
    assert!(health_over_tls(&server, old).await.is_err());
}

#[test]
fn what_is_wrong_with_a_certificate_or_a_key_is_said() {
    let (folder, files, _) = certificate();
    let (other_folder, others, _) = certificate();
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "nothing").unwrap();
    let with = |certificate: &std::path::Path, key: &std::path::Path| TlsFiles {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    };
    for (files, message) in [
        (with("/no/such".as_ref(), &files.key), "cannot read certificate from `/no/such`"),
        (with(&files.certificate, "/no/such".as_ref()), "cannot read private key from `/no/such`"),
        (with(&empty, &files.key), "there is no certificate in"),
        (with(&files.certificate, &empty), "there is no private key in"),
        (with(&files.certificate, &files.certificate), "there is no private key in"),
        (with(&files.certificate, &others.key), "cannot use the key in"),
    ] {
        let error = Certificate::read(files).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    drop(other_folder);
}

#[tokio::test]
async fn a_request_that_others_may_read_differently_is_refused_and_its_connection_closed() {
    let server = serving(crate::support::config(&[]).connections).await;
    for (head, message) in [
        ("GET /health/live HTTP/1.1\r\n\r\n", "exactly one `Host` header"),
        ("GET /health/live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", "exactly one `Host` header"),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "must be `chunked`",
        ),
    ] {
        let answer = until_closed(server.address, head.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(message), "{answer}");
    }
}
