//! HTTP client for inference engines.
//!
//! In: a request body. Out: a whole response body of a bounded size, or the response as it arrives. An engine
//! is not trusted: sizes and times are bounded, redirects are not followed, and messages are cut and made
//! printable. Dropping a future closes its connection, which cancels the request in the engine. Invariant:
//! the API key appears in no error and no debug output, even if the engine repeats it. The same holds for
//! paths of URLs.

mod error;
mod redaction;
mod url;

use std::fmt;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ntl_common::retry_after::retry_after;
use ntl_common::trust::{self, TrustError};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde_json::Value;

use error::printable;
pub use error::{Code, UpstreamError};
use redaction::{RedactedStream, Redaction};
pub use url::{BaseUrl, InvalidUrl};

/// Maximum number of bytes that are read of an error's body.
const ERROR_BYTES_MAX: usize = 64 << 10;

/// Maximum time for a connection to an engine to open.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The header with which an ntl-server names the weights that computed a response.
const FINGERPRINT: &str = "ntl-model-fingerprint";

/// A week, which is longer than any request.
const TIME_UNBOUNDED: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum time for which an unused connection stays open. uvicorn, below vLLM, closes it after 5 seconds,
/// and a request that is sent at that moment fails.
const IDLE_TIME_MAX: Duration = Duration::from_secs(4);

/// `ENFILE` and `EMFILE`, which have these numbers on all Unix systems and no stable name in the standard
/// library.
const DESCRIPTORS_USED_UP: [i32; 2] = [23, 24];

/// Maximum number of unused connections to a replica.
pub const IDLE_CONNECTIONS_MAX: usize = 32;

/// A key that no output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    key: String,
    header: HeaderValue,
}

/// The key has characters that a header cannot contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the API key contains characters that a header cannot contain")]
pub struct InvalidKey;

impl ApiKey {
    pub fn new(key: &str) -> Result<Self, InvalidKey> {
        let mut header = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| InvalidKey)?;
        header.set_sensitive(true);
        Ok(Self { key: key.to_owned(), header })
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// The clients of a process cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// For example, the system's certificates are unreadable.
    #[error("HTTP client cannot be created")]
    Http(#[source] reqwest::Error),
}

/// A client of the replicas of one model.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    api_key: Option<ApiKey>,
    redaction: Arc<Redaction>,
    /// The fingerprint that the engine's responses must have if they have any; `None` accepts all.
    fingerprint: Arc<Mutex<Option<String>>>,
    /// Maximum time until a whole response has arrived, or the next part of a stream.
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(
        api_key: Option<ApiKey>,
        timeout: Duration,
        ca_file: Option<&Path>,
        replicas: &[BaseUrl],
    ) -> Result<Self, ClientError> {
        let http = trust::client_builder(ca_file)?
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIME_MAX.min(timeout))
            .tcp_nodelay(true)
            .pool_idle_timeout(IDLE_TIME_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            // An engine is named by its address. A proxy from the environment would see prompts and keys.
            .no_proxy()
            .build()
            .map_err(ClientError::Http)?;
        let key = api_key.as_ref().map(|key| key.key.as_str());
        let redaction = Arc::new(Redaction::new(key, replicas.iter().map(BaseUrl::path)));
        Ok(Self { http, api_key, redaction, fingerprint: Arc::default(), timeout })
    }

    /// Returns the beginning of a text from an engine for errors and logs: on one line, without control
    /// characters and without secrets.
    pub(crate) fn printable(&self, text: &str) -> String {
        printable(&self.redaction.message(text))
    }

    /// The error about a response that cannot be read.
    pub(crate) fn not_understood(&self, base: &BaseUrl, error: &impl fmt::Display) -> UpstreamError {
        let reason = self.printable(&error.to_string());
        UpstreamError::NotUnderstood { replica: base.to_string(), reason }
    }

    /// Returns a text that an engine wrote without the API key.
    pub(crate) fn without_key(&self, text: &str) -> String {
        self.redaction.content(text)
    }

    /// The same client with another limit of time, which accepts responses of other weights.
    pub(crate) fn for_checks(&self, timeout: Duration) -> Self {
        Self { timeout: timeout.min(self.timeout), fingerprint: Arc::default(), ..self.clone() }
    }

    /// Sets the fingerprint that the engine's responses must have if they have any.
    pub(crate) fn expect_fingerprint(&self, fingerprint: Option<String>) {
        *self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner) = fingerprint;
    }

    /// Fails if a response names another fingerprint than expected.
    fn check_fingerprint(&self, base: &BaseUrl, response: &Response) -> Result<(), UpstreamError> {
        let Some(found) = response.headers().get(FINGERPRINT) else { return Ok(()) };
        let expected = self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match expected {
            Some(expected) if found.as_bytes() != expected.as_bytes() => {
                let found = self.printable(&String::from_utf8_lossy(found.as_bytes()));
                let reason = format!("its weights have the fingerprint {found} instead of {expected}");
                Err(UpstreamError::OtherModel { replica: base.to_string(), reason })
            }
            _ => Ok(()),
        }
    }

    /// The same client without a limit of time, for callers that have their own.
    pub(crate) fn without_timeout(&self) -> Self {
        Self { timeout: TIME_UNBOUNDED, ..self.clone() }
    }

    /// Sends a GET request and returns the whole body of a response of at most `bytes_max`.
    pub(crate) async fn get(
        &self,
        base: &BaseUrl,
        route: &str,
        bytes_max: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        self.whole(base, self.http.get(base.join(route)), bytes_max).await
    }

    /// Like [`get`](Self::get), but sends a POST request with a JSON body.
    pub(crate) async fn post(
        &self,
        base: &BaseUrl,
        route: &str,
        body: &Value,
        bytes_max: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        self.post_bytes(base, route, body.to_string().into_bytes(), bytes_max).await
    }

    /// Like [`post`](Self::post), with the text of the body.
    pub(crate) async fn post_bytes(
        &self,
        base: &BaseUrl,
        route: &str,
        body: Vec<u8>,
        bytes_max: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        self.whole(base, self.post_request(base, route, body), bytes_max).await
    }

    /// Sends a POST request and returns the response once its header has arrived, with any status.
    pub(crate) async fn open(
        &self,
        base: &BaseUrl,
        route: &str,
        body: Vec<u8>,
    ) -> Result<OpenResponse, UpstreamError> {
        let request = self.post_request(base, route, body);
        let sent = tokio::time::timeout(self.timeout, self.authorized(request).send()).await;
        let response = sent.map_err(|_| self.late(base))?.map_err(|error| self.failed(base, error))?;
        let response = self.not_redirected(base, response)?;
        self.check_fingerprint(base, &response)?;
        Ok(OpenResponse {
            response,
            content: Some(self.redaction.stream()),
            client: self.clone(),
            base: base.clone(),
        })
    }

    fn post_request(&self, base: &BaseUrl, route: &str, body: Vec<u8>) -> RequestBuilder {
        self.http.post(base.join(route)).header(CONTENT_TYPE, "application/json").body(body)
    }

    async fn whole(
        &self,
        base: &BaseUrl,
        request: RequestBuilder,
        bytes_max: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let exchange = async {
            let response = self.authorized(request).send().await.map_err(|error| self.failed(base, error))?;
            let mut response = self.not_redirected(base, response)?;
            self.check_fingerprint(base, &response)?;
            let status = response.status();
            if status.is_success() {
                return self.body(base, &mut response, bytes_max).await;
            }
            // If the body is cut off, its text is dropped: the status says more.
            let body = self.body(base, &mut response, ERROR_BYTES_MAX).await.unwrap_or_default();
            Err(self.refusal(base, status, response.headers(), &body))
        };
        tokio::time::timeout(self.timeout, exchange).await.map_err(|_| self.late(base))?
    }

    async fn body(
        &self,
        base: &BaseUrl,
        response: &mut Response,
        bytes_max: usize,
    ) -> Result<Vec<u8>, UpstreamError> {
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.failed(base, error))? {
            if bytes.len() > bytes_max - body.len() {
                return Err(UpstreamError::TooLarge { replica: base.to_string(), bytes_max });
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.header(AUTHORIZATION, key.header.clone()),
            None => request,
        }
    }

    fn late(&self, base: &BaseUrl) -> UpstreamError {
        UpstreamError::Timeout { replica: base.to_string(), after: self.timeout }
    }

    fn failed(&self, base: &BaseUrl, error: reqwest::Error) -> UpstreamError {
        // A connection that is not made in time is handled below: nothing was sent.
        if error.is_timeout() && !error.is_connect() {
            return self.late(base);
        }
        // Errors of reqwest say little, their sources say why.
        let error = error.without_url();
        let is_connect = error.is_connect();
        let is_local = is_local_shortage(&error);
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let reason = causes.last().map_or_else(|| error.to_string(), ToString::to_string);
        let (replica, reason) = (base.to_string(), self.printable(&reason));
        if is_local {
            UpstreamError::NoConnection { replica, reason }
        } else if is_connect {
            UpstreamError::Unreachable { replica, reason }
        } else {
            UpstreamError::Disconnected { replica, reason }
        }
    }

    fn not_redirected(&self, base: &BaseUrl, response: Response) -> Result<Response, UpstreamError> {
        if !response.status().is_redirection() {
            return Ok(response);
        }
        let to = response.headers().get(LOCATION);
        let to = to.map(|to| String::from_utf8_lossy(to.as_bytes()).into_owned());
        let to = self.printable(&to.unwrap_or_default());
        Err(UpstreamError::Redirected { replica: base.to_string(), to })
    }

    /// The error of a response that is not a success.
    fn refusal(&self, base: &BaseUrl, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> UpstreamError {
        let replica = base.to_string();
        let message = self.printable(&error::message_of(body));
        match status {
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY | StatusCode::PAYLOAD_TOO_LARGE => {
                let param = error::param_of(body).map(|param| self.printable(&param));
                UpstreamError::Rejected { replica, message, param }
            }
            StatusCode::TOO_MANY_REQUESTS => {
                let retry_after_seconds = retry_after_seconds(headers);
                UpstreamError::Overloaded { replica, message, retry_after_seconds }
            }
            _ => UpstreamError::Status { replica, status: status.as_u16(), message },
        }
    }
}

/// Returns the seconds of `Retry-After`.
fn retry_after_seconds(headers: &HeaderMap) -> Option<u32> {
    let pause = retry_after(headers.get(RETRY_AFTER)?.to_str().ok()?)?;
    Some(u32::try_from(pause.as_secs()).unwrap_or(u32::MAX))
}

/// A response whose body has not arrived yet. Dropping it closes the connection.
pub(crate) struct OpenResponse {
    response: Response,
    /// Removes the API key from the body; `None` after its end.
    content: Option<RedactedStream>,
    client: Client,
    base: BaseUrl,
}

impl OpenResponse {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn content_type(&self) -> Option<String> {
        let value = self.response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
        Some(self.client.redaction.message(value))
    }

    /// Waits for the next part of the body, without the API key. Returns `None` after the last one.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Vec<u8>>, UpstreamError> {
        loop {
            let chunk = tokio::time::timeout(self.client.timeout, self.response.chunk()).await;
            let chunk = chunk.map_err(|_| self.client.late(&self.base))?;
            let chunk = chunk.map_err(|error| self.client.failed(&self.base, error))?;
            let part = match (&mut self.content, chunk) {
                (Some(content), Some(chunk)) => content.push(chunk.into()),
                (Some(content), None) => {
                    let rest = content.end();
                    self.content = None;
                    rest
                }
                (None, _) => return Ok(None),
            };
            if !part.is_empty() {
                return Ok(Some(part));
            }
        }
    }

    /// Reads the body of a response that is not a success.
    pub(crate) async fn into_error(mut self) -> UpstreamError {
        let reading = self.client.body(&self.base, &mut self.response, ERROR_BYTES_MAX);
        let body = tokio::time::timeout(self.client.timeout, reading).await;
        let body = body.ok().and_then(Result::ok).unwrap_or_default();
        self.client.refusal(&self.base, self.response.status(), self.response.headers(), &body)
    }
}

/// Returns whether the operating system lacks descriptors, ports or memory for a connection.
fn is_local_shortage(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && let Some(code) = error.raw_os_error()
        {
            let is_port_or_memory =
                matches!(error.kind(), ErrorKind::AddrNotAvailable | ErrorKind::OutOfMemory);
            return is_port_or_memory || DESCRIPTORS_USED_UP.contains(&code);
        }
        cause = error.source();
    }
    false
}
