//! Fields of other servers that would change the answer but are not served: they are refused by name, since ignoring them
//! would give a wrong answer. Their neutral values pass, because clients send those by default. Fields that are in no
//! list are ignored.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::error::{AppError, check};

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
    /// A list of nothing but `text`.
    TextOnly,
    Words(&'static [&'static str]),
}

use Neutral::{Empty, False, Null, Numbers, TextOnly, True, Words};

const COMPLETION_FIELDS: [(&str, Neutral); 23] = [
    ("add_special_tokens", True),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
    ("grammar", Empty),
    ("guided_grammar", Empty),
    ("guided_json_object", False),
    ("json_schema", Empty),
    ("logits_processors", Empty),
    ("logprob_token_ids", Empty),
    ("max_completion_tokens", Null),
    ("mirostat", Numbers(&[0.0])),
    ("no_repeat_ngram_size", Numbers(&[0.0])),
    ("num_beams", Numbers(&[1.0])),
    ("prompt_embeds", Null),
    ("regex", Empty),
    ("return_tokens_as_token_ids", False),
    ("skip_special_tokens", True),
    ("spaces_between_special_tokens", True),
    ("structured_outputs", Empty),
    ("suffix", Empty),
    ("tfs_z", Numbers(&[1.0])),
    ("truncate_prompt_tokens", Null),
    ("typical_p", Numbers(&[1.0])),
];

pub(super) fn refuse_in_completion(others: &BTreeMap<String, Value>) -> Result<(), AppError> {
    COMPLETION_FIELDS.into_iter().try_for_each(|(name, neutral)| refuse(name, others.get(name), neutral))
}

/// Fields that only chats have.
const CHAT_FIELDS: [(&str, Neutral); 12] = [
    ("audio", Null),
    ("chat_template", Null),
    ("continue_final_message", False),
    ("documents", Empty),
    ("echo", False),
    ("function_call", Words(&["none", "auto"])),
    ("functions", Empty),
    ("modalities", TextOnly),
    ("prediction", Null),
    ("tool_choice", Words(&["none", "auto"])),
    ("tools", Empty),
    ("web_search_options", Null),
];

pub(in crate::adapters) fn refuse_in_chat(others: &BTreeMap<String, Value>) -> Result<(), AppError> {
    CHAT_FIELDS.into_iter().try_for_each(|(name, neutral)| refuse(name, others.get(name), neutral))
}

fn refuse(param: &str, value: Option<&Value>, neutral: Neutral) -> Result<(), AppError> {
    let passes = value.is_none_or(|value| value.is_null() || neutral.is(value));
    check(param, passes, "is not supported by this version")
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        let same = |a: f64, b: f64| a.total_cmp(&b).is_eq();
        match self {
            Null => false,
            False => *value == Value::Bool(false),
            True => *value == Value::Bool(true),
            // Adding 0 turns -0 into 0.
            Numbers(numbers) => {
                value.as_f64().is_some_and(|got| numbers.iter().any(|&one| same(one, got + 0.0)))
            }
            Empty => match value {
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            },
            TextOnly => value.as_array().is_some_and(|items| items.iter().all(|item| item == "text")),
            Words(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn completion(body: &Value) -> Result<(), AppError> {
        refuse_in_completion(&serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn fields_that_change_the_answer_are_refused_by_name() {
        for (name, value) in [
            ("suffix", json!("x")),
            ("structured_outputs", json!({"regex": "x"})),
            ("bad_words", json!(["x"])),
            ("guided_grammar", json!("start: x")),
            ("truncate_prompt_tokens", json!(5)),
        ] {
            let error = completion(&json!({ name: value })).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
            assert_eq!(error.to_string(), format!("`{name}` is not supported by this version"));
        }
    }

    #[test]
    fn values_that_ask_for_nothing_pass_and_so_do_unknown_fields() {
        for body in [
            json!({"suffix": null, "bad_words": [], "typical_p": 1}),
            json!({"suffix": "", "mirostat": -0.0, "skip_special_tokens": true, "user_tag": {"a": [1]}}),
        ] {
            assert!(completion(&body).is_ok(), "{body}");
        }
    }
}
