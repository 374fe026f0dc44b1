//! The handle on a running engine: starting its thread, and submitting jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, CacheCost, EngineError, Job, ModelInfo};
use tokio::sync::Semaphore;

use crate::budget::{CacheBudget, CacheUse, Meter};
use crate::channel::{JobEvents, channel};
use crate::limits::EngineLimits;
use crate::observer::EngineObserver;
use crate::queue::{Message, Queue, Submission};
use crate::run::Runner;

/// A handle on a running engine. Clones share the engine; it stops when the last clone and the last [`JobEvents`] are dropped.
#[derive(Clone)]
pub struct Engine {
    messages: Arc<Sender<Message>>,
    places: Arc<Semaphore>,
    limits: EngineLimits,
    cache: CacheCost,
    /// Most bytes of one job.
    job_bytes_max: u64,
    meter: Meter,
    info: Arc<ModelInfo>,
    alive: Arc<AtomicBool>,
}

/// Held by the engine's thread; clears the flag when the thread ends, also by a panic.
struct AliveGuard(Arc<AtomicBool>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Engine {
    /// Starts a thread that owns `model`. Join the handle after dropping all clones of the engine and all events.
    ///
    /// # Errors
    /// When threads cannot be started.
    pub fn spawn(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let budget = CacheBudget::new(limits.cache_bytes_max);
        Self::spawn_sharing(&budget, model, vocabulary, limits, observer)
    }

    /// As [`Engine::spawn`], with memory that engines share instead of `limits.cache_bytes_max`.
    pub fn spawn_sharing(
        budget: &CacheBudget,
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (messages, receiver) = mpsc::channel();
        let messages = Arc::new(messages);
        // The engine's thread holds this, and ends when all senders are gone.
        let waking = Arc::downgrade(&messages);
        let wake = move || drop(waking.upgrade().map(|messages| messages.send(Message::Wake)));
        let memory = budget.join(model.evictable_cache(), wake);
        let (meter, job_bytes_max) = (memory.meter(), budget.job_bytes_max());
        let (info, cache) = (Arc::new(model.info().clone()), model.cache_cost());
        let running_max = limits.running_max.min(model.sequences_max().unwrap_or(usize::MAX));
        let limits = EngineLimits { running_max, ..limits };
        let runner = Runner::new(model, vocabulary, limits, memory, observer);
        let alive = Arc::new(AtomicBool::new(true));
        let alive_guard = AliveGuard(Arc::clone(&alive));
        // The engine's loop runs on one of the compute threads, so that no step waits for a thread to wake up.
        let threads = rayon::ThreadPoolBuilder::new().num_threads(limits.threads.get());
        let threads =
            threads.thread_name(|_| "ntl-compute".to_owned()).build().map_err(std::io::Error::other)?;
        let thread = std::thread::Builder::new().name("ntl-engine".to_owned()).spawn(move || {
            let _alive_guard = alive_guard;
            threads.install(|| runner.run(Queue::new(receiver, limits.queue_time_max)));
        })?;
        let places = Arc::new(Semaphore::new(limits.queue_max.min(Semaphore::MAX_PERMITS)));
        Ok((Self { messages, places, limits, cache, job_bytes_max, meter, info, alive }, thread))
    }

    /// Queues a job; errors as [`Engine::submit_all`].
    pub fn submit(&self, job: Job) -> Result<JobEvents, EngineError> {
        self.submit_all(vec![job])?.pop().ok_or(EngineError::Dead)
    }

    /// Queues the jobs of one request: all of them or none.
    ///
    /// # Errors
    /// When a prompt is too long, a job may need more memory than there is, the queue has too few free places, or the engine
    /// is gone.
    pub fn submit_all(&self, mut jobs: Vec<Job>) -> Result<Vec<JobEvents>, EngineError> {
        jobs.iter_mut().try_for_each(|job| self.limit_to_cache(job))?;
        let sequences = |job: &Job| job.request.sequences();
        let wanted = jobs.iter().map(sequences).fold(0, u32::saturating_add);
        let mut places = Arc::clone(&self.places)
            .try_acquire_many_owned(wanted)
            .map_err(|_| EngineError::Overloaded { waiting: self.waiting() })?;
        let (request_begun, queued) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let submit = |job: Job| {
            let own = places.split(sequences(&job) as usize).ok_or(EngineError::Dead)?;
            let messages = Arc::clone(&self.messages);
            // A send fails only when the engine is gone, and then there is nothing to wake.
            let (events, receiver) = channel(move || drop(messages.send(Message::Wake)));
            let request_begun = Arc::clone(&request_begun);
            let cache_bytes = self.bytes(&job, job.nodes_expected());
            let places = Some(own);
            let submission =
                Submission { job, events, queued, cache_bytes, request_begun, places, sent: None };
            self.messages.send(Message::Submit(Box::new(submission))).map_err(|_| EngineError::Dead)?;
            Ok(receiver)
        };
        jobs.into_iter().map(submit).collect()
    }

    /// Cuts a job's node budget to the cache; an error if the job cannot run at all.
    fn limit_to_cache(&self, job: &mut Job) -> Result<(), EngineError> {
        let (got, max) = (job.prompt.len(), self.info.prompt_tokens_max);
        if got > max {
            return Err(EngineError::PromptTooLong { got, max });
        }
        let answer = job.request.tokens_max();
        if let Some(max) = self.info.context_tokens_max.filter(|&max| got.saturating_add(answer) > max) {
            return Err(EngineError::ContextTooLong { prompt: got, answer, max });
        }
        let max = self.job_bytes_max;
        if self.bytes(job, job.nodes_max()) > max {
            let (mut fits, mut exceeds) = (0, job.nodes_max());
            while exceeds - fits > 1 {
                let middle = fits + (exceeds - fits) / 2;
                let side = if self.bytes(job, middle) > max { &mut exceeds } else { &mut fits };
                *side = middle;
            }
            job.limit_nodes(fits);
        }
        let needs = self.bytes(job, job.nodes_max());
        if needs > max { Err(EngineError::TooLarge { needs, max }) } else { Ok(()) }
    }

    /// Memory of a job that decodes so many nodes.
    fn bytes(&self, job: &Job, nodes: usize) -> u64 {
        self.cache.bytes(job.opened_prompt().len(), nodes).saturating_add(job.host_bytes(nodes))
    }

    fn waiting(&self) -> usize {
        self.limits.queue_max.saturating_sub(self.places.available_permits())
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// The memory that it holds.
    pub fn cache_use(&self) -> CacheUse {
        self.meter.read()
    }

    /// Whether the engine's thread is running.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }
}
