//! The life of one job: it waits for its turn, runs, and ends with its last event, with its deadline, or when
//! its client is gone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use ntl_core::contract::{EngineError, Event, Job, NumberOutcome, Request};
use ntl_engine::{EndReason, EngineObserver, EventSender};
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::sleep_until;

use super::after::{number_after, number_of};
use super::client::ClientEvents;
use super::decode::{LookAhead, decode};
use super::gate::Permit;
use super::requests::Requests;
use super::structured::structured_texts;
use super::{QueryContext, Shared};

/// A submitted job.
pub(super) struct JobTask {
    pub(super) shared: Arc<Shared>,
    pub(super) job: Job,
    /// Distinguishes the jobs of one engine.
    pub(super) number: u64,
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
        let Self { shared, job, number, events, read, queued, slot, request_begun } = self;
        let client = ClientEvents { events, read };
        let sequences = job.request.sequences() as usize;
        let work = async {
            let (_turn, _running) = {
                let _waiting = shared.load.enter(Load::Queued, sequences);
                let turn = shared.turn(job.client, queued, &request_begun).await?;
                (turn, shared.load.enter(Load::Running, sequences))
            };
            drop(slot);
            shared.observer.on_start(queued.elapsed());
            shared.serve(&job, number, &client).await
        };
        // A panic fails this job only.
        let work = AssertUnwindSafe(work).catch_unwind();
        let last = tokio::select! {
            biased;
            () = client.events.closed() => None,
            late = deadline(job.deadline) => Some(Event::Failed(late)),
            done = work => Some(match done {
                Ok(Ok(event)) => event,
                Ok(Err(error)) => Event::Failed(error),
                Err(_) => {
                    shared.observer.on_panic();
                    Event::Failed(EngineError::Step("the decoding panicked".to_owned()))
                }
            }),
        };
        let reason = last.as_ref().map_or(EndReason::Abort, end_reason);
        if let Some(Event::Failed(error @ (EngineError::Upstream(_) | EngineError::Step(_)))) = &last {
            tracing::error!(%error, "a job failed");
        }
        // Counted before the event is sent, so that a client with the response finds it in the metrics.
        (0..sequences).for_each(|_| shared.observer.on_end(reason));
        if let Some(last) = last {
            client.events.send(last);
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
    /// Waits until a job may start.
    async fn turn(&self, client: u64, queued: Instant, begun: &AtomicBool) -> Result<Permit, EngineError> {
        let mut turn = std::pin::pin!(self.jobs.acquire(client));
        if let Some(time_max) = self.limits.queue_time_max {
            let timeout = sleep_until((queued + time_max).into());
            tokio::select! {
                biased;
                permit = &mut turn => {
                    begun.store(true, Ordering::SeqCst);
                    return Ok(permit);
                }
                () = timeout => {}
            }
            if !begun.load(Ordering::SeqCst) {
                return Err(EngineError::QueueTimeout { after_ms: milliseconds(time_max) });
            }
        }
        let permit = turn.await;
        begun.store(true, Ordering::SeqCst);
        Ok(permit)
    }

    /// Runs a job, and returns its last event.
    async fn serve(&self, job: &Job, number: u64, client: &ClientEvents) -> Result<Event, EngineError> {
        let prompt: Arc<[u32]> = job.prompt.ids().collect();
        let context = QueryContext {
            affinity: number,
            cache_salt: job.cache_salt,
            is_alone: false,
            needs_all_ids: !matches!(
                job.request,
                Request::Number(_) | Request::Text(_) | Request::Options(_)
            ),
            deadline: job.deadline.map(|(at, _)| at),
        };
        let requests = Requests::new(self, job.client, context);
        match &job.request {
            Request::Number(number) => {
                let outcome = match &number.after {
                    Some(after) => number_after(&requests, &prompt, number, after, client).await?,
                    None => {
                        let mut decoding = self.vocabulary.reported_decoding(&job.request)?;
                        let look_ahead = self.limits.look_ahead.within(number.values);
                        number_of(decode(&requests, prompt, &mut *decoding, look_ahead).await?)?
                    }
                };
                Ok(Event::Number(NumberOutcome { forward_passes: requests.sent(), ..outcome }))
            }
            Request::Text(text) => {
                let requests = || Requests::new(self, job.client, context);
                structured_texts(requests, &prompt, text, client).await
            }
            request => {
                let mut decoding = self.vocabulary.reported_decoding(request)?;
                let mut events = decode(&requests, prompt, &mut *decoding, LookAhead::NONE).await?;
                events.pop().ok_or_else(|| EngineError::Step("the decoding has no result".to_owned()))
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Load {
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
struct Counted<'a> {
    gauge: &'a LoadGauge,
    load: Load,
    sequences: usize,
}

impl LoadGauge {
    pub(super) fn new(observer: Arc<dyn EngineObserver>) -> Self {
        Self { observer, queued: AtomicUsize::new(0), running: AtomicUsize::new(0) }
    }

    fn enter(&self, load: Load, sequences: usize) -> Counted<'_> {
        self.count(load).fetch_add(sequences, Ordering::SeqCst);
        self.report();
        Counted { gauge: self, load, sequences }
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

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.gauge.count(self.load).fetch_sub(self.sequences, Ordering::SeqCst);
        self.gauge.report();
    }
}
