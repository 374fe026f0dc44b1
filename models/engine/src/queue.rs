//! The waiting jobs. Clients are scheduled round-robin, and the jobs of one client in order of arrival. Some
//! sequences and memory are reserved for clients without running jobs, so that they need not wait for another
//! client's job that does not fit.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use ntl_core::contract::{Adapter, EngineError, Job};
use tokio::sync::OwnedSemaphorePermit;

use crate::budget::{EngineBudget, Pool, Reservation};
use crate::channel::EventSender;

/// A message to the engine's thread.
pub(crate) enum Message {
    Submit(Box<QueuedJob>),
    PrepareAdapter(PreparedAdapter),
    /// A client has read events or dropped its end of a channel.
    Wake,
}

/// An adapter whose weights the model's thread copies to the device, and the channel for the result.
pub(crate) struct PreparedAdapter {
    pub(crate) adapter: Adapter,
    pub(crate) result: SyncSender<Result<(), EngineError>>,
}

/// A job and the channel for its events.
pub(crate) struct QueuedJob {
    pub(crate) job: Job,
    pub(crate) events: EventSender,
    pub(crate) queued: Instant,
    /// Expected size of its context and decoding, in bytes.
    pub(crate) cache_bytes: u64,
    /// Whether any job of the same request has left the queue. If so, the queue timeout no longer applies to
    /// the others.
    pub(crate) request_begun: Arc<AtomicBool>,
    /// Slots in the bounded queue, held until the job starts. Dropping the permit releases them.
    pub(crate) permit: Option<OwnedSemaphorePermit>,
    /// For a restarted job: the number of its events that were already sent.
    pub(crate) sent: Option<usize>,
}

impl QueuedJob {
    /// Returns the time by which the answer must be complete, and the error if it is not.
    fn deadline(&self) -> Option<(Instant, EngineError)> {
        self.job.deadline.map(|(at, after)| (at, EngineError::Deadline { after_ms: milliseconds(after) }))
    }

    /// Returns why the job ends, if its client is gone or its deadline has passed.
    pub(crate) fn drop_reason(&self, now: Instant) -> Option<DropReason> {
        if self.events.is_closed() {
            return Some(DropReason::ClientGone);
        }
        self.deadline().filter(|(at, _)| *at <= now).map(|(_, error)| DropReason::DeadlineExceeded(error))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time at which the queue timeout ends, and its error.
fn queue_timeout(queued: Instant, time_max: Duration) -> Option<(Instant, EngineError)> {
    let after_ms = milliseconds(time_max);
    Some((queued.checked_add(time_max)?, EngineError::QueueTimeout { after_ms }))
}

/// The reason why a job is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DropReason {
    ClientGone,
    DeadlineExceeded(EngineError),
    Unread(EngineError),
}

/// The resources that the next jobs can use.
pub(crate) struct Admission<'a> {
    pub(crate) memory: &'a EngineBudget,
    /// Clients with at least one job that has started.
    pub(crate) running: HashSet<u64>,
    /// Clients that may not start a job now.
    pub(crate) barred: &'a HashSet<u64>,
    /// Whether the next prompt may exceed `prefill_work`: the rest of it is computed later.
    pub(crate) admits_longer: bool,
    /// Number of further sequences that the general pool admits.
    pub(crate) general: usize,
    /// Number of further sequences that the pool reserved for clients without running jobs admits.
    pub(crate) reserved: usize,
    /// Maximum number of sequences that one job is charged for.
    pub(crate) sequences_max: usize,
    /// Maximum number of prompt tokens of new jobs in this prefill.
    pub(crate) prefill_work: usize,
    /// The client of a job that could not start for lack of memory.
    pub(crate) lacks_memory: Option<u64>,
}

/// A job that may start.
pub(crate) struct Admitted {
    pub(crate) queued_job: Box<QueuedJob>,
    pub(crate) memory: Reservation,
    /// The number of sequences that it is charged for.
    pub(crate) sequences: usize,
}

/// The reason why a job is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocked {
    /// Its prompt has to wait for the next prefill.
    PrefillFull,
    NoSequences,
    NoMemory,
}

/// The queued jobs of one client.
struct ClientQueue {
    client: u64,
    jobs: VecDeque<Box<QueuedJob>>,
}

pub(crate) struct Queue {
    receiver: Receiver<Message>,
    /// Clients with jobs, in the order in which they will be served.
    clients: VecDeque<ClientQueue>,
    adapters: Vec<PreparedAdapter>,
    /// Maximum time that a request may wait for its first job to start.
    time_max: Option<Duration>,
}

impl Queue {
    pub(crate) fn new(receiver: Receiver<Message>, time_max: Option<Duration>) -> Self {
        Self { receiver, clients: VecDeque::new(), adapters: Vec::new(), time_max }
    }

    /// Queues all submitted jobs. If `idle`, first sleeps until a message arrives or `until` has passed.
    /// Returns `false` if all senders have been dropped.
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
        let queued_job = match message {
            Message::Submit(queued_job) => queued_job,
            Message::PrepareAdapter(prepared) => return self.adapters.push(prepared),
            Message::Wake => return,
        };
        let client = queued_job.job.client;
        match self.clients.iter_mut().find(|known| known.client == client) {
            Some(known) => known.jobs.push_back(queued_job),
            None => self.clients.push_back(ClientQueue { client, jobs: VecDeque::from([queued_job]) }),
        }
    }

    /// Removes the adapters that have to be prepared.
    pub(crate) fn take_adapters(&mut self) -> Vec<PreparedAdapter> {
        std::mem::take(&mut self.adapters)
    }

    /// Inserts a restarted job before the other jobs of its client.
    pub(crate) fn push_front(&mut self, queued_job: Box<QueuedJob>) {
        let client = queued_job.job.client;
        match self.clients.iter_mut().find(|known| known.client == client) {
            Some(known) => known.jobs.push_front(queued_job),
            None => self.clients.push_back(ClientQueue { client, jobs: VecDeque::from([queued_job]) }),
        }
    }

    /// Returns the earliest time at which a queued job will have waited too long.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting().filter_map(|queued_job| self.deadline(queued_job).map(|(at, _)| at)).min()
    }

    /// Returns the time at which a job has waited too long, and the error for that case.
    fn deadline(&self, queued_job: &QueuedJob) -> Option<(Instant, EngineError)> {
        let timeout = match self.time_max {
            Some(time_max) if !queued_job.request_begun.load(Ordering::Relaxed) => {
                queue_timeout(queued_job.queued, time_max)
            }
            _ => None,
        };
        [queued_job.deadline(), timeout].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Removes the jobs whose client is gone or whose time has run out.
    pub(crate) fn take_dropped(&mut self, now: Instant) -> Vec<(Box<QueuedJob>, DropReason)> {
        if !self.waiting().any(|queued_job| self.drop_reason(queued_job, now).is_some()) {
            return Vec::new();
        }
        let mut dropped = Vec::new();
        for ClientQueue { client, jobs } in std::mem::take(&mut self.clients) {
            let mut kept = VecDeque::new();
            for queued_job in jobs {
                match self.drop_reason(&queued_job, now) {
                    Some(reason) => dropped.push((queued_job, reason)),
                    None => kept.push_back(queued_job),
                }
            }
            if !kept.is_empty() {
                self.clients.push_back(ClientQueue { client, jobs: kept });
            }
        }
        dropped
    }

    fn drop_reason(&self, queued_job: &QueuedJob, now: Instant) -> Option<DropReason> {
        if queued_job.events.is_closed() {
            return Some(DropReason::ClientGone);
        }
        let (deadline, error) = self.deadline(queued_job)?;
        (deadline <= now).then_some(DropReason::DeadlineExceeded(error))
    }

    /// Removes all jobs.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Box<QueuedJob>> {
        std::mem::take(&mut self.clients).into_iter().flat_map(|client| client.jobs)
    }

    /// Returns the next jobs, one per client in rotation, until one does not fit. That job is scheduled first
    /// next time, so that small jobs cannot starve a large one. Only jobs that fit into the reserved pool may
    /// overtake it.
    pub(crate) fn admit(&mut self, admission: &mut Admission<'_>) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        let mut barred = Vec::new();
        let mut obstacle = None;
        while let Some(mut queue) = self.clients.pop_front() {
            if admission.barred.contains(&queue.client) {
                barred.push(queue);
                continue;
            }
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
        if let Some(Blocked::NoSequences | Blocked::NoMemory) = obstacle {
            self.admit_reserved(&mut admitted, admission);
        }
        // They keep their places.
        for queue in barred.into_iter().rev() {
            self.clients.push_front(queue);
        }
        admitted
    }

    /// Admits the first job of each client after the first client, if it fits into the reserved pool.
    fn admit_reserved(&mut self, admitted: &mut Vec<Admitted>, admission: &mut Admission<'_>) {
        for queue in self.clients.iter_mut().skip(1) {
            let Some(next) = queue.jobs.pop_front() else { continue };
            match admission.take_from(Pool::Reserved, next) {
                Ok(next) => admitted.push(next),
                Err((next, _)) => queue.jobs.push_front(next),
            }
        }
        self.clients.retain(|queue| !queue.jobs.is_empty());
    }

    /// Returns the clients with waiting jobs.
    pub(crate) fn clients(&self) -> impl Iterator<Item = u64> {
        self.clients.iter().map(|queue| queue.client)
    }

    fn waiting(&self) -> impl Iterator<Item = &QueuedJob> {
        self.clients.iter().flat_map(|client| &client.jobs).map(|queued_job| &**queued_job)
    }

    /// Returns the number of waiting sequences.
    pub(crate) fn sequences(&self) -> usize {
        self.waiting().map(|queued_job| queued_job.job.request.sequences() as usize).sum()
    }
}

impl Admission<'_> {
    /// Subtracts the resources of a job, if it fits.
    fn take(&mut self, next: Box<QueuedJob>) -> Result<Admitted, (Box<QueuedJob>, Blocked)> {
        match self.take_from(Pool::General, next) {
            Err((next, obstacle @ (Blocked::NoSequences | Blocked::NoMemory))) => {
                let taken = self.take_from(Pool::Reserved, next).map_err(|(next, _)| (next, obstacle))?;
                self.lacks_memory = None;
                Ok(taken)
            }
            taken => taken,
        }
    }

    /// Like [`Self::take`], but takes from one pool only.
    fn take_from(&mut self, pool: Pool, next: Box<QueuedJob>) -> Result<Admitted, (Box<QueuedJob>, Blocked)> {
        if pool == Pool::Reserved && self.running.contains(&next.job.client) {
            return Err((next, Blocked::NoSequences));
        }
        let tokens = next.job.prefilled_prompt().len().max(1);
        if self.prefill_work == 0 || !self.admits_longer && tokens > self.prefill_work {
            return Err((next, Blocked::PrefillFull));
        }
        let sequences = (next.job.request.sequences() as usize).min(self.sequences_max);
        let free = match pool {
            Pool::General => &mut self.general,
            Pool::Reserved => &mut self.reserved,
        };
        if sequences > *free {
            return Err((next, Blocked::NoSequences));
        }
        let Some(memory) = self.memory.reserve(pool, next.cache_bytes) else {
            self.lacks_memory = Some(next.job.client);
            return Err((next, Blocked::NoMemory));
        };
        *free -= sequences;
        self.admits_longer = false;
        self.prefill_work = self.prefill_work.saturating_sub(tokens);
        self.running.insert(next.job.client);
        next.request_begun.store(true, Ordering::Relaxed);
        Ok(Admitted { queued_job: next, memory, sequences })
    }
}
