//! The engine's loop: receive jobs, open their contexts, step all of them together, send events.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ntl_core::decoding::{Progress, StepResult, Vocabulary};
use ntl_core::engine::{
    BatchModel, ContextRequest, EngineError, Event, Logits, ModelError, NodeId, OpenedContext, Prompt, Row,
};

use crate::channel::EventSender;
use crate::guard::guarded;
use crate::limits::EngineLimits;
use crate::observer::{EndReason, EngineObserver};
use crate::queue::{AdmissionBudget, DropReason, Queue, Submission};
use crate::running::{Collected, LastStep, Running, Share, collect_rows};

pub(crate) struct Runner {
    model: Box<dyn BatchModel>,
    vocabulary: Vocabulary,
    limits: EngineLimits,
    observer: Arc<dyn EngineObserver>,
    running: Vec<Running>,
    steps: u64,
}

impl Runner {
    pub(crate) fn new(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        observer: Arc<dyn EngineObserver>,
    ) -> Self {
        Self { model, vocabulary, limits, observer, running: Vec::new(), steps: 0 }
    }

    pub(crate) fn run(mut self, mut queue: Queue) {
        // Jobs with too many unread events are not stepped, so there may be nothing to do although jobs run.
        let mut idle = true;
        while queue.receive(idle, self.next_deadline(&queue)) {
            let mut busy = self.end_dropped(&mut queue);
            busy |= self.admit(&mut queue);
            self.report(&queue);
            busy |= self.step();
            self.report(&queue);
            idle = !busy;
        }
        self.end_dropped(&mut queue);
        self.report(&queue);
    }

    fn report(&self, queue: &Queue) {
        self.observer.on_load(queue.sequences(), self.sequences());
    }

    fn sequences(&self) -> usize {
        self.running.iter().map(|job| job.sequences as usize).sum()
    }

    /// The earliest deadline of a queued or running job.
    fn next_deadline(&self, queue: &Queue) -> Option<Instant> {
        let running = self.running.iter().filter_map(|job| job.deadline.as_ref().map(|(at, _)| *at));
        running.chain(queue.next_deadline()).min()
    }

    /// Ends the queued and running jobs whose client is gone or whose deadline has passed. Whether there were any.
    fn end_dropped(&mut self, queue: &mut Queue) -> bool {
        let now = Instant::now();
        let queued = queue.take_dropped(now);
        let is_dropped =
            |job: &Running| job.events.is_closed() || job.deadline.as_ref().is_some_and(|(at, _)| *at <= now);
        let (dropped, kept) =
            std::mem::take(&mut self.running).into_iter().partition::<Vec<_>, _>(is_dropped);
        self.running = kept;
        let any = !(queued.is_empty() && dropped.is_empty());
        for (submission, reason) in queued {
            self.end_one(&submission.events, reason, submission.job.request.sequences());
        }
        for job in dropped {
            self.model.close(job.context);
            let late = job.deadline.map(|(_, error)| error).filter(|_| !job.events.is_closed());
            let reason = late.map_or(DropReason::ClientGone, DropReason::DeadlineExceeded);
            self.end_one(&job.events, reason, job.sequences);
        }
        any
    }

    /// Counts the end of a dropped job; a client that is still there gets the error.
    fn end_one(&self, events: &EventSender, reason: DropReason, sequences: u32) {
        match reason {
            DropReason::ClientGone => self.count(EndReason::Abort, sequences),
            DropReason::DeadlineExceeded(error) => {
                // The client may drop its end right now; then it needs no error.
                events.send(Event::Failed(error));
                self.count(EndReason::Deadline, sequences);
            }
        }
    }

    /// Opens the next prompts. Whether there were any.
    fn admit(&mut self, queue: &mut Queue) -> bool {
        let cache = self.share_cache();
        let submissions = queue.admit(AdmissionBudget {
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
        let tokens: usize = opening.iter().map(|prompt| prompt.len()).sum();
        let requests: Vec<ContextRequest<'_>> = opening
            .iter()
            .zip(&submissions)
            .map(|(prompt, submission)| ContextRequest {
                prompt,
                paper_decoding: submission.job.paper_decoding,
            })
            .collect();
        let span = tracing::debug_span!("open", batch.prompts = requests.len(), batch.tokens = tokens);
        let opened = span.in_scope(|| guarded(&*self.observer, || self.model.open(&requests)));
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

    /// While the cache is full, pauses the jobs that outgrew their expected size, except the oldest one whose client reads.
    /// Returns the bytes that are held or expected.
    fn share_cache(&mut self) -> u64 {
        let cost = self.model.cache_cost();
        let held = |job: &Running| cost.bytes(job.prompt_tokens, job.nodes as usize);
        let all: u64 = self.running.iter().map(|job| held(job).max(job.cache_expected)).sum();
        let mut one_goes_on = true;
        for job in &mut self.running {
            let outgrew = all > self.limits.cache_bytes_max && held(job) >= job.cache_expected;
            job.is_paused = outgrew && !(job.events.has_room() && std::mem::take(&mut one_goes_on));
        }
        all
    }

    fn start(&mut self, submission: Submission, opened: OpenedContext) {
        self.observer.on_start(submission.queued.elapsed());
        let job = submission.job;
        let reused = opened.cached_tokens;
        self.observer.on_open(reused, job.opened_prompt().len().saturating_sub(reused));
        let before: Vec<u32> =
            if self.model.info().encoder_decoder { Vec::new() } else { job.prompt.ids().collect() };
        let decoding = || Ok(self.vocabulary.decoding(&job.request, &before, opened.first_token));
        let decoding = match guarded(&*self.observer, decoding) {
            Ok(decoding) => decoding,
            Err(error) => {
                self.model.close(opened.context);
                self.fail_decoding(&submission.events, error, job.request.sequences());
                return;
            }
        };
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
            is_paused: false,
            last_step: LastStep::default(),
            last_tokens: BTreeMap::new(),
        });
    }

    /// Steps all jobs that are not held back. Whether there were any.
    fn step(&mut self) -> bool {
        self.steps += 1;
        let rows_max = self.limits.step_rows_max;
        let Collected { rows, shares, failed } =
            collect_rows(&mut self.running, rows_max, self.steps, &*self.observer);
        let mut finished: Vec<usize> = failed.iter().map(|(index, _)| *index).collect();
        for (index, error) in failed {
            let job = &self.running[index];
            self.fail_decoding(&job.events, error, job.sequences);
        }
        if !rows.is_empty() {
            finished.extend(self.step_rows(&rows, &shares));
        }
        let busy = !(rows.is_empty() && finished.is_empty());
        // From the back, so that earlier indices stay valid.
        finished.sort_unstable_by(|a, b| b.cmp(a));
        for index in finished {
            let job = self.running.remove(index);
            self.model.close(job.context);
        }
        busy
    }

    /// Steps these rows. Returns the jobs that are over.
    fn step_rows(&mut self, rows: &[Row], shares: &[Share]) -> Vec<usize> {
        let span = tracing::debug_span!("step", batch.rows = rows.len(), batch.jobs = shares.len());
        let logits = span.in_scope(|| guarded(&*self.observer, || self.model.step(rows)));
        self.observer.on_step(rows.len());
        match logits {
            Ok(logits) => self.distribute(&logits, shares),
            Err(error) => {
                tracing::error!(error = %chain(&error), "a step failed");
                for share in shares {
                    let job = &self.running[share.running];
                    self.fail(&job.events, &error, job.sequences);
                }
                shares.iter().map(|share| share.running).collect()
            }
        }
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
            if let Event::Text { choice, tokens, .. } = event {
                self.observe_tokens(running, choice, tokens);
            }
            // Counted before it is sent, so that a client with the response finds it in the metrics.
            if let Some(reason) = end_reason(&event).filter(|_| !self.running[running].events.is_closed()) {
                let job = &mut self.running[running];
                let ended = if reason == EndReason::Error { job.sequences } else { 1 };
                job.sequences -= ended.min(job.sequences);
                self.count(reason, ended);
            }
            if !self.running[running].events.send(event) {
                // The client is gone: the engine ends the job, and counts an abort, before the next step.
                return;
            }
        }
    }

    /// Reports the time between tokens of one text.
    fn observe_tokens(&mut self, running: usize, choice: u32, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        if let Some(last) = self.running[running].last_tokens.insert(choice, now) {
            self.observer.on_tokens(tokens, now - last);
        }
    }

    /// Reports that a decoding panicked.
    fn fail_decoding(&self, events: &EventSender, error: EngineError, sequences: u32) {
        tracing::error!(%error, "decoding failed");
        let sent = events.send(Event::Failed(error));
        self.count(if sent { EndReason::Error } else { EndReason::Abort }, sequences);
    }

    fn fail(&self, events: &EventSender, error: &ModelError, sequences: u32) {
        let sent = events.send(Event::Failed(EngineError::Step(chain(error))));
        self.count(if sent { EndReason::Error } else { EndReason::Abort }, sequences);
    }

    fn count(&self, reason: EndReason, sequences: u32) {
        for _ in 0..sequences {
            self.observer.on_end(reason);
        }
    }
}

fn end_reason(event: &Event) -> Option<EndReason> {
    match event {
        Event::Prompt(_) | Event::Text { .. } => None,
        Event::Finished { reason, .. } => Some((*reason).into()),
        Event::Number(outcome) => Some(outcome.first_text_end.map_or(EndReason::Stop, EndReason::from)),
        Event::Scored(_) => Some(EndReason::Stop),
        Event::Failed(_) => Some(EndReason::Error),
    }
}

/// An error with all its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}
