//! The jobs whose prompts are being computed, and how they share the work of one prefill.
//!
//! Clients with begun prompts and clients with queued jobs get equal shares, so a new client's short prompt
//! is computed in the next prefill, regardless of the prompts of other clients.

use std::collections::{BTreeMap, HashSet};

use ntl_core::contract::{ContextId, PrefillChunk, PrefillProgress};

use crate::budget::Reservation;
use crate::queue::QueuedJob;

/// A job whose prompt is not computed completely.
pub(crate) struct Prefilling {
    // Declared before the events, so that the memory is released before the client reads the last event.
    pub(crate) memory: Reservation,
    pub(crate) queued_job: Box<QueuedJob>,
    pub(crate) context: ContextId,
    pub(crate) first_token: u32,
    /// Maximum number of sequences that it is charged for.
    pub(crate) sequences: usize,
    pub(crate) prompt_tokens: usize,
    pub(crate) progress: PrefillProgress,
    /// Number of the last prefill that computed a part of its prompt; 0 for none.
    pub(crate) last: u64,
}

impl Prefilling {
    pub(crate) fn client(&self) -> u64 {
        self.queued_job.job.client
    }
}

/// The work of one prefill, divided between prompts that are begun and jobs that have not started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    total: usize,
    /// Work for jobs that start now.
    pub(crate) new_jobs: usize,
    /// Whether `new_jobs` is large enough for a part of a longer prompt.
    pub(crate) admits_longer: bool,
    /// Clients that may not start a job now: debtors, and clients with prompts that this prefill does not
    /// complete. A client's prompts are computed one after the other.
    pub(crate) barred: HashSet<u64>,
    debtors: HashSet<u64>,
}

impl Shares {
    /// Gives the clients of begun prompts and the `queued` clients equal shares of `total`. Begun prompts
    /// also get the unused rest. `debtors` get nothing.
    pub(crate) fn new(
        begun: &[Prefilling],
        queued: impl Iterator<Item = u64>,
        debtors: HashSet<u64>,
        total: usize,
    ) -> Self {
        let mut left: BTreeMap<u64, usize> = BTreeMap::new();
        for job in begun.iter().filter(|job| !debtors.contains(&job.client())) {
            *left.entry(job.client()).or_default() += job.progress.work_left;
        }
        let others: HashSet<u64> =
            queued.filter(|client| !left.contains_key(client) && !debtors.contains(client)).collect();
        let share = total / (left.len() + others.len()).max(1);
        let kept = left.values().map(|&left| if others.is_empty() { left } else { left.min(share) });
        let new_jobs = total.saturating_sub(kept.sum());
        let unfinished = left.iter().filter(|(_, left)| **left > share).map(|(&client, _)| client);
        let barred = unfinished.chain(debtors.iter().copied()).collect();
        Self { total, new_jobs, admits_longer: 2 * new_jobs >= share, barred, debtors }
    }

    /// Returns the chunks of the prefill. The jobs from index `first_new` on have just started and get their
    /// part in order. The clients of the others share the rest: the client that has waited longest is
    /// scheduled first, and unused work goes to later ones.
    pub(crate) fn chunks(&self, jobs: &[Prefilling], first_new: usize) -> Vec<PrefillChunk> {
        let (begun, new) = jobs.split_at(first_new);
        let mut chunks = Vec::new();
        let new_left = give(new.iter(), self.new_jobs, &mut chunks);
        let mut left = self.total - self.new_jobs + new_left;
        let mut clients: BTreeMap<u64, Vec<&Prefilling>> = BTreeMap::new();
        for job in begun.iter().filter(|job| !self.debtors.contains(&job.client())) {
            clients.entry(job.client()).or_default().push(job);
        }
        let mut clients: Vec<Vec<&Prefilling>> = clients.into_values().collect();
        clients.sort_by_key(|jobs| jobs.iter().map(|job| job.last).max());
        let count = clients.len();
        for (index, jobs) in clients.into_iter().enumerate() {
            let share = left / (count - index);
            left -= share - give(jobs.into_iter(), share, &mut chunks);
        }
        chunks
    }
}

/// Gives work to jobs in order. Returns what is left.
fn give<'a>(
    jobs: impl Iterator<Item = &'a Prefilling>,
    mut work: usize,
    chunks: &mut Vec<PrefillChunk>,
) -> usize {
    for job in jobs {
        let share = work.min(job.progress.work_left);
        if share > 0 {
            chunks.push(PrefillChunk { context: job.context, work: share });
        }
        work -= share;
    }
    work
}
