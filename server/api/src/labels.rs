//! Probabilities of given tokens after a prompt of two parts: vLLM's `POST /generative_scoring`, and SGLang's
//! form of `POST /v1/score`.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::Usage;
use crate::score::{ScoreRequest, ScoreResponse, TextOrIds};
use crate::whole::whole;

/// The second parts of the prompts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, or a list of strings or of lists of token ids")]
pub enum LabelItems {
    /// One text.
    One(String),
    /// Texts, or their token ids.
    Each(Vec<TextOrIds>),
}

/// Body of a request for the probabilities of labels. Null means the default in every field; unknown fields
/// are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The part that all prompts share.
    #[schema(value_type = TextOrIds, required = true)]
    pub query: Option<TextOrIds>,
    /// The other part of each prompt, 1 to 1024.
    #[schema(value_type = LabelItems, required = true)]
    pub items: Option<LabelItems>,
    /// The labels: token ids whose probabilities after each prompt are requested, 1 to 1024.
    #[schema(value_type = Vec<u32>, required = true, min_items = 1, max_items = 1024)]
    #[serde(default, deserialize_with = "whole")]
    pub label_token_ids: Option<Vec<u32>>,
    /// Whether the probabilities of the labels are divided by their sum. Default true for
    /// `/generative_scoring`, false for `/v1/score`.
    pub apply_softmax: Option<bool>,
    /// Whether an item is before the query. Default false.
    pub item_first: Option<bool>,
    /// Whether texts get the special tokens of training. Default true.
    pub add_special_tokens: Option<bool>,
    /// Prompts of one API key share cached prefixes only if this text is equal. It changes nothing in a
    /// response but its time.
    pub cache_salt: Option<String>,
    /// Accepted, and changes nothing: all requests have the same priority.
    pub priority: Option<i64>,
    /// Id of the request; changes nothing.
    pub request_id: Option<String>,
    /// Name of the user; changes nothing.
    pub user: Option<String>,
}

/// The probability of the first label after one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LabelScore {
    /// Index of the item in the request.
    pub index: u64,
    /// `score`.
    pub object: String,
    /// The probability.
    pub score: f64,
}

/// Response of `/generative_scoring`, as in vLLM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LabelScores {
    /// Unique id of the response.
    pub id: String,
    /// `list`.
    pub object: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model that scored.
    pub model: String,
    /// The items in their order.
    pub data: Vec<LabelScore>,
    /// Token counts. Each item has one completion token.
    pub usage: Usage,
}

/// Response of `/v1/score` to labels, as in SGLang.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LabelProbabilities {
    /// For each item, the probabilities of the labels in their order.
    pub scores: Vec<Vec<f64>>,
    /// The model that scored.
    pub model: String,
    /// Token counts. Each item has one completion token.
    pub usage: Usage,
    /// `scoring`.
    pub object: String,
}

/// Body of `/v1/score`: targets or candidates, or labels.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ScoreBody {
    /// Targets and candidates.
    Targets(ScoreRequest),
    /// Labels, as in SGLang.
    Labels(LabelRequest),
}

/// Response of `/v1/score`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ScoreAnswer {
    /// To targets and candidates.
    Targets(ScoreResponse),
    /// To labels.
    Labels(LabelProbabilities),
}
