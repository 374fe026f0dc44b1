//! The accept loop: connections come in, up to a limit and each with its deadlines, and are led to the router.
//!
//! In: a bound socket and a router. Out: answered connections. Invariants: no client can hold a connection for ever,
//! whatever it does not send or read; when all places are taken, a new connection gets the place of the one that has
//! kept the server waiting for longest, so that slow clients cannot lock out others. Only connections whose requests
//! are at work keep theirs: then new ones wait in the queue of the operating system.

mod connection;
mod crowd;
mod io;
mod tls;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

pub(crate) use connection::Client;
use connection::Connection;
use crowd::{Crowd, Member};
use io::Observed;
pub use tls::{TlsError, TlsFiles};

/// Most bytes of the header of a request; a larger one is answered 431.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// Requests that one HTTP/2 connection may have at the same time.
const STREAMS_MAX: u32 = 128;

/// How long accepting pauses when the operating system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(20);

/// How connections are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionSettings {
    /// Connections at the same time.
    pub connections_max: usize,
    /// Most time from the first byte of a request (or a new connection) to the end of its header.
    pub header_time_max: Duration,
    /// Most time that a connection may stay open between two requests.
    pub idle_time_max: Duration,
    /// Most time that a client may take to read what waits for it (or the next 64 KiB of it).
    pub write_time_max: Duration,
    /// Most time from the header of a request to the last byte of its answer.
    pub answer_time_max: Duration,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        Self {
            connections_max: 2048,
            header_time_max: Duration::from_secs(10),
            idle_time_max: Duration::from_secs(75),
            write_time_max: Duration::from_secs(30),
            answer_time_max: Duration::from_secs(660),
        }
    }
}

impl ConnectionSettings {
    /// How often deadlines are looked at: often enough for the shortest of them.
    fn tick(&self) -> Duration {
        let shortest = self.header_time_max.min(self.idle_time_max).min(self.write_time_max);
        (shortest.min(self.answer_time_max) / 4).clamp(Duration::from_millis(5), Duration::from_millis(200))
    }
}

/// A bound socket, and how what comes through it is treated.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    settings: ConnectionSettings,
}

impl Listener {
    /// Speaks HTTP on this socket.
    pub fn new(tcp: TcpListener, settings: ConnectionSettings) -> Self {
        Self { tcp, tls: None, settings }
    }

    /// Speaks HTTPS instead.
    ///
    /// # Errors
    /// When a file cannot be read, holds nothing usable, or key and certificate do not belong together.
    pub fn with_tls(mut self, files: &TlsFiles) -> Result<Self, TlsError> {
        self.tls = Some(files.acceptor()?);
        Ok(self)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.tcp.local_addr().ok()
    }

    /// Whether it speaks HTTPS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Answers connections until `closing` says so; then takes no more, and returns when the last one is closed.
    pub(crate) async fn answer(self, router: Router, mut closing: watch::Receiver<bool>) {
        let crowd = Arc::new(Crowd::new(self.settings));
        let door =
            Door { http: http(), router, tls: self.tls.clone(), closing: closing.clone(), address: None };
        let mut tasks = JoinSet::new();
        let mut tick = tokio::time::interval(self.settings.tick());
        loop {
            tokio::select! {
                () = closed(&mut closing) => break,
                _ = tick.tick() => crowd.close_overdue(),
                Some(_) = tasks.join_next() => {}
                accepted = self.tcp.accept(), if crowd.has_room() => match accepted {
                    Ok((stream, _)) => {
                        tasks.spawn(door.clone().answer(stream, crowd.enter()));
                    }
                    Err(error) => pause_after(&error, &crowd).await,
                },
            }
        }
        drop(self.tcp);
        loop {
            tokio::select! {
                _ = tick.tick() => crowd.close_overdue(),
                ended = tasks.join_next() => if ended.is_none() { return },
            }
        }
    }
}

/// Waits until there shall be no more connections, or nobody is left to say so.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|&closing| closing).await;
}

/// A connection that broke before it was taken is nothing; without descriptors, somebody has to make room.
async fn pause_after(error: &std::io::Error, crowd: &Crowd) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        return;
    }
    tracing::warn!(%error, "a connection could not be accepted");
    crowd.close_slowest();
    tokio::time::sleep(PAUSE).await;
}

fn http() -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    // The deadlines of `Crowd` cover the time for headers, too, and the time before the first byte of one.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEADER_BYTES_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEADER_BYTES_MAX).unwrap_or(u32::MAX))
        .keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(20));
    http
}

/// What a connection needs to be answered.
#[derive(Clone)]
struct Door {
    http: Builder<TokioExecutor>,
    router: Router,
    tls: Option<TlsAcceptor>,
    closing: watch::Receiver<bool>,
    /// Who is at it.
    address: Option<SocketAddr>,
}

impl Door {
    /// Serves one connection until it ends, or until its member is told to go.
    async fn answer(mut self, stream: TcpStream, member: Member) {
        self.address = stream.peer_addr().ok();
        // Tokens are small packets that must not wait for each other; without it they are only slower.
        let _ = stream.set_nodelay(true);
        let connection = Arc::clone(member.connection());
        let stream = Observed::new(stream, Arc::clone(&connection));
        let Some(tls) = self.tls.clone() else { return self.serve(stream, &connection).await };
        tokio::select! {
            shaken = tls.accept(stream) => match shaken {
                Ok(stream) => self.serve(stream, &connection).await,
                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
            },
            reason = connection.told_to_go() => tracing::debug!(reason, "connection closed in its handshake"),
        }
    }

    async fn serve<S>(mut self, stream: S, connection: &Arc<Connection>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (router, watched, address) = (self.router, Arc::clone(connection), self.address);
        let service = tower::service_fn(move |request: hyper::Request<Incoming>| {
            let (router, watched) = (router.clone(), Arc::clone(&watched));
            async move {
                let answering = watched.begin();
                let mut request: Request = request.map(Body::new);
                request.extensions_mut().insert(answering.client());
                if let Some(address) = address {
                    request.extensions_mut().insert(ConnectInfo(address));
                }
                let response = router.oneshot(request).await?;
                Ok::<_, std::convert::Infallible>(response.map(|body| answering.until_read(body)))
            }
        });
        let serving = self.http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut serving = pin!(serving);
        let mut is_closing = false;
        loop {
            tokio::select! {
                ended = serving.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "connection broken");
                    }
                    return;
                }
                reason = connection.told_to_go() => {
                    tracing::debug!(reason, "connection closed");
                    return;
                }
                () = closed(&mut self.closing), if !is_closing => {
                    is_closing = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
