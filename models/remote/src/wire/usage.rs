//! The tokens that an engine reports with a response.

use serde::Deserialize;

use super::one_or_several;
use crate::engine::EngineUsage;

/// Maximum number of tokens that a response counts, also if the engine reports more.
const TOKENS_MAX: u64 = 1 << 32;

#[derive(Deserialize)]
struct OpenAiResponse {
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

/// Reads the tokens of a response in OpenAI's shape. Returns `None` if it has none that are understood.
pub fn of_openai(bytes: &[u8]) -> Option<EngineUsage> {
    let OpenAiResponse { usage } = serde_json::from_slice(bytes).ok()?;
    let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
    let reasoning = usage.completion_tokens_details.and_then(|details| details.reasoning_tokens);
    Some(EngineUsage {
        requests: 1,
        prompt_tokens: usage.prompt_tokens.min(TOKENS_MAX),
        cached_tokens: cached.unwrap_or(0).min(TOKENS_MAX),
        completion_tokens: usage.completion_tokens.min(TOKENS_MAX),
        reasoning_tokens: reasoning.unwrap_or(0).min(TOKENS_MAX),
    })
}

#[derive(Deserialize)]
struct LlamaCppCounts {
    /// Tokens of the prompt, those from the cache included.
    tokens_evaluated: u64,
    tokens_predicted: u64,
    timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Timings {
    /// Tokens of the prompt from the cache. Older versions do not report them.
    cache_n: Option<u64>,
}

/// Reads the tokens of a response of llama.cpp's `/completion`. Returns `None` if it has none that are
/// understood.
pub fn of_llama_cpp(bytes: &[u8]) -> Option<EngineUsage> {
    let rows: Vec<LlamaCppCounts> = one_or_several(bytes).ok()?;
    let mut usage = EngineUsage { requests: 1, ..EngineUsage::default() };
    for LlamaCppCounts { tokens_evaluated, tokens_predicted, timings } in rows {
        let cached = timings.and_then(|timings| timings.cache_n).unwrap_or(0);
        usage.add(EngineUsage {
            prompt_tokens: tokens_evaluated.min(TOKENS_MAX),
            cached_tokens: cached.min(TOKENS_MAX),
            completion_tokens: tokens_predicted.min(TOKENS_MAX),
            ..EngineUsage::default()
        });
    }
    Some(usage)
}

#[derive(Deserialize)]
struct SglangCompletion {
    meta_info: SglangCounts,
}

#[derive(Deserialize)]
struct SglangCounts {
    prompt_tokens: u64,
    completion_tokens: u64,
    #[serde(default)]
    cached_tokens: u64,
}

/// Reads the tokens of a response of SGLang's `/generate`. Returns `None` if it has none that are understood.
pub fn of_sglang(bytes: &[u8]) -> Option<EngineUsage> {
    let completions: Vec<SglangCompletion> = one_or_several(bytes).ok()?;
    let mut usage = EngineUsage { requests: 1, ..EngineUsage::default() };
    for SglangCompletion { meta_info } in completions {
        usage.add(EngineUsage {
            prompt_tokens: meta_info.prompt_tokens.min(TOKENS_MAX),
            cached_tokens: meta_info.cached_tokens.min(TOKENS_MAX),
            completion_tokens: meta_info.completion_tokens.min(TOKENS_MAX),
            ..EngineUsage::default()
        });
    }
    Some(usage)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counts(usage: EngineUsage) -> [u64; 5] {
        let EngineUsage { requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } =
            usage;
        [requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens]
    }

    #[test]
    fn vllm_reports_the_tokens_of_all_rows_of_a_request() {
        let recorded = include_bytes!("../../tests/recorded/vllm-ids.json");
        assert_eq!(counts(of_openai(recorded).unwrap()), [1, 7, 0, 2, 0]);
        let body = json!({"usage": {"prompt_tokens": 7, "completion_tokens": u64::MAX,
            "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2}}});
        assert_eq!(counts(of_openai(body.to_string().as_bytes()).unwrap()), [1, 7, 5, TOKENS_MAX, 2]);
    }

    #[test]
    fn llama_cpp_reports_the_tokens_of_each_row() {
        let row =
            json!({"tokens_evaluated": 9, "tokens_predicted": 2, "timings": {"cache_n": 8, "prompt_n": 1}});
        let old = json!({"tokens_evaluated": 4, "tokens_predicted": 1});
        assert_eq!(counts(of_llama_cpp(row.to_string().as_bytes()).unwrap()), [1, 9, 8, 2, 0]);
        assert_eq!(counts(of_llama_cpp(json!([row, old]).to_string().as_bytes()).unwrap()), [1, 13, 8, 3, 0]);
    }

    #[test]
    fn sglang_reports_the_tokens_of_each_row_as_well() {
        let row = json!({"meta_info": {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 8}});
        let old = json!({"meta_info": {"prompt_tokens": 4, "completion_tokens": 1}});
        assert_eq!(counts(of_sglang(row.to_string().as_bytes()).unwrap()), [1, 9, 8, 2, 0]);
        assert_eq!(counts(of_sglang(json!([row, old]).to_string().as_bytes()).unwrap()), [1, 13, 8, 3, 0]);
        assert_eq!(of_sglang(b"[{}]"), None);
    }

    #[test]
    fn counts_that_are_not_understood_are_none() {
        for body in
            ["", "{}", r#"{"usage": null}"#, r#"{"usage": {"prompt_tokens": -1}}"#, r#"{"usage": "7"}"#]
        {
            assert_eq!(of_openai(body.as_bytes()), None, "{body}");
        }
        for body in ["", "{}", r#"{"tokens_evaluated": 1.5, "tokens_predicted": 1}"#] {
            assert_eq!(of_llama_cpp(body.as_bytes()), None, "{body}");
        }
    }
}
