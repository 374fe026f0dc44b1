//! The running jobs, and how they share the rows of a step.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use ntl_core::decoding::Decoding;
use ntl_core::engine::{ContextId, EngineError, PathRow, Row};

use crate::budget::Reservation;
use crate::queue::Submission;

/// A job whose context is open.
pub(crate) struct Running {
    // Declared before the events, so that it is given back when a client has read the last one.
    pub(crate) memory: Reservation,
    /// What it starts again from, where memory ends.
    pub(crate) submission: Box<Submission>,
    pub(crate) context: ContextId,
    pub(crate) decoding: Box<dyn Decoding>,
    pub(crate) prompt_tokens: usize,
    /// Rows stepped so far: the number of its next node.
    pub(crate) nodes: u32,
    /// Sequences that have not ended yet.
    pub(crate) unfinished: u32,
    /// The most sequences that it counts as.
    pub(crate) sequences: usize,
    /// Events that its client has from an earlier start.
    pub(crate) events_skipped: usize,
    /// Events of this start, those that are skipped included.
    pub(crate) events: usize,
    /// While its client leaves too many events unread.
    pub(crate) stall: Option<Stall>,
    pub(crate) last_step: LastStep,
    /// When the last tokens of each text were decoded.
    pub(crate) last_tokens: BTreeMap<u32, Instant>,
    /// Why it ends before its decoding is complete.
    pub(crate) end: Option<EarlyEnd>,
}

/// A client that does not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stall {
    pub(crate) since: Instant,
    unread_bytes: usize,
}

/// Why a job takes no part in a step and leaves the running ones.
pub(crate) enum EarlyEnd {
    Failed(EngineError),
    /// It needs more memory than there is, and starts again when there is enough for all that it may need.
    OutOfMemory,
}

/// The last step that had rows of a job or client. Ordered: those with the smallest value are stepped first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LastStep {
    number: u64,
    rows: usize,
}

/// Rows of one running job within a step.
pub(crate) struct Share {
    /// Its place in the list of running jobs.
    pub(crate) running: usize,
    pub(crate) first_row: usize,
    pub(crate) rows: usize,
}

impl Running {
    pub(crate) fn client(&self) -> u64 {
        self.submission.job.client
    }

    /// Notes since when it cannot be stepped, because its client does not read.
    fn update_stall(&mut self, now: Instant) {
        let events = &self.submission.events;
        if events.has_room() {
            self.stall = None;
            return;
        }
        let unread_bytes = events.unread_bytes();
        let goes_on = self.stall.filter(|stall| stall.unread_bytes == unread_bytes);
        self.stall = goes_on.or(Some(Stall { since: now, unread_bytes }));
    }

    /// The sequences that it counts as now.
    pub(crate) fn counted_sequences(&self) -> usize {
        if self.stall.is_some() { 0 } else { self.sequences.min(self.unfinished as usize) }
    }
}

/// Notes which clients do not read.
pub(crate) fn update_stalls(running: &mut [Running]) {
    let now = Instant::now();
    running.iter_mut().for_each(|job| job.update_stall(now));
}

/// The clients with a job that can be stepped.
pub(crate) fn stepping(running: &[Running]) -> HashSet<u64> {
    running.iter().filter(|job| job.stall.is_none()).map(Running::client).collect()
}

/// Asks jobs for at most `rows_max` rows in all for step number `step`. The client that waited longest comes first; of equals
/// the one with the fewest rows last time. Each client gets an equal share, whatever the number of its jobs, and each of its
/// jobs an equal part of that. What a job or client does not use goes to later ones, so that large searches use what texts leave
/// over. `ask` returns `None` for a job that takes no part.
pub(crate) fn collect_rows(
    running: &mut [Running],
    rows_max: usize,
    step: u64,
    mut ask: impl FnMut(&mut Running, usize) -> Option<Vec<PathRow>>,
) -> (Vec<Row>, Vec<Share>) {
    let rows_max = rows_max.max(1);
    let (mut rows, mut shares) = (Vec::new(), Vec::new());
    let clients = by_client(running);
    for (place, jobs) in clients.iter().enumerate() {
        let end = rows.len() + ((rows_max - rows.len()) / (clients.len() - place)).max(1);
        for (place, &index) in jobs.iter().enumerate() {
            // A client among more than there are rows gets none.
            let left = end.min(rows_max).saturating_sub(rows.len());
            if left == 0 {
                break;
            }
            let job = &mut running[index];
            let Some(paths) = ask(job, (left / (jobs.len() - place)).max(1)) else { continue };
            job.last_step = LastStep { number: step, rows: paths.len() };
            shares.push(Share { running: index, first_row: rows.len(), rows: paths.len() });
            rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
        }
    }
    (rows, shares)
}

/// The jobs that can be stepped, by client, both in the order in which they come.
fn by_client(running: &[Running]) -> Vec<Vec<usize>> {
    let mut clients: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, job) in running.iter().enumerate().filter(|(_, job)| job.stall.is_none()) {
        clients.entry(job.client()).or_default().push(index);
    }
    let mut clients: Vec<Vec<usize>> = clients.into_values().collect();
    for jobs in &mut clients {
        jobs.sort_by_key(|&job| running[job].last_step);
    }
    clients.sort_by_key(|jobs| last_step(running, jobs));
    clients
}

/// The last step with rows of any of these jobs, and how many it had.
fn last_step(running: &[Running], jobs: &[usize]) -> LastStep {
    let number = jobs.iter().map(|&job| running[job].last_step.number).max().unwrap_or_default();
    let then = jobs.iter().map(|&job| running[job].last_step).filter(|step| step.number == number);
    LastStep { number, rows: then.map(|step| step.rows).sum() }
}
