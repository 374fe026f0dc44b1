//! The memory of a job here: its prompt, its trees, and the requests that it has in flight.

use ntl_core::contract::{Job, Request, TokenLogprob};

use super::decode::{KNOWN_MAX, ROWS_MAX};

/// Maximum size of the bodies and responses that one search has in flight, unless a single request has more.
pub(crate) const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// Bytes of an id in a JSON body, with its comma.
pub(crate) const ID_BYTES: usize = 8;

/// Bytes of the report about one row, with the response that it is read from.
const REPORT_BYTES: usize = 8 << 10;

/// Bytes of a row after it was computed, in addition to its tree: its parent and its token.
const ROW_BYTES: usize = 32;

/// Returns the maximum memory of a job that computes `nodes` rows, in bytes.
pub(super) fn job_bytes(job: &Job, nodes: usize) -> u64 {
    let prompt = job.prompt.len();
    // Searches that run at the same time.
    let searches = match &job.request {
        Request::Number(number) => number.after.as_ref().map_or(1, |after| after.rationales.max(1) as usize),
        request => request.sequences() as usize,
    };
    let rows = (nodes / searches.max(1)).clamp(1, ROWS_MAX);
    let row = prompt.saturating_mul(ID_BYTES).saturating_add(REPORT_BYTES);
    let in_flight = rows.saturating_mul(row).min(IN_FLIGHT_BYTES_MAX).max(row);
    let known = rows.saturating_mul(REPORT_BYTES).min(KNOWN_MAX * size_of::<TokenLogprob>());
    let host = prompt
        .saturating_mul(size_of::<u32>())
        .saturating_add(nodes.saturating_mul(ROW_BYTES))
        .saturating_add(searches.saturating_mul(in_flight.saturating_add(known)));
    job.host_bytes(nodes).saturating_add(host as u64)
}
