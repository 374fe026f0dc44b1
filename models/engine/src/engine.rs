//! The handle to a running engine: starts its thread and submits jobs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use ntl_core::contract::{Adapter, BatchModel, CacheCost, EngineError, Job, ModelInfo};
use ntl_core::decoding::Vocabulary;
use tokio::sync::Semaphore;

use crate::budget::{CacheBudget, CacheUse, MemoryGauge};
use crate::channel::{JobEvents, channel};
use crate::limits::{EngineLimits, limit_to_memory};
use crate::observer::EngineObserver;
use crate::queue::{Message, PreparedAdapter, Queue, QueuedJob};
use crate::run::Runner;

/// A handle to a running engine. Clones share the engine. It stops when the last clone and the last
/// [`JobEvents`] are dropped.
#[derive(Clone)]
pub struct Engine {
    messages: Arc<Sender<Message>>,
    queue_slots: Arc<Semaphore>,
    limits: EngineLimits,
    cache: CacheCost,
    /// Maximum memory that one job may reserve, in bytes.
    job_bytes_max: u64,
    meter: MemoryGauge,
    info: Arc<ModelInfo>,
    alive: Arc<AtomicBool>,
    lost: Arc<OnceLock<String>>,
}

/// Held by the engine's thread. Clears the flag when the thread ends, even by a panic.
struct AliveGuard(Arc<AtomicBool>);

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Engine {
    /// Starts a thread that owns `model`. Join the returned handle only after all clones of the engine and
    /// all events have been dropped.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn spawn(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let budget = CacheBudget::new(limits.cache_bytes_max);
        Self::spawn_sharing(&budget, model, vocabulary, limits, observer)
    }

    /// Like [`Engine::spawn`], but with memory that several engines share instead of
    /// `limits.cache_bytes_max`.
    pub fn spawn_sharing(
        budget: &CacheBudget,
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (messages, receiver) = mpsc::channel();
        let messages = Arc::new(messages);
        // The engine's thread holds only a weak reference, so that it ends when all senders are dropped.
        let waking = Arc::downgrade(&messages);
        let memory = budget.join(model.evictable_cache(), move || {
            if let Some(messages) = waking.upgrade() {
                drop(messages.send(Message::Wake));
            }
        });
        let meter = memory.meter();
        let job_bytes_max = budget.job_bytes_max();
        let info = Arc::new(model.info().clone());
        let cache = model.cache_cost();
        let running_max = limits.running_max.min(model.sequences_max().unwrap_or(usize::MAX));
        let limits = EngineLimits { running_max, ..limits };
        let lost = Arc::default();
        let runner = Runner::new(vocabulary, limits, memory, observer, Arc::clone(&lost));
        let alive = Arc::new(AtomicBool::new(true));
        let alive_guard = AliveGuard(Arc::clone(&alive));
        // The engine's loop runs on one of the compute threads, so that no step waits for a thread to wake
        // up.
        let threads = rayon::ThreadPoolBuilder::new().num_threads(limits.threads.get());
        let threads =
            threads.thread_name(|_| "ntl-compute".to_owned()).build().map_err(std::io::Error::other)?;
        let thread = std::thread::Builder::new().name("ntl-engine".to_owned()).spawn(move || {
            let _alive_guard = alive_guard;
            threads.install(|| runner.run(model, Queue::new(receiver, limits.queue_time_max)));
        })?;
        let queue_slots = Arc::new(Semaphore::new(limits.queue_max.min(Semaphore::MAX_PERMITS)));
        Ok((Self { messages, queue_slots, limits, cache, job_bytes_max, meter, info, alive, lost }, thread))
    }

    /// Queues one job. Fails like [`Engine::submit_all`].
    pub fn submit(&self, job: Job) -> Result<JobEvents, EngineError> {
        self.submit_all(vec![job])?.pop().ok_or(EngineError::Dead)
    }

    /// Queues the jobs of one request: all of them or none.
    ///
    /// # Errors
    /// If a prompt is too long, a job may need more memory than the engine has, the queue has too few free
    /// slots, or the engine has stopped.
    pub fn submit_all(&self, mut jobs: Vec<Job>) -> Result<Vec<JobEvents>, EngineError> {
        jobs.iter_mut().try_for_each(|job| self.limit_to_cache(job))?;
        let sequences = jobs.iter().map(|job| job.request.sequences()).fold(0, u32::saturating_add);
        let mut permits = Arc::clone(&self.queue_slots)
            .try_acquire_many_owned(sequences)
            .map_err(|_| EngineError::Overloaded { waiting: self.waiting() })?;
        let request_begun = Arc::new(AtomicBool::new(false));
        let queued = Instant::now();
        let mut receivers = Vec::with_capacity(jobs.len());
        for job in jobs {
            let permit = permits.split(job.request.sequences() as usize).ok_or(EngineError::Dead)?;
            let messages = Arc::clone(&self.messages);
            // Sending fails only if the engine has stopped. Then there is nothing to wake.
            let (events, receiver) = channel(move || drop(messages.send(Message::Wake)));
            let request_begun = Arc::clone(&request_begun);
            let cache_bytes = self.bytes(&job, job.nodes_expected());
            let permit = Some(permit);
            let queued_job =
                QueuedJob { job, events, queued, cache_bytes, request_begun, permit, sent: None };
            self.messages.send(Message::Submit(Box::new(queued_job))).map_err(|_| EngineError::Dead)?;
            receivers.push(receiver);
        }
        Ok(receivers)
    }

    /// Lets the engine's thread copy the weights of an adapter to the model's device, and waits for it.
    /// Without this call, the first job that uses the adapter does it.
    ///
    /// # Errors
    /// If the device has too little memory, the model cannot have the adapter, or the engine has stopped.
    pub fn prepare_adapter(&self, adapter: &Adapter) -> Result<(), EngineError> {
        let (result, prepared) = mpsc::sync_channel(1);
        let message = Message::PrepareAdapter(PreparedAdapter { adapter: adapter.clone(), result });
        self.messages.send(message).map_err(|_| EngineError::Dead)?;
        prepared.recv().map_err(|_| EngineError::Dead)?
    }

    /// Reduces a job's node budget to the memory of the cache. Fails if the job cannot run at all.
    fn limit_to_cache(&self, job: &mut Job) -> Result<(), EngineError> {
        self.info.check_length(job)?;
        limit_to_memory(job, self.job_bytes_max, |job, nodes| self.bytes(job, nodes))
    }

    /// Returns the memory of a job that decodes `nodes` nodes, in bytes.
    fn bytes(&self, job: &Job, nodes: usize) -> u64 {
        self.cache.bytes(job.prefilled_prompt().len(), nodes).saturating_add(job.host_bytes(nodes))
    }

    fn waiting(&self) -> usize {
        self.limits.queue_max.saturating_sub(self.queue_slots.available_permits())
    }

    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Returns the memory that the engine uses.
    pub fn cache_use(&self) -> CacheUse {
        self.meter.read()
    }

    /// Returns whether the engine's thread is running.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }

    /// Returns why the model's device cannot be used any more, if that ended the engine.
    pub fn lost_device(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }
}
