//! The engine's loop: take in jobs, open their contexts, step all of them together, hand out events.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use ntl_core::decoding::{Decoding, Progress, StepResult, Vocabulary};
use ntl_core::engine::{
    BatchModel, ContextId, EngineError, Event, FinishReason, Logits, ModelError, NodeId, Opened, Prompt,
};

use super::channel::EventSender;
use super::queue::{Loss, Queue, Room, Submission};
use super::share::{Share, collect};
use super::{Ending, EngineLimits, EngineObserver};

/// A job whose context is open.
pub(super) struct Running {
    pub(super) context: ContextId,
    pub(super) decoding: Box<dyn Decoding>,
    pub(super) events: EventSender,
    deadline: Option<(Instant, EngineError)>,
    /// Rows stepped so far: the number of its next node.
    nodes: u32,
    /// Sequences that have not ended yet, for counting.
    sequences: u32,
    /// Bytes that its context was expected to hold.
    cache_expected: u64,
    prompt_tokens: usize,
    /// Whether it waits for others to free memory.
    pub(super) waits: bool,
    /// The last step that it had rows in, and how many.
    pub(super) stepped: (u64, usize),
}

pub(super) struct Runner {
    model: Box<dyn BatchModel>,
    vocabulary: Vocabulary,
    limits: EngineLimits,
    observer: Arc<dyn EngineObserver>,
    running: Vec<Running>,
    steps: u64,
}

impl Runner {
    pub(super) fn new(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> Self {
        Self { model, vocabulary, limits, observer, running: Vec::new(), steps: 0 }
    }

    pub(super) fn run(mut self, mut queue: Queue) {
        // Jobs whose events nobody reads are not stepped, so that there may be nothing to do while jobs run.
        let mut idle = true;
        while queue.receive(idle, self.next_deadline(&queue)) {
            let mut busy = self.drop_lost(&mut queue);
            busy |= self.admit(&mut queue);
            self.report(&queue);
            busy |= self.step();
            self.report(&queue);
            idle = !busy;
        }
        self.drop_lost(&mut queue);
        self.report(&queue);
    }

    fn report(&self, queue: &Queue) {
        self.observer.load(queue.sequences(), self.sequences());
    }

    fn sequences(&self) -> usize {
        self.running.iter().map(|job| job.sequences as usize).sum()
    }

    /// When something has to end, should nothing happen before.
    fn next_deadline(&self, queue: &Queue) -> Option<Instant> {
        let running = self.running.iter().filter_map(|job| job.deadline.as_ref().map(|(at, _)| *at));
        running.chain(queue.next_deadline()).min()
    }

    /// Ends what nobody waits for or what took too long, queued and running. Whether there was any.
    fn drop_lost(&mut self, queue: &mut Queue) -> bool {
        let now = Instant::now();
        let queued = queue.take_lost(now);
        let is_lost =
            |job: &Running| job.events.is_closed() || job.deadline.as_ref().is_some_and(|(at, _)| *at <= now);
        let (lost, kept) = std::mem::take(&mut self.running).into_iter().partition::<Vec<_>, _>(is_lost);
        self.running = kept;
        let any = !(queued.is_empty() && lost.is_empty());
        for (submission, loss) in queued {
            let error = match loss {
                Loss::Abandoned => None,
                Loss::Late(error) => Some(error),
            };
            self.end_lost(&submission.events, error, submission.job.request.sequences());
        }
        for job in lost {
            self.model.close(job.context);
            let error = job.deadline.map(|(_, error)| error).filter(|_| !job.events.is_closed());
            self.end_lost(&job.events, error, job.sequences);
        }
        any
    }

    /// Counts the end of a job that is late (and says so), or that nobody waits for.
    fn end_lost(&self, events: &EventSender, error: Option<EngineError>, sequences: u32) {
        let ending = if error.is_some() { Ending::Deadline } else { Ending::Abort };
        if let Some(error) = error {
            // A receiver that is dropped right now asked for nothing more than this silence.
            events.send(Event::Failed(error));
        }
        self.count(ending, sequences);
    }

    /// Opens the next prompts. Whether there were any.
    fn admit(&mut self, queue: &mut Queue) -> bool {
        let cache = self.share_cache();
        let submissions = queue.take(Room {
            is_idle: self.running.is_empty(),
            is_first: true,
            sequences: self.limits.running_max.saturating_sub(self.sequences()),
            cache_bytes: self.limits.cache_bytes_max.saturating_sub(cache),
            open_tokens: self.limits.open_tokens_max,
        });
        if submissions.is_empty() {
            return false;
        }
        let opening: Vec<Cow<'_, Prompt>> =
            submissions.iter().map(|submission| submission.job.opened_prompt()).collect();
        let prompts: Vec<&Prompt> = opening.iter().map(Cow::as_ref).collect();
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
        true
    }

    /// Lets jobs that outgrew what was expected of them wait while there is no room, but for the oldest that is read.
    /// Returns the bytes that are held or expected.
    fn share_cache(&mut self) -> u64 {
        let cost = self.model.cache_cost();
        let held = |job: &Running| cost.bytes(job.prompt_tokens, job.nodes as usize);
        let all: u64 = self.running.iter().map(|job| held(job).max(job.cache_expected)).sum();
        let mut goes_on = true;
        for job in &mut self.running {
            let outgrew = all > self.limits.cache_bytes_max && held(job) >= job.cache_expected;
            job.waits = outgrew && !(job.events.has_room() && std::mem::take(&mut goes_on));
        }
        all
    }

    fn start(&mut self, submission: Submission, opened: Opened) {
        self.observer.started(submission.queued.elapsed());
        let job = submission.job;
        let reused = opened.reused_tokens;
        self.observer.opened(reused, job.opened_prompt().len().saturating_sub(reused));
        let before: &[u32] = if self.model.info().encoder_decoder { &[] } else { &job.prompt.ids };
        let decoding = self.vocabulary.decoding(&job.request, before, opened.first_token);
        let deadline = job.deadline.map(|(at, after)| {
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            (at, EngineError::Deadline { after_ms })
        });
        self.running.push(Running {
            context: opened.context,
            decoding,
            events: submission.events,
            deadline,
            nodes: 0,
            sequences: job.request.sequences(),
            cache_expected: submission.cache_bytes,
            prompt_tokens: job.opened_prompt().len(),
            waits: false,
            stepped: (0, 0),
        });
    }

    /// Steps all jobs whose events are read. Whether there were any.
    fn step(&mut self) -> bool {
        self.steps += 1;
        let (rows, shares) = collect(&mut self.running, self.limits.step_rows_max, self.steps);
        if rows.is_empty() {
            return false;
        }
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
        for index in finished {
            let job = self.running.remove(index);
            self.model.close(job.context);
        }
        true
    }

    fn distribute(&mut self, logits: &Logits, shares: &[Share]) -> Vec<usize> {
        let mut finished = Vec::new();
        for share in shares {
            let job = &mut self.running[share.running];
            let result = StepResult { logits, first_row: share.first_row, first_node: NodeId(job.nodes) };
            job.nodes += share.rows as u32;
            let mut events = Vec::new();
            let advanced = guarded(&*self.observer, || job.decoding.advance(result, &mut events));
            let over = match advanced {
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
            if !self.running[running].events.send(event) {
                // What has not ended is noticed and counted as an abort before the next step.
                return;
            }
        }
    }

    fn fail(&self, events: &EventSender, error: &ModelError, sequences: u32) {
        let sent = events.send(Event::Failed(EngineError::Step(chain(error))));
        self.count(if sent { Ending::Error } else { Ending::Abort }, sequences);
    }

    fn count(&self, ending: Ending, sequences: u32) {
        for _ in 0..sequences {
            self.observer.ended(ending);
        }
    }
}

fn ending(event: &Event) -> Option<Ending> {
    match event {
        Event::Prompt(_) | Event::Text { .. } => None,
        Event::Finished { reason: FinishReason::Stop, .. } | Event::Number(_) | Event::Scored(_) => {
            Some(Ending::Stop)
        }
        Event::Finished { reason: FinishReason::Length, .. } => Some(Ending::Length),
        Event::Failed(_) => Some(Ending::Error),
    }
}

/// Calls a model or a decoding so that a panic is an error of this call and not the end of the engine.
fn guarded<T, E: From<Panicked>>(
    observer: &dyn EngineObserver,
    call: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        observer.panicked();
        Err(Panicked.into())
    })
}

/// What a panic becomes.
struct Panicked;

impl From<Panicked> for ModelError {
    fn from(_: Panicked) -> Self {
        Self::Compute("the model panicked".into())
    }
}

impl From<Panicked> for EngineError {
    fn from(_: Panicked) -> Self {
        Self::Step("the decoding panicked".to_owned())
    }
}

/// An error with all its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
