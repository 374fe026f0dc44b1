//! Turns jobs into events with the next-token probabilities of an engine elsewhere.
//!
//! In: [`Job`]s. Out: events, one channel per job. Invariants:
//!
//! * each job is a task, so that a slow response delays no other job;
//! * concurrent jobs and concurrent requests to the engine are limited and shared round-robin by client;
//! * dropping a [`JobEvents`] drops the requests of its job;
//! * results do not depend on the other jobs.
//!
//! Not here: how a query is sent ([`NextTokens`]), and texts without a number, which the server passes
//! through.

mod after;
mod client;
mod decode;
mod gate;
mod next_tokens;
mod requests;
mod run;
mod structured;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ntl_core::contract::{EngineError, Job, ModelInfo, Request};
use ntl_core::decoding::Vocabulary;
use ntl_engine::{EngineObserver, JobEvents, channel};
use tokio::sync::{Notify, Semaphore};

pub use decode::LookAhead;
pub use next_tokens::{
    Ahead, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens, QueryContext, TextDelta, TextEnd,
    TextQuery,
};

use gate::FairGate;
use run::{JobTask, LoadGauge};

/// Limits of the concurrent work for one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// Maximum number of queued sequences; further ones are rejected.
    pub queue_max: usize,
    /// Maximum time from a request's arrival to the start of its first job; `None` waits until its deadline.
    pub queue_time_max: Option<Duration>,
    /// Maximum number of concurrent jobs.
    pub jobs_max: usize,
    /// Maximum number of concurrent requests to the engine.
    pub requests_max: usize,
    pub look_ahead: LookAhead,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_time_max: None,
            jobs_max: 256,
            requests_max: 64,
            look_ahead: LookAhead::default(),
        }
    }
}

/// A handle to the jobs of a model that another server computes. Clones share them.
#[derive(Clone)]
pub struct RemoteEngine {
    shared: Arc<Shared>,
}

/// State that all jobs use.
struct Shared {
    upstream: Arc<dyn NextTokens>,
    info: ModelInfo,
    vocabulary: Vocabulary,
    limits: RemoteLimits,
    observer: Arc<dyn EngineObserver>,
    queue_slots: Arc<Semaphore>,
    jobs: Arc<FairGate>,
    requests: Arc<FairGate>,
    load: LoadGauge,
    submitted: AtomicU64,
}

impl RemoteEngine {
    pub fn new(
        upstream: Arc<dyn NextTokens>,
        info: ModelInfo,
        vocabulary: Vocabulary,
        limits: RemoteLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> Self {
        let shared = Shared {
            upstream,
            info,
            vocabulary,
            limits,
            queue_slots: Arc::new(Semaphore::new(limits.queue_max.min(Semaphore::MAX_PERMITS))),
            jobs: FairGate::new(limits.jobs_max),
            requests: FairGate::new(limits.requests_max),
            load: LoadGauge::new(Arc::clone(&observer)),
            observer,
            submitted: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Queues the jobs of one request: all of them or none. Must be called in a tokio runtime with timers.
    ///
    /// # Errors
    /// If a prompt is too long, reports are not enough for a job, or the queue has too few free slots.
    pub fn submit_all(&self, jobs: Vec<Job>) -> Result<Vec<JobEvents>, EngineError> {
        let shared = &self.shared;
        jobs.iter().try_for_each(|job| shared.check(job))?;
        let wanted = jobs.iter().map(|job| job.request.sequences()).fold(0, u32::saturating_add);
        let waiting = || shared.limits.queue_max.saturating_sub(shared.queue_slots.available_permits());
        let slots = Arc::clone(&shared.queue_slots).try_acquire_many_owned(wanted);
        let mut slots = slots.map_err(|_| EngineError::Overloaded { waiting: waiting() })?;
        let request_begun = Arc::new(AtomicBool::new(false));
        let queued = Instant::now();
        let submit = |job: Job| {
            let slot = slots.split(job.request.sequences() as usize);
            let read = Arc::new(Notify::new());
            let wake = Arc::clone(&read);
            // One permit is stored if the job is not waiting.
            let (events, receiver) = channel(move || wake.notify_one());
            let number = shared.submitted.fetch_add(1, Ordering::Relaxed);
            let request_begun = Arc::clone(&request_begun);
            let shared = Arc::clone(shared);
            let task = JobTask { shared, job, number, events, read, queued, slot, request_begun };
            tokio::spawn(task.run());
            receiver
        };
        Ok(jobs.into_iter().map(submit).collect())
    }

    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }
}

impl Shared {
    /// Fails if the job is too long, or reports are not enough for it.
    fn check(&self, job: &Job) -> Result<(), EngineError> {
        self.info.check_length(job)?;
        let unsupported = |reason: &str| Err(EngineError::Unsupported(reason.to_owned()));
        if job.paper_decoding {
            return unsupported("another engine does not support `paper` decoding");
        }
        if job.prompt.tokens.iter().any(|token| token.value.is_some()) {
            return unsupported("another engine reads no numbers with values (xVal)");
        }
        if job.prompt.is_empty() {
            return unsupported("another engine needs a prompt of at least one token");
        }
        match &job.request {
            Request::Number(number) => self.vocabulary.reported_search(number, "", 0).map(drop),
            Request::Text(text) if text.fields.is_some() => {
                self.upstream.check_choices(&text.sampling)?;
                self.vocabulary.reported_text(text, 0).map(drop)
            }
            request => self.vocabulary.reported_decoding(request).map(drop),
        }
    }
}
