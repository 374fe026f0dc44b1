//! The running jobs, and how they share the rows of a step.

use std::collections::BTreeMap;
use std::time::Instant;

use ntl_core::decoding::Decoding;
use ntl_core::engine::{ContextId, EngineError, Row};

use crate::channel::EventSender;
use crate::guard::guarded;
use crate::observer::EngineObserver;

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
    /// When the last tokens of each text were decoded.
    pub(crate) last_tokens: BTreeMap<u32, Instant>,
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

/// The rows of a step.
pub(crate) struct Collected {
    pub(crate) rows: Vec<Row>,
    pub(crate) shares: Vec<Share>,
    /// Places of jobs whose decoding panicked.
    pub(crate) failed: Vec<(usize, EngineError)>,
}

/// Asks jobs for at most `rows_max` rows in all for step number `step`. The job that waited longest comes first; of equals
/// the one with the fewest rows last time. Each job gets an equal share, and leaves what it does not use to later ones, so
/// that large searches use what texts leave over.
pub(crate) fn collect_rows(
    running: &mut [Running],
    rows_max: usize,
    step: u64,
    observer: &dyn EngineObserver,
) -> Collected {
    let can_step = |job: &Running| !job.is_paused && job.events.has_room();
    let mut order: Vec<usize> = (0..running.len()).filter(|&job| can_step(&running[job])).collect();
    order.sort_by_key(|&job| running[job].last_step);
    order.truncate(rows_max.max(1));
    let (mut rows, mut shares, mut failed) = (Vec::new(), Vec::with_capacity(order.len()), Vec::new());
    for (place, &index) in order.iter().enumerate() {
        let (left, jobs) = (rows_max.max(1) - rows.len(), order.len() - place);
        let job = &mut running[index];
        let paths = match guarded(observer, || Ok(job.decoding.next_rows((left / jobs).max(1)))) {
            Ok(paths) => paths,
            Err(error) => {
                failed.push((index, error));
                continue;
            }
        };
        job.last_step = LastStep { number: step, rows: paths.len() };
        shares.push(Share { running: index, first_row: rows.len(), rows: paths.len() });
        rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
    }
    Collected { rows, shares, failed }
}

#[cfg(test)]
mod tests {
    use ntl_core::decoding::{Progress, StepResult};
    use ntl_core::engine::{Event, PathRow};

    use super::*;
    use crate::channel::channel;
    use crate::observer::NoObserver;

    /// Has one row, or panics.
    struct Scripted {
        panics: bool,
    }

    impl Decoding for Scripted {
        fn next_rows(&mut self, _rows_max: usize) -> Vec<PathRow> {
            assert!(!self.panics, "a panic that this test provokes");
            vec![PathRow::new(None, 1)]
        }

        fn advance(&mut self, _: StepResult<'_>, _: &mut Vec<Event>) -> Result<Progress, EngineError> {
            Ok(Progress::Running)
        }
    }

    #[test]
    fn a_decoding_that_panics_before_a_step_fails_alone() {
        let mut clients = Vec::new();
        let mut running: Vec<Running> = [false, true, false]
            .into_iter()
            .zip(0..)
            .map(|(panics, number)| {
                let (events, client) = channel(|| {});
                clients.push(client);
                Running {
                    context: ContextId(number),
                    decoding: Box::new(Scripted { panics }),
                    events,
                    deadline: None,
                    nodes: 0,
                    sequences: 1,
                    cache_expected: 0,
                    prompt_tokens: 1,
                    is_paused: false,
                    last_step: LastStep::default(),
                    last_tokens: BTreeMap::new(),
                }
            })
            .collect();
        let Collected { rows, shares, failed } = collect_rows(&mut running, 8, 1, &NoObserver);
        let contexts: Vec<ContextId> = rows.iter().map(|row| row.context).collect();
        assert_eq!(contexts, [ContextId(0), ContextId(2)]);
        let places: Vec<usize> = shares.iter().map(|share| share.running).collect();
        assert_eq!(places, [0, 2]);
        assert_eq!(failed, [(1, EngineError::Step("the decoding panicked".to_owned()))]);
    }
}
