//! `POST /generate` of SGLang.

use std::collections::BTreeSet;

use ntl_core::sampling::SamplingParams;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::written::{AMONG_BIAS, Written};
use super::{Alternatives, Batch, Position, Rows, WireError, salt_text, usage};
use crate::engine::{TextEnd, TextQuery};

/// The name of the prompts in a body.
pub const PROMPTS: &str = "input_ids";

/// Bytes of `[-12.345678901234567,123456,null],` and some more.
pub const ENTRY_BYTES: usize = 64;

/// The body of a request for next-token probabilities, without its prompts.
pub fn body(batch: &Batch<'_>) -> Value {
    let mut body = json!({
        "sampling_params": {"max_new_tokens": 1 + batch.ahead.tokens, "temperature": 0},
        "return_logprob": true,
        // Nothing is reported about the prompt.
        "logprob_start_len": -1,
    });
    match batch.alternatives {
        Alternatives::Ids(ids) => body["token_ids_logprob"] = ids.into(),
        Alternatives::Best(count) => body["top_logprobs_num"] = count.into(),
    }
    if let Some(salt) = salt_text(batch.cache_salt) {
        body["cache_salt"] = salt.into();
    }
    body
}

#[derive(Deserialize)]
struct Completion {
    meta_info: MetaInfo,
}

#[derive(Deserialize)]
struct MetaInfo {
    output_token_logprobs: Vec<Entry>,
    output_top_logprobs: Option<Vec<Vec<Entry>>>,
    output_token_ids_logprobs: Option<Vec<Vec<Entry>>>,
}

/// A log-probability, its token id, and the token's text, which is not requested.
#[derive(Deserialize)]
struct Entry(f64, u32, IgnoredAny);

/// Reads a response. Each position has the requested tokens and, among given ids, the chosen one.
pub fn read(bytes: &[u8], batch: &Batch<'_>) -> Result<Rows, WireError> {
    let completions: Vec<Completion> = serde_json::from_slice(bytes)?;
    let (got, want) = (completions.len(), batch.rows);
    if got != want {
        return Err(WireError::Rows { got, want });
    }
    let mut rows = Vec::with_capacity(got);
    for (row, Completion { meta_info }) in completions.into_iter().enumerate() {
        let chosen = meta_info.output_token_logprobs;
        let reported = match batch.alternatives {
            Alternatives::Ids(_) => meta_info.output_token_ids_logprobs,
            Alternatives::Best(_) => meta_info.output_top_logprobs,
        };
        let reported = reported.ok_or(WireError::NoLogprobs(row))?;
        let (got, max) = (chosen.len(), 1 + batch.ahead.tokens);
        if got == 0 || got > max || got != reported.len() {
            return Err(WireError::Steps { row, got, max });
        }
        let mut positions = Vec::with_capacity(got);
        for (chosen, reported) in chosen.into_iter().zip(reported) {
            positions.push(position(chosen, reported, batch)?);
        }
        rows.push(positions);
    }
    Ok(rows)
}

fn position(chosen: Entry, reported: Vec<Entry>, batch: &Batch<'_>) -> Result<Position, WireError> {
    let Entry(chosen_logprob, chosen, _) = chosen;
    let mut entries = Vec::with_capacity(reported.len() + 1);
    match batch.alternatives {
        Alternatives::Ids(ids) => {
            let mut found = BTreeSet::new();
            for Entry(logprob, id, _) in reported {
                if ids.binary_search(&id).is_ok() && found.insert(id) {
                    entries.push((batch.known(id), logprob));
                }
            }
            if let Some(&missing) = ids.iter().find(|id| !found.contains(id)) {
                return Err(WireError::IdMissing(missing));
            }
            if !found.contains(&chosen) {
                entries.push((batch.known(chosen), chosen_logprob));
            }
        }
        Alternatives::Best(max) => {
            let got = reported.len();
            if got > max {
                return Err(WireError::TooMany { got, max });
            }
            entries.extend(reported.into_iter().map(|Entry(logprob, id, _)| (batch.known(id), logprob)));
        }
    }
    Ok(Position::new(batch.known(chosen), entries, batch.alternatives))
}

/// The body of a request for a text, without its prompt.
pub fn text_body(query: &TextQuery, cache_salt: u64) -> Value {
    let SamplingParams { temperature, top_p, top_k, min_p, .. } = query.sampling;
    let among = query.among.iter().flat_map(|ids| ids.iter());
    let bias: Map<String, Value> = among.map(|id| (id.to_string(), AMONG_BIAS.into())).collect();
    let mut body = json!({
        "sampling_params": {
            "max_new_tokens": query.max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": if top_k == 0 { json!(-1) } else { json!(top_k) },
            "min_p": min_p,
            "presence_penalty": query.sampling.presence_penalty,
            "frequency_penalty": query.sampling.frequency_penalty,
            "repetition_penalty": query.sampling.repetition_penalty,
            // It is a signed number.
            "sampling_seed": query.seed() >> 1,
            "stop": query.stop.as_slice(),
        },
    });
    if !bias.is_empty() {
        body["sampling_params"]["logit_bias"] = bias.into();
    }
    if let Some(salt) = salt_text(cache_salt) {
        body["cache_salt"] = salt.into();
    }
    body
}

#[derive(Deserialize)]
struct Text {
    text: String,
    output_ids: Vec<u32>,
    meta_info: TextInfo,
}

#[derive(Deserialize)]
struct TextInfo {
    finish_reason: FinishReason,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum FinishReason {
    /// At a stop string, or at the id of a token that ends texts.
    Stop {
        matched: Value,
    },
    Length,
}

/// Reads a response with a text.
pub fn read_text(bytes: &[u8]) -> Result<Written, WireError> {
    let Text { text, output_ids, meta_info } = serde_json::from_slice(bytes)?;
    let end = match meta_info.finish_reason {
        FinishReason::Length => TextEnd::Length,
        FinishReason::Stop { matched: Value::String(_) } => TextEnd::StopString,
        FinishReason::Stop { .. } => TextEnd::EndOfSequence,
    };
    Ok(Written { text, ids: Some(output_ids), end: Some(end), usage: usage::of_sglang(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Ahead;

    const NONE: &Ahead = &Ahead::NONE;

    fn batch<'a>(alternatives: Alternatives<'a>, ahead: &'a Ahead) -> Batch<'a> {
        Batch { rows: 1, alternatives, ahead, cache_salt: 0, vocab: 10 }
    }

    fn response(info: Value) -> Vec<u8> {
        json!([{"text": "x", "output_ids": [4], "meta_info": info}]).to_string().into_bytes()
    }

    #[test]
    fn a_report_has_the_given_ids_and_the_chosen_one() {
        const AHEAD: &Ahead = &Ahead::greedy(1);
        let info = json!({
            "output_token_logprobs": [[-0.25, 4, null], [-0.5, 12, null]],
            "output_token_ids_logprobs": [[[-3.0, 2, null], [-2.0, 3, null]], [[-1.0, 2, null], [-9.0, 3, null]]],
        });
        let rows = read(&response(info), &batch(Alternatives::Ids(&[2, 3]), AHEAD)).unwrap();
        let [first, second] = &rows[0][..] else { panic!("two positions") };
        assert_eq!([2, 3, 4].map(|id| first.logprob(id)), [Some(-3.0), Some(-2.0), Some(-0.25)]);
        assert_eq!((first.chosen(), first.cut()), (Some(4), Some(-0.25)));
        assert_eq!(second.logprob(3), Some(-9.0));
        // The vocabulary has no such id.
        assert_eq!((second.chosen(), second.logprob(12)), (None, None));
    }

    #[test]
    fn responses_that_lack_something_are_errors() {
        let ids = batch(Alternatives::Ids(&[2, 3]), NONE);
        let chosen = json!([[-0.25, 4, null]]);
        let given =
            |entries: Value| json!({"output_token_logprobs": chosen, "output_token_ids_logprobs": entries});
        for (info, want) in [
            (given(json!([[[-3.0, 2, null]]])), "the requested token id 3 is missing"),
            (given(json!([])), "row 0 has 1 tokens"),
            (json!({"output_token_logprobs": chosen}), "row 0 has no log-probabilities"),
            (given(json!([[[null, 2, null]]])), "invalid type: null"),
        ] {
            let error = read(&response(info), &ids).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
        let many = json!({"output_token_logprobs": chosen, "output_top_logprobs": [[[-1.0, 1, null], [-2.0, 2, null]]]});
        let error = read(&response(many), &batch(Alternatives::Best(1), NONE)).unwrap_err();
        assert!(matches!(error, WireError::TooMany { got: 2, max: 1 }));
        assert!(matches!(read(b"[]", &ids), Err(WireError::Rows { got: 0, want: 1 })));
    }

    #[test]
    fn a_text_ends_at_a_stop_string_at_its_end_or_at_a_limit() {
        for (reason, want) in [
            (json!({"type": "stop", "matched": "####"}), TextEnd::StopString),
            (json!({"type": "stop", "matched": 2}), TextEnd::EndOfSequence),
            (json!({"type": "length", "length": 5}), TextEnd::Length),
        ] {
            let body = json!({"text": "a", "output_ids": [7, 8], "meta_info": {"finish_reason": reason}});
            let written = read_text(body.to_string().as_bytes()).unwrap();
            assert_eq!((written.end, written.ids), (Some(want), Some(vec![7, 8])));
        }
        let aborted =
            json!({"text": "", "output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}}});
        assert!(read_text(aborted.to_string().as_bytes()).is_err());
    }

    #[test]
    fn the_body_of_a_text_has_its_ids_as_a_bias() {
        let query = TextQuery {
            prompt: [3].into(),
            path: Vec::new(),
            sampling: SamplingParams::PLAIN,
            stream: 0,
            max_tokens: 1,
            stop: None,
            among: Some([5, 9].into()),
        };
        let body = text_body(&query, 10);
        assert_eq!(body["sampling_params"]["logit_bias"], json!({"5": 100.0, "9": 100.0}));
        assert_eq!(
            (&body["cache_salt"], &body["sampling_params"]["top_k"]),
            (&json!("000000000000000a"), &json!(-1))
        );
    }
}
