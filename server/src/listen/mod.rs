//! The accept loop: it accepts connections up to a limit, each with deadlines, and passes their requests to
//! the router.
//!
//! Invariants: no client can hold a connection forever by not sending or not reading. When all slots are
//! used, a new connection evicts the one whose client the server has waited for longest, so that slow clients
//! cannot lock out others. Connections whose requests are at work, and those that have just come, are never
//! evicted; new ones then wait in the listen backlog. No address can hold all slots; its further connections
//! are accepted, but wait unread.

mod admin;
mod certificate;
mod connection;
mod connection_table;
mod descriptors;
mod io;
mod streams;
mod tls;
mod waiting;
mod watched_body;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Version};
use futures::FutureExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::error::AppError;

use admin::AdminListener;
pub(crate) use connection::InFlightRequest;
use connection::{Closing, Connection};
use connection_table::{ConnectionTable, Slot};
use io::Observed;
use streams::StreamExecutor;
pub use tls::{Certificate, TlsError, TlsFiles};
use waiting::{WaitingConnection, WaitingList};
use watched_body::WatchedBody;

/// Maximum size of a request header, in bytes; the server rejects a larger one with 431.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// Maximum number of concurrent requests of one HTTP/2 connection.
const STREAMS_MAX: u32 = 128;

/// Maximum size of the requests that a client sends over one HTTP/2 connection before the server reads them,
/// in bytes.
const WINDOW_BYTES: u32 = 256 << 10;

/// Maximum size of the responses that the server buffers for one HTTP/2 stream, and the operating system for
/// one connection, in bytes. Buffered bytes hide whether the client is reading, so the limit is about as much
/// as a client must read within the write timeout.
const SEND_BUFFER_BYTES: usize = 64 << 10;

/// Maximum length of the listen backlog, unless the operating system has a lower limit
/// (`net.core.somaxconn`). If the backlog is full, a client retries after one second, then after two, then
/// after four.
const QUEUE_MAX: i32 = 4096;

/// Maximum number of connections of the operators' socket, and of one address. The server answers its
/// requests immediately.
const ADMIN_CONNECTIONS_MAX: usize = 32;
const ADMIN_ADDRESS_CONNECTIONS_MAX: usize = 28;

/// Maximum number of connections of the operators' socket whose addresses use their shares of the slots.
const ADMIN_WAITING_MAX: usize = 256;

/// How long accepting pauses when no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(20);

/// How a request arrived; the listener adds it to the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) listens_on_loopback: bool,
    /// The address that the client connected to.
    pub(crate) address: IpAddr,
}

/// Limits and deadlines of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionSettings {
    pub connections_max: usize,
    /// Maximum number of connections per address (per /64 network in IPv6).
    pub address_connections_max: usize,
    /// Maximum number of accepted but unread connections, whose addresses use their shares of the slots; the
    /// server closes further ones.
    pub waiting_max: usize,
    /// Minimum time that the server waits for a client before it evicts the client's connection.
    pub evict_after: Duration,
    /// Maximum time from the first byte of a request (or from accepting a connection) to the end of the
    /// header.
    pub header_time_max: Duration,
    /// Maximum time between two requests.
    pub idle_time_max: Duration,
    /// Maximum time for the client to read the written bytes (or the next 64 KiB of them).
    pub write_time_max: Duration,
    /// Maximum time from the header of a request to the last byte of its response.
    pub answer_time_max: Duration,
}

impl ConnectionSettings {
    /// Interval at which deadlines are checked: a fraction of the shortest.
    fn tick(&self) -> Duration {
        let shortest = self.header_time_max.min(self.idle_time_max).min(self.write_time_max);
        (shortest.min(self.answer_time_max) / 4).clamp(Duration::from_millis(5), Duration::from_millis(200))
    }
}

/// A bound socket with the settings of its connections, and the socket for operators, if there is one.
pub struct Listener {
    tcp: TcpListener,
    admin: Option<TcpListener>,
    tls: Option<TlsAcceptor>,
    settings: ConnectionSettings,
}

impl Listener {
    /// Serves HTTP on this socket.
    pub fn new(tcp: TcpListener, settings: ConnectionSettings) -> Self {
        // Its connections inherit the size. With the system's own, of megabytes, writes look the same to the
        // server for minutes, whether the client reads or not.
        let socket = SockRef::from(&tcp);
        if let Err(error) = socket.set_send_buffer_size(SEND_BUFFER_BYTES) {
            tracing::warn!(%error, "the operating system did not take the size of send buffers");
        }
        // Tokio requests a listen backlog of 128.
        if let Err(error) = socket.listen(QUEUE_MAX) {
            tracing::warn!(%error, "the operating system did not take the length of the queue");
        }
        Self { tcp, admin: None, tls: None, settings }
    }

    /// Serves HTTPS instead.
    pub fn with_tls(mut self, certificate: &Certificate) -> Result<Self, TlsError> {
        self.tls = Some(certificate.acceptor()?);
        Ok(self)
    }

    /// Serves operators on this socket as well, by HTTP without TLS.
    pub fn with_admin(mut self, tcp: TcpListener) -> Self {
        self.admin = Some(tcp);
        self
    }

    /// Takes the operators' socket as a separate listener.
    pub(crate) fn take_admin(&mut self) -> Option<AdminListener> {
        let settings = ConnectionSettings {
            connections_max: ADMIN_CONNECTIONS_MAX,
            address_connections_max: ADMIN_ADDRESS_CONNECTIONS_MAX,
            waiting_max: ADMIN_WAITING_MAX,
            ..self.settings
        };
        // The socket leaves this runtime.
        match self.admin.take()?.into_std() {
            Ok(tcp) => Some(AdminListener { tcp, settings }),
            Err(error) => {
                tracing::error!(%error, "the operators' port cannot be served");
                None
            }
        }
    }

    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin.as_ref()?.local_addr().ok()
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.tcp.local_addr().ok()
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Serves connections until `closing` is true; then accepts no more, and returns when the last one is
    /// closed.
    pub(crate) async fn answer(self, router: Router, mut closing: watch::Receiver<bool>) {
        let table = Arc::new(ConnectionTable::new(self.settings));
        let listens_on_loopback = self.local_addr().is_some_and(|address| address.ip().is_loopback());
        let server = ConnectionServer {
            http: http(),
            router,
            tls: self.tls.clone(),
            https_only: Router::new().fallback(async || AppError::NotHttps),
            closing: closing.clone(),
            listens_on_loopback,
        };
        let mut tasks = JoinSet::new();
        let mut waiting = WaitingList::new(&self.settings);
        let mut tick = tokio::time::interval(self.settings.tick());
        loop {
            waiting.serve(&table, Instant::now(), |stream, slot| {
                tasks.spawn(server.clone().answer(stream, slot));
            });
            tokio::select! {
                () = shutdown_requested(&mut closing) => break,
                _ = tick.tick() => table.close_overdue(),
                Some(_) = tasks.join_next() => {}
                () = until(waiting.next_eviction()) => {}
                accepted = self.tcp.accept(), if table.has_room() => match accepted {
                    Ok((stream, from)) => {
                        let address = client_address(from.ip());
                        if let Some(slot) = table.add(address) {
                            tasks.spawn(server.clone().answer(stream, slot));
                        } else if waiting.push(WaitingConnection { stream, address, since: Instant::now() }).is_some() {
                            tracing::debug!(%address, "too many connections of this address");
                        }
                    }
                    Err(error) => pause_after(&error, &table).await,
                },
            }
        }
        drop((self.tcp, waiting));
        loop {
            tokio::select! {
                _ = tick.tick() => table.close_overdue(),
                ended = tasks.join_next() => if ended.is_none() { return },
            }
        }
    }
}

/// Returns the address that identifies a client: in IPv6 the /64 network, which is one customer's share.
pub(crate) fn client_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns when shutdown is requested or the sender is dropped.
async fn shutdown_requested(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|&closing| closing).await;
}

/// Returns at this time, if there is one.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Ignores a connection that broke before it was accepted. Other errors mean that no file descriptor is left:
/// a connection is evicted.
async fn pause_after(error: &std::io::Error, table: &ConnectionTable) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    table.evict_slowest();
    tokio::time::sleep(PAUSE).await;
}

/// Returns whether a connection begins with the method of a request, which no TLS handshake does.
async fn begins_as_http(stream: &TcpStream) -> bool {
    let mut first = [0];
    matches!(stream.peek(&mut first).await, Ok(1)) && first[0].is_ascii_uppercase()
}

fn http() -> Builder<StreamExecutor> {
    let mut http = Builder::new(StreamExecutor);
    // The deadlines of `ConnectionTable` cover headers, and the time before their first byte.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEADER_BYTES_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_connection_window_size(WINDOW_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    http
}

/// Serves single connections.
#[derive(Clone)]
struct ConnectionServer {
    http: Builder<StreamExecutor>,
    router: Router,
    tls: Option<TlsAcceptor>,
    /// Answers requests by HTTP where only HTTPS is served.
    https_only: Router,
    closing: watch::Receiver<bool>,
    listens_on_loopback: bool,
}

impl ConnectionServer {
    /// Serves a connection until it ends or is evicted.
    async fn answer(mut self, stream: TcpStream, slot: Slot) {
        let address = stream.peer_addr().ok();
        let listens_on_loopback = self.listens_on_loopback;
        let arrival = stream.local_addr().ok();
        let arrival = arrival.map(|local| Arrival { listens_on_loopback, address: local.ip() });
        // Tokens are small packets that must not wait for each other. Without this option they are only
        // slower.
        let _ = stream.set_nodelay(true);
        let connection = Arc::clone(slot.connection());
        let mut tls = self.tls.clone();
        if tls.is_some() {
            tokio::select! {
                is_http = begins_as_http(&stream) => if is_http {
                    tls = None;
                    self.router = self.https_only.clone();
                },
                closing = connection.closed(false) => {
                    return tracing::debug!(?closing, "connection closed before its handshake");
                }
            }
        }
        let stream = Observed::new(stream, Arc::clone(&connection));
        let Some(tls) = tls else {
            return self.serve(stream, (address, arrival), &connection).await;
        };
        tokio::select! {
            shaken = tls.accept(stream) => match shaken {
                Ok(stream) => self.serve(stream, (address, arrival), &connection).await,
                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
            },
            closing = connection.closed(false) => tracing::debug!(?closing, "connection closed in its handshake"),
        }
    }

    /// Serves requests from an address that arrive at another one.
    async fn serve<S>(
        mut self,
        stream: S,
        (from, arrival): (Option<SocketAddr>, Option<Arrival>),
        connection: &Arc<Connection>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let router = self.router;
        let watched = Arc::clone(connection);
        let service = tower::service_fn(move |request: hyper::Request<Incoming>| {
            let router = router.clone();
            let watched = Arc::clone(&watched);
            async move {
                let answering = watched.begin(streams::current());
                let has_streams = request.version() == Version::HTTP_2;
                let (mut request, body_use) = WatchedBody::watch(request);
                request.extensions_mut().insert(answering.request());
                let extensions = request.extensions_mut();
                if let Some(address) = from {
                    extensions.insert(ConnectInfo(address));
                }
                if let Some(arrival) = arrival {
                    extensions.insert(arrival);
                }
                let mut response = router.oneshot(request).await?;
                if !has_streams && body_use.is_unread() {
                    // The rest of the body would be the beginning of the next request.
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, std::convert::Infallible>(response.map(|body| answering.guard(body)))
            }
        });
        let serving = self.http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut serving = pin!(serving);
        let mut is_going_away = false;
        loop {
            tokio::select! {
                ended = serving.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "connection broken");
                    }
                    return;
                }
                closing = connection.closed(is_going_away) => {
                    tracing::debug!(?closing, "connection closed");
                    serving.as_mut().graceful_shutdown();
                    if let Closing::Now(_) = closing {
                        // Sends the end to the client if the socket accepts it immediately.
                        let _ = serving.as_mut().now_or_never();
                        return;
                    }
                    is_going_away = true;
                }
                () = shutdown_requested(&mut self.closing), if !is_going_away => {
                    is_going_away = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_an_address_or_an_ipv6_network() {
        for (address, want) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
        ] {
            assert_eq!(
                client_address(address.parse().unwrap()),
                want.parse::<IpAddr>().unwrap(),
                "{address}"
            );
        }
    }
}
