//! The events of all prompts of one request as one stream, timed and counted on the way.
//!
//! In: one or more [`RunningJob`]s. Out: events with the number of their prompt; an error ends them.
//! Invariants: dropping [`Answers`] cancels what still runs; waiting ends with the deadline even if the engine hangs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use ntl_api::MethodName;
use ntl_core::engine::{EngineError, Event};
use ntl_engine::JobEvents;

use crate::error::AppError;
use crate::metrics::{Metrics, ModelMetrics};

/// How much later than the engine a request gives up by itself. The engine notices a deadline between two steps, so
/// this comes into play only when a step hangs.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// One job that the engine has taken on.
pub(crate) struct RunningJob {
    /// What comes of it.
    pub(crate) events: JobEvents,
    /// How many texts or numbers.
    pub(crate) sequences: u32,
    /// How its number is found, where it is one.
    pub(crate) method: Option<MethodName>,
}

/// The answers to one request while they come.
pub(crate) struct Answers {
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    started: Instant,
    allowed: Duration,
    meter: Meter,
    /// An event that was waited for and not taken yet.
    first: Option<(usize, Event)>,
}

/// Turns events into metrics.
struct Meter {
    metrics: Arc<Metrics>,
    model: Arc<ModelMetrics>,
    /// How the number of each prompt is found, where one is wanted.
    methods: Vec<Option<MethodName>>,
    /// When the last token of each text came.
    last: HashMap<(usize, u32), Instant>,
    has_begun: bool,
}

impl Answers {
    /// Answers to jobs begun at `time.0` and wanted within `time.1`.
    pub(crate) fn new(
        jobs: Vec<RunningJob>,
        time: (Instant, Duration),
        metrics: &Arc<Metrics>,
        model: &Arc<ModelMetrics>,
    ) -> Self {
        let methods = jobs.iter().map(|job| job.method).collect();
        let streams = jobs.into_iter().enumerate().map(|(prompt, job)| one(prompt, job));
        let (metrics, model) = (Arc::clone(metrics), Arc::clone(model));
        Self {
            events: futures::stream::select_all(streams),
            started: time.0,
            allowed: time.1,
            meter: Meter { metrics, model, methods, last: HashMap::new(), has_begun: false },
            first: None,
        }
    }

    /// Waits for the first event, which [`Answers::next`] then hands out.
    pub(crate) async fn begin(&mut self) -> Result<(), AppError> {
        self.first = self.next().await?;
        Ok(())
    }

    /// The next event and the number of its prompt; `None` when all answers are complete.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Event)>, AppError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
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
                if let Some(method) = self.methods.get(prompt).copied().flatten() {
                    self.model.number(method, outcome);
                }
            }
            Event::Scored(outcome) => {
                self.metrics.http.generation_tokens.inc_by(outcome.tokens.len() as u64);
            }
            Event::Prompt(_) | Event::Failed(_) => {}
        }
    }
}

/// The events of one job, up to the last one; a job whose engine dies fails.
fn one(prompt: usize, job: RunningJob) -> BoxStream<'static, (usize, Event)> {
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
