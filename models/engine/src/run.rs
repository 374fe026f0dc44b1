//! The engine's loop: receive jobs, open their contexts, step all of them together, send events.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use ntl_core::decoding::{Progress, StepResult, Vocabulary};
use ntl_core::engine::{
    BatchModel, CacheCost, ContextRequest, EngineError, Event, Logits, ModelError, NodeId, OpenedContext,
    PathRow, Prompt, Row,
};

use crate::budget::{Account, Pool};
use crate::channel::EventSender;
use crate::guard::guarded;
use crate::limits::EngineLimits;
use crate::observer::{EndReason, EngineObserver};
use crate::pace::Pace;
use crate::queue::{Admission, Admitted, DropReason, Queue, Submission};
use crate::running::{EarlyEnd, LastStep, Running, Share, collect_rows, stepping, update_stalls};

pub(crate) struct Runner {
    model: Box<dyn BatchModel>,
    vocabulary: Vocabulary,
    limits: EngineLimits,
    memory: Account,
    observer: Arc<dyn EngineObserver>,
    running: Vec<Running>,
    /// Clients with a job that can be stepped.
    stepping: HashSet<u64>,
    pace: Pace,
    steps: u64,
}

impl Runner {
    pub(crate) fn new(
        model: Box<dyn BatchModel>,
        vocabulary: Vocabulary,
        limits: EngineLimits,
        memory: Account,
        observer: Arc<dyn EngineObserver>,
    ) -> Self {
        let (running, stepping, pace) = (Vec::new(), HashSet::new(), Pace::default());
        Self { model, vocabulary, limits, memory, observer, running, stepping, pace, steps: 0 }
    }

    pub(crate) fn run(mut self, mut queue: Queue) {
        // Jobs with too many unread events are not stepped, so there may be nothing to do although jobs run.
        let mut idle = true;
        while queue.receive(idle, self.next_deadline(&queue)) {
            update_stalls(&mut self.running);
            let mut busy = self.end_dropped(&mut queue);
            self.stepping = stepping(&self.running);
            busy |= self.admit(&mut queue);
            self.report(&queue);
            busy |= self.step(&mut queue);
            self.report(&queue);
            idle = !busy;
        }
        self.end_dropped(&mut queue);
        self.report(&queue);
    }

    fn report(&self, queue: &Queue) {
        let running = self.running.iter().map(|job| job.unfinished as usize).sum();
        self.observer.on_load(queue.sequences(), running);
    }

    /// The earliest deadline of a queued or running job.
    fn next_deadline(&self, queue: &Queue) -> Option<Instant> {
        let running = self.running.iter().filter_map(|job| Some(job.submission.job.deadline?.0));
        let unread = self.running.iter().filter_map(|job| self.unread_deadline(job));
        running.chain(unread).chain(queue.next_deadline()).min()
    }

    /// When the client of a job will have left its events unread for too long.
    fn unread_deadline(&self, job: &Running) -> Option<Instant> {
        job.stall.and_then(|stall| stall.since.checked_add(self.limits.unread_time_max))
    }

    /// Ends the queued and running jobs whose client is gone or does not read, or whose deadline has passed. Whether there were
    /// any.
    fn end_dropped(&mut self, queue: &mut Queue) -> bool {
        let now = Instant::now();
        let queued = queue.take_dropped(now);
        let mut any = !queued.is_empty();
        for (submission, reason) in queued {
            self.end_one(&submission.events, reason, submission.job.request.sequences());
        }
        let mut kept = Vec::with_capacity(self.running.len());
        for job in std::mem::take(&mut self.running) {
            let Some(reason) = self.drop_reason(&job, now) else {
                kept.push(job);
                continue;
            };
            any = true;
            self.model.close(job.context);
            self.end_one(&job.submission.events, reason, job.unfinished);
        }
        self.running = kept;
        any
    }

    fn drop_reason(&self, job: &Running, now: Instant) -> Option<DropReason> {
        if job.submission.events.is_closed() {
            return Some(DropReason::ClientGone);
        }
        if let Some(error) = job.submission.exceeded_deadline(now) {
            return Some(DropReason::DeadlineExceeded(error));
        }
        self.unread_deadline(job).filter(|&at| at <= now).map(|_| {
            let after_ms = u64::try_from(self.limits.unread_time_max.as_millis()).unwrap_or(u64::MAX);
            DropReason::Unread(EngineError::Unread { after_ms })
        })
    }

    /// Counts the end of a dropped job; a client that is still there gets the error.
    fn end_one(&self, events: &EventSender, reason: DropReason, sequences: u32) {
        let (error, end) = match reason {
            DropReason::ClientGone => (None, EndReason::Abort),
            DropReason::Unread(error) => (Some(error), EndReason::Abort),
            DropReason::DeadlineExceeded(error) => (Some(error), EndReason::Deadline),
        };
        if let Some(error) = error {
            // The client may drop its end right now; then it needs no error.
            events.send(Event::Failed(error));
        }
        self.count(end, sequences);
    }

    /// Opens the next prompts. Whether there were any.
    fn admit(&mut self, queue: &mut Queue) -> bool {
        let admitted = queue.admit(self.admission());
        if admitted.is_empty() {
            return false;
        }
        let opening: Vec<Cow<'_, Prompt>> =
            admitted.iter().map(|admitted| admitted.submission.job.opened_prompt()).collect();
        let tokens: usize = opening.iter().map(|prompt| prompt.len()).sum();
        let requests: Vec<ContextRequest<'_>> = opening
            .iter()
            .zip(&admitted)
            .map(|(prompt, admitted)| ContextRequest {
                prompt,
                paper_decoding: admitted.submission.job.paper_decoding,
            })
            .collect();
        let span = tracing::debug_span!("open", batch.prompts = requests.len(), batch.tokens = tokens);
        let began = Instant::now();
        let opened = span.in_scope(|| guarded(&*self.observer, || open_all(&mut *self.model, &requests)));
        self.pace.opened(tokens, began.elapsed());
        // What the model keeps for later prompts.
        self.memory.settle();
        match opened {
            Ok(opened) => {
                for (admitted, opened) in admitted.into_iter().zip(opened) {
                    self.start(admitted, opened);
                }
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "opening a batch of prompts failed");
                for Admitted { submission, memory, .. } in admitted {
                    drop(memory);
                    self.fail(&submission.events, step_error(&error), submission.job.request.sequences());
                }
            }
        }
        true
    }

    /// What the next jobs may take.
    fn admission(&self) -> Admission<'_> {
        let (clients, limits) = (self.stepping.len(), &self.limits);
        let is_shared = clients > 1;
        let open_tokens_max = self.model.open_tokens_max();
        let used = |pool| {
            let jobs = self.running.iter().filter(|job| job.memory.pool() == pool);
            jobs.map(Running::counted_sequences).sum::<usize>()
        };
        let newcomers = limits.running_max / 4;
        let general = limits.running_max - newcomers;
        Admission {
            memory: &self.memory,
            running: self.running.iter().map(Running::client).collect(),
            is_first: true,
            general: general.saturating_sub(used(Pool::General)),
            newcomers: newcomers.saturating_sub(used(Pool::Newcomers)),
            sequences_max: general,
            open_tokens: if is_shared {
                self.pace.open_tokens_max(clients, open_tokens_max)
            } else {
                open_tokens_max
            },
            newcomers_only: is_shared && self.pace.owes_steps(),
            lacks_memory: false,
        }
    }

    fn start(&mut self, admitted: Admitted, opened: OpenedContext) {
        let Admitted { mut submission, memory, sequences } = admitted;
        submission.places = None;
        let job = &submission.job;
        let prompt_tokens = job.opened_prompt().len();
        if submission.sent.is_none() {
            self.observer.on_start(submission.queued.elapsed());
        }
        let reused = opened.cached_tokens;
        self.observer.on_open(reused, prompt_tokens.saturating_sub(reused));
        let before: Vec<u32> =
            if self.model.info().encoder_decoder { Vec::new() } else { job.prompt.ids().collect() };
        let decoding = guarded(&*self.observer, || {
            Ok::<_, EngineError>(self.vocabulary.decoding(&job.request, &before, opened.first_token))
        });
        let unfinished = job.request.sequences();
        match decoding {
            Ok(decoding) => self.running.push(Running {
                context: opened.context,
                decoding,
                memory,
                prompt_tokens,
                nodes: 0,
                unfinished,
                sequences,
                events_skipped: submission.sent.unwrap_or(0),
                events: 0,
                stall: None,
                last_step: LastStep::default(),
                last_tokens: BTreeMap::new(),
                end: None,
                submission,
            }),
            Err(error) => {
                self.model.close(opened.context);
                self.fail(&submission.events, error, unfinished);
            }
        }
    }

    /// Steps all jobs that are not held back. Whether there were any.
    fn step(&mut self, queue: &mut Queue) -> bool {
        self.steps += 1;
        self.stepping = stepping(&self.running);
        let clients = self.stepping.len();
        let rows_max = self.limits.step_rows_max;
        let rows_max = if clients > 1 { self.pace.rows_max(clients, rows_max) } else { rows_max };
        let (cost, observer) = (self.model.cache_cost(), Arc::clone(&self.observer));
        let (rows, shares) = collect_rows(&mut self.running, rows_max, self.steps, |job, rows| {
            let asked = next_rows(job, rows, cost, &*observer);
            asked.map_err(|end| job.end = Some(end)).ok()
        });
        let mut over: Vec<usize> = Vec::new();
        if !rows.is_empty() {
            let span = tracing::debug_span!("step", batch.rows = rows.len(), batch.jobs = shares.len());
            let began = Instant::now();
            let logits = span.in_scope(|| guarded(&*self.observer, || step_all(&mut *self.model, &rows)));
            self.pace.stepped(rows.len(), began.elapsed());
            self.observer.on_step(rows.len());
            over = match logits {
                Ok(logits) => self.distribute(&logits, &shares),
                Err(error) => {
                    tracing::error!(error = %chain(&error), "a step failed");
                    for share in &shares {
                        self.running[share.running].end = Some(EarlyEnd::Failed(step_error(&error)));
                    }
                    Vec::new()
                }
            };
        }
        over.extend((0..self.running.len()).filter(|&index| self.running[index].end.is_some()));
        let any = !(rows.is_empty() && over.is_empty());
        // From the back, so that earlier indices stay valid.
        over.sort_unstable_by(|a, b| b.cmp(a));
        for index in over {
            let mut job = self.running.remove(index);
            self.model.close(job.context);
            match job.end.take() {
                None => {}
                Some(EarlyEnd::Failed(error)) => self.fail(&job.submission.events, error, job.unfinished),
                Some(EarlyEnd::OutOfMemory) => queue.push_front(restarted(job, cost)),
            }
        }
        any
    }

    /// Hands the logits to their jobs. Returns the jobs that are complete.
    fn distribute(&mut self, logits: &Logits, shares: &[Share]) -> Vec<usize> {
        let mut finished = Vec::new();
        for share in shares {
            let job = &mut self.running[share.running];
            let result = StepResult { logits, first_row: share.first_row, first_node: NodeId(job.nodes) };
            job.nodes += share.rows as u32;
            let mut events = Vec::new();
            let advanced = guarded(&*self.observer, || job.decoding.advance(result, &mut events));
            match advanced {
                Ok(Progress::Running) => {}
                Ok(Progress::Done) => finished.push(share.running),
                Err(error) => {
                    tracing::error!(%error, "decoding failed");
                    job.end = Some(EarlyEnd::Failed(error));
                }
            }
            self.send(share.running, events);
        }
        finished
    }

    fn send(&mut self, running: usize, events: Vec<Event>) {
        for event in events {
            let job = &mut self.running[running];
            job.events += 1;
            if job.events <= job.events_skipped {
                continue;
            }
            if let Event::Text { choice, tokens, .. } = event {
                self.observe_tokens(running, choice, tokens);
            }
            let job = &mut self.running[running];
            // Counted before it is sent, so that a client with the response finds it in the metrics.
            if let Some(reason) = end_reason(&event).filter(|_| !job.submission.events.is_closed()) {
                job.unfinished = job.unfinished.saturating_sub(1);
                self.count(reason, 1);
            }
            if !self.running[running].submission.events.send(event) {
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

    fn fail(&self, events: &EventSender, error: EngineError, sequences: u32) {
        let sent = events.send(Event::Failed(error));
        self.count(if sent { EndReason::Error } else { EndReason::Abort }, sequences);
    }

    fn count(&self, reason: EndReason, sequences: u32) {
        for _ in 0..sequences {
            self.observer.on_end(reason);
        }
    }
}

/// Opens one context for each prompt.
fn open_all(
    model: &mut dyn BatchModel,
    requests: &[ContextRequest<'_>],
) -> Result<Vec<OpenedContext>, ModelError> {
    let opened = model.open(requests)?;
    if opened.len() == requests.len() {
        return Ok(opened);
    }
    opened.iter().for_each(|opened| model.close(opened.context));
    Err(ModelError::Compute(format!("{} of {} prompts were opened", opened.len(), requests.len()).into()))
}

/// Steps rows; the logits of one row never go to another.
fn step_all(model: &mut dyn BatchModel, rows: &[Row]) -> Result<Logits, ModelError> {
    let logits = model.step(rows)?;
    if logits.rows() == rows.len() {
        return Ok(logits);
    }
    Err(ModelError::Compute(format!("{} of {} rows have logits", logits.rows(), rows.len()).into()))
}

/// At most `rows` rows of a job, with memory for them.
fn next_rows(
    job: &mut Running,
    rows: usize,
    cost: CacheCost,
    observer: &dyn EngineObserver,
) -> Result<Vec<PathRow>, EarlyEnd> {
    let asked = guarded(observer, || Ok::<_, EngineError>(job.decoding.next_rows(rows)));
    let paths = asked.map_err(EarlyEnd::Failed)?;
    let search = job.decoding.search_bytes() as u64;
    let needs = cost.bytes(job.prompt_tokens, job.nodes as usize + paths.len()).saturating_add(search);
    // A job that starts again has all that it may need, but for prefixes that it computes ahead.
    if job.memory.grow(needs) || job.submission.sent.is_some() {
        Ok(paths)
    } else {
        Err(EarlyEnd::OutOfMemory)
    }
}

/// The submission of a job that has to start again, with all memory that it may need.
fn restarted(job: Running, cost: CacheCost) -> Box<Submission> {
    tracing::debug!(nodes = job.nodes, "a number tree starts again: the memory is full");
    let mut submission = job.submission;
    let nodes = submission.job.nodes_max();
    let host = submission.job.host_bytes(nodes);
    submission.cache_bytes = cost.bytes(job.prompt_tokens, nodes).saturating_add(host);
    submission.sent = Some(job.events);
    submission
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

fn step_error(error: &ModelError) -> EngineError {
    EngineError::Step(chain(error))
}

/// An error with all its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |line, cause| format!("{line}: {cause}"))
}

#[cfg(test)]
mod tests {
    use ntl_core::decoding::Decoding;
    use ntl_core::engine::{ContextId, Job, NodeCapacity, Request, TextJob};

    use super::*;
    use crate::budget::CacheBudget;
    use crate::channel::channel;
    use crate::observer::NoObserver;

    /// Rows of the end of sequence, as many as asked for; panics where that is none.
    struct Rows;

    impl Decoding for Rows {
        fn next_rows(&mut self, rows_max: usize) -> Vec<PathRow> {
            assert!(rows_max > 0, "scripted");
            vec![PathRow::new(None, 1); rows_max]
        }
        fn advance(&mut self, _: StepResult<'_>, _: &mut Vec<Event>) -> Result<Progress, EngineError> {
            Ok(Progress::Done)
        }
        fn search_bytes(&self) -> usize {
            5
        }
    }

    #[test]
    fn a_job_whose_rows_cannot_be_asked_for_or_held_ends() {
        let cost = CacheCost { prompt_token: 1, node: 10, capacity: NodeCapacity::Exact };
        let account = CacheBudget::new(100).join(None, || ());
        let (events, _receiver) = channel(|| ());
        let submission = Box::new(Submission {
            job: Job::new(vec![1], Request::Text(TextJob::default())),
            events,
            queued: Instant::now(),
            cache_bytes: 6,
            request_begun: Arc::default(),
            places: None,
            sent: None,
        });
        let mut job = Running {
            memory: account.reserve(Pool::General, 6).unwrap(),
            submission,
            context: ContextId(1),
            decoding: Box::new(Rows),
            prompt_tokens: 1,
            nodes: 0,
            unfinished: 1,
            sequences: 1,
            events_skipped: 0,
            events: 0,
            stall: None,
            last_step: LastStep::default(),
            last_tokens: BTreeMap::new(),
            end: None,
        };
        let mut asked = |rows| next_rows(&mut job, rows, cost, &NoObserver).map(|rows| rows.len());
        assert!(matches!(asked(6), Ok(6)), "66 of the 75 bytes for any job");
        assert!(matches!(asked(7), Err(EarlyEnd::OutOfMemory)));
        let Err(EarlyEnd::Failed(EngineError::Step(reason))) = asked(0) else { panic!("no panic") };
        assert_eq!(reason, "the decoding panicked");
    }
}
