//! Requests to the hub: the listing of a repository, and the hash, the size and the bytes of a file.
//!
//! Redirects are followed here and not by the HTTP library. Invariant: the token is sent only to the scheme,
//! host and port of the endpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use ntl_common::trust;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, LOCATION, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::Deserialize;

use super::cache::is_commit;
use super::content_hash::ContentHash;
use super::environment::HubSettings;
use super::error::{HubError, Problem};
use super::reference::HubReference;

/// Attempts of one request. The attempts to get a file are counted from its last progress.
pub(super) const TRIES: u32 = 5;

/// Maximum time to connect, and between two parts of a response.
const SILENCE_MAX: Duration = Duration::from_secs(60);

const REDIRECTS_MAX: usize = 10;

/// Maximum size of a listing, in bytes; 100,000 files have about 10 MB.
const LISTING_BYTES_MAX: usize = 64 << 20;

pub(super) struct HubClient {
    http: Client,
    settings: HubSettings,
}

/// The files of a repository at a commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) names: BTreeSet<String>,
}

/// The hash and the size that the hub states for a file.
#[derive(Debug, Clone)]
pub(super) struct FileFacts {
    pub(super) hash: ContentHash,
    pub(super) bytes: u64,
}

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Redirects {
    /// Those to the endpoint itself. The response is the one that redirects elsewhere.
    AtEndpoint,
    All,
}

/// Body of a listing.
#[derive(Deserialize)]
struct Revision {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl HubClient {
    pub(super) fn new(settings: HubSettings) -> Result<Self, HubError> {
        let builder = trust::client_builder(None).map_err(|error| HubError::Client(error.to_string()))?;
        let builder = builder.connect_timeout(SILENCE_MAX).read_timeout(SILENCE_MAX);
        let http = builder.redirect(Policy::none()).build();
        let http = http.map_err(|error| HubError::Client(error.to_string()))?;
        Ok(Self { http, settings })
    }

    /// Waits before another attempt; `failed` have failed.
    pub(super) async fn pause(&self, failed: u32) {
        tokio::time::sleep(self.settings.pause * failed).await;
    }

    /// Repeats an attempt that fails for a reason that may pass.
    async fn repeated<T>(&self, attempt: impl AsyncFn() -> Result<T, Problem>) -> Result<T, Problem> {
        let mut failed = 0;
        loop {
            match attempt().await {
                Err(problem) if problem.is_transient() && failed + 1 < TRIES => failed += 1,
                result => return result,
            }
            self.pause(failed).await;
        }
    }

    /// Returns the commit of a revision and its files.
    pub(super) async fn listing(&self, reference: &HubReference) -> Result<Listing, Problem> {
        let HubReference { organisation, name, .. } = reference;
        let url = self.url(&["api", "models", organisation, name, "revision", reference.revision()]);
        self.repeated(async || self.listing_once(reference, &url).await).await
    }

    async fn listing_once(&self, reference: &HubReference, url: &Url) -> Result<Listing, Problem> {
        let mut response = self.send(&Method::GET, url, None, Redirects::All).await?;
        self.check_status(&response, reference, Problem::NoRepository)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(network)? {
            body.extend_from_slice(&chunk);
            if body.len() > LISTING_BYTES_MAX {
                let reason = format!("the list of files has more than {LISTING_BYTES_MAX} bytes");
                return Err(Problem::Response(reason));
            }
        }
        let revision: Revision = serde_json::from_slice(&body)
            .map_err(|error| Problem::Response(format!("the list of files: {error}")))?;
        if !is_commit(&revision.sha) {
            return Err(Problem::Response("the list of files names no commit".to_owned()));
        }
        let names = revision.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        Ok(Listing { commit: revision.sha, names })
    }

    /// Returns the hash and the size of a file at a commit.
    pub(super) async fn facts(
        &self,
        reference: &HubReference,
        commit: &str,
        file: &str,
    ) -> Result<FileFacts, Problem> {
        let url = self.file_url(reference, commit, file);
        self.repeated(async || self.facts_once(reference, &url).await).await
    }

    async fn facts_once(&self, reference: &HubReference, url: &Url) -> Result<FileFacts, Problem> {
        let response = self.send(&Method::HEAD, url, None, Redirects::AtEndpoint).await?;
        if !response.status().is_redirection() {
            self.check_status(&response, reference, Problem::NoFile)?;
        }
        let headers = response.headers();
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, ETAG.as_str()));
        let hash = etag.and_then(ContentHash::of_etag);
        let bytes = match text(headers, "x-linked-size") {
            // A redirect has its own length.
            None if response.status().is_success() => text(headers, CONTENT_LENGTH.as_str()),
            bytes => bytes,
        };
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        let Some(hash) = hash else {
            let problem = "it has no hash of the file in X-Linked-ETag or ETag";
            return Err(Problem::Response(problem.to_owned()));
        };
        let Some(bytes) = bytes else {
            let problem = "it has no size of the file in X-Linked-Size or Content-Length";
            return Err(Problem::Response(problem.to_owned()));
        };
        Ok(FileFacts { hash, bytes })
    }

    /// Requests a file from its byte `start` on. Returns a response with status 200, 206 or 416.
    pub(super) async fn bytes(
        &self,
        reference: &HubReference,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<Response, Problem> {
        let url = self.file_url(reference, commit, file);
        let response = self.send(&Method::GET, &url, Some(start), Redirects::All).await?;
        if response.status() != StatusCode::RANGE_NOT_SATISFIABLE {
            self.check_status(&response, reference, Problem::NoFile)?;
        }
        Ok(response)
    }

    fn file_url(&self, reference: &HubReference, commit: &str, file: &str) -> Url {
        let mut parts = vec![reference.organisation.as_str(), &reference.name, "resolve", commit];
        parts.extend(file.split('/'));
        self.url(&parts)
    }

    /// Returns the address of a path below the endpoint.
    fn url(&self, parts: &[&str]) -> Url {
        let mut url = self.settings.endpoint.clone();
        // Fails only for addresses without a host, which are not http addresses.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(parts);
        }
        url
    }

    async fn send(
        &self,
        method: &Method,
        url: &Url,
        start: Option<u64>,
        redirects: Redirects,
    ) -> Result<Response, Problem> {
        let endpoint = &self.settings.endpoint;
        let mut url = url.clone();
        for _ in 0..REDIRECTS_MAX {
            let mut request =
                self.http.request(method.clone(), url.clone()).header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = &self.settings.authorization
                && url.origin() == endpoint.origin()
            {
                request = request.header(AUTHORIZATION, authorization);
            }
            if let Some(start) = start.filter(|&start| start > 0) {
                request = request.header(RANGE, format!("bytes={start}-"));
            }
            let response = request.send().await.map_err(network)?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let Some(location) = text(response.headers(), LOCATION.as_str()) else { return Ok(response) };
            let target = url.join(location);
            let target = target.map_err(|_| Problem::Response("it redirects to no address".to_owned()))?;
            if target.origin() != endpoint.origin() && redirects == Redirects::AtEndpoint {
                return Ok(response);
            }
            if target.scheme() != "https" && target.scheme() != endpoint.scheme() {
                return Err(Problem::Response("it redirects from https to another scheme".to_owned()));
            }
            url = target;
        }
        Err(Problem::Response(format!("it redirects more than {REDIRECTS_MAX} times")))
    }

    /// Returns the reason of a failed request; `missing` is the one of a 404 without a reason.
    fn check_status(
        &self,
        response: &Response,
        reference: &HubReference,
        missing: Problem,
    ) -> Result<(), Problem> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let has_token = self.settings.authorization.is_some();
        Err(match (text(response.headers(), "x-error-code"), status) {
            (Some("GatedRepo"), _) => {
                let page = self.url(&[&reference.organisation, &reference.name]);
                Problem::Gated { page: page.to_string() }
            }
            (Some("RevisionNotFound"), _) => Problem::NoRevision(reference.revision().to_owned()),
            (Some("EntryNotFound"), _) => Problem::NoFile,
            (Some("RepoNotFound"), _) => Problem::NoRepository,
            (_, StatusCode::NOT_FOUND) => missing,
            (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if has_token => Problem::Token(status),
            (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Problem::NoRepository,
            _ => Problem::Status(status),
        })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Describes a failed exchange without its address, which may be signed.
pub(super) fn network(error: reqwest::Error) -> Problem {
    Problem::Network(format!("{:#}", anyhow::Error::from(error.without_url())))
}
