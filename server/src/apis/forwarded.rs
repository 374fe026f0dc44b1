//! Requests for text that another engine answers. The server forwards them as they are, within its own
//! limits.
//!
//! In: the JSON of a body. Out: the same body with a limit of tokens, and its number of texts, or a 400 that
//! names the field. A value of another type than a number is rejected where a limit applies, since engines
//! convert texts to numbers.

use ntl_remote::EngineKind;
use serde_json::{Map, Value, json};

use super::fields::{LOGPROB_IDS_MAX, N_MAX, check_sequences};
use crate::error::{AppError, check};
use crate::paths::{CHAT, COMPLETIONS, RESPONSES};
use crate::request::ModelProfile;

/// Fields that limit the tokens of a text, under the names of OpenAI, vLLM and llama.cpp.
const TOKEN_LIMITS: [&str; 4] = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"];

/// The limit of completions without one, in OpenAI's API.
const COMPLETION_TOKENS: u64 = 16;

/// The reason why a field with an address is rejected.
const CONNECTS: &str = "makes the engine connect to an address";

/// Fields that name what an engine has stored, maybe for another client.
const STORED: [&str; 2] = ["previous_response_id", "conversation"];

/// Fields with the number of tokens whose log-probabilities a position has.
const LOGPROBS: [&str; 4] = ["logprobs", "top_logprobs", "prompt_logprobs", "n_probs"];

/// Fields with the number of texts of a prompt. `n_cmpl` is llama.cpp's.
const TEXTS: [&str; 3] = ["n", "best_of", "n_cmpl"];

/// Fields that name the address of another engine, from which an engine of vLLM, SGLang or TensorRT-LLM
/// fetches keys and values.
const ADDRESSES: [&str; 6] = [
    "kv_transfer_params",
    "ec_transfer_params",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "disaggregated_params",
];

/// Fields whose parts may have the address of an image, a file or a server of tools.
const PARTS: [&str; 3] = ["messages", "input", "tools"];

/// Names of texts within those parts.
const TEXT_NAMES: [&str; 10] = [
    "content",
    "description",
    "id",
    "name",
    "output",
    "reasoning",
    "reasoning_content",
    "refusal",
    "text",
    "thinking",
];

/// Names of values within those parts that the model reads as text, or that are not read.
const UNREAD_NAMES: [&str; 6] =
    ["annotations", "arguments", "function", "input_schema", "metadata", "parameters"];

/// Where a request goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) route: &'static str,
    pub(crate) engine: EngineKind,
    /// The name of the limit of tokens in chats, if it is known.
    pub(crate) chat_limit: Option<&'static str>,
}

/// A request for text with a limit of its tokens.
#[derive(Debug, PartialEq)]
pub(crate) struct ForwardedRequest {
    pub(crate) body: Map<String, Value>,
    /// Number of texts.
    pub(crate) sequences: u32,
    /// Maximum number of tokens of all texts.
    pub(crate) tokens_max: u64,
    /// The limit of tokens that the server added. If the prompt leaves less room than this, engines may
    /// reject the request because of it, and the room is the limit.
    pub(crate) added_limit: Option<&'static str>,
    /// Whether the stream has token counts that the client did not request.
    pub(crate) hides_usage: bool,
}

/// Checks a request to a route of an engine. `allowed`: fields that may name addresses or stored responses.
pub(crate) fn forwarded_request(
    mut body: Map<String, Value>,
    target: Target,
    profile: &ModelProfile,
    allowed: &[String],
) -> Result<ForwardedRequest, AppError> {
    let Target { route, engine, .. } = target;
    let max = profile.output_tokens_max;
    for name in TOKEN_LIMITS.into_iter().chain(["min_tokens"]) {
        if let Some(tokens) = integer(&body, name)? {
            check(name, (0..=max as i128).contains(&tokens), format!("must be from 0 to {max}"))?;
        }
    }
    for name in LOGPROBS {
        check_logprobs(&body, name, profile)?;
    }
    let ids = body.get("logprob_token_ids").and_then(Value::as_array).map_or(0, Vec::len);
    check(
        "logprob_token_ids",
        ids <= LOGPROB_IDS_MAX,
        format!("must be at most {LOGPROB_IDS_MAX} token ids"),
    )?;
    check_addresses(&body, allowed)?;
    if route == RESPONSES {
        check_stored(&mut body, allowed)?;
    }
    let sequences = sequences(&body)?;
    let added_limit = missing_limit(&body, target, profile);
    if let Some(name) = added_limit {
        let limit = least(&body, &TOKEN_LIMITS).unwrap_or(max);
        if target.chat_limit.is_some() {
            // An engine that reads only one of the names may reject the others.
            TOKEN_LIMITS.iter().for_each(|name| drop(body.remove(*name)));
        }
        body.insert(name.to_owned(), limit.into());
    }
    let rest = if route == COMPLETIONS { COMPLETION_TOKENS } else { max };
    let tokens_max = least(&body, known_limits(target)).unwrap_or(rest).saturating_mul(sequences.into());
    let is_openai = matches!(engine, EngineKind::OpenAi | EngineKind::OpenAiChat);
    let hides_usage = !is_openai && add_usage(&mut body, route);
    Ok(ForwardedRequest { body, sequences, tokens_max, added_limit, hides_usage })
}

/// Returns the limits of tokens that an engine reads. It may ignore the others.
fn known_limits(target: Target) -> &'static [&'static str] {
    match (target.route, target.engine) {
        (RESPONSES, EngineKind::LlamaCpp) => &["max_output_tokens", "n_predict"],
        (RESPONSES, _) => &["max_output_tokens"],
        (_, EngineKind::LlamaCpp) => &["max_tokens", "n_predict"],
        (COMPLETIONS, _) => &["max_tokens"],
        (CHAT, _) if target.chat_limit == Some("max_tokens") => &["max_tokens"],
        (CHAT, _) if target.chat_limit.is_some() => &["max_completion_tokens"],
        _ => &["max_tokens", "max_completion_tokens"],
    }
}

/// Returns the least value of some fields, which are checked.
fn least(body: &Map<String, Value>, names: &[&str]) -> Option<u64> {
    let values = names.iter().filter_map(|name| body.get(*name)?.as_f64());
    values.map(|tokens| tokens as u64).min()
}

/// Rejects what an engine computes without a connection, and what it has stored: all clients of the server
/// have the same key there.
fn check_stored(body: &mut Map<String, Value>, allowed: &[String]) -> Result<(), AppError> {
    const STORE: &str = "store";
    const BACKGROUND: &str = "background";
    if !matches!(body.get(BACKGROUND), None | Some(Value::Null | Value::Bool(false))) {
        let reason = "must be false: the server neither counts nor ends work in the background";
        check_allowed(BACKGROUND, BACKGROUND, reason, allowed)?;
    }
    for field in STORED {
        if body.get(field).is_some_and(|value| !value.is_null()) {
            let reason = "names what the engine has stored, maybe for another client";
            check_allowed(field, field, reason, allowed)?;
        }
    }
    if !is_allowed(STORE, allowed) {
        body.insert(STORE.to_owned(), false.into());
    }
    Ok(())
}

/// The integer value of a field, unless it is missing or null.
fn integer(body: &Map<String, Value>, name: &str) -> Result<Option<i128>, AppError> {
    let value = match body.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(value) => value,
    };
    let whole = value.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128);
    let integer = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from)).or(whole);
    integer.map(Some).ok_or_else(|| AppError::field(name, "must be an integer"))
}

fn check_logprobs(body: &Map<String, Value>, name: &str, profile: &ModelProfile) -> Result<(), AppError> {
    // Whether a chat has log-probabilities.
    if body.get(name).is_some_and(Value::is_boolean) {
        return Ok(());
    }
    let Some(count) = integer(body, name)? else { return Ok(()) };
    match profile.logprobs_max {
        Some(max) => {
            let message = format!("must be from 0 to {max}: the server allows no more");
            check(name, (0..=max as i128).contains(&count), message)
        }
        None => check(name, count >= -1, "must be at least 0, or -1 for the whole vocabulary"),
    }
}

/// Returns the number of texts of all prompts.
fn sequences(body: &Map<String, Value>) -> Result<u32, AppError> {
    let mut texts = 1;
    let mut field = "n";
    for name in TEXTS {
        if let Some(count) = integer(body, name)? {
            check(name, (1..=N_MAX as i128).contains(&count), format!("must be from 1 to {N_MAX}"))?;
            if count as u64 > texts {
                (texts, field) = (count as u64, name);
            }
        }
    }
    let prompts = match body.get("prompt") {
        // A list of numbers is one prompt.
        Some(Value::Array(prompts)) if prompts.iter().any(|one| !one.is_number()) => prompts.len(),
        _ => 1,
    };
    Ok(check_sequences(prompts, texts, field)? as u32)
}

/// Returns the limit that has to be added. The default of OpenAI's completions is 16 tokens; the other
/// defaults are the rest of the context.
fn missing_limit(body: &Map<String, Value>, target: Target, profile: &ModelProfile) -> Option<&'static str> {
    // A number has its own limits.
    if body.contains_key("number") {
        return None;
    }
    if known_limits(target).iter().any(|name| body.get(*name).is_some_and(|value| !value.is_null())) {
        return None;
    }
    if profile.prompt_tokens_max as u64 <= profile.output_tokens_max {
        return None;
    }
    match target.route {
        COMPLETIONS if target.engine != EngineKind::LlamaCpp => None,
        RESPONSES => Some("max_output_tokens"),
        CHAT => Some(target.chat_limit.unwrap_or("max_tokens")),
        _ => Some("max_tokens"),
    }
}

/// Requests the token counts of a stream. Returns whether the client did not.
fn add_usage(body: &mut Map<String, Value>, route: &str) -> bool {
    let is_stream = body.get("stream") == Some(&Value::Bool(true));
    if !is_stream || !matches!(route, COMPLETIONS | CHAT) {
        return false;
    }
    let options = body.entry("stream_options").or_insert_with(|| json!({}));
    if options.is_null() {
        *options = json!({});
    }
    // Any other value is the engine's to reject.
    let Some(options) = options.as_object_mut() else { return false };
    // Counts of single texts, before the last one, would replace those of the response.
    options.remove("continuous_usage_stats");
    options.insert("include_usage".to_owned(), true.into()) != Some(Value::Bool(true))
}

/// Rejects fields that make an engine connect to an address of the client's choice.
pub(super) fn check_addresses(body: &Map<String, Value>, allowed: &[String]) -> Result<(), AppError> {
    for name in ADDRESSES {
        let is_set = body.get(name).is_some_and(|value| !value.is_null() && *value != json!({}));
        if is_set {
            check_allowed(name, name, CONNECTS, allowed)?;
        }
    }
    for (name, value) in body {
        if PARTS.contains(&name.as_str()) {
            check_part(name, "", value, allowed)?;
        } else if value.is_string() && is_address_name(name) {
            check_allowed(name, name, CONNECTS, allowed)?;
        }
    }
    Ok(())
}

/// Checks a value at `path`. `field` is the first name of the part of a message, an item or a tool that it
/// belongs to.
fn check_part(path: &str, field: &str, value: &Value, allowed: &[String]) -> Result<(), AppError> {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, item)| check_part(&format!("{path}[{index}]"), "", item, allowed)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let path = format!("{path}.{name}");
            let field = if field.is_empty() { name.as_str() } else { field };
            match value {
                _ if UNREAD_NAMES.contains(&name.as_str()) => Ok(()),
                Value::String(text) if is_address(name, text) => {
                    check_allowed(&path, field, CONNECTS, allowed)
                }
                _ => check_part(&path, field, value, allowed),
            }
        }),
        _ => Ok(()),
    }
}

fn check_allowed(path: &str, field: &str, reason: &str, allowed: &[String]) -> Result<(), AppError> {
    let message = format!("{reason}; the server forwards it if it is started with --upstream-fields {field}");
    check(path, is_allowed(field, allowed), message)
}

fn is_allowed(field: &str, allowed: &[String]) -> bool {
    allowed.iter().any(|name| name == field)
}

/// Returns whether a field's text is an address and not the data itself.
fn is_address(name: &str, text: &str) -> bool {
    let text = text.trim_start();
    let is_data = text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    let has_scheme = text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    !is_data && (is_address_name(name) || has_scheme && !TEXT_NAMES.contains(&name))
}

fn is_address_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("url") || name.ends_with("uri")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: EngineKind = EngineKind::Vllm;

    fn profile() -> ModelProfile {
        let profile = ModelProfile::for_tests();
        ModelProfile { output_tokens_max: 50, logprobs_max: Some(2), prompt_tokens_max: 512, ..profile }
    }

    fn forwarded(body: Value, route: &'static str, allowed: &[&str]) -> Result<ForwardedRequest, AppError> {
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        forwarded_request(fields(body), target(route, ENGINE), &profile(), &allowed)
    }

    fn fields(body: Value) -> Map<String, Value> {
        let Value::Object(fields) = body else { panic!("{body}") };
        fields
    }

    fn target(route: &'static str, engine: EngineKind) -> Target {
        Target { route, engine, chat_limit: None }
    }

    #[test]
    fn the_limits_of_the_server_hold_for_every_spelling_of_a_field() {
        for (name, value) in [
            ("max_tokens", json!(51)),
            ("max_tokens", json!(1_000_000_000)),
            ("max_tokens", json!(1e300)),
            ("max_tokens", json!(-1)),
            ("max_tokens", json!("1000000")),
            ("max_tokens", json!(2.5)),
            ("max_tokens", json!([9])),
            ("max_completion_tokens", json!(51)),
            ("max_output_tokens", json!(51)),
            ("n_predict", json!(-1)),
            ("min_tokens", json!(51)),
            ("logprobs", json!(3)),
            ("logprobs", json!(-1)),
            ("top_logprobs", json!(3)),
            ("prompt_logprobs", json!(10)),
            ("n_probs", json!(3)),
            ("logprob_token_ids", json!(vec![1; 2000])),
            ("n", json!(100_000)),
            ("n", json!("9")),
            ("n", json!(0)),
            ("best_of", json!(129)),
        ] {
            for route in [COMPLETIONS, CHAT, RESPONSES] {
                let error = forwarded(json!({ name: value, "prompt": "x" }), route, &[]).unwrap_err();
                assert_eq!(error.body().error.param.as_deref(), Some(name), "{value}: {error}");
            }
        }
        for body in [
            json!({"max_tokens": 50, "logprobs": 2, "n": 128}),
            json!({"max_tokens": 50.0, "logprobs": true, "top_logprobs": 0, "prompt_logprobs": null}),
        ] {
            assert!(forwarded(body.clone(), CHAT, &[]).is_ok(), "{body}");
        }
        let whole = ModelProfile { logprobs_max: None, ..profile() };
        let body = fields(json!({"prompt_logprobs": -1}));
        assert!(forwarded_request(body, target(COMPLETIONS, ENGINE), &whole, &[]).is_ok());
    }

    #[test]
    fn texts_are_counted_by_prompts_and_choices() {
        for (body, want) in [
            (json!({}), 1),
            (json!({"prompt": "x", "n": 3}), 3),
            (json!({"prompt": [1, 2, 3]}), 1),
            (json!({"prompt": ["x", "y"], "n": 3, "best_of": 5}), 10),
            (json!({"prompt": [[1], [2], [3]]}), 3),
            (json!({"prompt": [{"prompt_string": "x"}, {"prompt_string": "y"}]}), 2),
        ] {
            assert_eq!(forwarded(body.clone(), COMPLETIONS, &[]).unwrap().sequences, want, "{body}");
        }
        let many = json!({"prompt": vec!["x"; 20], "n": 100});
        assert_eq!(forwarded(many, COMPLETIONS, &[]).unwrap_err().body().error.param.as_deref(), Some("n"));
    }

    #[test]
    fn a_request_without_a_limit_gets_the_one_of_the_server_where_the_rest_of_the_context_is_the_default() {
        for (route, engine, want) in [
            (CHAT, EngineKind::Vllm, Some("max_tokens")),
            (RESPONSES, EngineKind::Vllm, Some("max_output_tokens")),
            (COMPLETIONS, EngineKind::Vllm, None),
            (COMPLETIONS, EngineKind::LlamaCpp, Some("max_tokens")),
        ] {
            let request = forwarded_request(Map::new(), target(route, engine), &profile(), &[]).unwrap();
            assert_eq!(request.added_limit, want);
            let limited = want.map(|name| request.body[name].clone());
            assert_eq!(limited, want.map(|_| json!(50)));
        }
        let body = json!({"max_completion_tokens": 7});
        assert_eq!(forwarded(body.clone(), CHAT, &[]).unwrap().added_limit, None);
        let newer =
            Target { chat_limit: Some("max_completion_tokens"), ..target(CHAT, EngineKind::OpenAiChat) };
        let request = forwarded_request(Map::new(), newer, &profile(), &[]).unwrap();
        assert_eq!(request.added_limit, Some("max_completion_tokens"));
        let older = Target { chat_limit: Some("max_tokens"), ..newer };
        let request = forwarded_request(fields(body), older, &profile(), &[]).unwrap();
        assert_eq!(request.body, fields(json!({"max_tokens": 7})));
        let short = ModelProfile { prompt_tokens_max: 50, ..profile() };
        let request = forwarded_request(Map::new(), target(CHAT, ENGINE), &short, &[]).unwrap();
        assert_eq!(request.added_limit, None);
    }

    #[test]
    fn a_limit_that_the_engine_does_not_read_is_no_limit() {
        use EngineKind::{LlamaCpp, Vllm};
        for (route, engine, name, want) in [
            (CHAT, Vllm, "max_output_tokens", ("max_tokens", 7)),
            (CHAT, Vllm, "n_predict", ("max_tokens", 7)),
            (RESPONSES, Vllm, "max_tokens", ("max_output_tokens", 7)),
            (CHAT, LlamaCpp, "max_completion_tokens", ("max_tokens", 7)),
            (COMPLETIONS, LlamaCpp, "max_output_tokens", ("max_tokens", 7)),
        ] {
            let body = fields(json!({name: 7, "n": 2}));
            let request = forwarded_request(body, target(route, engine), &profile(), &[]).unwrap();
            assert_eq!(request.body[want.0], want.1, "{route} {name}");
            assert_eq!((request.added_limit, request.tokens_max), (Some(want.0), 14));
        }
        assert_eq!(forwarded(json!({"n_predict": 7}), COMPLETIONS, &[]).unwrap().tokens_max, 16);
    }

    #[test]
    fn responses_are_neither_stored_nor_computed_in_the_background_unless_the_operator_allows_it() {
        for (field, value) in [
            ("background", json!(true)),
            ("background", json!(1)),
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!({"id": "conv_1"})),
        ] {
            let body = json!({field: value, "input": "x"});
            let error = forwarded(body.clone(), RESPONSES, &[]).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(field), "{error}");
            assert!(forwarded(body, RESPONSES, &[field]).is_ok());
        }
        let body = json!({"background": false, "previous_response_id": null, "store": true});
        assert_eq!(forwarded(body.clone(), RESPONSES, &[]).unwrap().body["store"], false);
        assert_eq!(forwarded(body.clone(), RESPONSES, &["store"]).unwrap().body["store"], true);
        assert_eq!(forwarded(body, CHAT, &[]).unwrap().body["store"], true);
    }

    #[test]
    fn streams_have_token_counts_and_those_that_the_client_did_not_request_are_hidden() {
        for (body, route, hides, options) in [
            (json!({"stream": true}), CHAT, true, json!({"include_usage": true})),
            (json!({"stream": true, "stream_options": null}), CHAT, true, json!({"include_usage": true})),
            (
                json!({"stream": true, "stream_options": {"include_usage": true}}),
                CHAT,
                false,
                json!({"include_usage": true}),
            ),
            (
                json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
                CHAT,
                true,
                json!({"include_usage": true}),
            ),
            (json!({"stream": false}), CHAT, false, json!(null)),
            (json!({"stream": true}), RESPONSES, false, json!(null)),
        ] {
            let request = forwarded(body.clone(), route, &[]).unwrap();
            let got = request.body.get("stream_options").cloned().unwrap_or_default();
            assert_eq!((request.hides_usage, got), (hides, options), "{body}");
        }
    }

    #[test]
    fn addresses_that_an_engine_would_connect_to_are_rejected_unless_the_operator_allows_them() {
        let message = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
        for (body, path, field) in [
            (
                message(json!({"type": "image_url", "image_url": {"url": "http://169.254.169.254/x"}})),
                "messages[0].content[0].image_url.url",
                "image_url",
            ),
            (
                message(json!({"image_url": "file:///etc/passwd"})),
                "messages[0].content[0].image_url",
                "image_url",
            ),
            (message(json!({"image": "HTTPS://h"})), "messages[0].content[0].image", "image"),
            (
                message(json!({"type": "video_url", "video_url": {"url": "x.mp4"}})),
                "messages[0].content[0].video_url.url",
                "video_url",
            ),
            (
                json!({"input": [{"type": "input_image", "image_url": "http://h"}]}),
                "input[0].image_url",
                "image_url",
            ),
            (
                json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://h"}]}]}),
                "input[0].content[0].file_url",
                "file_url",
            ),
            (
                json!({"input": [{"type": "function_call_output", "output": [{"image_url": "ftp://h"}]}]}),
                "input[0].output[0].image_url",
                "image_url",
            ),
            (
                json!({"messages": [{"content": {"image_url": "http://h"}}]}),
                "messages[0].content.image_url",
                "content",
            ),
            (
                json!({"tools": [{"type": "mcp", "server_url": "http://h"}]}),
                "tools[0].server_url",
                "server_url",
            ),
            (json!({"kv_transfer_params": {"remote_host": "h"}}), "kv_transfer_params", "kv_transfer_params"),
            (json!({"bootstrap_host": "h"}), "bootstrap_host", "bootstrap_host"),
            (json!({"image_url": "http://h"}), "image_url", "image_url"),
        ] {
            for route in [COMPLETIONS, CHAT, RESPONSES] {
                let error = forwarded(body.clone(), route, &["other"]).unwrap_err();
                assert_eq!(error.body().error.param.as_deref(), Some(path), "{body}");
                assert!(error.to_string().ends_with(&format!("--upstream-fields {field}")), "{error}");
                assert!(forwarded(body.clone(), route, &[field]).is_ok(), "{body}");
            }
        }
    }

    #[test]
    fn texts_that_mention_addresses_and_inline_images_pass() {
        let schema =
            json!({"type": "object", "properties": {"url": {"type": "string", "default": "http://h"}}});
        for body in [
            json!({"messages": [{"role": "user", "content": "see http://h"}]}),
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "http://h"}]}]}),
            json!({"messages": [{"role": "user", "content": [{"image_url": {"url": "data:image/png;base64,AA"}}]}]}),
            json!({"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {"url": "http://h"}}}]}]}),
            json!({"messages": [{"annotations": [{"url_citation": {"url": "http://h"}}]}]}),
            json!({"input": "http://h", "prompt": "http://h"}),
            json!({"tools": [{"type": "function", "function": {"description": "http://h", "parameters": schema}}]}),
            json!({"tools": [{"type": "function", "name": "f", "parameters": schema}]}),
            json!({"kv_transfer_params": null, "ec_transfer_params": {}}),
        ] {
            assert!(forwarded(body.clone(), CHAT, &[]).is_ok(), "{body}");
        }
    }
}
