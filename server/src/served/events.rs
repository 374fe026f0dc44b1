//! The events of all jobs of one request as one stream, timed and counted on the way.
//!
//! Invariants: dropping [`RequestEvents`] cancels the jobs that still run, and counts their tokens so far and
//! the work of another engine in the quota of the client; the wait ends at the deadline even if the engine
//! hangs.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::Either;
use futures::stream::{BoxStream, SelectAll};
use ntl_api::MethodName;
use ntl_core::contract::{EngineError, Event, NumberOutcome, ScoreOutcome};
use ntl_core::numbers::Mass;
use ntl_engine::JobEvents;
use ntl_remote::EngineMeter;
use tokio::time::{Sleep, sleep_until};

use crate::error::AppError;
use crate::metrics::ModelMetrics;
use crate::request::{EngineWork, Requester};

/// The engine notices a deadline between two steps. A request gives up by itself this much later, in case a
/// step hangs.
const DEADLINE_GRACE: Duration = Duration::from_secs(2);

/// The events of one job, with the index of its prompt.
type OneJob = BoxStream<'static, (usize, Event)>;

pub(crate) struct RequestEvents {
    /// The field that lists the prompts.
    field: &'static str,
    /// Number of prompts.
    count: usize,
    /// The events of one job, or of several.
    events: Either<OneJob, SelectAll<OneJob>>,
    requester: Requester,
    metrics: Arc<ModelMetrics>,
    /// Ends at the deadline.
    late: Pin<Box<Sleep>>,
    has_begun: bool,
    /// An event that [`RequestEvents::begin`] waited for.
    first: Option<(usize, Event)>,
    /// The tokens of texts that have not ended, by prompt and choice.
    unfinished: HashMap<(usize, u32), usize>,
    /// Counts the work of another engine, if one computes the model.
    engine: Option<EngineMeter>,
    /// Whether that engine samples answers.
    is_sampled: bool,
    /// The tokens of sampled answers that are counted already.
    counted_tokens: u64,
}

impl Drop for RequestEvents {
    fn drop(&mut self) {
        let mut tokens = self.unfinished.values().sum::<usize>() as u64;
        if let Some(engine) = &self.engine {
            let usage = engine.total();
            if self.is_sampled {
                tokens += usage.tokens().saturating_sub(self.counted_tokens);
            }
            self.metrics.upstream_work(usage);
            self.requester.record.use_budget(usage.tokens());
        }
        self.requester.record.use_quota(tokens);
    }
}

impl RequestEvents {
    /// `jobs` are the events of each job and the number of its sequences.
    pub(super) fn new(
        field: &'static str,
        jobs: impl ExactSizeIterator<Item = (JobEvents, u32)>,
        requester: Requester,
        metrics: Arc<ModelMetrics>,
    ) -> Self {
        let count = jobs.len();
        let mut streams =
            jobs.enumerate().map(|(prompt, (events, sequences))| job_events(prompt, events, sequences));
        let events = match (streams.len(), streams.next()) {
            (1, Some(only)) => Either::Left(only),
            (_, first) => Either::Right(futures::stream::select_all(first.into_iter().chain(streams))),
        };
        let late = sleep_until((requester.started + requester.time_max + DEADLINE_GRACE).into());
        let late = Box::pin(late);
        Self {
            field,
            count,
            events,
            requester,
            metrics,
            late,
            has_begun: false,
            first: None,
            unfinished: HashMap::new(),
            engine: None,
            is_sampled: false,
            counted_tokens: 0,
        }
    }

    /// `meter` counts the work of another engine for the jobs.
    pub(super) fn over_engine(mut self, meter: EngineMeter) -> Self {
        self.engine = Some(meter);
        self
    }

    /// The engine reports no probabilities, and its answers are sampled.
    pub(super) fn of_samples(mut self) -> Self {
        self.is_sampled = true;
        self
    }

    /// The work of another engine so far; `None` if none computes the model.
    pub(crate) fn engine_work(&self) -> Option<EngineWork> {
        let usage = self.engine.as_ref()?.reported();
        Some(EngineWork { usage, is_sampled: self.is_sampled })
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
                let after_ms = u64::try_from(self.requester.time_max.as_millis()).unwrap_or(u64::MAX);
                return Err(EngineError::Deadline { after_ms }.into());
            }
        };
        match next {
            None => {
                self.count_sampled();
                Ok(None)
            }
            Some((prompt, Event::Failed(error))) => {
                Err(AppError::from(error).of_prompt(self.field, prompt, self.count))
            }
            Some((prompt, event)) => {
                self.observe(prompt, &event);
                Ok(Some((prompt, event)))
            }
        }
    }

    /// Waits for the results of jobs that score, one for each prompt.
    pub(crate) async fn scores(&mut self) -> Result<Vec<ScoreOutcome>, AppError> {
        let mut outcomes = Vec::with_capacity(self.count);
        while let Some((prompt, event)) = self.next().await? {
            if let Event::Scored(outcome) = event {
                outcomes.push((prompt, outcome));
            }
        }
        outcomes.sort_unstable_by_key(|&(prompt, _)| prompt);
        Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
    }

    /// Waits for the values of all prompts.
    pub(crate) async fn values(&mut self) -> Result<Vec<Vec<f32>>, AppError> {
        let mut all = vec![Vec::new(); self.count];
        while let Some((prompt, event)) = self.next().await? {
            if let Event::Values(values) = event {
                all[prompt] = values;
            }
        }
        Ok(all)
    }

    /// Counts a finished number. Its tokens depend on how it is printed.
    pub(crate) fn count_number(&self, method: MethodName, outcome: &NumberOutcome, tokens: usize) {
        self.metrics.number(method, outcome);
        self.count_completion(tokens);
    }

    /// Counts the tokens of sampled answers, which the engine reports, once all have arrived.
    fn count_sampled(&mut self) {
        let Some(usage) = self.engine_work().and_then(EngineWork::of_samples) else { return };
        if self.counted_tokens > 0 {
            return;
        }
        self.counted_tokens = usage.tokens();
        self.metrics.ntl_prompt_tokens_total.inc_by(usage.prompt_tokens);
        self.requester.record.add_prompt_tokens(usage.prompt_tokens);
        self.metrics.ntl_generation_tokens_total.inc_by(usage.completion_tokens);
        self.requester.record.add_completion_tokens(usage.completion_tokens);
    }

    /// Counts an answer to a question of this type.
    pub(crate) fn count_decision(&self, kind: &str, mass: Mass) {
        self.metrics.decision(kind, mass);
    }

    fn count_completion(&self, tokens: usize) {
        self.metrics.ntl_generation_tokens_total.inc_by(tokens as u64);
        self.requester.record.add_completion_tokens(tokens as u64);
    }

    fn observe(&mut self, prompt: usize, event: &Event) {
        if !self.has_begun {
            self.has_begun = true;
            let elapsed = self.requester.started.elapsed();
            self.metrics.ntl_time_to_first_token_seconds.observe(elapsed.as_secs_f64());
        }
        match event {
            Event::Text { choice, tokens, .. } => {
                *self.unfinished.entry((prompt, *choice)).or_default() += tokens;
            }
            Event::Finished { choice, tokens, .. } => {
                self.unfinished.remove(&(prompt, *choice));
                self.count_completion(*tokens);
            }
            Event::Scored(outcome) => self.count_completion(outcome.tokens.len()),
            // Its tokens include those of the text before it.
            Event::Number(_) => {
                self.unfinished.remove(&(prompt, 0));
            }
            Event::Prompt(_) | Event::Field(_) | Event::Options(_) | Event::Values(_) | Event::Failed(_) => {}
        }
    }
}

/// The events of one job, up to its last one. A job whose engine dies fails.
fn job_events(prompt: usize, events: JobEvents, sequences: u32) -> OneJob {
    futures::stream::unfold((events, sequences), move |(mut events, unfinished)| async move {
        if unfinished == 0 {
            return None;
        }
        let event = events.next().await.unwrap_or(Event::Failed(EngineError::Dead));
        let unfinished = match &event {
            Event::Prompt(_) | Event::Text { .. } | Event::Field(_) => unfinished,
            Event::Finished { .. } => unfinished - 1,
            Event::Number(_) | Event::Scored(_) | Event::Options(_) | Event::Values(_) | Event::Failed(_) => {
                0
            }
        };
        Some(((prompt, event), (events, unfinished)))
    })
    .boxed()
}
