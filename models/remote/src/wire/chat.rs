//! `POST /v1/chat/completions` of any OpenAI-style server: whole answers, without probabilities.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::WireError;
use super::usage::of_openai;
use crate::engine::{ChatAnswer, ChatEnd, ChatQuery, EngineUsage, estimated_tokens};

/// Bytes of a token of an answer or of its reasoning in a response, and the rest of a response.
const TOKEN_BYTES: usize = 64;
const REST_BYTES: usize = 1 << 20;

/// The end of reasoning in an answer, and its beginning.
const THINK_END: &str = "</think>";
const THINK: &str = "<think>";

/// The fields of chats that an engine takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatFields {
    /// The name of the limit of tokens.
    pub limit: &'static str,
    /// Whether the temperature can be 1 by request. Otherwise it is the engine's default.
    pub temperature: bool,
    pub top_p: bool,
    pub seed: bool,
}

impl ChatFields {
    /// Only what every engine takes.
    pub const fn least(limit: &'static str) -> Self {
        Self { limit, temperature: false, top_p: false, seed: false }
    }

    /// All fields.
    pub const fn all(limit: &'static str) -> Self {
        Self { limit, temperature: true, top_p: true, seed: true }
    }
}

/// The body of a request for one answer.
pub fn body(model: &str, query: &ChatQuery, fields: ChatFields) -> Map<String, Value> {
    let mut body = (*query.chat).clone();
    body.insert("model".to_owned(), model.into());
    body.insert(fields.limit.to_owned(), query.max_tokens.into());
    for (name, is_known, value) in [
        ("temperature", fields.temperature, Value::from(1)),
        ("top_p", fields.top_p, Value::from(1)),
        ("seed", fields.seed, query.seed().into()),
    ] {
        if is_known {
            body.insert(name.to_owned(), value);
        }
    }
    body
}

/// Maximum size of a response.
pub fn bytes_max(query: &ChatQuery) -> usize {
    REST_BYTES.saturating_add(query.max_tokens.saturating_mul(TOKEN_BYTES))
}

#[derive(Deserialize)]
struct ChatResponse {
    choices: Vec<ChatChoice>,
}

#[derive(Deserialize)]
struct ChatChoice {
    message: ChatMessage,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct ChatMessage {
    content: Option<Content>,
}

/// Some engines write reasoning and text as parts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: Option<String>,
    text: Option<String>,
}

/// Reads a response. Only the first answer counts, since one was requested. `prompt_tokens` is an estimate
/// for engines that report no tokens.
pub fn read(bytes: &[u8], prompt_tokens: u64) -> Result<ChatAnswer, WireError> {
    let ChatResponse { choices } = serde_json::from_slice(bytes)?;
    let Some(choice) = choices.into_iter().next() else {
        return Err(WireError::Text("it has no answer"));
    };
    let end = match choice.finish_reason.as_deref() {
        Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => ChatEnd::Complete,
        Some("content_filter" | "tool_calls" | "function_call") => ChatEnd::Refused,
        // It is unknown what would have followed.
        _ => ChatEnd::Cut,
    };
    let text = match choice.message.content {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => {
            let texts = parts.into_iter().filter(|part| part.kind.as_deref() == Some("text"));
            texts.filter_map(|part| part.text).collect()
        }
    };
    let usage = of_openai(bytes).unwrap_or(EngineUsage {
        requests: 1,
        prompt_tokens,
        completion_tokens: estimated_tokens(bytes.len()),
        ..EngineUsage::default()
    });
    Ok(ChatAnswer { text: without_reasoning(text), end, usage })
}

/// The text after reasoning. Many engines report reasoning apart, and some leave it in the text.
fn without_reasoning(text: String) -> String {
    match text.rsplit_once(THINK_END) {
        Some((_, answer)) => answer.to_owned(),
        None if text.trim_start().starts_with(THINK) => String::new(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn query(stream: u64) -> ChatQuery {
        let chat = json!({"messages": [], "reasoning_effort": "low"});
        let chat = Arc::new(chat.as_object().unwrap().clone());
        ChatQuery { chat, max_tokens: 9, seed: 5, stream }
    }

    #[test]
    fn a_request_has_the_fields_that_the_engine_takes_and_a_seed_of_its_own() {
        let all = Value::Object(body("m", &query(0), ChatFields::all("max_tokens")));
        assert_eq!((&all["model"], &all["reasoning_effort"]), (&json!("m"), &json!("low")));
        assert_eq!(
            [&all["max_tokens"], &all["temperature"], &all["top_p"]],
            [&json!(9), &json!(1), &json!(1)]
        );
        let least = Value::Object(body("m", &query(0), ChatFields::least("max_completion_tokens")));
        let want =
            json!({"messages": [], "reasoning_effort": "low", "model": "m", "max_completion_tokens": 9});
        assert_eq!(least, want);
        let seed =
            |stream| body("m", &query(stream), ChatFields::all("max_tokens"))["seed"].as_u64().unwrap();
        let seeds: HashSet<u64> = (0..4096).map(seed).collect();
        assert_eq!(seeds.len(), 4096);
        assert!(seeds.iter().all(|&seed| seed <= i32::MAX as u64), "some engines read 32 bits");
    }

    fn answer(message: Value, finish_reason: Value) -> ChatAnswer {
        let body = json!({"choices": [{"message": message, "finish_reason": finish_reason}]});
        read(body.to_string().as_bytes(), 9).unwrap()
    }

    #[test]
    fn an_answer_is_the_text_after_the_reasoning() {
        for (message, finish, text, end) in [
            (json!({"content": "4"}), json!("stop"), "4", ChatEnd::Complete),
            (json!({"content": "4", "reasoning_content": "3?"}), json!("stop"), "4", ChatEnd::Complete),
            (json!({"content": "<think>3?</think>\n4"}), json!("stop"), "\n4", ChatEnd::Complete),
            (json!({"content": "3?</think>4"}), json!("stop"), "4", ChatEnd::Complete),
            (json!({"content": "<think>3?"}), json!("length"), "", ChatEnd::Cut),
            (json!({"content": null, "reasoning": "3?"}), json!("length"), "", ChatEnd::Cut),
            (
                json!({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": "4"}]}),
                json!("stop"),
                "4",
                ChatEnd::Complete,
            ),
            (json!({"content": "4"}), json!(null), "4", ChatEnd::Cut),
            (json!({"content": null, "tool_calls": []}), json!("tool_calls"), "", ChatEnd::Refused),
            (json!({"content": ""}), json!("content_filter"), "", ChatEnd::Refused),
        ] {
            let found = answer(message.clone(), finish);
            assert_eq!((found.text.as_str(), found.end), (text, end), "{message}");
        }
    }

    #[test]
    fn usage_is_what_the_engine_reports_and_only_the_first_answer_counts() {
        let body = json!({
            "choices": [
                {"message": {"content": "1"}, "finish_reason": "stop"},
                {"message": {"content": "2"}, "finish_reason": "stop"},
            ],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5},
                "completion_tokens_details": {"reasoning_tokens": 2}},
        });
        let found = read(body.to_string().as_bytes(), 9).unwrap();
        let usage = EngineUsage {
            requests: 1,
            prompt_tokens: 7,
            cached_tokens: 5,
            completion_tokens: 3,
            reasoning_tokens: 2,
        };
        assert_eq!((found.text.as_str(), found.usage), ("1", usage));
        let text = r#"{"choices":[{"finish_reason":"stop","message":{"content":"1"}}]}"#;
        let unreported = read(text.as_bytes(), 9).unwrap().usage;
        let completion_tokens = text.len().div_ceil(4) as u64;
        let estimate =
            EngineUsage { requests: 1, prompt_tokens: 9, completion_tokens, ..EngineUsage::default() };
        assert_eq!(unreported, estimate);
        for wrong in ["", "{}", r#"{"choices": []}"#, r#"{"choices": [{"message": {"content": 4}}]}"#] {
            assert!(read(wrong.as_bytes(), 9).is_err(), "{wrong}");
        }
    }
}
