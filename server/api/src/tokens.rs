//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::{IntoParams, ToSchema};

use crate::chat::ChatRequestMessage;
use crate::tools::ChatTool;
use crate::whole::whole;

/// Text to split: `prompt` or `messages`. Unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeRequest {
    /// The model whose tokenizer to use; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The text.
    pub prompt: Option<String>,
    /// Alias of `prompt`.
    pub content: Option<String>,
    /// A conversation for the chat template.
    pub messages: Option<Vec<ChatRequestMessage>>,
    /// Only with `messages`: whether the template adds the beginning of the assistant's message. Default
    /// true, or false with `continue_final_message`.
    pub add_generation_prompt: Option<bool>,
    /// Only with `messages`: whether the text ends with the content of the last message. Default false.
    pub continue_final_message: Option<bool>,
    /// Only with `messages`: additional variables for the template.
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Only with `messages`: functions that the model may call, if its chat template supports tools.
    pub tools: Option<Vec<ChatTool>>,
    /// Whether to add the special tokens that the model expects, such as the end of sequence. Default true,
    /// or false with `messages`, whose template writes them.
    pub add_special_tokens: Option<bool>,
    /// Accepted for clients of vLLM, and changes nothing: the response always has `token_strs`.
    pub return_token_strs: Option<bool>,
}

/// The tokens of a text, as parallel lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TokenizeResponse {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// Texts of the tokens.
    pub token_strs: Vec<String>,
    /// The value of each token that is a number.
    pub number_values: Vec<Option<f64>>,
    /// Number of tokens.
    pub count: u64,
    /// Maximum number of prompt tokens.
    pub max_model_len: u64,
}

/// Tokens to join. Unknown fields are errors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DetokenizeRequest {
    /// The model whose tokenizer to use; may be omitted if only one model is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids.
    #[serde(deserialize_with = "whole")]
    pub tokens: Vec<u32>,
}

/// The text of tokens, under the field names of vLLM and of llama.cpp.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text.
    pub prompt: String,
    /// The text again.
    pub content: String,
}

/// The model whose tokenizer is described.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TokenizerInfoQuery {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
}

/// Properties of a tokenizer that clients use over HTTP, under the names of Hugging Face; null if the
/// checkpoint has no such token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenizerInfo {
    /// The model.
    pub model: String,
    /// How numbers are written: `text`, `digits`, `rt` or `xval`.
    pub number_encoding: String,
    /// Begin of sequence.
    pub bos_token: Option<String>,
    /// End of sequence.
    pub eos_token: Option<String>,
    /// Padding.
    pub pad_token: Option<String>,
    /// Unknown token.
    pub unk_token: Option<String>,
    /// Maximum number of prompt tokens.
    pub model_max_length: u64,
    /// The chat template, in Jinja.
    pub chat_template: Option<String>,
}
