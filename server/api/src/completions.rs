//! `POST /v1/completions`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::fields::LocatedField;
use crate::models::TruncationSide;
use crate::number::{LocatedNumber, Number, NumberRequest};
use crate::object::read_from_objects;
use crate::whole::whole;

read_from_objects!(StreamOptions, ResponseFormat, NamedSchema, StructuredOutputs);

/// The four prompt forms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, a list of strings, a list of token ids or a list of such lists")]
#[schema(as = Prompt)]
pub enum Prompts {
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

/// When a beam search that has enough finished texts ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a boolean or \"never\"")]
#[schema(as = EarlyStopping)]
pub enum EarlyStoppingOption {
    /// `true`: immediately. `false`: when no running text would be better if it ended now.
    At(bool),
    /// `never`: when no running text can become better.
    Never(Never),
}

/// The word `never`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Never {
    /// `never`.
    Never,
}

/// Options of a streamed response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StreamOptions {
    /// Send one more chunk with the usage at the end.
    pub include_usage: Option<bool>,
    /// A field of vLLM without effect: only the last chunk has the usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuous_usage_stats: Option<bool>,
    /// A field of OpenAI without effect: chunks have no padding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_obfuscation: Option<bool>,
}

/// The format of the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResponseFormat {
    /// Any text.
    Text {},
    /// A JSON object.
    JsonObject {},
    /// JSON that matches a schema.
    JsonSchema {
        /// The schema with its name.
        json_schema: NamedSchema,
    },
    /// Parts between marks, as in `structured_outputs.structural_tag`.
    StructuralTag {
        /// The format of the text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        format: Option<Value>,
        /// The tags, in the older form.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        structures: Option<Value>,
        /// The beginnings of tags, in the older form.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        triggers: Option<Value>,
    },
}

/// A JSON schema with its name.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NamedSchema {
    /// A name; not used.
    pub name: Option<String>,
    /// A description; not used.
    pub description: Option<String>,
    /// Without effect: the text always matches the schema.
    pub strict: Option<bool>,
    /// The schema.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// A constraint on the text, as in vLLM. At most one of `json`, `regex`, `choice`, `grammar`,
/// `structural_tag` and `json_object`.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StructuredOutputs {
    /// The text must be JSON that matches this schema. The schema may be an object or a string.
    pub json: Option<Value>,
    /// The whole text must match this regular expression.
    pub regex: Option<String>,
    /// The text must be one of these strings.
    pub choice: Option<Vec<String>>,
    /// The text must follow this grammar, in the Lark syntax of llguidance.
    pub grammar: Option<String>,
    /// The parts of the text between marks, in the form of xgrammar, as an object or a string: `{"format":
    /// {"type": "triggered_tags", ...}}`, or the older `{"structures": [...], "triggers": [...]}`.
    pub structural_tag: Option<Value>,
    /// Whether the text must be a JSON object. Default false.
    pub json_object: Option<bool>,
    /// Only for JSON, `response_format` included: the regular expression of the whitespace between two
    /// tokens. Default: up to two spaces, or a line break with up to 16 spaces or tabs.
    pub whitespace_pattern: Option<String>,
    /// Only for JSON, `response_format` included: no whitespace between tokens. Default false.
    pub disable_any_whitespace: Option<bool>,
    /// Only for JSON, `response_format` included: objects have only the properties that the schema lists,
    /// unless it says otherwise in `additionalProperties`. Default false.
    pub disable_additional_properties: Option<bool>,
}

/// Body of a completion request. Null means the default in every field; unknown fields are errors.
#[serde_with::apply(
    Option<i64> => #[serde(default, deserialize_with = "whole")],
    Option<u64> => #[serde(default, deserialize_with = "whole")],
    Option<Vec<u32>> => #[serde(default, deserialize_with = "whole")],
)]
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The prompts.
    #[schema(value_type = Prompts, required = true)]
    pub prompt: Option<Prompts>,
    /// Keep at most this many tokens of each prompt, special tokens included; -1 means the maximum of the
    /// model.
    #[schema(minimum = -1)]
    pub truncate_prompt_tokens: Option<i64>,
    /// The end at which `truncate_prompt_tokens` drops tokens. Default: the side that the model reports in
    /// `/v1/models`.
    pub truncation_side: Option<TruncationSide>,
    /// Whether the tokenizer adds the special tokens of training, such as a beginning of sequence, to prompts
    /// that are texts. Default true.
    pub add_special_tokens: Option<bool>,
    /// Maximum number of tokens to generate. Default 16, or the length of an answer of dedicated number
    /// tokens. With `number.after`: maximum number of tokens of the
    /// text before the number, default 256. The server's limit caps both defaults. A number is never cut: it
    /// is printed whole, regardless of `max_tokens`.
    pub max_tokens: Option<u64>,
    /// 0 (greedy) to 2. Default 1. With `number`, this and the other sampling fields apply to the text before
    /// the number (`number.after`). Without such a text, the server rejects them, except the temperatures 0
    /// and 1, and except for draws of dedicated number tokens.
    #[schema(minimum = 0, maximum = 2)]
    pub temperature: Option<f64>,
    /// Nucleus sampling, in (0, 1]. Default 1.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    pub top_p: Option<f64>,
    /// Sample only from this many most probable tokens; 0 and -1 (the default) use all tokens.
    #[schema(minimum = -1)]
    pub top_k: Option<i64>,
    /// Sample only from tokens whose probability is at least this fraction of the largest one, 0 to 1.
    /// Default 0.
    #[schema(minimum = 0, maximum = 1)]
    pub min_p: Option<f64>,
    /// Lowers the logits of tokens that were generated before, -2 to 2. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub presence_penalty: Option<f64>,
    /// Lowers the logits of tokens in proportion to how often they were generated before, -2 to 2. Default 0.
    #[schema(minimum = -2, maximum = 2)]
    pub frequency_penalty: Option<f64>,
    /// Divides the logits of tokens that were generated before or occur in the prompt of a decoder-only model
    /// (negative logits are multiplied); above 0, at most 100. Default 1.
    #[schema(exclusive_minimum = 0, maximum = 100)]
    pub repetition_penalty: Option<f64>,
    /// Values to add to the logits of token ids, -100 to 100.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// The only token ids that the text may have. Without an end of sequence among them, the text has
    /// `max_tokens` tokens.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that the text must not have, at most 1024. The server bans the tokens that spell a word at the
    /// beginning of a text, after other text and after a space; other tokens may spell the same word.
    #[schema(max_items = 1024)]
    pub bad_words: Option<Vec<String>>,
    /// Equal requests with the same seed have the same text. Default: a random seed.
    pub seed: Option<i64>,
    /// Number of texts per prompt, 1 to 128. Default 1.
    #[schema(minimum = 1, maximum = 128)]
    pub n: Option<u64>,
    /// Decode this many texts (`n` to 128) and return the `n` with the best mean log-probability. Not with
    /// `stream`.
    #[schema(minimum = 1, maximum = 128)]
    pub best_of: Option<u64>,
    /// Up to four strings; the text ends before the first of them.
    pub stop: Option<Stop>,
    /// Token ids that end a text.
    #[schema(max_items = 1024)]
    pub stop_token_ids: Option<Vec<u32>>,
    /// Report the log-probabilities of these token ids at each generated position instead of the most
    /// probable alternatives; at most 1024. Only with `logprobs`. Positions of an echoed prompt keep their
    /// most probable alternatives.
    #[schema(max_items = 1024)]
    pub logprob_token_ids: Option<Vec<u32>>,
    /// Whether texts omit special tokens. A text never shows the token that ends it, except by
    /// `include_stop_str_in_output`. Default true.
    pub skip_special_tokens: Option<bool>,
    /// Include the stop string, or the token of `stop_token_ids`, that ended a text. Default false.
    pub include_stop_str_in_output: Option<bool>,
    /// Minimum number of tokens before a text may end. Default 0.
    pub min_tokens: Option<u64>,
    /// Whether a text continues after an end of sequence. Default false.
    pub ignore_eos: Option<bool>,
    /// Report the log-probabilities of each token and of this many alternatives, before all sampling options;
    /// -1 for the whole vocabulary, if the server allows it.
    #[schema(minimum = -1)]
    pub logprobs: Option<i64>,
    /// Like `logprobs`, for the tokens of the prompt. Only for decoder-only models, not with `stream`.
    #[schema(minimum = -1)]
    pub prompt_logprobs: Option<i64>,
    /// Return the token ids of prompt and text in each choice. Default false.
    pub return_token_ids: Option<bool>,
    /// Only with `logprobs`: name tokens by their ids, as `token_id:5`, instead of their texts. Default
    /// false.
    pub return_tokens_as_token_ids: Option<bool>,
    /// A constraint on the text.
    pub structured_outputs: Option<StructuredOutputs>,
    /// The older name of `structured_outputs.regex`.
    pub guided_regex: Option<String>,
    /// The older name of `structured_outputs.choice`.
    pub guided_choice: Option<Vec<String>>,
    /// The older name of `structured_outputs.json`.
    pub guided_json: Option<Value>,
    /// The older name of `structured_outputs.grammar`.
    pub guided_grammar: Option<String>,
    /// The format of the text, as in the OpenAI API.
    pub response_format: Option<ResponseFormat>,
    /// Only with `logprobs`: report the expected value and the probability of the number tokens at each
    /// position. Default false.
    pub number_tokens: Option<bool>,
    /// Stream the response as server-sent events. Default false.
    pub stream: Option<bool>,
    /// Options of the stream. Only with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Repeat the prompt before the text.
    pub echo: Option<bool>,
    /// Use beam search instead of sampling. Default false.
    pub use_beam_search: Option<bool>,
    /// Number of beams, at least `n`. Default: `best_of` if given, otherwise `n`, otherwise 4.
    #[schema(minimum = 1, maximum = 128)]
    pub beam_width: Option<u64>,
    /// Beams are ranked by their log-probability divided by their length to this power. Default 1.
    #[schema(minimum = -10, maximum = 10)]
    pub length_penalty: Option<f64>,
    /// When a beam search ends. Default false.
    pub early_stopping: Option<EarlyStoppingOption>,
    /// Decode a number with its distribution instead of a text. With a JSON schema: write a text of the
    /// schema with the distribution of every number that the schema names.
    pub number: Option<NumberRequest>,
    /// Prompts of one API key share cached prefixes only if this text is equal. It changes nothing in a
    /// response but its time, which otherwise shows whether the same prefix was sent before.
    pub cache_salt: Option<String>,
    /// Decode like the `generate` of the paper's code, even if it differs from training: xVal checkpoints
    /// then read all numbers that they have written as 1 and treat every position as the first. No effect on
    /// other kinds. Default false.
    pub paper_decoding: Option<bool>,
    /// All other fields. The server accepts those that change nothing, and rejects any other with an error
    /// that names the field.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = FinishReason)]
pub enum FinishReasonName {
    /// End of sequence, a stop string, or a complete number.
    Stop,
    /// `max_tokens` was reached; with a number: before its marker `after`.
    Length,
    /// The message has calls of functions. Only in chats.
    ToolCalls,
}

/// The stop string or the token id that ended a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = StopReason)]
pub enum StopReasonValue {
    /// A stop string.
    Text(String),
    /// A token id.
    Token(u32),
}

/// Log-probabilities as parallel lists with one entry for each token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Logprobs {
    /// Token texts.
    pub tokens: Vec<String>,
    /// Natural logarithms of the probabilities.
    pub token_logprobs: Vec<Option<f64>>,
    /// Texts and log-probabilities of the most probable tokens at each position, and of the chosen one; null
    /// for the first token of an echoed prompt.
    pub top_logprobs: Option<Vec<Option<BTreeMap<String, f64>>>>,
    /// Offset of each token in the text, in characters. Tokens that together write one character have its
    /// offset. A token that a stop string cut off has its offset in the uncut text.
    pub text_offset: Vec<u64>,
    /// With `number_tokens`: sum over number tokens of renormalised probability times value; null if no
    /// number token is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_values: Option<Vec<Option<f64>>>,
    /// With `number_tokens`: probability of all number tokens together; null if none is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number_mass: Option<Vec<Option<f64>>>,
}

/// A token at one position of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PromptLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// Rank among all tokens, from 1.
    pub rank: Option<u64>,
    /// Its text.
    pub decoded_token: String,
}

/// For each position of a prompt: entries by token id; null for the first position.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// One answer.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Choice {
    /// Index of the prompt times `n`, plus index of the text.
    pub index: u64,
    /// The generated text. With `number`: the text before the number, then the printed number, unless that
    /// text ended without the marker `after`.
    pub text: String,
    /// Log-probabilities of the tokens; null unless requested.
    #[schema(required)]
    #[serialize_always]
    pub logprobs: Option<Logprobs>,
    /// Null in all chunks of a stream except the last one of a choice.
    #[schema(required)]
    #[serialize_always]
    pub finish_reason: Option<FinishReasonName>,
    /// The text of `stop` or the token id of `stop_token_ids` that ended the text.
    pub stop_reason: Option<StopReasonValue>,
    /// With beam search: natural logarithm of the probability of the whole text.
    pub cumulative_logprob: Option<f64>,
    /// The number and its distribution, if requested.
    pub number: Option<Number>,
    /// All numbers of an answer that has several: those that a JSON schema names, in the order of the text,
    /// or those that the model writes one after the other, of which `number` is the first. In a stream, each
    /// number of a structured text comes after its text.
    pub numbers: Option<Vec<LocatedNumber>>,
    /// With `number` and a JSON schema: the distribution of every number that the schema names, and of every
    /// value of which it lists the alternatives, in the order of the text.
    pub fields: Option<Vec<LocatedField>>,
    /// With `return_token_ids`: the token ids of the text, including an end of sequence.
    pub token_ids: Option<Vec<u32>>,
    /// With `return_token_ids`: the token ids of the prompt, once in a stream.
    pub prompt_token_ids: Option<Vec<u32>>,
    /// With `prompt_logprobs`: log-probabilities of the tokens of the prompt.
    #[schema(inline)]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Number of tokens of all prompts.
    pub prompt_tokens: u64,
    /// Number of tokens of the texts, of printed numbers and the texts before them, or of scored targets.
    pub completion_tokens: u64,
    /// The sum of both.
    pub total_tokens: u64,
    /// Only if another engine sampled answers, whose tokens are counted as it reports them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens_details: Option<PromptTokensDetails>,
    /// The same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
    /// The work of another engine, if one computes the model and probabilities or samples were requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x_engine: Option<EngineTokens>,
}

/// The work of another engine for a request, as it reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineTokens {
    /// Number of requests to it.
    pub requests: u64,
    /// Tokens of the prompts of all of them.
    pub prompt_tokens: u64,
    /// The part of them that came from its cache, if it reports that.
    pub cached_tokens: u64,
    /// Tokens that it wrote.
    pub completion_tokens: u64,
}

/// Details of the tokens of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens that came from a cache of the engine.
    pub cached_tokens: u64,
}

/// Details of the tokens of answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of reasoning.
    pub reasoning_tokens: u64,
}

/// Body of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CompletionResponse {
    /// Unique id of the response.
    pub id: String,
    /// `text_completion`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that answered.
    pub model: String,
    /// `fingerprint` of the model in `/v1/models`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_fingerprint: Option<String>,
    /// The answers, by index.
    pub choices: Vec<Choice>,
    /// Token counts. In a stream null, except in the last chunk if requested.
    #[schema(required)]
    pub usage: Option<Usage>,
}

/// A server-sent event, as a client reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StreamEvent {
    /// A chunk or an error as JSON, or `[DONE]` at the end.
    pub data: String,
}
