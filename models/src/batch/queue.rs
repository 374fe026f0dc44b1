//! Jobs that wait: first come, first served, forgotten when their client leaves.

use std::collections::VecDeque;
use std::time::Instant;

use ntl_core::engine::{Event, Job};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A job with the way back to whoever wants its answer.
pub(super) struct Submission {
    pub(super) job: Job,
    pub(super) events: mpsc::UnboundedSender<Event>,
    pub(super) queued: Instant,
    /// Its place in the bounded queue, free again when it is dropped.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Submission {
    pub(super) fn is_abandoned(&self) -> bool {
        self.events.is_closed()
    }
}

pub(super) struct Queue {
    receiver: mpsc::UnboundedReceiver<Submission>,
    waiting: VecDeque<Submission>,
}

impl Queue {
    pub(super) fn new(receiver: mpsc::UnboundedReceiver<Submission>) -> Self {
        Self { receiver, waiting: VecDeque::new() }
    }

    /// Takes in what has been submitted; sleeps until something is when there is nothing to do. False when
    /// nothing waits and nothing can come any more.
    pub(super) fn receive(&mut self, idle: bool) -> bool {
        if idle && self.waiting.is_empty() {
            match self.receiver.blocking_recv() {
                Some(submission) => self.waiting.push_back(submission),
                None => return false,
            }
        }
        while let Ok(submission) = self.receiver.try_recv() {
            self.waiting.push_back(submission);
        }
        true
    }

    /// Takes out the jobs that nobody waits for, and those whose time is over.
    pub(super) fn take_lost(&mut self, now: Instant) -> Vec<Submission> {
        let (lost, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|submission| {
            submission.is_abandoned() || submission.job.deadline.is_some_and(|(at, _)| at <= now)
        });
        self.waiting = waiting;
        Vec::from_iter::<VecDeque<Submission>>(lost)
    }

    /// The next jobs: at most `jobs_max`, and at most `tokens_max` prompt tokens unless the first alone has more.
    pub(super) fn take(&mut self, jobs_max: usize, tokens_max: usize) -> Vec<Submission> {
        let mut tokens = 0;
        let fits = self.waiting.iter().take(jobs_max).take_while(|submission| {
            let first = tokens == 0;
            tokens += submission.job.prompt.len().max(1);
            first || tokens <= tokens_max
        });
        let count = fits.count();
        self.waiting.drain(..count).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
