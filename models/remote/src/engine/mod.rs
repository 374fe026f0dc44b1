//! Turns jobs into events with the next-token probabilities of an engine elsewhere.
//!
//! In: [`Job`]s. Out: events, one channel per job. Invariants:
//!
//! * each job is a task, so that a slow response delays no other job;
//! * concurrent jobs and texts are limited and shared round-robin by client. A quarter is reserved for
//!   clients without running ones;
//! * a job reserves the memory that it needs from the budget of all models before it starts;
//! * dropping a [`JobEvents`] drops the requests of its job;
//! * results do not depend on the other jobs.
//!
//! Not here: how a query is sent ([`NextTokens`]), and texts without a number: the server passes them
//! through, and [`RemoteEngine::begin_text`] counts them.

mod after;
mod chats;
mod client;
mod decode;
pub(crate) mod gate;
pub(crate) mod job_bytes;
mod meter;
mod next_tokens;
mod requests;
mod run;
mod structured;
mod text_turn;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ntl_core::contract::{EngineError, Job, ModelInfo, Request};
use ntl_core::decoding::Vocabulary;
use ntl_engine::{CacheBudget, CacheUse, EngineObserver, JobEvents, JobMemory, channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

pub use chats::{ChatJob, ChatWanted, SampledOptions};
pub use decode::LookAhead;
pub use meter::{EngineMeter, EngineUsage, estimated_tokens};
pub use next_tokens::{
    Ahead, ChatAnswer, ChatEnd, ChatQuery, NextTokenAnswer, NextTokenQuery, NextTokenStep, NextTokens,
    QueryContext, TextDelta, TextEnd, TextQuery,
};
pub use text_turn::TextTurn;

use gate::FairGate;
use job_bytes::{chat_job_bytes, job_bytes};
use run::{JobTask, LoadGauge, Work};

/// Limits of the concurrent work for one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// Maximum number of queued sequences; further ones are rejected.
    pub queue_max: usize,
    /// Maximum time from a request's arrival to the start of its first job; `None` waits until its deadline.
    pub queue_time_max: Option<Duration>,
    /// Maximum number of concurrent jobs. A quarter is for clients without running jobs.
    pub jobs_max: usize,
    /// The same for texts that the engine writes by itself.
    pub texts_max: usize,
    pub look_ahead: LookAhead,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_time_max: None,
            jobs_max: 256,
            texts_max: 256,
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
    texts: Arc<FairGate>,
    memory: JobMemory,
    load: Arc<LoadGauge>,
    submitted: AtomicU64,
}

impl RemoteEngine {
    /// Jobs share the memory of `budget` with those of other engines.
    pub fn new(
        budget: &CacheBudget,
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
            texts: FairGate::new(limits.texts_max),
            memory: JobMemory::new(budget),
            load: Arc::new(LoadGauge::new(Arc::clone(&observer))),
            observer,
            submitted: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Queues the jobs of one request: all of them or none. Must be called in a tokio runtime with timers.
    /// `meter` counts the work for them.
    ///
    /// # Errors
    /// If a prompt is too long, a job may need more memory than there is, reports are not enough for a job,
    /// or the queue has too few free slots.
    pub fn submit_all(&self, mut jobs: Vec<Job>, meter: &EngineMeter) -> Result<Vec<JobEvents>, EngineError> {
        jobs.iter_mut().try_for_each(|job| self.shared.check(job))?;
        let mut works = Vec::with_capacity(jobs.len());
        for mut job in jobs {
            let bytes = job_bytes(&job, job.nodes_max());
            let prompt = std::mem::take(&mut job.prompt).ids().collect();
            works.push((Work::Tokens { job: Box::new(job), prompt }, bytes));
        }
        self.start(works, meter)
    }

    /// Queues jobs that sample answers: all of them or none. Must be called in a tokio runtime with timers.
    /// `meter` counts the work for them.
    ///
    /// # Errors
    /// If the queue has too few free slots.
    pub fn submit_chats(
        &self,
        jobs: Vec<ChatJob>,
        meter: &EngineMeter,
    ) -> Result<Vec<JobEvents>, EngineError> {
        let mut works = Vec::with_capacity(jobs.len());
        for job in jobs {
            let bytes = chat_job_bytes(&job);
            works.push((Work::Chat(Box::new(job)), bytes));
        }
        self.start(works, meter)
    }

    /// Starts the tasks of one request. Each work comes with the memory that it needs.
    fn start(&self, works: Vec<(Work, u64)>, meter: &EngineMeter) -> Result<Vec<JobEvents>, EngineError> {
        let shared = &self.shared;
        let wanted = works.iter().map(|(work, _)| work.sequences()).fold(0, u32::saturating_add);
        let mut slots = shared.queue_slots(wanted)?;
        let request_begun = Arc::new(AtomicBool::new(false));
        let queued = Instant::now();
        let mut jobs = Vec::with_capacity(works.len());
        for (work, bytes) in works {
            let slot = slots.split(work.sequences() as usize);
            let read = Arc::new(Notify::new());
            let wake = Arc::clone(&read);
            // One permit is stored if the job is not waiting.
            let (events, receiver) = channel(move || wake.notify_one());
            let number = shared.submitted.fetch_add(1, Ordering::Relaxed);
            let request_begun = Arc::clone(&request_begun);
            let shared = Arc::clone(shared);
            let meter = meter.clone();
            let task =
                JobTask { shared, work, bytes, number, meter, events, read, queued, slot, request_begun };
            tokio::spawn(task.run());
            jobs.push(receiver);
        }
        Ok(jobs)
    }

    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Returns the memory that the running jobs may use.
    pub fn cache_use(&self) -> CacheUse {
        self.shared.memory.cache_use()
    }
}

impl Shared {
    /// Returns slots of the queue.
    fn queue_slots(&self, sequences: u32) -> Result<OwnedSemaphorePermit, EngineError> {
        let slots = Arc::clone(&self.queue_slots).try_acquire_many_owned(sequences);
        slots.map_err(|_| EngineError::Overloaded {
            waiting: self.limits.queue_max.saturating_sub(self.queue_slots.available_permits()),
        })
    }

    /// Fails if the job is too long, or reports are not enough for it. Lowers its node budget to the memory.
    fn check(&self, job: &mut Job) -> Result<(), EngineError> {
        self.info.check_length(job)?;
        self.memory.limit(job, job_bytes)?;
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
