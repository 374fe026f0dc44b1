//! `POST /v1/completions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::number::{Number, NumberRequest};
use crate::whole::whole;

/// The four prompt forms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, a list of strings, a list of token ids or a list of such lists")]
pub enum Prompt {
    /// One text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// One text as token ids.
    #[serde(deserialize_with = "whole")]
    Ids(Vec<u32>),
    /// Several texts as token ids.
    #[serde(deserialize_with = "whole")]
    IdLists(Vec<Vec<u32>>),
}

/// One stop string or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of strings")]
pub enum Stop {
    /// One string.
    One(String),
    /// Several strings.
    Many(Vec<String>),
}

/// When a beam search with enough finished texts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a boolean or \"never\"")]
pub enum EarlyStopping {
    /// `true`: at once. `false`: when no running text, ended now, would be better.
    At(bool),
    /// `never`: when no running text can become better.
    Never(Never),
}

/// The word `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Never {
    /// The word.
    Never,
}

/// Options of a streamed answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamOptions {
    /// Send one more chunk with the usage at the end.
    pub include_usage: Option<bool>,
}

/// What a text must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResponseFormat {
    /// Anything.
    Text,
    /// Some JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// The schema with its name.
        json_schema: NamedSchema,
    },
}

/// A JSON schema with its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedSchema {
    /// A name; not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The schema.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// Body of a completion request. Null is the default everywhere; unknown fields are ignored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Name of the model; may be left out where only one is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What to complete.
    #[schema(value_type = Prompt, required = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Prompt>,
    /// Most tokens to generate. Default 16. With `number.after` most tokens of the text before the number, by default
    /// 256. Either default is cut to what the server allows.
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// 0 (greedy) to 2. Default 1.
    #[schema(minimum = 0, maximum = 2)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus, in (0, 1]. Default 1.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sample from this many of the most probable tokens only; 0 and -1 (the default) take all.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Sample only tokens at least this times as probable as the most probable one, 0 to 1. Default 0.
    #[schema(minimum = 0, maximum = 1)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// Lowers tokens that were generated before, -2 to 2. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// Lowers tokens for each time that they were generated before, -2 to 2. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// Divides the logits of tokens that were generated before or stand in the prompt of a decoder-only model (negative
    /// ones are multiplied), above 0, at most 100. Default 1.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// What is added to the logits of token ids, -100 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// Same seed, same text. Default: a random one.
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Texts per prompt, 1 to 128. Default 1.
    #[schema(minimum = 1, maximum = 128)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Decode this many texts (`n` to 128) and return the `n` with the best mean log-probability. Not with `stream`.
    #[schema(minimum = 1, maximum = 128)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub best_of: Option<u64>,
    /// Up to four strings that end a text before them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// Token ids that end a text.
    #[schema(max_items = 1024)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Show the stop string, or the token of `stop_token_ids`, that ended a text. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_stop_str_in_output: Option<bool>,
    /// Nothing ends a text before it has this many tokens. Default 0.
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u64>,
    /// The end of sequence does not end a text. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Report log-probabilities of each token and of this many alternatives, as the model has them before all sampling
    /// options; -1 for the whole vocabulary, where the server allows it.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<i64>,
    /// The same for the tokens of the prompt; decoder-only models, not with `stream`.
    #[schema(minimum = -1)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Add the token ids of prompt and text to each choice. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// The text matches this regular expression as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_regex: Option<String>,
    /// The text is one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_choice: Option<Vec<String>>,
    /// The text is JSON of this schema, given as an object or as its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guided_json: Option<Value>,
    /// The same in OpenAI's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<ResponseFormat>,
    /// Only with `logprobs`: report for each position what its number tokens say together. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_tokens: Option<bool>,
    /// Answer by server-sent events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// Only with `stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Repeat the prompt in front of the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// Search for the most probable texts with several beams instead of sampling. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_beam_search: Option<bool>,
    /// Beams, at least `n`. Default: `best_of`, else `n`, else 4.
    #[schema(minimum = 1, maximum = 128)]
    #[serde(default, deserialize_with = "whole", skip_serializing_if = "Option::is_none")]
    pub beam_width: Option<u64>,
    /// Beams are compared by log-probability divided by their length to this power. Default 1.
    #[schema(minimum = -10, maximum = 10)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_penalty: Option<f64>,
    /// When a beam search ends. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStopping>,
    /// Name of the caller's user; not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Decode a number with its distribution instead of text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<NumberRequest>,
    /// Decode as the original code's `generate` does where that differs from how the model was trained: xVal
    /// checkpoints then read all their own numbers as 1 and take every position for the first. Changes nothing for
    /// other kinds. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_decoding: Option<bool>,
    /// Everything else that was sent, so that fields which would change the answer can be refused by name.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End of sequence, a stop string, or a complete number.
    Stop,
    /// `max_tokens` was reached.
    Length,
}

/// Log-probabilities in the arrays of the completions API, one entry a token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Logprobs {
    /// Token texts.
    pub tokens: Vec<String>,
    /// Natural logarithms of their probabilities.
    pub token_logprobs: Vec<Option<f64>>,
    /// Texts and log-probabilities of the most probable tokens at each position, the chosen one included; null for the
    /// first token of an echoed prompt.
    pub top_logprobs: Option<Vec<Option<BTreeMap<String, f64>>>>,
    /// Where each token begins in the text, in characters.
    pub text_offset: Vec<u64>,
    /// With `number_tokens`: sum over number tokens of renormalised probability times value; null where no number token
    /// is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_values: Option<Vec<Option<f64>>>,
    /// With `number_tokens`: probability of all number tokens together; null where none is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_mass: Option<Vec<Option<f64>>>,
}

/// A token at one position of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// Its place among all tokens, from 1 on, where it is one of those asked for.
    pub rank: Option<u64>,
    /// Its text.
    pub decoded_token: String,
}

/// By token id, for each position of a prompt; null for the first.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// One answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// Prompt number times `n` plus text number.
    pub index: u64,
    /// The generated text, or the printed number behind the text that comes before it.
    pub text: String,
    /// Null unless asked for.
    #[schema(required)]
    pub logprobs: Option<Logprobs>,
    /// Null while a stream goes on.
    #[schema(required)]
    pub finish_reason: Option<FinishReason>,
    /// Natural logarithm of the probability of the whole text, where a beam search found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cumulative_logprob: Option<f64>,
    /// The number and its distribution, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<Number>,
    /// With `return_token_ids`: the ids of the text, an end of sequence included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// With `return_token_ids`: the ids of the prompt; in a stream once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `prompt_logprobs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Counted tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens decoded: those of the texts, the decoder positions behind a number, or those of scored targets.
    pub completion_tokens: u64,
    /// The sum.
    pub total_tokens: u64,
}

/// Body of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionResponse {
    /// Unique name of the answer.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// The answers, by index.
    pub choices: Vec<Choice>,
    /// Counted tokens. Null in a stream, but for its last chunk when asked for.
    #[schema(required)]
    pub usage: Option<Usage>,
}

/// One event of a stream: the same shape.
pub type CompletionChunk = CompletionResponse;

/// A server-sent event, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamEvent {
    /// A chunk as JSON, an error as JSON, or at the end `[DONE]`.
    pub data: String,
}
