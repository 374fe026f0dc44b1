//! Jobs that wait: clients in turn, each client's own in their order, forgotten when nobody waits for them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ntl_core::engine::{EngineError, Job};
use tokio::sync::OwnedSemaphorePermit;

use super::channel::EventSender;

/// What reaches an engine.
#[derive(Debug)]
pub(super) enum Message {
    /// More work.
    Submit(Box<Submission>),
    /// Somebody read events, or left.
    Wake,
}

/// A job with the way back to whoever wants its answer.
pub(super) struct Submission {
    pub(super) job: Job,
    pub(super) events: EventSender,
    pub(super) queued: Instant,
    /// Bytes that its context is expected to hold.
    pub(super) cache_bytes: u64,
    /// Whether any job of the same request has left the queue: then the others may wait for it.
    pub(super) request_begun: Arc<AtomicBool>,
    /// Its places in the bounded queue, free again when it is dropped.
    pub(super) _places: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Submission {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Submission").field("queued", &self.queued).finish_non_exhaustive()
    }
}

/// Why a job leaves the queue without having begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Loss {
    /// Nobody waits for it.
    Abandoned,
    /// Its time is over.
    Late(EngineError),
}

/// What the next jobs may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Whether nothing is taken yet and nothing runs: then the first job fits in any case.
    pub(super) is_idle: bool,
    /// Whether nothing is taken yet: then a prompt may be longer than what is opened together.
    pub(super) is_first: bool,
    pub(super) sequences: usize,
    pub(super) cache_bytes: u64,
    /// Prompt tokens that are opened together.
    pub(super) open_tokens: usize,
}

pub(super) struct Queue {
    receiver: Receiver<Message>,
    /// Clients with jobs, the next one to be served first.
    clients: VecDeque<(u64, VecDeque<Submission>)>,
    /// How long a request waits at most for its first job to begin.
    time_max: Option<Duration>,
}

impl Queue {
    pub(super) fn new(receiver: Receiver<Message>, time_max: Option<Duration>) -> Self {
        Self { receiver, clients: VecDeque::new(), time_max }
    }

    /// Takes in what has been submitted; when there is nothing to do sleeps until something happens or it is `until`.
    /// False when nothing can come any more.
    pub(super) fn receive(&mut self, idle: bool, until: Option<Instant>) -> bool {
        if idle {
            match self.wait(until) {
                Ok(message) => self.take_in(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        while let Ok(message) = self.receiver.try_recv() {
            self.take_in(message);
        }
        true
    }

    fn wait(&self, until: Option<Instant>) -> Result<Message, RecvTimeoutError> {
        match until {
            Some(until) => self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn take_in(&mut self, message: Message) {
        let Message::Submit(submission) = message else { return };
        let client = submission.job.client;
        match self.clients.iter_mut().find(|(known, _)| *known == client) {
            Some((_, waiting)) => waiting.push_back(*submission),
            None => self.clients.push_back((client, VecDeque::from([*submission]))),
        }
    }

    /// When the first of the jobs will have waited too long.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.waiting().filter_map(|submission| self.deadline(submission).map(|(at, _)| at)).min()
    }

    /// When a job has waited too long, and how that is called.
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

    /// Takes out the jobs that nobody waits for, and those whose time is over.
    pub(super) fn take_lost(&mut self, now: Instant) -> Vec<(Submission, Loss)> {
        let loss = |queue: &Self, submission: &Submission| {
            if submission.events.is_closed() {
                return Some(Loss::Abandoned);
            }
            queue.deadline(submission).filter(|(at, _)| *at <= now).map(|(_, error)| Loss::Late(error))
        };
        if !self.waiting().any(|submission| loss(self, submission).is_some()) {
            return Vec::new();
        }
        let mut lost = Vec::new();
        for (client, waiting) in std::mem::take(&mut self.clients) {
            let mut kept = VecDeque::new();
            for submission in waiting {
                match loss(self, &submission) {
                    Some(loss) => lost.push((submission, loss)),
                    None => kept.push_back(submission),
                }
            }
            if !kept.is_empty() {
                self.clients.push_back((client, kept));
            }
        }
        lost
    }

    /// The next jobs, one of each client in turn, until one does not fit. That one is the first next time: what is
    /// large waits for room, and what is small does not overtake it for ever.
    pub(super) fn take(&mut self, mut room: Room) -> Vec<Submission> {
        let mut taken = Vec::new();
        while let Some((client, mut waiting)) = self.clients.pop_front() {
            let Some(next) = waiting.pop_front() else { continue };
            if !room.take(&next) {
                waiting.push_front(next);
                self.clients.push_front((client, waiting));
                break;
            }
            next.request_begun.store(true, Ordering::Relaxed);
            taken.push(next);
            if !waiting.is_empty() {
                self.clients.push_back((client, waiting));
            }
        }
        taken
    }

    fn waiting(&self) -> impl Iterator<Item = &Submission> {
        self.clients.iter().flat_map(|(_, waiting)| waiting)
    }

    /// How many sequences wait.
    pub(super) fn sequences(&self) -> usize {
        self.waiting().map(|submission| submission.job.request.sequences() as usize).sum()
    }
}

impl Room {
    /// Makes room for a job, if there is any.
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
