//! Fields beyond those of the wire types. Some change nothing here, and the server accepts them
//! ([`WITHOUT_EFFECT`]). Others would change the response of other servers: the server rejects them with an
//! error that names the field, since ignoring them would give a different response. Their neutral values
//! pass, because clients send those by default. All remaining names are misspellings: the error names the
//! nearest known field.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ntl_api::{
    ChatRequest, ChatRequestMessage, CompletionRequest, ContentPart, ResponsesInputItem, ResponsesPart,
    ResponsesRequest,
};
use serde_json::{Value, json};
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::error::{AppError, check};
use crate::json::{foreign_name, from_value, unknown_field};

/// The value of a field that has no effect.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    Null,
    False,
    True,
    /// One of these numbers.
    Numbers(&'static [f64]),
    /// An empty string, list or object.
    Empty,
    /// A list of nothing but these words.
    ListOf(&'static [&'static str]),
    Words(&'static [&'static str]),
}

use Neutral::{Empty, False, ListOf, Null, Numbers, True, Words};

/// Fields of OpenAI, vLLM, SGLang and llama.cpp that completions and chats accept with any value: they change
/// no answer here.
pub(crate) const WITHOUT_EFFECT: [&str; 22] = [
    "cache_prompt",
    "guided_decoding_backend",
    "include_reasoning",
    "max_tool_calls",
    "metadata",
    "mm_payload",
    "priority",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "return_mm_kwargs",
    "return_token_offsets",
    "routed_experts_prompt_start",
    "safety_identifier",
    "separate_reasoning",
    "service_tier",
    "session_id",
    "spaces_between_special_tokens",
    "store",
    "stream_interval",
    "stream_reasoning",
    "user",
];

const COMPLETION_FIELDS: [(&str, Neutral); 24] = [
    ("detokenize", True),
    ("ec_transfer_params", Empty),
    ("grammar", Empty),
    ("guided_json_object", False),
    ("guided_whitespace_pattern", Empty),
    ("json_schema", Empty),
    ("kv_transfer_params", Empty),
    ("logits_processors", Empty),
    ("max_completion_tokens", Null),
    ("mirostat", Numbers(&[0.0])),
    ("no_repeat_ngram_size", Numbers(&[0.0])),
    ("no_stop_trim", False),
    ("num_beams", Numbers(&[1.0])),
    ("prompt_embeds", Null),
    ("regex", Empty),
    ("repetition_detection", Null),
    ("return_hidden_states", False),
    ("structural_tag", Empty),
    ("suffix", Empty),
    ("tfs_z", Numbers(&[1.0])),
    ("thinking_token_budget", Numbers(&[-1.0])),
    ("typical_p", Numbers(&[1.0])),
    ("vllm_xargs", Empty),
    ("watermarking", False),
];

/// Fields that only chats have.
const CHAT_FIELDS: [(&str, Neutral); 12] = [
    ("audio", Null),
    ("chat_template", Null),
    ("function_call", Words(&["none", "auto"])),
    ("functions", Empty),
    ("media_io_kwargs", Empty),
    ("mm_processor_kwargs", Empty),
    ("modalities", ListOf(&["text"])),
    ("prediction", Null),
    ("reasoning", Empty),
    ("return_prompt_text", False),
    ("verbosity", Words(&["medium"])),
    ("web_search_options", Null),
];

/// Fields that only responses have.
const RESPONSES_FIELDS: [(&str, Neutral); 11] = [
    ("background", False),
    ("context_management", Empty),
    ("conversation", Null),
    ("ec_transfer_params", Empty),
    ("enable_response_messages", False),
    ("kv_transfer_params", Empty),
    ("previous_response_id", Null),
    ("prompt", Null),
    ("truncation", Words(&["disabled"])),
    ("vllm_xargs", Empty),
    ("watermarking", False),
];

/// Fields of completions that responses have as well, as in vLLM.
pub(crate) const RESPONSES_SHARED: [&str; 13] = [
    "cache_salt",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "logit_bias",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "top_k",
];

/// Fields of messages: what clients send back of an answer, and the `type` of lm-evaluation-harness.
const MESSAGE_FIELDS: [(&str, Neutral); 7] = [
    ("annotations", Empty),
    ("audio", Null),
    ("function_call", Null),
    ("reasoning", Empty),
    ("reasoning_content", Empty),
    ("refusal", Empty),
    ("type", Words(&["text", "message"])),
];

/// Fields of the parts of a message that change nothing here.
const PART_WITHOUT_EFFECT: [&str; 2] = ["annotations", "cache_control"];

/// Fields that the server itself writes into the items of a response and their parts. Clients send them back.
const RESPONSE_ITEM_WITHOUT_EFFECT: [&str; 2] = ["id", "status"];
const RESPONSE_PART_WITHOUT_EFFECT: [&str; 3] = ["annotations", "logprobs", "number"];

type Others = BTreeMap<String, Value>;

/// Checks the fields of a completion that its wire type does not have.
pub(in crate::apis) fn check_completion(others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(field_names::<CompletionRequest>);
    for (name, value) in others {
        let neutral = neutral_of(name, &[&COMPLETION_FIELDS]);
        check_field("", name, value, neutral, &WITHOUT_EFFECT, &KNOWN)?;
    }
    Ok(())
}

/// Checks the fields of a chat that neither its wire type has nor that of completions.
pub(in crate::apis) fn check_chat(others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(chat_field_names);
    for (name, value) in others {
        if !is_shared(name) {
            let neutral = neutral_of(name, &[&CHAT_FIELDS, &COMPLETION_FIELDS]);
            check_field("", name, value, neutral, &WITHOUT_EFFECT, &KNOWN)?;
        }
    }
    Ok(())
}

/// Checks the fields of a request for a response that its wire type does not have.
pub(in crate::apis) fn check_responses(others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(responses_field_names);
    for (name, value) in others {
        if RESPONSES_SHARED.contains(&name.as_str()) {
            continue;
        }
        if name == "previous_response_id" && !value.is_null() {
            let message =
                "is not supported: the server stores no responses; send the whole conversation as `input`";
            return Err(AppError::field(name, message));
        }
        if name == "stream_options" {
            // No option has an effect: the last event always has the usage.
            from_value::<CompletionRequest>(json!({ name: value }))?;
            continue;
        }
        check_field("", name, value, neutral_of(name, &[&RESPONSES_FIELDS]), &WITHOUT_EFFECT, &KNOWN)?;
    }
    Ok(())
}

/// Checks the fields of an item of the input at a path such as `input[0].`.
pub(in crate::apis) fn check_response_item(path: &str, others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(field_names::<ResponsesInputItem>);
    for (name, value) in others {
        check_field(path, name, value, Some(Null), &RESPONSE_ITEM_WITHOUT_EFFECT, &KNOWN)?;
    }
    Ok(())
}

/// Checks the fields of a part of an item at a path such as `input[0].content[0].`.
pub(in crate::apis) fn check_response_part(path: &str, others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(field_names::<ResponsesPart>);
    for (name, value) in others {
        check_field(path, name, value, None, &RESPONSE_PART_WITHOUT_EFFECT, &KNOWN)?;
    }
    Ok(())
}

/// Checks the fields of a message at a path such as `messages[0].`.
pub(in crate::apis) fn check_message(path: &str, others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(field_names::<ChatRequestMessage>);
    for (name, value) in others {
        check_field(path, name, value, neutral_of(name, &[&MESSAGE_FIELDS]), &[], &KNOWN)?;
    }
    Ok(())
}

/// Checks the fields of a part of a message at a path such as `messages[0].content[0].`.
pub(in crate::apis) fn check_part(path: &str, others: &Others) -> Result<(), AppError> {
    static KNOWN: LazyLock<Vec<String>> = LazyLock::new(field_names::<ContentPart>);
    for (name, value) in others {
        check_field(path, name, value, None, &PART_WITHOUT_EFFECT, &KNOWN)?;
    }
    Ok(())
}

/// The fields of a chat: its own and those that it shares with completions.
fn chat_field_names() -> Vec<String> {
    let shared = field_names::<CompletionRequest>().into_iter().filter(|name| name != "prompt");
    let mut names = field_names::<ChatRequest>();
    names.extend(shared);
    names
}

/// The fields of a response: its own and those that it shares with completions.
fn responses_field_names() -> Vec<String> {
    let mut names = field_names::<ResponsesRequest>();
    names.extend(RESPONSES_SHARED.map(str::to_owned));
    names
}

/// Returns whether chats have a field of completions under the same name.
fn is_shared(name: &str) -> bool {
    static SHARED: LazyLock<Vec<String>> = LazyLock::new(field_names::<CompletionRequest>);
    name != "prompt" && SHARED.iter().any(|known| known == name)
}

/// The names that the description of a type has.
fn field_names<T: PartialSchema>() -> Vec<String> {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => object.properties.into_keys().collect(),
        _ => Vec::new(),
    }
}

fn neutral_of(name: &str, tables: &[&[(&str, Neutral)]]) -> Option<Neutral> {
    tables.iter().copied().flatten().find(|(refused, _)| *refused == name).map(|(_, neutral)| *neutral)
}

/// Passes a field without effect and the neutral value of a refused one. `path` is the prefix of the name.
fn check_field(
    path: &str,
    name: &str,
    value: &Value,
    neutral: Option<Neutral>,
    without_effect: &[&str],
    known: &[String],
) -> Result<(), AppError> {
    if without_effect.contains(&name) {
        return Ok(());
    }
    let param = format!("{path}{name}");
    let Some(neutral) = neutral else {
        return Err(unknown_field(&param, known.iter().map(String::as_str)));
    };
    let hint = match foreign_name(name) {
        Some(ours) if known.iter().any(|known| known == ours) => format!("; see `{ours}`"),
        _ => String::new(),
    };
    let passes = value.is_null() || neutral.is(value);
    check(&param, passes, format!("is not supported by this version{hint}"))
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Null => false,
            False => *value == Value::Bool(false),
            True => *value == Value::Bool(true),
            // Adding 0 turns -0 into 0.
            Numbers(numbers) => value
                .as_f64()
                .is_some_and(|value| numbers.iter().any(|number| number.total_cmp(&(value + 0.0)).is_eq())),
            Empty => match value {
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            },
            ListOf(words) => value.as_array().is_some_and(|items| {
                items.iter().all(|item| item.as_str().is_some_and(|word| words.contains(&word)))
            }),
            Words(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(body: &Value) -> Result<(), AppError> {
        check_completion(&serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn fields_that_change_the_answer_are_refused_by_name() {
        for (name, value) in
            [("suffix", json!("x")), ("detokenize", json!(false)), ("structural_tag", json!("x"))]
        {
            let error = completion(&json!({ name: value })).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
            assert_eq!(error.to_string(), format!("`{name}` is not supported by this version"));
        }
        let error = completion(&json!({"json_schema": {"type": "object"}})).unwrap_err().to_string();
        assert_eq!(error, "`json_schema` is not supported by this version; see `structured_outputs`");
    }

    #[test]
    fn values_that_ask_for_nothing_pass_and_so_do_fields_without_effect() {
        for body in [
            json!({"suffix": null, "logits_processors": [], "typical_p": 1}),
            json!({"suffix": "", "mirostat": -0.0, "spaces_between_special_tokens": false, "metadata": {"a": [1]}}),
            json!({"no_stop_trim": false, "return_hidden_states": false, "separate_reasoning": true, "stream_reasoning": true}),
            json!({"priority": 3, "session_id": "x", "watermarking": false, "thinking_token_budget": -1}),
            json!({"user": "me", "store": true, "service_tier": "flex", "safety_identifier": "x", "prompt_cache_key": "y"}),
        ] {
            assert!(completion(&body).is_ok(), "{body}");
            assert!(check_chat(&serde_json::from_value(body.clone()).unwrap()).is_ok(), "{body}");
        }
    }

    #[test]
    fn the_documentation_lists_the_fields_without_effect() {
        let documentation = include_str!("../../../../docs/API.md");
        for name in WITHOUT_EFFECT {
            assert!(documentation.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn a_misspelt_field_is_refused_with_the_nearest_known_name() {
        for (name, near) in [
            ("numbr", "number"),
            ("max_token", "max_tokens"),
            ("max_new_tokens", "max_tokens"),
            ("stop_sequences", "stop"),
            ("temprature", "temperature"),
            ("messages", "prompt"),
        ] {
            let error = completion(&json!({ name: 1 })).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
            assert_eq!(
                error.to_string(),
                format!("`{name}` is not a field of this request; did you mean `{near}`?")
            );
        }
        let error = completion(&json!({"xyzzy": null})).unwrap_err().to_string();
        assert_eq!(error, "`xyzzy` is not a field of this request");
        for (name, near) in [
            ("max_completion_token", "max_completion_tokens"),
            ("top_logprob", "top_logprobs"),
            ("temp_erature", "temperature"),
            ("prompt", "messages"),
        ] {
            let error = check_chat(&BTreeMap::from([(name.to_owned(), json!(1))])).unwrap_err().to_string();
            assert_eq!(error, format!("`{name}` is not a field of this request; did you mean `{near}`?"));
        }
    }
}
