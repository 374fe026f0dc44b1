//! The waiting jobs. Clients are served in turn, and each client's jobs in their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ntl_core::engine::{EngineError, Job};
use tokio::sync::OwnedSemaphorePermit;

use crate::channel::EventSender;

/// A message to the engine's thread.
pub(crate) enum Message {
    Submit(Box<Submission>),
    /// A client read events or dropped its end of a channel.
    Wake,
}

/// A job and the channel for its events.
pub(crate) struct Submission {
    pub(crate) job: Job,
    pub(crate) events: EventSender,
    pub(crate) queued: Instant,
    /// Expected size of its context.
    pub(crate) cache_bytes: u64,
    /// Whether any job of the same request has left the queue. The queue timeout then no longer applies to the others.
    pub(crate) request_begun: Arc<AtomicBool>,
    /// Its places in the bounded queue; dropping it frees them.
    pub(crate) _places: OwnedSemaphorePermit,
}

/// Why a job is dropped from the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DropReason {
    ClientGone,
    DeadlineExceeded(EngineError),
}

/// What the next jobs may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmissionBudget {
    /// Whether nothing runs and nothing is admitted yet: then the first job fits in any case.
    pub(crate) is_idle: bool,
    /// Whether nothing is admitted yet: then a prompt may be longer than `open_tokens`.
    pub(crate) is_first: bool,
    pub(crate) sequences: usize,
    pub(crate) cache_bytes: u64,
    /// Prompt tokens that are opened together.
    pub(crate) open_tokens: usize,
}

/// The queued jobs of one client.
struct ClientQueue {
    client: u64,
    jobs: VecDeque<Submission>,
}

pub(crate) struct Queue {
    receiver: Receiver<Message>,
    /// Clients with jobs, the next one to be served first.
    clients: VecDeque<ClientQueue>,
    /// How long a request may wait for its first job to begin.
    time_max: Option<Duration>,
}

impl Queue {
    pub(crate) fn new(receiver: Receiver<Message>, time_max: Option<Duration>) -> Self {
        Self { receiver, clients: VecDeque::new(), time_max }
    }

    /// Queues all submitted jobs. If `idle`, first sleeps until a message arrives or it is `until`.
    /// False when all senders are gone.
    pub(crate) fn receive(&mut self, idle: bool, until: Option<Instant>) -> bool {
        if idle {
            match self.wait(until) {
                Ok(message) => self.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(message) = self.receiver.try_recv() {
            self.push(message);
        }
        true
    }

    fn wait(&self, until: Option<Instant>) -> Result<Message, RecvTimeoutError> {
        match until {
            Some(until) => self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn push(&mut self, message: Message) {
        let Message::Submit(submission) = message else { return };
        let client = submission.job.client;
        match self.clients.iter_mut().find(|known| known.client == client) {
            Some(known) => known.jobs.push_back(*submission),
            None => self.clients.push_back(ClientQueue { client, jobs: VecDeque::from([*submission]) }),
        }
    }

    /// When the first of the jobs will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting().filter_map(|submission| self.deadline(submission).map(|(at, _)| at)).min()
    }

    /// When a job has waited too long, and with which error.
    fn deadline(&self, submission: &Submission) -> Option<(Instant, EngineError)> {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let answer = submission.job.deadline.map(|(at, after)| {
            let after_ms = milliseconds(after);
            (at, EngineError::Deadline { after_ms })
        });
        let begun = submission.request_begun.load(Ordering::Relaxed);
        let turn = self.time_max.filter(|_| !begun).and_then(|time_max| {
            let after_ms = milliseconds(time_max);
            Some((submission.queued.checked_add(time_max)?, EngineError::QueueTimeout { after_ms }))
        });
        [answer, turn].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Takes out the jobs whose client is gone or whose time is over.
    pub(crate) fn take_dropped(&mut self, now: Instant) -> Vec<(Submission, DropReason)> {
        let drop_reason = |queue: &Self, submission: &Submission| {
            if submission.events.is_closed() {
                return Some(DropReason::ClientGone);
            }
            let late = queue.deadline(submission).filter(|(at, _)| *at <= now);
            late.map(|(_, error)| DropReason::DeadlineExceeded(error))
        };
        if !self.waiting().any(|submission| drop_reason(self, submission).is_some()) {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        for ClientQueue { client, jobs } in std::mem::take(&mut self.clients) {
            let mut kept = VecDeque::new();
            for submission in jobs {
                match drop_reason(self, &submission) {
                    Some(reason) => dropped.push((submission, reason)),
                    None => kept.push_back(submission),
                }
            }
            if !kept.is_empty() {
                self.clients.push_back(ClientQueue { client, jobs: kept });
            }
        }
        dropped
    }

    /// The next jobs, one of each client in turn, until one does not fit. That one comes first next time, so that small jobs
    /// do not overtake a large one for ever.
    pub(crate) fn admit(&mut self, mut budget: AdmissionBudget) -> Vec<Submission> {
        let mut admitted = Vec::new();
        while let Some(mut queue) = self.clients.pop_front() {
            let Some(next) = queue.jobs.pop_front() else { continue };
            if !budget.take(&next) {
                queue.jobs.push_front(next);
                self.clients.push_front(queue);
                break;
            }
            next.request_begun.store(true, Ordering::Relaxed);
            admitted.push(next);
            if !queue.jobs.is_empty() {
                self.clients.push_back(queue);
            }
        }
        admitted
    }

    fn waiting(&self) -> impl Iterator<Item = &Submission> {
        self.clients.iter().flat_map(|client| &client.jobs)
    }

    /// Number of waiting sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.waiting().map(|submission| submission.job.request.sequences() as usize).sum()
    }
}

impl AdmissionBudget {
    /// Whether the job fits; if so, subtracts what it takes.
    fn take(&mut self, next: &Submission) -> bool {
        let sequences = next.job.request.sequences() as usize;
        let tokens = next.job.opened_prompt().len().max(1);
        let opens = self.is_first || tokens <= self.open_tokens;
        let runs = sequences <= self.sequences && next.cache_bytes <= self.cache_bytes;
        if !(opens && runs || self.is_idle) {
            return false;
        }
        (self.is_idle, self.is_first) = (false, false);
        self.sequences = self.sequences.saturating_sub(sequences);
        self.cache_bytes = self.cache_bytes.saturating_sub(next.cache_bytes);
        self.open_tokens = self.open_tokens.saturating_sub(tokens);
        true
    }
}
