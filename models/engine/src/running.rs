//! The running jobs, and how they share the rows of a step.

use std::collections::BTreeMap;
use std::time::Instant;

use ntl_core::contract::{ContextId, EngineError, PathRow, Row};
use ntl_core::decoding::Decoding;

use crate::budget::Reservation;
use crate::queue::QueuedJob;

/// A job with an open context.
pub(crate) struct Running {
    // Declared before the events, so that the memory is released before the client reads the last event.
    pub(crate) memory: Reservation,
    /// The queued_job from which it restarts if it is preempted for lack of memory.
    pub(crate) queued_job: Box<QueuedJob>,
    pub(crate) context: ContextId,
    pub(crate) decoding: Box<dyn Decoding>,
    pub(crate) prompt_tokens: usize,
    /// Number of rows stepped so far, which is the index of its next node.
    pub(crate) nodes: u32,
    /// Number of sequences that have not ended yet.
    pub(crate) unfinished: u32,
    /// Maximum number of sequences that it is charged for.
    pub(crate) sequences: usize,
    /// Number of events that the client received before the restart.
    pub(crate) events_skipped: usize,
    /// Number of events since this start, including skipped ones.
    pub(crate) events: usize,
    /// Set while the client leaves too many events unread.
    pub(crate) stall: Option<Stall>,
    pub(crate) last_step: LastStep,
    /// Time of the last decoded tokens of each text.
    pub(crate) last_tokens: BTreeMap<u32, Instant>,
    /// The reason why it ends before its decoding is complete.
    pub(crate) end: Option<EarlyEnd>,
}

/// A stalled client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stall {
    pub(crate) since: Instant,
    unread_bytes: usize,
}

/// The reason why a job does not take part in a step and stops running.
pub(crate) enum EarlyEnd {
    Failed(EngineError),
    /// It needs more memory than is free. It restarts when there is enough memory for everything that it may
    /// need.
    OutOfMemory,
}

/// The last step that had rows of a job or client. The smallest value is stepped first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastStep {
    number: u64,
    rows: usize,
}

/// Rows of one running job within a step.
pub(crate) struct Share {
    pub(crate) context: ContextId,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

impl Running {
    pub(crate) fn client(&self) -> u64 {
        self.queued_job.job.client
    }

    /// Records the time at which the job stalled.
    fn update_stall(&mut self, now: Instant) {
        let events = &self.queued_job.events;
        if events.has_room() {
            self.stall = None;
            return;
        }
        let unread_bytes = events.unread_bytes();
        let goes_on = self.stall.filter(|stall| stall.unread_bytes == unread_bytes);
        self.stall = goes_on.or(Some(Stall { since: now, unread_bytes }));
    }

    /// Returns the number of sequences that it is charged for now.
    pub(crate) fn counted_sequences(&self) -> usize {
        if self.stall.is_some() { 0 } else { self.sequences.min(self.unfinished as usize) }
    }
}

/// Updates the stalls of all running jobs.
pub(crate) fn update_stalls(running: &mut [Running]) {
    let now = Instant::now();
    running.iter_mut().for_each(|job| job.update_stall(now));
}

/// Returns the client of each job that can be stepped.
pub(crate) fn stepping(running: &[Running]) -> impl Iterator<Item = u64> {
    running.iter().filter(|job| job.stall.is_none()).map(Running::client)
}

/// Collects at most `rows_max` rows from all jobs for step number `step`. The client that has waited longest
/// is scheduled first; ties go to the client with the fewest rows last time. Each client gets an equal share,
/// regardless of how many jobs it has, and each of its jobs gets an equal part of that share. Unused rows go
/// to later jobs and clients, so that large searches use the rows that texts leave unused. The client
/// `barred` gets none. `ask` returns `None` for a job that does not take part.
pub(crate) fn collect_rows(
    running: &mut [Running],
    rows_max: usize,
    step: u64,
    barred: Option<u64>,
    mut ask: impl FnMut(&mut Running, usize) -> Option<Vec<PathRow>>,
) -> (Vec<Row>, Vec<Share>) {
    let rows_max = rows_max.max(1);
    let mut rows = Vec::new();
    let mut shares = Vec::new();
    let clients = by_client(running, barred);
    for (position, jobs) in clients.iter().enumerate() {
        let end = rows.len() + ((rows_max - rows.len()) / (clients.len() - position)).max(1);
        for (position, &index) in jobs.iter().enumerate() {
            // With more clients than rows, the last clients get none.
            let left = end.min(rows_max).saturating_sub(rows.len());
            if left == 0 {
                break;
            }
            let job = &mut running[index];
            let Some(paths) = ask(job, (left / (jobs.len() - position)).max(1)) else { continue };
            job.last_step = LastStep { number: step, rows: paths.len() };
            shares.push(Share { context: job.context, first_row: rows.len(), rows: paths.len() });
            rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
        }
    }
    (rows, shares)
}

/// Returns the jobs that can be stepped, grouped by client; clients and jobs are in scheduling order.
fn by_client(running: &[Running], barred: Option<u64>) -> Vec<Vec<usize>> {
    let mut clients: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, job) in running.iter().enumerate() {
        if job.stall.is_none() && Some(job.client()) != barred {
            clients.entry(job.client()).or_default().push(index);
        }
    }
    let mut clients: Vec<Vec<usize>> = clients.into_values().collect();
    for jobs in &mut clients {
        jobs.sort_by_key(|&job| running[job].last_step);
    }
    clients.sort_by_key(|jobs| last_step(running, jobs));
    clients
}

/// Returns the last step with rows of any of these jobs, and its number of rows.
fn last_step(running: &[Running], jobs: &[usize]) -> LastStep {
    let number = jobs.iter().map(|&job| running[job].last_step.number).max().unwrap_or_default();
    let then = jobs.iter().map(|&job| running[job].last_step).filter(|step| step.number == number);
    LastStep { number, rows: then.map(|step| step.rows).sum() }
}
