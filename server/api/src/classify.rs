//! `POST /classify` and `POST /pooling`: the values that a model with a head predicts for its labels, in
//! vLLM's shapes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::chat::ChatRequestMessage;
use crate::completions::{Prompts, Usage};
use crate::models::TruncationSide;
use crate::whole::whole;

/// Body of a request for the values of labels. One of `input` and `messages` is required. Null means the
/// default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassificationRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The texts or token ids, 1 to 1024 of them.
    pub input: Option<Prompts>,
    /// A conversation for the chat template, instead of `input`.
    pub messages: Option<Vec<ChatRequestMessage>>,
    /// Only with `messages`: whether the template adds the beginning of the assistant's message. Default
    /// false.
    pub add_generation_prompt: Option<bool>,
    /// Only with `messages`: whether the last message remains open, as if the assistant had only begun it.
    /// Not with `add_generation_prompt`: true. Default false.
    pub continue_final_message: Option<bool>,
    /// Only with `messages`: additional variables for the template.
    pub chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// Whether the tokenizer adds special tokens. Default true for texts, and false for `messages`.
    pub add_special_tokens: Option<bool>,
    /// Maximum number of tokens of each input; the others are dropped. -1 for as many as the model takes.
    #[serde(default, deserialize_with = "whole")]
    pub truncate_prompt_tokens: Option<i64>,
    /// Only with `truncate_prompt_tokens`: the end at which tokens are dropped. Default: the side of the
    /// model.
    pub truncation_side: Option<TruncationSide>,
    /// Whether values become probabilities, by the activation of the model. Default true.
    pub use_activation: Option<bool>,
    /// Name of the user; changes nothing.
    pub user: Option<String>,
}

/// The labels of one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Classification {
    /// Index of the input in the request.
    pub index: u64,
    /// The label with the largest value.
    pub label: String,
    /// The probabilities of all labels in the model's order, or their values without an activation.
    pub probs: Vec<f64>,
    /// Number of labels.
    pub num_classes: u64,
}

/// Body of a response of `/classify`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassificationResponse {
    /// Id of the response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// When the response was made, as Unix time in seconds.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The inputs in their order.
    pub data: Vec<Classification>,
    /// Token counts of the inputs.
    pub usage: Usage,
}

/// The values of one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pooled {
    /// Index of the input in the request.
    pub index: u64,
    /// `pooling`.
    pub object: String,
    /// The probabilities of all labels in the model's order, or their values without an activation.
    pub data: Vec<f64>,
}

/// Body of a response of `/pooling`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolingResponse {
    /// Id of the response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// When the response was made, as Unix time in seconds.
    pub created: u64,
    /// The model.
    pub model: String,
    /// The inputs in their order.
    pub data: Vec<Pooled>,
    /// Token counts of the inputs.
    pub usage: Usage,
}
