//! Which rows a step computes: every job has a share, and what one does not use is for the others.

use ntl_core::engine::Row;

use super::run::Running;

/// Rows of one running job within a step.
pub(super) struct Share {
    pub(super) running: usize,
    pub(super) first_row: usize,
    pub(super) rows: usize,
}

/// Asks jobs for rows, at most `rows_max` in all, in step number `step`. Who waited longest comes first, and of these who
/// had the fewest rows last time: so large searches share what texts leave over.
pub(super) fn collect(running: &mut [Running], rows_max: usize, step: u64) -> (Vec<Row>, Vec<Share>) {
    let can_step = |job: &Running| !job.waits && job.events.has_room();
    let mut order: Vec<usize> = (0..running.len()).filter(|&job| can_step(&running[job])).collect();
    order.sort_by_key(|&job| running[job].stepped);
    order.truncate(rows_max.max(1));
    let (mut rows, mut shares) = (Vec::new(), Vec::with_capacity(order.len()));
    for (place, &index) in order.iter().enumerate() {
        let (left, jobs) = (rows_max.max(1) - rows.len(), order.len() - place);
        let job = &mut running[index];
        let paths = job.decoding.next_rows((left / jobs).max(1));
        job.stepped = (step, paths.len());
        shares.push(Share { running: index, first_row: rows.len(), rows: paths.len() });
        rows.extend(paths.into_iter().map(|path| Row { context: job.context, path }));
    }
    (rows, shares)
}
