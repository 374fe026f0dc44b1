//! Sends requests with limited concurrency, unless the journal or the cache already has their answers.
//!
//! A failed request has a reason instead of an answer. The run only ends early if every further request would
//! fail too: if the model has no such route, if no endpoint is available, or if an endpoint serves another
//! checkpoint.

use std::collections::HashMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::error::OutputError;
use crate::format::count;
use crate::run::client::{Client, ClientError, Route};
use crate::run::progress::Progress;
use crate::store::journal::{Journal, JournalError, key};

/// A run ends when this many requests have failed in the same way and none has succeeded. The limit is above
/// 1 because data may begin with several items that a model cannot answer.
const SAME_FAILURES_MAX: usize = 32;

/// Time between two checks of the model during a run.
const MODEL_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A run ends when this many requests in a row, or as many as are in flight, have broken their connections or
/// exceeded the timeout. A few prompts may do so on a server that answers all others.
const UNREACHABLE_MIN: usize = 4;

#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Unique in a run, and the same in every run of the same items.
    pub id: String,
    pub route: Route,
    pub body: Value,
}

#[derive(Debug)]
pub struct Runner<'a> {
    pub client: &'a Client,
    pub concurrency: NonZeroUsize,
    pub deadline: Option<Instant>,
    /// Stores the answers of this run.
    pub journal: Option<Journal>,
    /// Stores the answers that all runs share.
    pub cache: Option<&'a mut Journal>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error(transparent)]
    Client(ClientError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Some requests have no answer, but the same run may get them later.
    #[error("{} requests answered; {}", count(*.answered), if *.is_kept { "continue with `--resume`" } else { "without --out their answers are lost" })]
    Suspended { answered: usize, is_kept: bool, source: ClientError },
    #[error("the first {count} requests failed in the same way, so the run stopped: {reason}")]
    SameFailures { count: usize, reason: String },
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl Runner<'_> {
    /// Returns one answer or failure per request, in the order of the requests. `read` turns the response to
    /// the request at an index into the answer that is stored, or rejects it. `explain` may replace an error
    /// with a more specific one.
    ///
    /// # Errors
    /// Returns an error if every further request would fail too, if an answer cannot be stored, or if `err`
    /// cannot be written to.
    pub async fn run<W: DeserializeOwned, T: Serialize + DeserializeOwned>(
        &mut self,
        requests: &[Request],
        read: impl Fn(usize, W) -> Result<T, ClientError>,
        explain: impl Fn(ClientError) -> ClientError,
        progress: &mut Progress,
        err: &mut (dyn Write + '_),
    ) -> Result<Vec<Result<T, String>>, RunError> {
        let keys: Vec<String> = requests.iter().map(|request| key(&(request.route, &request.body))).collect();
        let mut answers = self.known::<T>(requests, &keys)?;
        let mut open = Vec::new();
        // The indices of requests with an equal one before them, which gets their answer with a cache.
        let mut repeated = Vec::new();
        let mut first_of: HashMap<&str, usize> = HashMap::new();
        for index in (0..requests.len()).filter(|&index| answers[index].is_none()) {
            let first = *first_of.entry(&keys[index]).or_insert(index);
            if first == index || self.cache.is_none() {
                open.push(index);
            } else {
                repeated.push((index, first));
            }
        }
        progress.skip(requests.len() - open.len());
        let client = self.client;
        let mut replies = stream::iter(open)
            .map(|index| async move {
                let request = &requests[index];
                (index, client.post::<W>(request.route, &request.body).await)
            })
            .buffer_unordered(self.concurrency.get());
        // The indices of answers since the last check of the model.
        let mut unverified = Vec::new();
        let mut verified = Instant::now();
        let mut unreachable = 0;
        let unreachable_max = self.concurrency.get().max(UNREACHABLE_MIN);
        let mut same_failures = SameFailures::new(answers.iter().any(Option::is_some));
        loop {
            let next = match self.deadline {
                Some(deadline) => timeout_at(deadline, replies.next()).await,
                None => Ok(replies.next().await),
            };
            let Ok(Some((index, reply))) = next else { break };
            unreachable =
                if reply.as_ref().is_err_and(ClientError::is_without_response) { unreachable + 1 } else { 0 };
            let answer = match reply.and_then(|response| read(index, response)).map_err(&explain) {
                Ok(answer) => {
                    keep(&mut self.journal, &requests[index].id, &keys[index], &answer)?;
                    if let Some(cache) = &mut self.cache {
                        cache.share(&keys[index], &answer)?;
                    }
                    same_failures.any_succeeded = true;
                    unverified.push(index);
                    Ok(answer)
                }
                Err(error) if error.is_fatal() => return Err(RunError::Client(error)),
                Err(source) if source.suspends_run() || unreachable >= unreachable_max => {
                    let mut dropped = 0;
                    if client.model_may_have_changed_before(&source) {
                        self.forget(requests, &keys, &unverified)?;
                        dropped = unverified.len();
                    }
                    return Err(self.suspended(&answers, dropped, source));
                }
                Err(error) => {
                    same_failures.add(error.kind());
                    if !same_failures.any_succeeded && same_failures.count >= SAME_FAILURES_MAX {
                        let reason = one_line(error);
                        return Err(RunError::SameFailures { count: same_failures.count, reason });
                    }
                    Err(one_line(error))
                }
            };
            progress.step(answer.is_err(), err).map_err(OutputError)?;
            answers[index] = Some(answer);
            if verified.elapsed() >= MODEL_CHECK_INTERVAL {
                self.verify(requests, &keys, &mut unverified, &answers).await?;
                verified = Instant::now();
            }
        }
        self.verify(requests, &keys, &mut unverified, &answers).await?;
        for (index, first) in repeated {
            let key = &keys[index];
            answers[index] = match &answers[first] {
                Some(Err(reason)) => Some(Err(reason.clone())),
                _ => self.cached::<T>(&requests[index].id, key)?.map(Ok),
            };
        }
        let mut results = Vec::with_capacity(answers.len());
        for answer in answers {
            results.push(answer.unwrap_or_else(|| Err(one_line(ClientError::DeadlinePassed))));
        }
        Ok(results)
    }

    /// Checks that the model is still the same. Otherwise drops the answers since the last check.
    async fn verify<T>(
        &mut self,
        requests: &[Request],
        keys: &[String],
        unverified: &mut Vec<usize>,
        answers: &[Option<Result<T, String>>],
    ) -> Result<(), RunError> {
        if unverified.is_empty() {
            return Ok(());
        }
        if let Err(source) = self.client.verify_model().await {
            self.forget(requests, keys, unverified)?;
            return Err(self.suspended(answers, unverified.len(), source));
        }
        unverified.clear();
        Ok(())
    }

    /// Returns the error of a run that may be continued later. `dropped` of its answers are not kept.
    fn suspended<T>(
        &self,
        answers: &[Option<Result<T, String>>],
        dropped: usize,
        source: ClientError,
    ) -> RunError {
        let answered = answers.iter().filter(|answer| matches!(answer, Some(Ok(_)))).count() - dropped;
        RunError::Suspended { answered, is_kept: self.journal.is_some(), source }
    }

    /// Drops stored answers. The files are only appended to, since other runs may share the cache: an answer
    /// of null counts as missing.
    fn forget(&mut self, requests: &[Request], keys: &[String], indices: &[usize]) -> Result<(), RunError> {
        for &index in indices {
            keep(&mut self.journal, &requests[index].id, &keys[index], &Value::Null)?;
            if let Some(cache) = &mut self.cache {
                cache.share(&keys[index], &Value::Null)?;
            }
        }
        Ok(())
    }

    /// Returns the answers that the journal or the cache has. Answers that only the cache has are added to
    /// the journal.
    fn known<T: Serialize + DeserializeOwned>(
        &mut self,
        requests: &[Request],
        keys: &[String],
    ) -> Result<Vec<Option<Result<T, String>>>, RunError> {
        let mut known = Vec::with_capacity(requests.len());
        for (request, key) in requests.iter().zip(keys) {
            let answer = self.journal.as_ref().and_then(|journal| journal.get(&request.id, key));
            let answer: Option<T> = match answer {
                None => self.cached(&request.id, key)?,
                answer => answer,
            };
            known.push(answer.map(Ok));
        }
        Ok(known)
    }

    /// Returns the answer that the cache has, and adds it to the journal.
    fn cached<T: Serialize + DeserializeOwned>(
        &mut self,
        id: &str,
        key: &str,
    ) -> Result<Option<T>, RunError> {
        let answer = self.cache.as_ref().and_then(|cache| cache.get(key, key));
        if let Some(answer) = &answer {
            keep(&mut self.journal, id, key, answer)?;
        }
        Ok(answer)
    }
}

/// Counts how many requests in a row failed in the same way.
struct SameFailures {
    any_succeeded: bool,
    kind: String,
    count: usize,
}

impl SameFailures {
    fn new(any_succeeded: bool) -> Self {
        Self { any_succeeded, kind: String::new(), count: 0 }
    }

    fn add(&mut self, kind: String) {
        self.count = if kind == self.kind { self.count + 1 } else { 1 };
        self.kind = kind;
    }
}

fn keep(
    journal: &mut Option<Journal>,
    id: &str,
    key: &str,
    answer: &impl Serialize,
) -> Result<(), JournalError> {
    journal.as_mut().map_or(Ok(()), |journal| journal.add(id, key, answer))
}

/// Formats an error with its causes.
fn one_line(error: ClientError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::TcpListener;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::run::client::{ClientConfig, RetryPolicy};
    use crate::run::progress::Style;

    /// A client for a server that does not exist.
    fn unreachable_client() -> Client {
        // The port is free again once the listener is dropped.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Client::new(ClientConfig {
            endpoints: vec![format!("http://{address}").parse().unwrap()],
            api_key: None,
            timeout: Duration::from_secs(60),
            retry: RetryPolicy::new(Duration::ZERO),
            ca_file: None,
        })
        .unwrap()
    }

    fn runner(client: &Client) -> Runner<'_> {
        Runner { client, concurrency: NonZeroUsize::MIN, deadline: None, journal: None, cache: None }
    }

    fn requests(count: usize) -> Vec<Request> {
        let request = |index| Request {
            id: format!("answer {index}"),
            route: Route::Completions,
            body: json!({ "prompt": index }),
        };
        (0..count).map(request).collect()
    }

    async fn ask(runner: &mut Runner<'_>, count: usize) -> Result<Vec<Result<u8, String>>, RunError> {
        let mut progress = Progress::new(Style::Silent, "", count);
        let read = |_, value: u8| Ok(value);
        runner.run(&requests(count), read, |error| error, &mut progress, &mut io::sink()).await
    }

    #[tokio::test]
    async fn a_run_on_an_unreachable_server_is_suspended() {
        let client = unreachable_client();
        let error = ask(&mut runner(&client), 3).await.unwrap_err();
        assert!(matches!(error, RunError::Suspended { answered: 0, is_kept: false, .. }), "{error:?}");
        assert_eq!(error.to_string(), "0 requests answered; without --out their answers are lost");
    }

    #[tokio::test]
    async fn after_the_deadline_nothing_is_sent() {
        let client = unreachable_client();
        let deadline = Some(Instant::now() - Duration::from_secs(1));
        let answers = ask(&mut Runner { deadline, ..runner(&client) }, 2).await.unwrap();
        assert_eq!(answers[1], Err("not tried: the deadline of the run has passed".to_owned()));
    }

    #[tokio::test]
    async fn known_answers_are_not_requested_and_go_from_the_cache_into_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| Journal::open(&folder.path().join(name), &json!({})).unwrap();
        let key_of = |index: usize| key(&(Route::Completions, &requests(3)[index].body));
        open("journal").add("answer 0", &key_of(0), &7_u8).unwrap();
        open("cache").add(&key_of(1), &key_of(1), &8_u8).unwrap();
        let client = unreachable_client();
        let mut cache = open("cache");
        let journal = Some(open("journal"));
        let cache = Some(&mut cache);
        let mut runner = Runner { journal, cache, ..runner(&client) };
        assert_eq!(ask(&mut runner, 2).await.unwrap(), [Ok(7), Ok(8)]);
        let error = ask(&mut runner, 3).await.unwrap_err();
        assert_eq!(error.to_string(), "2 requests answered; continue with `--resume`");
        assert_eq!(open("journal").get::<u8>("answer 1", &key_of(1)), Some(8));
    }
}
