//! The batch engine: one thread owns a model and runs all requests on it, joined and left between steps.
//!
//! In: [`Job`]s through a bounded queue. Out: events through one channel a job. Invariants: the queue has a bound;
//! clients are served in turn; a dropped [`JobEvents`] is a cancel; events that nobody reads are bounded; a failed batch
//! fails its own requests only; answers do not depend on what else is running. Not here: what is decoded
//! (`ntl_core::decoding`) and on what (`BatchModel`).

mod channel;
mod queue;
mod run;
mod share;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, CacheCost, EngineError, Job, ModelInfo};
use tokio::sync::Semaphore;

pub use channel::JobEvents;
use queue::{Message, Queue, Submission};
use run::Runner;

/// How much an engine takes on at once. A sequence is one text or number; a job has as many as it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Sequences that wait; more are refused.
    pub queue_max: usize,
    /// How long a request waits until its first job begins; `None` waits as long as its deadline allows.
    pub queue_time_max: Option<Duration>,
    /// Sequences that are decoded at the same time (but always one job).
    pub running_max: usize,
    /// Rows of one step.
    pub step_rows_max: usize,
    /// Prompt tokens that are opened between two steps (but always one prompt), so that long prompts delay
    /// running requests only so much.
    pub open_tokens_max: usize,
    /// Bytes of contexts, as far as the model knows what they take. A text that may need more than all of it is refused,
    /// a tree gets the budget that fits. Trees that outgrow what they were expected to need while this is used up take
    /// turns, so that at most one budget is held beyond it.
    pub cache_bytes_max: u64,
    /// Threads that compute.
    pub threads: NonZeroUsize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            queue_max: 4096,
            queue_time_max: None,
            running_max: 256,
            step_rows_max: 128,
            open_tokens_max: 4096,
            cache_bytes_max: 4 << 30,
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// Why a sequence ended, as counted in metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// End of sequence, a stop string or a complete number.
    Stop,
    /// `max_tokens`.
    Length,
    /// Nobody waits for the answer any more.
    Abort,
    /// The model failed.
    Error,
    /// The deadline passed.
    Deadline,
}

/// What an engine tells about itself. Called on its thread; must be quick.
pub trait EngineObserver: Send + Sync {
    /// How many sequences wait, and how many others are being decoded.
    fn load(&self, _waiting: usize, _sequences: usize) {}
    /// A job left the queue after this time.
    fn started(&self, _waited: Duration) {}
    /// Of the tokens of a prompt, this many had been computed for an earlier one, the others are computed now.
    fn opened(&self, _reused_tokens: usize, _new_tokens: usize) {}
    /// A step computed this many rows.
    fn stepped(&self, _rows: usize) {}
    /// A sequence ended.
    fn ended(&self, _ending: Ending) {}
    /// A model call panicked; its requests failed, the engine goes on.
    fn panicked(&self) {}
}

/// An observer that looks away.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl EngineObserver for NoObserver {}

/// A handle on a running engine. Clones share it; it stops when the last one is gone, and the last [`JobEvents`].
#[derive(Clone)]
pub struct Engine {
    messages: Sender<Message>,
    places: Arc<Semaphore>,
    limits: EngineLimits,
    cache: CacheCost,
    info: Arc<ModelInfo>,
    alive: Arc<AtomicBool>,
}

/// Says that the engine's thread is gone when it is, however it ended.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Engine {
    /// Starts a thread that owns `model`. Join the handle after dropping all clones of the engine and all events.
    ///
    /// # Errors
    /// When the operating system gives no threads.
    pub fn spawn(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (messages, receiver) = mpsc::channel();
        let (info, cache) = (Arc::new(model.info().clone()), model.cache_cost());
        let running_max = limits.running_max.min(model.sequences_max().unwrap_or(usize::MAX));
        let limits = EngineLimits { running_max, ..limits };
        let runner = Runner::new(model, vocabulary, limits, observer);
        let alive = Arc::new(AtomicBool::new(true));
        let lives = Alive(Arc::clone(&alive));
        // The engine is one of the threads that compute, so that no step waits for another to wake up.
        let threads = rayon::ThreadPoolBuilder::new().num_threads(limits.threads.get());
        let threads =
            threads.thread_name(|_| "ntl-compute".to_owned()).build().map_err(std::io::Error::other)?;
        let thread = std::thread::Builder::new().name("ntl-engine".to_owned()).spawn(move || {
            let _lives = lives;
            threads.install(|| runner.run(Queue::new(receiver, limits.queue_time_max)));
        })?;
        let places = Arc::new(Semaphore::new(limits.queue_max.min(Semaphore::MAX_PERMITS)));
        Ok((Self { messages, places, limits, cache, info, alive }, thread))
    }

    /// Puts a job in the queue.
    ///
    /// # Errors
    /// Those of [`Engine::submit_all`].
    pub fn submit(&self, job: Job) -> Result<JobEvents, EngineError> {
        self.submit_all(vec![job])?.pop().ok_or(EngineError::Dead)
    }

    /// Puts the jobs of one request in the queue: all of them or none.
    ///
    /// # Errors
    /// At once, when a prompt is too long, a job can need more memory than there is, the queue has not that many places
    /// left, or the engine is gone.
    pub fn submit_all(&self, mut jobs: Vec<Job>) -> Result<Vec<JobEvents>, EngineError> {
        jobs.iter_mut().try_for_each(|job| self.fit(job))?;
        let sequences = |job: &Job| job.request.sequences();
        let wanted = jobs.iter().map(sequences).fold(0, u32::saturating_add);
        let mut places = Arc::clone(&self.places)
            .try_acquire_many_owned(wanted)
            .map_err(|_| EngineError::Overloaded { waiting: self.waiting() })?;
        let (request_begun, queued) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let submit = |job: Job| {
            let own = places.split(sequences(&job) as usize).ok_or(EngineError::Dead)?;
            let (events, receiver) = channel::channel(self.messages.clone());
            let request_begun = Arc::clone(&request_begun);
            let cache_bytes = self.cache.bytes(job.opened_prompt().len(), job.nodes_expected());
            let submission = Submission { job, events, queued, cache_bytes, request_begun, _places: own };
            self.messages.send(Message::Submit(Box::new(submission))).map_err(|_| EngineError::Dead)?;
            Ok(receiver)
        };
        jobs.into_iter().map(submit).collect()
    }

    /// Gives a job no more budget than there is memory, if it can run at all.
    fn fit(&self, job: &mut Job) -> Result<(), EngineError> {
        let (got, max) = (job.prompt.len(), self.info.prompt_tokens_max);
        if got > max {
            return Err(EngineError::PromptTooLong { got, max });
        }
        let answer = job.request.tokens_max();
        if let Some(max) = self.info.context_tokens_max.filter(|&max| got.saturating_add(answer) > max) {
            return Err(EngineError::ContextTooLong { prompt: got, answer, max });
        }
        let (max, prompt) = (self.limits.cache_bytes_max, job.opened_prompt().len());
        let left = max.saturating_sub(self.cache.bytes(prompt, 0));
        if let Some(nodes) = left.checked_div(self.cache.node) {
            job.limit_nodes(usize::try_from(nodes).unwrap_or(usize::MAX));
        }
        let needs = self.cache.bytes(prompt, job.nodes_max());
        if needs > max { Err(EngineError::TooLarge { needs, max }) } else { Ok(()) }
    }

    fn waiting(&self) -> usize {
        self.limits.queue_max.saturating_sub(self.places.available_permits())
    }

    /// What is loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Whether the engine's thread is there.
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::SeqCst)
    }
}
