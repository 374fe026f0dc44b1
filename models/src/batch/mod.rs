//! The batch engine: one thread owns a model and runs all requests on it, joined and left between steps.
//!
//! In: [`Job`]s through a bounded queue. Out: [`Event`]s through one channel a job. Invariants: the queue has a
//! bound; a dropped [`JobEvents`] is a cancel; a failed batch fails its own requests only; answers do not depend on
//! what else is running. Not here: what is decoded (`ntl_core::decoding`) and on what (`BatchModel`).

mod queue;
mod run;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ntl_core::decoding::Vocabulary;
use ntl_core::engine::{BatchModel, EngineError, Event, Job, ModelInfo};
use tokio::sync::{Semaphore, mpsc};

use queue::Submission;
use run::Runner;

/// How much an engine takes on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Jobs that wait; one more is refused.
    pub queue_max: usize,
    /// Jobs that are decoded at the same time.
    pub running_max: usize,
    /// Rows of one step.
    pub step_rows_max: usize,
    /// Prompt tokens that are opened between two steps (but always one prompt), so that long prompts delay
    /// running requests only so much.
    pub open_tokens_max: usize,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self { queue_max: 1024, running_max: 256, step_rows_max: 128, open_tokens_max: 4096 }
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
    /// How many jobs wait, and how many sequences of other jobs are being decoded.
    fn load(&self, _waiting: usize, _sequences: usize) {}
    /// A job left the queue after this time.
    fn started(&self, _waited: Duration) {}
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

/// A handle on a running engine. Clones share it; it stops when the last one is gone and all work is done.
#[derive(Clone)]
pub struct Engine {
    submissions: mpsc::UnboundedSender<Submission>,
    places: Arc<Semaphore>,
    queue_max: usize,
    info: Arc<ModelInfo>,
}

/// The events of one job, in order. Dropping it cancels the job.
#[derive(Debug)]
pub struct JobEvents(mpsc::UnboundedReceiver<Event>);

impl JobEvents {
    /// The next event. `None` after the last one, or when the engine died.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The same for code that is not asynchronous.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.0.blocking_recv()
    }
}

impl Engine {
    /// Starts a thread that owns `model`. Join the handle after dropping all clones of the engine.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn spawn(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (submissions, receiver) = mpsc::unbounded_channel();
        let info = Arc::new(model.info().clone());
        let runner = Runner::new(model, vocabulary, limits, observer);
        let thread = std::thread::Builder::new()
            .name("ntl-engine".to_owned())
            .spawn(move || runner.run(queue::Queue::new(receiver)))?;
        let places = Arc::new(Semaphore::new(limits.queue_max));
        Ok((Self { submissions, places, queue_max: limits.queue_max, info }, thread))
    }

    /// Puts a job in the queue.
    ///
    /// # Errors
    /// At once, when the prompt is too long, the queue is full or the engine is gone.
    pub fn submit(&self, job: Job) -> Result<JobEvents, EngineError> {
        let (got, max) = (job.prompt.len(), self.info.prompt_tokens_max);
        if got > max {
            return Err(EngineError::PromptTooLong { got, max });
        }
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| EngineError::Overloaded { waiting: self.queue_max })?;
        let (events, receiver) = mpsc::unbounded_channel();
        let submission = Submission { job, events, queued: Instant::now(), _place: place };
        self.submissions.send(submission).map_err(|_| EngineError::Dead)?;
        Ok(JobEvents(receiver))
    }

    /// What is loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.info
    }

    /// Whether the engine's thread is there.
    pub fn is_alive(&self) -> bool {
        !self.submissions.is_closed()
    }
}
