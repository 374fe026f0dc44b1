//! Text that an engine writes up to a stop string: bodies of requests, and readers of their responses.

use ntl_core::sampling::SamplingParams;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{WireError, salt_text, usage};
use crate::engine::{EngineUsage, TextEnd, TextQuery};

/// The bias of llama.cpp and SGLang on the ids that a text may consist of. No other id is e^100 times as
/// probable. llama.cpp adds the bias in single precision, which changes a probability by a factor of at most
/// 1 ± 4e-6 if the sum is below 128.
pub(super) const AMONG_BIAS: f32 = 100.0;

/// Text before the stop string, with the ids of text and stop string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub text: String,
    /// `None` if the engine reports no ids.
    pub ids: Option<Vec<u32>>,
    /// `None` if the engine does not say whether it stopped at the string or at the end of sequence.
    pub end: Option<TextEnd>,
    /// `None` if the engine reports no tokens.
    pub usage: Option<EngineUsage>,
}

/// The fields of `/v1/completions` that an engine knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextFields {
    /// OpenAI's fields, without `stop`: most of these servers do not say whether a text stopped at a stop
    /// string or at its end.
    OpenAi,
    /// Also vLLM's fields. `cache_salt`: see [`QueryContext::cache_salt`](crate::QueryContext::cache_salt).
    Extended { cache_salt: u64 },
}

/// The body for `/v1/completions`, without its prompt.
pub fn completion_body(model: &str, query: &TextQuery, fields: TextFields) -> Value {
    let SamplingParams { temperature, top_p, top_k, min_p, .. } = query.sampling;
    let mut body = json!({
        "model": model,
        "max_tokens": query.max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "presence_penalty": query.sampling.presence_penalty,
        "frequency_penalty": query.sampling.frequency_penalty,
        // vLLM's seeds are signed.
        "seed": query.seed() >> 1,
    });
    if let TextFields::Extended { cache_salt } = fields {
        if let Some(text) = &query.stop {
            body["stop"] = json!([text]);
        }
        if let Some(salt) = salt_text(cache_salt) {
            body["cache_salt"] = salt.into();
        }
        if let Some(ids) = &query.among {
            body["allowed_token_ids"] = ids[..].into();
        }
        body["top_k"] = top_k.into();
        body["min_p"] = min_p.into();
        body["repetition_penalty"] = query.sampling.repetition_penalty.into();
        body["return_token_ids"] = true.into();
    }
    body
}

#[derive(Deserialize)]
struct Completions {
    choices: Vec<WrittenChoice>,
}

#[derive(Deserialize)]
struct WrittenChoice {
    text: String,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
    /// vLLM: the stop string, or the id of a stop token.
    stop_reason: Option<Value>,
}

/// Reads a response of `/v1/completions`.
pub fn read_completion(bytes: &[u8]) -> Result<Written, WireError> {
    let mut choices = serde_json::from_slice::<Completions>(bytes)?.choices;
    let (Some(choice), true) = (choices.pop(), choices.is_empty()) else {
        return Err(WireError::Rows { got: choices.len(), want: 1 });
    };
    let end = match (choice.finish_reason.as_deref(), &choice.stop_reason) {
        (Some("length"), _) => Some(TextEnd::Length),
        (Some("stop"), Some(Value::String(_))) => Some(TextEnd::StopString),
        (Some("stop"), Some(Value::Number(_))) => Some(TextEnd::EndOfSequence),
        (Some("stop"), _) => None,
        _ => return Err(WireError::Text("the text has no `finish_reason` of `stop` or `length`")),
    };
    Ok(Written { text: choice.text, ids: choice.token_ids, end, usage: usage::of_openai(bytes) })
}

/// The body for llama.cpp's `/completion`, without its prompt.
pub fn llama_cpp_body(query: &TextQuery) -> Value {
    let SamplingParams { temperature, top_p, top_k, min_p, .. } = query.sampling;
    let among = query.among.iter().flat_map(|ids| ids.iter());
    json!({
        "n_predict": query.max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "presence_penalty": query.sampling.presence_penalty,
        "frequency_penalty": query.sampling.frequency_penalty,
        "repeat_penalty": query.sampling.repetition_penalty,
        // Its other samplers are on by default or by flags.
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "seed": query.seed() as u32,
        "stop": query.stop.as_slice(),
        "logit_bias": among.map(|id| json!([id, AMONG_BIAS])).collect::<Vec<_>>(),
        "cache_prompt": true,
        "return_tokens": true,
        "stream": false,
    })
}

#[derive(Deserialize)]
struct LlamaCppText {
    content: String,
    tokens: Vec<u32>,
    stop_type: String,
}

/// Reads a response of llama.cpp's `/completion`.
pub fn read_llama_cpp(bytes: &[u8]) -> Result<Written, WireError> {
    let LlamaCppText { content, tokens, stop_type } = serde_json::from_slice(bytes)?;
    let end = match stop_type.as_str() {
        "word" => TextEnd::StopString,
        "eos" => TextEnd::EndOfSequence,
        "limit" => TextEnd::Length,
        _ => return Err(WireError::Text("`stop_type` is not `word`, `eos` or `limit`")),
    };
    let usage = usage::of_llama_cpp(bytes);
    Ok(Written { text: content, ids: Some(tokens), end: Some(end), usage })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn query(stream: u64) -> TextQuery {
        let prompt = [3, 4].into();
        let (path, sampling) = (Vec::new(), SamplingParams::PLAIN);
        TextQuery { prompt, path, sampling, stream, max_tokens: 1, stop: None, among: None }
    }

    #[test]
    fn a_choice_among_some_ids_is_a_list_for_vllm_and_a_bias_for_llama_cpp() {
        let query = TextQuery { among: Some([5, 9].into()), ..query(0) };
        let fields = TextFields::Extended { cache_salt: 10 };
        let vllm = completion_body("toy", &query, fields);
        assert_eq!(vllm["cache_salt"], "000000000000000a");
        assert_eq!((&vllm["allowed_token_ids"], &vllm["stop"]), (&json!([5, 9]), &Value::Null));
        let llama = llama_cpp_body(&query);
        assert_eq!(llama["logit_bias"], json!([[5, 100.0], [9, 100.0]]));
        assert_eq!(llama["stop"], json!([]));
    }

    #[test]
    fn the_seeds_of_streams_differ_for_every_engine() {
        let vllm = |stream| completion_body("toy", &query(stream), TextFields::OpenAi)["seed"].as_u64();
        let llama = |stream| llama_cpp_body(&query(stream))["seed"].as_u64();
        let seeds: HashSet<_> = (0..100).flat_map(|stream| [(0, vllm(stream)), (1, llama(stream))]).collect();
        assert_eq!(seeds.len(), 200);
    }
}
