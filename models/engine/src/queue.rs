//! The waiting jobs. Clients are served in turn, and each client's jobs in their order. A client that has nothing running
//! need not wait behind a job that does not fit: some sequences and memory are reserved for it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ntl_core::engine::{EngineError, Job};
use tokio::sync::OwnedSemaphorePermit;

use crate::budget::{Account, Pool, Reservation};
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
    /// Expected size of its context and decoding.
    pub(crate) cache_bytes: u64,
    /// Whether any job of the same request has left the queue. The queue timeout then no longer applies to the others.
    pub(crate) request_begun: Arc<AtomicBool>,
    /// Its places in the bounded queue, until it starts; dropping them frees them.
    pub(crate) places: Option<OwnedSemaphorePermit>,
    /// Of a job that starts again: the number of its events that are sent already.
    pub(crate) sent: Option<usize>,
}

impl Submission {
    /// When the answer has to be complete, and the error if it is not.
    fn deadline(&self) -> Option<(Instant, EngineError)> {
        self.job.deadline.map(|(at, after)| (at, EngineError::Deadline { after_ms: milliseconds(after) }))
    }

    pub(crate) fn exceeded_deadline(&self, now: Instant) -> Option<EngineError> {
        self.deadline().filter(|(at, _)| *at <= now).map(|(_, error)| error)
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Why a job is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DropReason {
    ClientGone,
    DeadlineExceeded(EngineError),
    Unread(EngineError),
}

/// What the next jobs may take.
pub(crate) struct Admission<'a> {
    pub(crate) memory: &'a Account,
    /// Clients that have a job running.
    pub(crate) running: HashSet<u64>,
    /// Whether nothing is admitted yet: then a prompt may be longer than `open_tokens`.
    pub(crate) is_first: bool,
    /// Free sequences for any job.
    pub(crate) general: usize,
    /// Free sequences for clients that have nothing running.
    pub(crate) newcomers: usize,
    /// A job counts as no more sequences than these.
    pub(crate) sequences_max: usize,
    /// Prompt tokens that are opened together.
    pub(crate) open_tokens: usize,
    /// Whether only clients that have nothing running may open prompts.
    pub(crate) newcomers_only: bool,
    /// Whether a job waits for memory.
    pub(crate) lacks_memory: bool,
}

/// A job that may start.
pub(crate) struct Admitted {
    pub(crate) submission: Box<Submission>,
    pub(crate) memory: Reservation,
    /// The sequences that it counts as.
    pub(crate) sequences: usize,
}

/// Why a job is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// Its prompt has to wait for the next opening.
    Opening,
    /// It is the turn of clients that have nothing running.
    Newcomers,
    Sequences,
    Memory,
}

/// The queued jobs of one client.
struct ClientQueue {
    client: u64,
    jobs: VecDeque<Box<Submission>>,
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
            Some(known) => known.jobs.push_back(submission),
            None => self.clients.push_back(ClientQueue { client, jobs: VecDeque::from([submission]) }),
        }
    }

    /// Puts a job that has to start again before the other jobs of its client.
    pub(crate) fn push_front(&mut self, submission: Box<Submission>) {
        let client = submission.job.client;
        match self.clients.iter_mut().find(|known| known.client == client) {
            Some(known) => known.jobs.push_front(submission),
            None => self.clients.push_back(ClientQueue { client, jobs: VecDeque::from([submission]) }),
        }
    }

    /// When the first of the jobs will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting().filter_map(|submission| self.deadline(submission).map(|(at, _)| at)).min()
    }

    /// When a job has waited too long, and with which error.
    fn deadline(&self, submission: &Submission) -> Option<(Instant, EngineError)> {
        let begun = submission.request_begun.load(Ordering::Relaxed);
        let turn = self.time_max.filter(|_| !begun).and_then(|time_max| {
            let after_ms = milliseconds(time_max);
            Some((submission.queued.checked_add(time_max)?, EngineError::QueueTimeout { after_ms }))
        });
        [submission.deadline(), turn].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Takes out the jobs whose client is gone or whose time is over.
    pub(crate) fn take_dropped(&mut self, now: Instant) -> Vec<(Box<Submission>, DropReason)> {
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
    /// do not overtake a large one for ever. Only jobs that fit into what is reserved for clients with nothing running do.
    pub(crate) fn admit(&mut self, mut admission: Admission<'_>) -> Vec<Admitted> {
        let (mut admitted, mut obstacle) = (Vec::new(), None);
        while let Some(mut queue) = self.clients.pop_front() {
            let Some(next) = queue.jobs.pop_front() else { continue };
            match admission.take(next) {
                Ok(next) => admitted.push(next),
                Err((next, reason)) => {
                    queue.jobs.push_front(next);
                    self.clients.push_front(queue);
                    obstacle = Some(reason);
                    break;
                }
            }
            if !queue.jobs.is_empty() {
                self.clients.push_back(queue);
            }
        }
        match obstacle {
            Some(Obstacle::Sequences | Obstacle::Memory) => {
                self.admit_newcomers(&mut admitted, |next| admission.take_from(Pool::Newcomers, next));
            }
            Some(Obstacle::Newcomers) => self.admit_newcomers(&mut admitted, |next| admission.take(next)),
            Some(Obstacle::Opening) | None => {}
        }
        if !admission.lacks_memory {
            admission.memory.stop_waiting();
        }
        admitted
    }

    /// Of each client behind the first one, the first job, as far as it is taken.
    fn admit_newcomers(
        &mut self,
        admitted: &mut Vec<Admitted>,
        mut take: impl FnMut(Box<Submission>) -> Result<Admitted, (Box<Submission>, Obstacle)>,
    ) {
        for queue in self.clients.iter_mut().skip(1) {
            let Some(next) = queue.jobs.pop_front() else { continue };
            match take(next) {
                Ok(next) => admitted.push(next),
                Err((next, _)) => queue.jobs.push_front(next),
            }
        }
        self.clients.retain(|queue| !queue.jobs.is_empty());
    }

    fn waiting(&self) -> impl Iterator<Item = &Submission> {
        self.clients.iter().flat_map(|client| &client.jobs).map(|submission| &**submission)
    }

    /// Number of waiting sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.waiting().map(|submission| submission.job.request.sequences() as usize).sum()
    }
}

impl Admission<'_> {
    /// Subtracts what a job takes, if it fits.
    fn take(&mut self, next: Box<Submission>) -> Result<Admitted, (Box<Submission>, Obstacle)> {
        if self.newcomers_only && self.running.contains(&next.job.client) {
            return Err((next, Obstacle::Newcomers));
        }
        match self.take_from(Pool::General, next) {
            Err((next, obstacle @ (Obstacle::Sequences | Obstacle::Memory))) => {
                self.take_from(Pool::Newcomers, next).map_err(|(next, _)| (next, obstacle))
            }
            taken => taken,
        }
    }

    /// As [`Self::take`], from one pool.
    fn take_from(
        &mut self,
        pool: Pool,
        next: Box<Submission>,
    ) -> Result<Admitted, (Box<Submission>, Obstacle)> {
        if pool == Pool::Newcomers && self.running.contains(&next.job.client) {
            return Err((next, Obstacle::Sequences));
        }
        let tokens = next.job.opened_prompt().len().max(1);
        if !self.is_first && tokens > self.open_tokens {
            return Err((next, Obstacle::Opening));
        }
        let sequences = (next.job.request.sequences() as usize).min(self.sequences_max);
        let free = match pool {
            Pool::General => &mut self.general,
            Pool::Newcomers => &mut self.newcomers,
        };
        if sequences > *free {
            return Err((next, Obstacle::Sequences));
        }
        let Some(memory) = self.memory.reserve(pool, next.cache_bytes) else {
            self.lacks_memory = true;
            return Err((next, Obstacle::Memory));
        };
        *free -= sequences;
        self.is_first = false;
        self.open_tokens = self.open_tokens.saturating_sub(tokens);
        self.running.insert(next.job.client);
        next.request_begun.store(true, Ordering::Relaxed);
        Ok(Admitted { submission: next, memory, sequences })
    }
}
