//! `POST /v1/completions` of any OpenAI-style server. It reports tokens as texts; those that belong to one
//! token of the vocabulary are used.

use serde::Deserialize;
use serde_json::{Value, json};

use super::texts::TokenTexts;
use super::vllm::Entries;
use super::{Alternatives, Batch, Position, Rows, WireError, in_order};

/// Bytes of `" token": -12.345678901234567,` in either shape, with a token of some length.
pub const ENTRY_BYTES: usize = 512;

/// The body of a request for the most probable tokens, without its prompts.
pub fn body(model: &str, batch: &Batch<'_>) -> Value {
    json!({
        "model": model,
        "max_tokens": 1 + batch.ahead.tokens,
        "temperature": 0,
        "logprobs": batch.alternatives.count(),
    })
}

#[derive(Deserialize)]
struct OpenAiResponse {
    choices: Vec<OpenAiChoice>,
}

#[derive(Deserialize)]
struct OpenAiChoice {
    index: usize,
    logprobs: Option<OpenAiLogprobs>,
}

/// The shape of completions, or the shape of chats, which some servers use for both.
#[derive(Deserialize)]
#[serde(untagged)]
enum OpenAiLogprobs {
    Chat { content: Vec<ChatToken> },
    Completion { tokens: Vec<String>, top_logprobs: Vec<Entries> },
}

#[derive(Deserialize)]
struct ChatToken {
    token: String,
    bytes: Option<Vec<u8>>,
    top_logprobs: Vec<ChatEntry>,
}

#[derive(Deserialize)]
struct ChatEntry {
    token: String,
    bytes: Option<Vec<u8>>,
    logprob: f64,
}

/// Reads a response. Each position has the most probable tokens.
pub fn read(bytes: &[u8], batch: &Batch<'_>, texts: &TokenTexts) -> Result<Rows, WireError> {
    let response: OpenAiResponse = serde_json::from_slice(bytes)?;
    let choices = in_order(response.choices, batch.rows, |_, choice| choice.index)?;
    let mut rows = Vec::with_capacity(choices.len());
    for (row, choice) in choices.into_iter().enumerate() {
        let logprobs = choice.logprobs.ok_or(WireError::NoLogprobs(row))?;
        let positions = positions(logprobs, row, batch.alternatives, texts)?;
        let (got, max) = (positions.len(), 1 + batch.ahead.tokens);
        if got == 0 || got > max {
            return Err(WireError::Steps { row, got, max });
        }
        rows.push(positions);
    }
    Ok(rows)
}

/// Returns how many alternatives the positions of a response have at most: servers may return fewer than were
/// requested.
pub fn alternatives(bytes: &[u8]) -> Option<usize> {
    let response: OpenAiResponse = serde_json::from_slice(bytes).ok()?;
    match response.choices.into_iter().next()?.logprobs? {
        OpenAiLogprobs::Chat { content } => content.iter().map(|token| token.top_logprobs.len()).max(),
        OpenAiLogprobs::Completion { top_logprobs, .. } => {
            top_logprobs.iter().map(|entries| entries.0.len()).max()
        }
    }
}

fn positions(
    logprobs: OpenAiLogprobs,
    row: usize,
    alternatives: Alternatives<'_>,
    texts: &TokenTexts,
) -> Result<Vec<Position>, WireError> {
    match logprobs {
        OpenAiLogprobs::Completion { tokens, top_logprobs } => {
            if tokens.len() != top_logprobs.len() {
                return Err(WireError::NoLogprobs(row));
            }
            let mut positions = Vec::with_capacity(tokens.len());
            for (chosen, Entries(top)) in tokens.iter().zip(top_logprobs) {
                let entries = top.into_iter().map(|(text, logprob)| (text.into_bytes(), logprob));
                positions.push(position(chosen.as_bytes(), entries, alternatives, texts)?);
            }
            Ok(positions)
        }
        OpenAiLogprobs::Chat { content } => {
            let mut positions = Vec::with_capacity(content.len());
            for chosen in content {
                let entries = chosen.top_logprobs.into_iter();
                let entries = entries.map(|entry| (token_bytes(entry.token, entry.bytes), entry.logprob));
                let chosen = token_bytes(chosen.token, chosen.bytes);
                positions.push(position(&chosen, entries, alternatives, texts)?);
            }
            Ok(positions)
        }
    }
}

/// The bytes of a token, which its text may not have.
fn token_bytes(text: String, bytes: Option<Vec<u8>>) -> Vec<u8> {
    bytes.unwrap_or_else(|| text.into_bytes())
}

fn position(
    chosen: &[u8],
    entries: impl Iterator<Item = (Vec<u8>, f64)>,
    alternatives: Alternatives<'_>,
    texts: &TokenTexts,
) -> Result<Position, WireError> {
    let mut entries: Vec<(Vec<u8>, f64)> = entries.collect();
    let (got, count) = (entries.len(), alternatives.count());
    // A chosen token that is not one of the best comes in addition.
    if got > count + 1 {
        return Err(WireError::TooMany { got, max: count });
    }
    if got > count {
        entries.retain(|(text, _)| text != chosen);
    }
    let mut known = Vec::with_capacity(entries.len());
    for (text, logprob) in &entries {
        // Two entries with one text are two tokens, and it is unknown which.
        let is_single = entries.iter().filter(|(other, _)| other == text).count() == 1;
        known.push((if is_single { texts.id(text) } else { None }, *logprob));
    }
    Ok(Position::new(texts.id(chosen), known, alternatives))
}
