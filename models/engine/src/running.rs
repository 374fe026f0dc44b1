//! The running jobs, and how they share the rows of a step.

use std::time::Instant;

use ntl_core::decoding::Decoding;
use ntl_core::engine::{ContextId, EngineError, Row};

use crate::channel::EventSender;

/// A job whose context is open.
pub(crate) struct Running {
    pub(crate) context: ContextId,
    pub(crate) decoding: Box<dyn Decoding>,
    pub(crate) events: EventSender,
    pub(crate) deadline: Option<(Instant, EngineError)>,
    /// Rows stepped so far: the number of its next node.
    pub(crate) nodes: u32,
    /// Sequences that have not ended yet.
    pub(crate) sequences: u32,
    /// Expected size of its context.
    pub(crate) cache_expected: u64,
    pub(crate) prompt_tokens: usize,
    /// Whether it is paused until other jobs free memory.
    pub(crate) is_paused: bool,
    pub(crate) last_step: LastStep,
}

/// The last step that had rows of a job. Ordered: jobs with the smallest value are stepped first.
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

/// Asks jobs for at most `rows_max` rows in all for step number `step`. The job that waited longest comes first; of equals
/// the one with the fewest rows last time. Each job gets an equal share, and leaves what it does not use to later ones, so
/// that large searches use what texts leave over.
pub(crate) fn collect_rows(running: &mut [Running], rows_max: usize, step: u64) -> (Vec<Row>, Vec<Share>) {
    let can_step = |job: &Running| !job.is_paused && job.events.has_room();
    let mut order: Vec<usize> = (0..running.len()).filter(|&job| can_step(&running[job])).collect();
    order.sort_by_key(|&job| running[job].last_step);
    order.truncate(rows_max.max(1));
    let (mut rows, mut shares) = (Vec::new(), Vec::with_capacity(order.len()));
    for (place, &index) in order.iter().enumerate() {
        let (left, jobs) = (rows_max.max(1) - rows.len(), order.len() - place);
        let job = &mut running[index];
        let paths = job.decoding.next_rows((left / jobs).max(1));
        job.last_step = LastStep { number: step, rows: paths.len() };
        shares.push(Share { running: index, first_row: rows.len(), rows: paths.len() });
        rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
    }
    (rows, shares)
}
