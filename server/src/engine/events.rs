//! The events of all jobs of one request as one stream, timed and counted on the way.
//!
//! Invariants: dropping [`RequestEvents`] cancels the jobs that still run; the wait ends at the deadline even if the
//! engine hangs.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::Either;
use futures::stream::{BoxStream, SelectAll};
use ntl_api::MethodName;
use ntl_core::engine::{EngineError, Event};
use ntl_engine::JobEvents;
use tokio::time::{Sleep, sleep_until};

use crate::error::AppError;
use crate::metrics::ModelMetrics;

/// The engine notices a deadline between two steps. A request gives up by itself this much later, in case a step hangs.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// A job that the engine has accepted.
pub(super) struct RunningJob {
    pub(super) events: JobEvents,
    pub(super) sequences: u32,
    /// Of a job for a number.
    pub(super) method: Option<MethodName>,
}

/// The events of one job, with the index of its prompt.
type OneJob = BoxStream<'static, (usize, Event)>;

pub(crate) struct RequestEvents {
    /// Of one job, or of several.
    events: Either<OneJob, SelectAll<OneJob>>,
    started: Instant,
    /// Ends at the deadline.
    late: Pin<Box<Sleep>>,
    time_max: Duration,
    metrics: Arc<ModelMetrics>,
    /// The number method of each prompt, where a number is asked for.
    methods: Vec<Option<MethodName>>,
    has_begun: bool,
    /// An event that [`RequestEvents::begin`] waited for.
    first: Option<(usize, Event)>,
}

impl RequestEvents {
    pub(super) fn new(
        jobs: Vec<RunningJob>,
        started: Instant,
        time_max: Duration,
        metrics: Arc<ModelMetrics>,
    ) -> Self {
        let methods = jobs.iter().map(|job| job.method).collect();
        let mut streams = jobs.into_iter().enumerate().map(|(prompt, job)| job_events(prompt, job));
        let events = match (streams.len(), streams.next()) {
            (1, Some(only)) => Either::Left(only),
            (_, first) => Either::Right(futures::stream::select_all(first.into_iter().chain(streams))),
        };
        Self {
            events,
            started,
            late: Box::pin(sleep_until((started + time_max + DEADLINE_GRACE).into())),
            time_max,
            metrics,
            methods,
            has_begun: false,
            first: None,
        }
    }

    /// Waits for the first event, which [`RequestEvents::next`] then returns.
    pub(crate) async fn begin(&mut self) -> Result<(), AppError> {
        self.first = self.next().await?;
        Ok(())
    }

    /// The next event and the index of its prompt; `None` when all answers are complete.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Event)>, AppError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let next = tokio::select! {
            biased;
            next = self.events.next() => next,
            () = &mut self.late => {
                let after_ms = u64::try_from(self.time_max.as_millis()).unwrap_or(u64::MAX);
                return Err(EngineError::Deadline { after_ms }.into());
            }
        };
        match next {
            None => Ok(None),
            Some((_, Event::Failed(error))) => Err(error.into()),
            Some((prompt, event)) => {
                self.observe(prompt, &event);
                Ok(Some((prompt, event)))
            }
        }
    }

    /// Adds the tokens of a finished number to the metric of generated tokens: they depend on how it is printed.
    pub(crate) fn count_number(&self, tokens: usize) {
        self.metrics.generation_tokens.inc_by(tokens as u64);
    }

    /// Updates the metrics.
    fn observe(&mut self, prompt: usize, event: &Event) {
        let metrics = &self.metrics;
        if !self.has_begun {
            self.has_begun = true;
            metrics.first_token_seconds.observe(self.started.elapsed().as_secs_f64());
        }
        match event {
            Event::Finished { tokens, .. } => metrics.generation_tokens.inc_by(*tokens as u64),
            Event::Number(outcome) => {
                if let Some(method) = self.methods.get(prompt).copied().flatten() {
                    self.metrics.number(method, outcome);
                }
            }
            Event::Scored(outcome) => metrics.generation_tokens.inc_by(outcome.tokens.len() as u64),
            Event::Prompt(_) | Event::Text { .. } | Event::Failed(_) => {}
        }
    }
}

/// The events of one job, up to its last one. A job whose engine dies fails.
fn job_events(prompt: usize, job: RunningJob) -> OneJob {
    futures::stream::unfold((job.events, job.sequences), move |(mut events, unfinished)| async move {
        if unfinished == 0 {
            return None;
        }
        let event = events.next().await.unwrap_or(Event::Failed(EngineError::Dead));
        let unfinished = match &event {
            Event::Prompt(_) | Event::Text { .. } => unfinished,
            Event::Finished { .. } => unfinished - 1,
            Event::Number(_) | Event::Scored(_) | Event::Failed(_) => 0,
        };
        Some(((prompt, event), (events, unfinished)))
    })
    .boxed()
}
