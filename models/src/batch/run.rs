//! The engine's loop: take in jobs, open their contexts, step all of them together, hand out events.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_core::decoding::{Decoding, Progress, StepResult, Vocabulary};
use ntl_core::engine::{
    BatchModel, ContextId, EngineError, Event, FinishReason, Logits, ModelError, NodeId, Opened, Prompt, Row,
};
use tokio::sync::mpsc;

use super::queue::{Queue, Submission};
use super::{Ending, EngineLimits, EngineObserver};

/// A job whose context is open.
struct Running {
    context: ContextId,
    decoding: Box<dyn Decoding>,
    events: mpsc::UnboundedSender<Event>,
    deadline: Option<(Instant, Duration)>,
    /// Rows stepped so far: the number of its next node.
    nodes: u32,
    /// Sequences that have not ended yet, for counting.
    sequences: u32,
}

/// Rows of one running job within a step.
struct Share {
    running: usize,
    first_row: usize,
    rows: usize,
}

pub(super) struct Runner {
    model: Box<dyn BatchModel>,
    vocabulary: Vocabulary,
    limits: EngineLimits,
    observer: Arc<dyn EngineObserver>,
    running: Vec<Running>,
}

impl Runner {
    pub(super) fn new(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> Self {
        Self { model, vocabulary, limits, observer, running: Vec::new() }
    }

    pub(super) fn run(mut self, mut queue: Queue) {
        while queue.receive(self.running.is_empty()) {
            self.drop_lost(&mut queue);
            self.admit(&mut queue);
            self.report(&queue);
            if !self.running.is_empty() {
                self.step();
            }
            self.report(&queue);
        }
    }

    fn report(&self, queue: &Queue) {
        let sequences = self.running.iter().map(|job| job.sequences as usize).sum();
        self.observer.load(queue.len(), sequences);
    }

    /// Ends what nobody waits for or what took too long, queued and running.
    fn drop_lost(&mut self, queue: &mut Queue) {
        let now = Instant::now();
        for submission in queue.take_lost(now) {
            self.end_lost(&submission.events, submission.job.deadline, submission.job.request.sequences());
        }
        let is_lost = |job: &Running| job.events.is_closed() || job.deadline.is_some_and(|(at, _)| at <= now);
        let (lost, kept) = std::mem::take(&mut self.running).into_iter().partition::<Vec<_>, _>(is_lost);
        self.running = kept;
        for job in lost {
            self.model.close(job.context);
            self.end_lost(&job.events, job.deadline, job.sequences);
        }
    }

    fn end_lost(
        &self,
        events: &mpsc::UnboundedSender<Event>,
        deadline: Option<(Instant, Duration)>,
        sequences: u32,
    ) {
        let ending = if events.is_closed() { Ending::Abort } else { Ending::Deadline };
        if let (Ending::Deadline, Some((_, after))) = (ending, deadline) {
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            // A receiver that is dropped right now asked for nothing more than this silence.
            let _ = events.send(Event::Failed(EngineError::Deadline { after_ms }));
        }
        self.count(ending, sequences);
    }

    fn admit(&mut self, queue: &mut Queue) {
        let room = self.limits.running_max.saturating_sub(self.running.len());
        let submissions = queue.take(room, self.limits.open_tokens_max);
        if submissions.is_empty() {
            return;
        }
        let prompts: Vec<&Prompt> = submissions.iter().map(|submission| &submission.job.prompt).collect();
        let tokens: usize = prompts.iter().map(|prompt| prompt.len()).sum();
        let span = tracing::debug_span!("open", batch.prompts = prompts.len(), batch.tokens = tokens);
        let opened = span.in_scope(|| guarded(&*self.observer, || self.model.open(&prompts)));
        match opened {
            Ok(opened) => {
                for (submission, opened) in submissions.into_iter().zip(opened) {
                    self.start(submission, opened);
                }
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "opening a batch of prompts failed");
                for submission in submissions {
                    self.fail(&submission.events, &error, submission.job.request.sequences());
                }
            }
        }
    }

    fn start(&mut self, submission: Submission, opened: Opened) {
        self.observer.started(submission.queued.elapsed());
        let job = submission.job;
        self.running.push(Running {
            context: opened.context,
            decoding: self.vocabulary.decoding(&job.request, opened.first_token),
            events: submission.events,
            deadline: job.deadline,
            nodes: 0,
            sequences: job.request.sequences(),
        });
    }

    fn step(&mut self) {
        let (rows, shares) = self.collect();
        let span = tracing::debug_span!("step", batch.rows = rows.len(), batch.jobs = shares.len());
        let logits = span.in_scope(|| guarded(&*self.observer, || self.model.step(&rows)));
        self.observer.stepped(rows.len());
        let mut finished = match logits {
            Ok(logits) => self.distribute(&logits, &shares),
            Err(error) => {
                tracing::error!(error = %chain(&error), "a step failed");
                for share in &shares {
                    let job = &self.running[share.running];
                    self.fail(&job.events, &error, job.sequences);
                }
                shares.iter().map(|share| share.running).collect()
            }
        };
        // From the back, so that the places of the others stay right.
        finished.sort_unstable_by(|a, b| b.cmp(a));
        let served = shares.len() - finished.len();
        for index in finished {
            let job = self.running.remove(index);
            self.model.close(job.context);
        }
        // Who had no row this time comes first next time.
        self.running.rotate_left(served);
    }

    /// Asks every running job for rows. Each may have what is left once one row is set aside for all behind it.
    fn collect(&mut self) -> (Vec<Row>, Vec<Share>) {
        let (mut rows, mut shares) = (Vec::new(), Vec::new());
        let jobs = self.running.len();
        for (index, job) in self.running.iter_mut().enumerate() {
            let left = self.limits.step_rows_max.max(1) - rows.len();
            if left == 0 {
                break;
            }
            let behind = jobs - index - 1;
            let paths = job.decoding.next_rows(left.saturating_sub(behind).max(1));
            shares.push(Share { running: index, first_row: rows.len(), rows: paths.len() });
            rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
        }
        (rows, shares)
    }

    /// Gives each job its logits and sends its events. Returns the jobs that are over.
    fn distribute(&mut self, logits: &Logits, shares: &[Share]) -> Vec<usize> {
        let mut finished = Vec::new();
        for share in shares {
            let job = &mut self.running[share.running];
            let result = StepResult { logits, first_row: share.first_row, first_node: NodeId(job.nodes) };
            job.nodes += share.rows as u32;
            let mut events = Vec::new();
            let over = match job.decoding.advance(result, &mut events) {
                Ok(progress) => progress == Progress::Done,
                Err(error) => {
                    tracing::error!(%error, "decoding failed");
                    events.push(Event::Failed(error));
                    true
                }
            };
            if over {
                finished.push(share.running);
            }
            self.send(share.running, events);
        }
        finished
    }

    fn send(&mut self, running: usize, events: Vec<Event>) {
        for event in events {
            // Counted before it is sent: whoever has the answer finds it in the metrics, too.
            if let Some(ending) = ending(&event).filter(|_| !self.running[running].events.is_closed()) {
                let job = &mut self.running[running];
                let ended = if ending == Ending::Error { job.sequences } else { 1 };
                job.sequences -= ended.min(job.sequences);
                self.count(ending, ended);
            }
            if self.running[running].events.send(event).is_err() {
                // What has not ended is noticed and counted as an abort before the next step.
                return;
            }
        }
    }

    fn fail(&self, events: &mpsc::UnboundedSender<Event>, error: &ModelError, sequences: u32) {
        let sent = events.send(Event::Failed(EngineError::Step(chain(error))));
        self.count(if sent.is_ok() { Ending::Error } else { Ending::Abort }, sequences);
    }

    fn count(&self, ending: Ending, sequences: u32) {
        for _ in 0..sequences {
            self.observer.ended(ending);
        }
    }
}

fn ending(event: &Event) -> Option<Ending> {
    match event {
        Event::Text { .. } => None,
        Event::Finished { reason: FinishReason::Stop, .. } | Event::Number(_) | Event::Scored(_) => {
            Some(Ending::Stop)
        }
        Event::Finished { reason: FinishReason::Length, .. } => Some(Ending::Length),
        Event::Failed(_) => Some(Ending::Error),
    }
}

/// Calls the model so that a panic is an error of this call and not the end of the engine.
fn guarded<T>(
    observer: &dyn EngineObserver,
    call: impl FnOnce() -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        observer.panicked();
        Err(ModelError::Compute("the model panicked".into()))
    })
}

/// An error with all its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
