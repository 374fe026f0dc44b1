//! The memory of a job here: its prompt, its trees, and the requests that it has in flight.

use ntl_core::contract::{Job, Request, TokenLogprob};
use serde_json::{Map, Value};

use super::chats::ChatJob;
use super::decode::{KNOWN_MAX, ROWS_MAX};

/// Maximum size of the bodies and responses that one search has in flight, unless a single request has more.
pub(crate) const IN_FLIGHT_BYTES_MAX: usize = 4 << 20;

/// Bytes of an id in a JSON body, with its comma.
pub(crate) const ID_BYTES: usize = 8;

/// Bytes of the report about one row, with the response that it is read from.
const REPORT_BYTES: usize = 8 << 10;

/// Bytes of a row after it was computed, in addition to its tree: its parent and its token.
const ROW_BYTES: usize = 32;

/// Bytes of a text in a JSON body, at most: an escaped character.
const CHARACTER_BYTES: usize = 2;

/// Bytes of the answer to a chat, and of its reading later.
const ANSWER_BYTES: usize = 16 << 10;
const READING_BYTES: usize = 256;

/// Returns the usual memory of a job that samples answers: its chat, the requests in flight, and what was
/// read.
pub(super) fn chat_job_bytes(job: &ChatJob) -> u64 {
    let chat = chat_bytes(&job.chat);
    let samples = job.samples();
    let request = chat.saturating_mul(CHARACTER_BYTES).saturating_add(ANSWER_BYTES);
    let in_flight = request.saturating_mul(samples.min(ROWS_MAX)).min(IN_FLIGHT_BYTES_MAX).max(request);
    (chat + in_flight + samples.saturating_mul(READING_BYTES)) as u64
}

/// Bytes of the texts of a chat.
fn chat_bytes(chat: &Map<String, Value>) -> usize {
    let mut bytes = 0;
    let mut values: Vec<&Value> = chat.values().collect();
    while let Some(value) = values.pop() {
        bytes += size_of::<Value>();
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(list) => values.extend(list),
            Value::Object(fields) => values.extend(fields.values()),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    bytes
}

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
