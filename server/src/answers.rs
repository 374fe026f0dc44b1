//! The events of all prompts of one request as one stream, timed and counted on the way.
//!
//! In: [`JobEvents`] of one or more jobs. Out: events with the number of their prompt; an error ends them.
//! Invariants: dropping [`Answers`] cancels what still runs; waiting ends with the deadline even if the engine hangs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use ntl_core::engine::{EngineError, Event};
use ntl_models::batch::JobEvents;

use crate::error::AppError;
use crate::metrics::{Metrics, ModelMetrics};

/// How much later than the engine a request gives up by itself. The engine notices a deadline between two steps, so
/// this comes into play only when a step hangs.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// The answers to one request while they come.
pub(crate) struct Answers {
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    started: Instant,
    allowed: Duration,
    meter: Meter,
}

/// Turns events into metrics.
struct Meter {
    metrics: Arc<Metrics>,
    model: Arc<ModelMetrics>,
    /// When the last token of each text came.
    last: HashMap<(usize, u32), Instant>,
    has_begun: bool,
}

impl Answers {
    /// Events of jobs with their numbers of sequences, begun at `time.0` and wanted within `time.1`.
    pub(crate) fn new(
        jobs: Vec<(JobEvents, u32)>,
        time: (Instant, Duration),
        metrics: &Arc<Metrics>,
        model: &Arc<ModelMetrics>,
    ) -> Self {
        let streams =
            jobs.into_iter().enumerate().map(|(prompt, (events, sequences))| one(prompt, events, sequences));
        let (metrics, model) = (Arc::clone(metrics), Arc::clone(model));
        Self {
            events: futures::stream::select_all(streams),
            started: time.0,
            allowed: time.1,
            meter: Meter { metrics, model, last: HashMap::new(), has_begun: false },
        }
    }

    /// The next event and the number of its prompt; `None` when all answers are complete.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Event)>, AppError> {
        let late = tokio::time::Instant::from_std(self.started + self.allowed + DEADLINE_GRACE);
        let next = tokio::time::timeout_at(late, self.events.next()).await;
        match next.map_err(|_| self.deadline())? {
            None => Ok(None),
            Some((_, Event::Failed(error))) => Err(error.into()),
            Some((prompt, event)) => {
                self.meter.observe(prompt, &event, self.started);
                Ok(Some((prompt, event)))
            }
        }
    }

    fn deadline(&self) -> EngineError {
        EngineError::Deadline { after_ms: u64::try_from(self.allowed.as_millis()).unwrap_or(u64::MAX) }
    }
}

impl Meter {
    fn observe(&mut self, prompt: usize, event: &Event, started: Instant) {
        let now = Instant::now();
        if !self.has_begun {
            self.has_begun = true;
            self.metrics.http.first_token_seconds.observe((now - started).as_secs_f64());
        }
        match event {
            Event::Text { choice, .. } => {
                if let Some(last) = self.last.insert((prompt, *choice), now) {
                    self.metrics.http.inter_token_seconds.observe((now - last).as_secs_f64());
                }
            }
            Event::Finished { tokens, .. } => self.metrics.http.generation_tokens.inc_by(*tokens as u64),
            Event::Number(outcome) => {
                self.metrics.http.generation_tokens.inc_by(outcome.nodes as u64);
                self.model.number(crate::convert::METHOD_TREE, outcome);
            }
            Event::Failed(_) => {}
        }
    }
}

/// The events of one job, up to the last one; a job whose engine dies fails.
fn one(prompt: usize, events: JobEvents, sequences: u32) -> BoxStream<'static, (usize, Event)> {
    futures::stream::unfold((events, sequences), move |(mut events, unfinished)| async move {
        if unfinished == 0 {
            return None;
        }
        let event = events.next().await.unwrap_or(Event::Failed(EngineError::Dead));
        let unfinished = match &event {
            Event::Text { .. } => unfinished,
            Event::Finished { .. } => unfinished - 1,
            Event::Number(_) | Event::Failed(_) => 0,
        };
        Some(((prompt, event), (events, unfinished)))
    })
    .boxed()
}
