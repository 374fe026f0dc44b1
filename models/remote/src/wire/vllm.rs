//! `POST /v1/completions` of vLLM, and of ntl-server, which has the same fields.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::{Alternatives, Batch, Position, Rows, WireError, in_order, salt_text};

/// vLLM rejects requests for more ids.
pub const IDS_MAX: usize = 128;

/// Bytes of `"token_id:123456": -12.345678901234567,` and some more.
pub const ENTRY_BYTES: usize = 64;

/// The beginning of the names of tokens in responses to `return_tokens_as_token_ids`.
const ID_PREFIX: &str = "token_id:";

/// The body of a request for next-token probabilities, without its prompts. The sampling parameters are
/// neutral, because a vLLM with `--logprobs-mode processed_logprobs` reports probabilities after them, and
/// the defaults of a model may be others.
pub fn body(model: &str, batch: &Batch<'_>) -> Value {
    let mut body = json!({
        "model": model,
        "max_tokens": 1 + batch.ahead.tokens,
        "temperature": 0,
        "top_p": 1,
        "top_k": 0,
        "min_p": 0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "return_tokens_as_token_ids": true,
    });
    match batch.alternatives {
        Alternatives::Ids(ids) => {
            body["logprobs"] = 1.into();
            body["logprob_token_ids"] = ids.into();
        }
        Alternatives::Best(count) => body["logprobs"] = count.into(),
    }
    if let Some(ids) = &batch.ahead.among {
        body["allowed_token_ids"] = ids[..].into();
    }
    if let Some(salt) = salt_text(batch.cache_salt) {
        body["cache_salt"] = salt.into();
    }
    body
}

#[derive(Deserialize)]
struct VllmResponse {
    choices: Vec<VllmChoice>,
}

#[derive(Deserialize)]
struct VllmChoice {
    index: usize,
    logprobs: Option<VllmLogprobs>,
}

#[derive(Deserialize)]
struct VllmLogprobs {
    tokens: Vec<String>,
    top_logprobs: Vec<Entries>,
}

/// Reads a response. Each position has the requested tokens and the chosen one.
pub fn read(bytes: &[u8], batch: &Batch<'_>) -> Result<Rows, WireError> {
    let response: VllmResponse = serde_json::from_slice(bytes)?;
    let choices = in_order(response.choices, batch.rows, |_, choice| choice.index)?;
    let mut rows = Vec::with_capacity(choices.len());
    for (row, choice) in choices.into_iter().enumerate() {
        let VllmLogprobs { tokens, top_logprobs } = choice.logprobs.ok_or(WireError::NoLogprobs(row))?;
        let (got, max) = (tokens.len(), 1 + batch.ahead.tokens);
        if got == 0 || got > max || got != top_logprobs.len() {
            return Err(WireError::Steps { row, got, max });
        }
        let mut positions = Vec::with_capacity(got);
        for (chosen, entries) in tokens.iter().zip(top_logprobs) {
            positions.push(position(chosen, entries, batch)?);
        }
        rows.push(positions);
    }
    Ok(rows)
}

fn position(chosen: &str, entries: Entries, batch: &Batch<'_>) -> Result<Position, WireError> {
    let chosen = token_id(chosen)?;
    let mut reported = Vec::with_capacity(entries.0.len());
    for (name, logprob) in entries.0 {
        reported.push((token_id(&name)?, logprob));
    }
    match batch.alternatives {
        Alternatives::Ids(ids) => {
            reported.retain(|(id, _)| *id == chosen || ids.binary_search(id).is_ok());
            let found: BTreeSet<u32> = reported.iter().map(|(id, _)| *id).collect();
            if let Some(&missing) = ids.iter().find(|id| !found.contains(id)) {
                return Err(WireError::IdMissing(missing));
            }
        }
        // A chosen token that is not one of the best comes in addition.
        Alternatives::Best(max) if reported.len() > max + 1 => {
            return Err(WireError::TooMany { got: reported.len(), max });
        }
        Alternatives::Best(max) if reported.len() > max => reported.retain(|(id, _)| *id != chosen),
        Alternatives::Best(_) => {}
    }
    let entries = reported.into_iter().map(|(id, logprob)| (batch.known(id), logprob));
    let position = Position::new(batch.known(chosen), entries, batch.alternatives);
    let is_ids = matches!(batch.alternatives, Alternatives::Ids(_));
    // A token that is the best of some ids does not bound the others.
    Ok(if is_ids && batch.ahead.among.is_some() { position.without_cut() } else { position })
}

fn token_id(name: &str) -> Result<u32, WireError> {
    let id = name.strip_prefix(ID_PREFIX).and_then(|id| id.parse().ok());
    id.ok_or_else(|| WireError::NotAnId(name.to_owned()))
}

/// The entries of an object in their order, repeated names included.
pub(super) struct Entries(pub(super) Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of log-probabilities")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use ntl_core::contract::{NextTokenReport, TokenLogprob};

    use super::*;
    use crate::engine::Ahead;
    use crate::wire::answers;
    use crate::wire::written::read_completion;

    /// SmolLM2-135M on vLLM 0.32.0.
    const VOCAB: usize = 49_152;

    fn report(tokens: &[(u32, f64)], cut: f64) -> NextTokenReport {
        let tokens = tokens.iter().map(|&(id, logprob)| TokenLogprob { id, logprob });
        NextTokenReport::new(tokens, Some(cut)).unwrap()
    }

    fn reports(response: &str, rows: usize, alternatives: Alternatives<'_>) -> Vec<NextTokenReport> {
        let batch = Batch { rows, alternatives, ahead: &Ahead::NONE, cache_salt: 0, vocab: VOCAB };
        let read = read(response.as_bytes(), &batch).unwrap();
        answers(read).unwrap().into_iter().map(|answer| answer.report).collect()
    }

    #[test]
    fn a_recorded_response_has_the_requested_ids_and_the_chosen_token_which_bounds_the_others() {
        let response = include_str!("../../tests/recorded/vllm-ids.json");
        let got = reports(response, 2, Alternatives::Ids(&[2, 32, 33, 34]));
        let first = [
            (253, -1.9474025964736938),
            (2, -19.559194564819336),
            (32, -13.052340507507324),
            (33, -12.40794563293457),
            (34, -10.722118377685547),
        ];
        assert_eq!(got[0], report(&first, -1.9474025964736938));
        let second = [
            (28, -1.4172780513763428),
            (2, -15.075899124145508),
            (32, -12.91523551940918),
            (33, -10.74742317199707),
            (34, -10.059408187866211),
        ];
        assert_eq!(got[1], report(&second, -1.4172780513763428));
    }

    #[test]
    fn a_recorded_response_has_the_best_tokens_the_least_of_which_bounds_the_others() {
        let response = include_str!("../../tests/recorded/vllm-top.json");
        let best = [
            (253, -1.9474025964736938),
            (260, -2.084498882293701),
            (216, -3.523332118988037),
            (2567, -3.734872341156006),
            (1015, -3.826667308807373),
        ];
        assert_eq!(reports(response, 1, Alternatives::Best(5)), [report(&best, -3.826667308807373)]);
    }

    #[test]
    fn a_recorded_text_has_its_ids() {
        let written = read_completion(include_bytes!("../../tests/recorded/vllm-write.json")).unwrap();
        assert!(written.text.starts_with(" a day, but") && written.text.ends_with(" new chapter"));
        assert_eq!(written.ids.unwrap().len(), 20);
    }
}
