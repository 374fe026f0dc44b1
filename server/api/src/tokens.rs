//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::whole::whole;

/// Text to split.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// Which model's tokenizer; may be left out where only one is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Another name of `prompt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whether to add the end of sequence (and what else the model expects). Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_special_tokens: Option<bool>,
}

/// The tokens of a text; the lists run in parallel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenizeResponse {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Their texts.
    pub token_strs: Vec<String>,
    /// Their values, where a token is a number.
    pub number_values: Vec<Option<f64>>,
    /// How many there are.
    pub count: u64,
    /// Most tokens that the model takes.
    pub max_model_len: u64,
}

/// Tokens to join.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// Which model's tokenizer; may be left out where only one is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids.
    #[serde(deserialize_with = "whole")]
    pub tokens: Vec<u32>,
}

/// The text of some tokens, under the names that clients of two other servers look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
    /// The text again.
    pub content: String,
}

/// Whose tokenizer is asked about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TokenizerInfoQuery {
    /// Which model's; may be left out where only one is served.
    pub model: Option<String>,
}

/// What a client needs to know of a tokenizer that it uses over HTTP, under the names of Hugging Face; null where the
/// checkpoint has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenizerInfo {
    /// The model.
    pub model: String,
    /// How numbers are written: `text`, `digits`, `rt` or `xval`.
    pub number_encoding: String,
    /// Begins a sequence.
    pub bos_token: Option<String>,
    /// Ends a sequence.
    pub eos_token: Option<String>,
    /// Fills up batches.
    pub pad_token: Option<String>,
    /// Stands for what has no token.
    pub unk_token: Option<String>,
    /// Most prompt tokens.
    pub model_max_length: u64,
    /// How conversations are written, in Jinja.
    pub chat_template: Option<String>,
}
