//! `POST /completion` of llama.cpp's server.
//!
//! It reports the most probable tokens, never given ones. A bias on given ids makes them the most probable
//! ones. The bias is the same for all of them, so that the ratios of their probabilities stay those of the
//! model. A first request without bias has the true probability of one of them.

use std::collections::HashSet;

use ntl_core::contract::TokenLogprob;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Alternatives, Batch, Position, Rows, WireError, in_order, one_or_several};

/// Bytes of an entry such as `{"id":49151,"token":" x","bytes":[32,120],"prob":1.234567812345678e-12}`, with
/// a token of some length.
pub const ENTRY_BYTES: usize = 512;

/// The bias on given ids. Ids that are e^32 (8e13) times less probable than another token may still be
/// missing. llama.cpp adds it to a logit in single precision, which changes a probability by a factor of at
/// most 1 ± 4e-6 if the sum is below 64.
const BIAS: f32 = 32.0;

/// The first random number of this seed is 8e-7, and llama.cpp chooses the first of the sorted tokens whose
/// cumulative probability exceeds it: the most probable one. A random token is often a part of a character,
/// whose probabilities llama.cpp leaves out of its response.
const GREEDY_SEED: u32 = 1_429_639;

/// Number of the most probable tokens in a request without bias. With fewer, more rows lack ids of numbers,
/// and each such row costs a second one. An entry costs llama.cpp about a microsecond, a row a pass through
/// the model.
pub const BEST: usize = 512;

/// Probability of wanted ids that may stay unreported although another request would report it.
const UNREPORTED_MAX: f64 = 1e-4;

/// How llama.cpp computes the probabilities that it reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probabilities {
    /// After sampling, with no sampler that changes them: the model's own, normalised in double precision.
    PostSampling,
    /// Before sampling. llama.cpp normalises them in single precision, so that all are too large by the same
    /// factor, 1.0001 for 49,152 tokens.
    Raw,
}

/// The body of a request, without its prompts, for the most probable tokens or, with
/// [`Probabilities::PostSampling`], for given ids. All requests of a tree name the same slot, whose cache has
/// their prompt.
pub fn body(batch: &Batch<'_>, probabilities: Probabilities, slot: Option<usize>) -> Value {
    let mut body = json!({
        "n_predict": 1 + batch.ahead.tokens,
        "n_probs": batch.alternatives.count(),
        "cache_prompt": true,
        "ignore_eos": false,
        "stream": false,
    });
    match probabilities {
        Probabilities::Raw => body["temperature"] = 0.into(),
        Probabilities::PostSampling => {
            body["post_sampling_probs"] = true.into();
            body["seed"] = GREEDY_SEED.into();
            // It sorts all tokens.
            body["samplers"] = json!(["top_k"]);
            body["top_k"] = i32::MAX.into();
        }
    }
    if let Alternatives::Ids(ids) = batch.alternatives {
        // Only their ratios are used, so the sampler may drop all other tokens before it sorts.
        body["top_k"] = ids.len().into();
        body["logit_bias"] = ids.iter().map(|id| json!([id, BIAS])).collect();
    }
    if let Some(slot) = slot {
        body["id_slot"] = slot.into();
    }
    body
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
    #[serde(alias = "top_probs")]
    top_logprobs: Vec<LlamaCppEntry>,
}

/// Has one of the two, as [`Probabilities`] says.
#[derive(Deserialize)]
struct LlamaCppEntry {
    id: u32,
    logprob: Option<f64>,
    prob: Option<f64>,
}

/// Reads a response. Each position has the most probable tokens. The positions of given ids are distributions
/// over these ids only: [`complete`] makes use of them.
pub fn read(bytes: &[u8], batch: &Batch<'_>) -> Result<Rows, WireError> {
    let completions: Vec<Completion> = one_or_several(bytes)?;
    let completions = in_order(completions, batch.rows, |place, completion| match completion.index {
        Some(index) if batch.rows != 1 => index,
        _ => place,
    })?;
    let mut rows = Vec::with_capacity(completions.len());
    for (row, completion) in completions.into_iter().enumerate() {
        let chosen = completion.completion_probabilities;
        let (got, max) = (chosen.len(), 1 + batch.ahead.tokens);
        if got > max {
            return Err(WireError::Steps { row, got, max });
        }
        let mut positions = Vec::with_capacity(got.max(1));
        for chosen in chosen {
            positions.push(position(chosen, row, batch)?);
        }
        if positions.is_empty() {
            // The most probable token is a part of a character. Nothing is known about the row.
            positions.push(Position::default());
        }
        rows.push(positions);
    }
    Ok(rows)
}

fn position(chosen: Chosen, row: usize, batch: &Batch<'_>) -> Result<Position, WireError> {
    let (got, max) = (chosen.top_logprobs.len(), batch.alternatives.count());
    if got > max {
        return Err(WireError::TooMany { got, max });
    }
    let mut entries = Vec::with_capacity(got);
    for entry in chosen.top_logprobs {
        let logprob = entry.logprob.or(entry.prob.map(f64::ln)).ok_or(WireError::NoLogprobs(row))?;
        entries.push((batch.known(entry.id), logprob));
    }
    Ok(Position::new(batch.known(chosen.id), entries, batch.alternatives))
}

/// Returns whether a position lacks wanted ids, or, unless it needs all, such ids that may be too probable.
pub fn is_short_of(position: &Position, wanted: &[u32], needs_all: bool) -> bool {
    let known: HashSet<u32> = position.reported.iter().map(|token| token.id).collect();
    let missing = wanted.iter().filter(|id| !known.contains(id)).count();
    if needs_all {
        return missing > 0;
    }
    let rest = 1.0 - position.reported.iter().map(|token| token.logprob.exp()).sum::<f64>();
    let each = position.cut.map_or(1.0, f64::exp);
    rest.min(each * missing as f64) > UNREPORTED_MAX
}

/// Returns the most probable token of a position.
pub fn anchor(position: &Position) -> Option<u32> {
    let best = position.reported.iter().max_by(|a, b| a.logprob.total_cmp(&b.logprob));
    best.map(|token| token.id)
}

/// Adds the ids that a position lacks from a response with bias on `ids`, which include its anchor.
pub fn complete(position: &mut Position, biased: &Position, ids: &[u32]) -> Result<(), WireError> {
    let Some(anchor) = anchor(position) else { return Ok(()) };
    let (Some(own), Some(other)) = (position.logprob(anchor), biased.logprob(anchor)) else {
        return Err(WireError::IdMissing(anchor));
    };
    let known: HashSet<u32> = position.reported.iter().map(|token| token.id).collect();
    let mut added = Vec::new();
    for &TokenLogprob { id, logprob } in &biased.reported {
        if !known.contains(&id) && ids.binary_search(&id).is_ok() {
            // The position has all tokens above its cut. Rounding must not lift others over it.
            let logprob = (logprob + own - other).min(position.cut.unwrap_or(0.0));
            added.push(TokenLogprob { id, logprob });
        }
    }
    if biased.reported.len() < ids.len() {
        // llama.cpp leaves out probabilities that are 0 in single precision.
        let found: HashSet<u32> = biased.reported.iter().map(|token| token.id).collect();
        let zero = ids.iter().filter(|id| !found.contains(id) && !known.contains(id));
        added.extend(zero.map(|&id| TokenLogprob { id, logprob: f64::NEG_INFINITY }));
    }
    position.reported.extend(added);
    Ok(())
}
