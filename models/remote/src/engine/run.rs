//! The life of one job: it waits for its turn, runs, and ends with its last event, with its deadline, or when
//! its client is gone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use ntl_core::contract::{EngineError, Event, Job, NumberOutcome, Request};
use ntl_engine::{EndReason, EngineObserver, EventSender, JobReservation};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::sleep_until;

use super::after::{number_after, number_of};
use super::chats::{ChatJob, sampled};
use super::client::ClientEvents;
use super::decode::{LookAhead, decode};
use super::gate::{FairGate, Permit};
use super::requests::Requests;
use super::structured::structured_texts;
use super::{EngineMeter, QueryContext, Shared};

/// The work of a job.
pub(super) enum Work {
    Tokens {
        /// Without its prompt.
        job: Box<Job>,
        prompt: Arc<[u32]>,
    },
    Chat(Box<ChatJob>),
}

impl Work {
    /// Returns the number of sequences that it requests.
    pub(super) fn sequences(&self) -> u32 {
        match self {
            Self::Tokens { job, .. } => job.request.sequences(),
            Self::Chat(_) => 1,
        }
    }

    fn client(&self) -> u64 {
        match self {
            Self::Tokens { job, .. } => job.client,
            Self::Chat(job) => job.client,
        }
    }

    fn deadline(&self) -> Option<(Instant, Duration)> {
        match self {
            Self::Tokens { job, .. } => job.deadline,
            Self::Chat(job) => job.deadline,
        }
    }
}

/// A submitted job.
pub(super) struct JobTask {
    pub(super) shared: Arc<Shared>,
    pub(super) work: Work,
    /// The memory that it needs.
    pub(super) bytes: u64,
    /// Distinguishes the jobs of one engine.
    pub(super) number: u64,
    /// Counts the work for its request.
    pub(super) meter: EngineMeter,
    pub(super) events: EventSender,
    /// Notified when the client has read events.
    pub(super) read: Arc<Notify>,
    pub(super) queued: Instant,
    /// Slots in the bounded queue, held until the job starts.
    pub(super) slot: Option<OwnedSemaphorePermit>,
    /// Whether any job of the same request has started. If so, the queue timeout no longer applies to the
    /// others.
    pub(super) request_begun: Arc<AtomicBool>,
}

impl JobTask {
    pub(super) async fn run(self) {
        let Self { shared, work, bytes, number, meter, events, read, queued, slot, request_begun } = self;
        let client = ClientEvents { events, read };
        let sequences = work.sequences() as usize;
        let done = async {
            let (_turn, _running) = {
                let _waiting = shared.load.enter(Load::Queued, sequences);
                let turn = shared.turn(&shared.jobs, work.client(), bytes, queued, &request_begun).await?;
                (turn, shared.load.enter(Load::Running, sequences))
            };
            drop(slot);
            shared.observer.on_start(queued.elapsed());
            let changes = shared.upstream.weight_changes();
            let events = match &work {
                Work::Tokens { job, prompt } => shared.serve(job, prompt, number, meter, &client).await?,
                Work::Chat(job) => vec![shared.sample(job, number, meter, &client).await?],
            };
            if shared.upstream.weight_changes() == changes {
                return Ok(events);
            }
            let message = "the weights of the model changed while the engine computed this request";
            Err(EngineError::Upstream(message.to_owned()))
        };
        // A panic fails this job only.
        let done = AssertUnwindSafe(done).catch_unwind();
        let last = tokio::select! {
            biased;
            () = client.events.closed() => Vec::new(),
            late = deadline(work.deadline()) => vec![Event::Failed(late)],
            done = done => match done {
                Ok(Ok(events)) => events,
                Ok(Err(error)) => vec![Event::Failed(error)],
                Err(_) => {
                    shared.observer.on_panic();
                    vec![Event::Failed(EngineError::Step("the decoding panicked".to_owned()))]
                }
            },
        };
        if let [Event::Failed(error @ (EngineError::Upstream(_) | EngineError::Step(_)))] = &*last {
            tracing::error!(%error, "a job failed");
        }
        // Counted before the events are sent, so that a client with the response finds it in the metrics. A
        // single event ends all sequences.
        for sequence in 0..sequences {
            let event = last.get(sequence).or(last.first());
            shared.observer.on_end(event.map_or(EndReason::Abort, end_reason));
        }
        for event in last {
            client.events.send(event);
        }
    }
}

fn end_reason(event: &Event) -> EndReason {
    match event {
        Event::Failed(EngineError::Deadline { .. }) => EndReason::Deadline,
        Event::Failed(_) => EndReason::Error,
        Event::Number(outcome) => outcome.first_text_end.map_or(EndReason::Stop, EndReason::from),
        Event::Finished { reason, .. } => EndReason::from(*reason),
        _ => EndReason::Stop,
    }
}

/// Waits until a deadline has passed.
async fn deadline(deadline: Option<(Instant, Duration)>) -> EngineError {
    let Some((at, after)) = deadline else { return std::future::pending().await };
    sleep_until(at.into()).await;
    EngineError::Deadline { after_ms: milliseconds(after) }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Waits until work of a client may start: for a permit of a gate, and then for memory.
    pub(super) async fn turn(
        &self,
        gate: &Arc<FairGate>,
        client: u64,
        bytes: u64,
        queued: Instant,
        begun: &AtomicBool,
    ) -> Result<(Permit, JobReservation), EngineError> {
        let mut turn = std::pin::pin!(async {
            let permit = gate.acquire(client).await;
            let memory = self.memory.reserve(bytes, permit.is_first).await;
            (permit, memory)
        });
        if let Some(time_max) = self.limits.queue_time_max {
            let timeout = sleep_until((queued + time_max).into());
            tokio::select! {
                biased;
                turn = &mut turn => {
                    begun.store(true, Ordering::SeqCst);
                    return Ok(turn);
                }
                () = timeout => {}
            }
            if !begun.load(Ordering::SeqCst) {
                return Err(EngineError::QueueTimeout { after_ms: milliseconds(time_max) });
            }
        }
        let turn = turn.await;
        begun.store(true, Ordering::SeqCst);
        Ok(turn)
    }

    /// Runs a job, and returns its last event, or the last one of each of its texts.
    async fn serve(
        &self,
        job: &Job,
        prompt: &Arc<[u32]>,
        number: u64,
        meter: EngineMeter,
        client: &ClientEvents,
    ) -> Result<Vec<Event>, EngineError> {
        let context = QueryContext {
            client: job.client,
            affinity: number,
            cache_salt: job.cache_salt,
            is_alone: false,
            needs_all_ids: !matches!(
                job.request,
                Request::Number(_) | Request::Text(_) | Request::Options(_)
            ),
            deadline: job.deadline.map(|(at, _)| at),
            meter,
        };
        let requests = Requests::new(self, context.clone());
        match &job.request {
            Request::Number(number) => {
                let outcome = match &number.after {
                    Some(after) => number_after(&requests, prompt, number, after, client).await?,
                    None => {
                        let mut decoding = self.vocabulary.reported_decoding(&job.request)?;
                        let look_ahead = self.limits.look_ahead.within(number.values);
                        number_of(decode(&requests, prompt, Vec::new(), &mut *decoding, look_ahead).await?)?
                    }
                };
                Ok(vec![Event::Number(NumberOutcome { forward_passes: requests.sent(), ..outcome })])
            }
            Request::Text(text) => {
                structured_texts(|| Requests::new(self, context.clone()), prompt, text, client).await
            }
            request => {
                let mut decoding = self.vocabulary.reported_decoding(request)?;
                let mut events =
                    decode(&requests, prompt, Vec::new(), &mut *decoding, LookAhead::NONE).await?;
                let last = events.pop();
                last.map(|event| vec![event])
                    .ok_or_else(|| EngineError::Step("the decoding has no result".to_owned()))
            }
        }
    }
}

impl Shared {
    /// Samples the answers of a job, and returns its last event.
    async fn sample(
        &self,
        job: &ChatJob,
        number: u64,
        meter: EngineMeter,
        client: &ClientEvents,
    ) -> Result<Event, EngineError> {
        let context = QueryContext {
            client: job.client,
            affinity: number,
            cache_salt: 0,
            is_alone: false,
            needs_all_ids: false,
            deadline: job.deadline.map(|(at, _)| at),
            meter,
        };
        sampled(&Requests::new(self, context), job, client).await
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    Queued,
    Running,
}

/// Counts sequences for the metrics.
pub(super) struct LoadGauge {
    observer: Arc<dyn EngineObserver>,
    queued: AtomicUsize,
    running: AtomicUsize,
}

/// Sequences that count until it is dropped.
pub(super) struct Counted {
    gauge: Arc<LoadGauge>,
    load: Load,
    sequences: usize,
}

impl LoadGauge {
    pub(super) fn new(observer: Arc<dyn EngineObserver>) -> Self {
        Self { observer, queued: AtomicUsize::new(0), running: AtomicUsize::new(0) }
    }

    pub(super) fn enter(self: &Arc<Self>, load: Load, sequences: usize) -> Counted {
        self.count(load).fetch_add(sequences, Ordering::SeqCst);
        self.report();
        Counted { gauge: Arc::clone(self), load, sequences }
    }

    fn count(&self, load: Load) -> &AtomicUsize {
        match load {
            Load::Queued => &self.queued,
            Load::Running => &self.running,
        }
    }

    fn report(&self) {
        self.observer.on_load(self.queued.load(Ordering::SeqCst), self.running.load(Ordering::SeqCst));
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.count(self.load).fetch_sub(self.sequences, Ordering::SeqCst);
        self.gauge.report();
    }
}
