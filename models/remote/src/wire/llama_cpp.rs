//! `POST /completion` of llama.cpp's server.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Batch, Position, Rows, WireError, in_order};

/// Bytes of an entry such as `{"id":49151,"token":" x","bytes":[32,120],"logprob":-12.345678}`, with a token of some
/// length.
pub(crate) const ENTRY_BYTES: usize = 512;

/// The body of a request for the most probable tokens.
pub(crate) fn body(batch: &Batch<'_>) -> Value {
    json!({
        "prompt": batch.rows,
        "n_predict": 1 + batch.ahead,
        "n_probs": batch.alternatives.count(),
        "temperature": 0,
        "cache_prompt": true,
        "post_sampling_probs": false,
        "ignore_eos": false,
        "stream": false,
    })
}

/// A single prompt has its answer without a list around it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Response {
    Several(Vec<Completion>),
    One(Completion),
}

#[derive(Deserialize)]
struct Completion {
    index: Option<usize>,
    #[serde(default)]
    completion_probabilities: Vec<Chosen>,
}

#[derive(Deserialize)]
struct Chosen {
    id: u32,
    top_logprobs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    id: u32,
    logprob: f64,
}

/// Reads a response. Each position has the most probable tokens.
pub(crate) fn read(bytes: &[u8], batch: &Batch<'_>) -> Result<Rows, WireError> {
    let completions = match serde_json::from_slice(bytes)? {
        Response::Several(completions) => completions,
        Response::One(completion) => vec![completion],
    };
    let only = batch.rows.len() == 1;
    let index = |place, completion: &Completion| if only { place } else { completion.index.unwrap_or(place) };
    let completions = in_order(completions, batch.rows.len(), index)?;
    let row = |(row, completion): (usize, Completion)| {
        let positions = completion.completion_probabilities;
        let (got, max) = (positions.len(), 1 + batch.ahead);
        if got == 0 || got > max {
            return Err(WireError::Steps { row, got, max });
        }
        positions.into_iter().map(|chosen| position(chosen, batch)).collect()
    };
    completions.into_iter().enumerate().map(row).collect()
}

fn position(chosen: Chosen, batch: &Batch<'_>) -> Result<Position, WireError> {
    let (got, max) = (chosen.top_logprobs.len(), batch.alternatives.count());
    if got > max {
        return Err(WireError::TooMany { got, max });
    }
    let entries = chosen.top_logprobs.into_iter().map(|entry| (batch.known(entry.id), entry.logprob));
    Ok(Position::new(batch.known(chosen.id), entries))
}
