//! Numbers from sampled answers of chats, for engines that report no probabilities.
//!
//! In: the JSON of a chat with `number`. Out: the fields about the number and the response, validated as for
//! any chat, and all other fields, which the engine gets as they are.

use ntl_api::ChatRequest;
use serde_json::{Map, Value};

use super::chat::generation_request;
use super::forwarded::check_addresses;
use super::number::NumberFormat;
use crate::error::{AppError, check};
use crate::json::from_value;
use crate::request::{GenerationRequest, ModelProfile};

/// Fields that the server reads. They decide how answers are sampled and shown, so the engine gets none of
/// them from the client.
const OWN: [&str; 25] = [
    "best_of",
    "echo",
    "frequency_penalty",
    "guided_json",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "n",
    "number",
    "number_tokens",
    "presence_penalty",
    "prompt_logprobs",
    "repetition_penalty",
    "response_format",
    "return_token_ids",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
];

/// Limits of texts without a number, under names that only engines read.
const NOT_OF_NUMBERS: [&str; 6] =
    ["logprob_token_ids", "max_output_tokens", "min_tokens", "n_cmpl", "n_predict", "n_probs"];

/// A validated request.
pub(crate) struct SampledNumber {
    pub(crate) request: GenerationRequest,
    pub(crate) number: Option<NumberFormat>,
    /// The messages, and the fields that the server does not read.
    pub(crate) chat: Map<String, Value>,
    /// Maximum number of tokens of each answer.
    pub(crate) max_tokens: usize,
}

/// Validates a request. `allowed`: fields that may name addresses.
pub(crate) fn sampled_number(
    mut fields: Map<String, Value>,
    profile: &ModelProfile,
    allowed: &[String],
) -> Result<SampledNumber, AppError> {
    check_addresses(&fields, allowed)?;
    let has_messages = fields.get("messages").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    check("messages", has_messages, "must be a list of at least one message")?;
    for name in NOT_OF_NUMBERS {
        let is_set = fields.get(name).is_some_and(|value| !value.is_null());
        check(name, !is_set, "does not apply to `number`: `max_tokens` limits its answers")?;
    }
    fields.remove("model");
    let mut own = Map::new();
    for name in OWN {
        if let Some(value) = fields.remove(name) {
            own.insert(name.to_owned(), value);
        }
    }
    let request: ChatRequest = from_value(Value::Object(own))?;
    let max_tokens =
        request.max_completion_tokens.or(request.max_tokens).unwrap_or(profile.output_tokens_max);
    check("max_tokens", max_tokens > 0, "must be at least 1 with `number`")?;
    let (request, number) = generation_request(request, Vec::new(), None, None, profile)?;
    let max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
    Ok(SampledNumber { request, number, chat: fields, max_tokens })
}
