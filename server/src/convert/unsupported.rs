//! Fields that would change the answer but are not served yet: refused by name, so that nobody takes an answer for
//! what it is not. Their neutral values pass, because clients send those unasked. Fields that are in no list change
//! nothing here and are ignored.

use std::collections::BTreeMap;

use serde_json::Value;

use super::check;
use crate::error::AppError;

/// A value that asks for nothing.
#[derive(Debug, Clone, Copy)]
enum Neutral {
    /// Only null.
    Null,
    /// `false`.
    False,
    /// `true`.
    True,
    /// One of these numbers.
    Numbers(&'static [f64]),
    /// An empty string, list or object.
    Empty,
    /// An object whose type is `text`.
    TextFormat,
}

use Neutral::{Empty, False, Null, Numbers, TextFormat, True};

const COMPLETION_FIELDS: [(&str, Neutral); 39] = [
    ("add_special_tokens", True),
    ("allowed_token_ids", Empty),
    ("bad_words", Empty),
    ("frequency_penalty", Numbers(&[0.0])),
    ("grammar", Empty),
    ("guided_choice", Empty),
    ("guided_grammar", Empty),
    ("guided_json", Empty),
    ("guided_json_object", False),
    ("guided_regex", Empty),
    ("ignore_eos", False),
    ("include_stop_str_in_output", False),
    ("json_schema", Empty),
    ("logit_bias", Empty),
    ("logits_processors", Empty),
    ("logprob_token_ids", Empty),
    ("max_completion_tokens", Null),
    ("min_p", Numbers(&[0.0])),
    ("min_tokens", Numbers(&[0.0])),
    ("mirostat", Numbers(&[0.0])),
    ("no_repeat_ngram_size", Numbers(&[0.0])),
    ("num_beams", Numbers(&[1.0])),
    ("presence_penalty", Numbers(&[0.0])),
    ("prompt_embeds", Null),
    ("prompt_logprobs", Null),
    ("regex", Empty),
    ("repetition_penalty", Numbers(&[1.0])),
    ("response_format", TextFormat),
    ("return_token_ids", False),
    ("return_tokens_as_token_ids", False),
    ("skip_special_tokens", True),
    ("spaces_between_special_tokens", True),
    ("stop_token_ids", Empty),
    ("structured_outputs", Empty),
    ("suffix", Empty),
    ("tfs_z", Numbers(&[1.0])),
    ("top_k", Numbers(&[-1.0, 0.0])),
    ("truncate_prompt_tokens", Null),
    ("typical_p", Numbers(&[1.0])),
];

/// Refuses what a completion request asks for beyond what is served. `n` is its number of texts.
pub(super) fn refuse_in_completion(others: &BTreeMap<String, Value>, n: u64) -> Result<(), AppError> {
    for (name, neutral) in COMPLETION_FIELDS {
        refuse(name, others.get(name), neutral)?;
    }
    // The best of as many as are returned are all of them.
    let best_of = others.get("best_of").filter(|value| !value.is_null());
    let asks_nothing = best_of.is_none_or(|best| best.as_u64().is_some_and(|best| best == 1 || best == n));
    check("best_of", asks_nothing, "is not supported by this version")
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
            TextFormat => value.get("type").is_some_and(|kind| kind == "text"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn completion(body: &Value) -> Result<(), AppError> {
        refuse_in_completion(&serde_json::from_value(body.clone()).unwrap(), 2)
    }

    #[test]
    fn fields_that_change_the_answer_are_refused_by_name() {
        for (name, value) in [
            ("suffix", json!("x")),
            ("best_of", json!(5)),
            ("best_of", json!("2")),
            ("logit_bias", json!({"5": 1})),
            ("presence_penalty", json!(0.5)),
            ("frequency_penalty", json!(-0.5)),
            ("top_k", json!(5)),
            ("min_p", json!(0.1)),
            ("repetition_penalty", json!(1.2)),
            ("response_format", json!({"type": "json_object"})),
            ("guided_regex", json!("[0-9]+")),
            ("structured_outputs", json!({"regex": "x"})),
            ("prompt_logprobs", json!(0)),
            ("min_tokens", json!(3)),
            ("ignore_eos", json!(true)),
            ("stop_token_ids", json!([1])),
            ("return_token_ids", json!(true)),
        ] {
            let error = completion(&json!({ name: value })).unwrap_err();
            assert_eq!(error.body().error.param.as_deref(), Some(name));
            assert_eq!(error.to_string(), format!("`{name}` is not supported by this version"));
        }
    }

    #[test]
    fn values_that_ask_for_nothing_pass_and_so_do_unknown_fields() {
        for body in [
            json!({"suffix": null, "best_of": null, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": -0.0}),
            json!({"best_of": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1}),
            json!({"best_of": 2, "top_k": 0, "response_format": {"type": "text"}, "min_tokens": 0, "ignore_eos": false}),
            json!({"stop_token_ids": [], "skip_special_tokens": true, "user_tag": {"a": [1]}, "user": "x"}),
        ] {
            assert!(completion(&body).is_ok(), "{body}");
        }
    }
}
