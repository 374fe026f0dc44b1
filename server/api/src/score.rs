//! `POST /v1/score`: log-probabilities and training losses of given targets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::completions::Usage;
use crate::whole::whole;

/// A text, or its token ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a list of token ids")]
pub enum TextOrIds {
    /// A text, tokenized as in training.
    Text(String),
    /// Token ids, used as they are.
    #[serde(deserialize_with = "whole")]
    Ids(Vec<u32>),
}

/// A prompt and the target behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreItem {
    /// Input of the encoder, or the text in front of the target.
    pub prompt: TextOrIds,
    /// The text to score. Not empty.
    pub target: TextOrIds,
}

/// A loss by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub enum LossName {
    /// Cross entropy of all target tokens.
    #[serde(rename = "ce")]
    Ce,
    /// NTL-WAS.
    #[serde(rename = "ntl-was")]
    NtlWas,
    /// NTL-WAS-CDF, a distance in ranks.
    #[serde(rename = "ntl-was-cdf")]
    NtlWasCdf,
    /// NTL-MSE.
    #[serde(rename = "ntl-mse")]
    NtlMse,
    /// NTL-MAE.
    #[serde(rename = "ntl-mae")]
    NtlMae,
    /// NTL-Huber.
    #[serde(rename = "ntl-huber")]
    NtlHuber,
}

impl LossName {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Ce, Self::NtlWas, Self::NtlWasCdf, Self::NtlMse, Self::NtlMae, Self::NtlHuber];
}

/// How the losses of a target's tokens are reduced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReductionName {
    /// The mean: for cross entropy over all tokens, for a Number Token Loss over the number tokens.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// One value for each token; 0 where a token has no such loss.
    None,
}

/// Body of a score request. Null means the default in every field; unknown fields are errors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreRequest {
    /// Name of the model; may be omitted where only one model is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The items to score, 1 to 1024.
    #[schema(value_type = Vec<ScoreItem>, required = true, min_items = 1, max_items = 1024)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<ScoreItem>>,
    /// Which losses to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Vec<LossName>>,
    /// Weight of the Number Token Loss in the total, 0 to 1000000. Default 0.3.
    #[schema(minimum = 0, maximum = 1000000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lambda: Option<f64>,
    /// Default `mean`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reduction: Option<ReductionName>,
    /// Make probability on text cost more than the worst number, as ntloss does. Default false, as in the paper.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reweigh: Option<bool>,
    /// Also score the end of sequence behind the target, as in training. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_eos: Option<bool>,
    /// Name of the user; ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A loss after its reduction. Null where it is infinite, because the target has no probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Loss {
    /// One value for all tokens.
    All(Option<f64>),
    /// One value for each token.
    Each(Vec<Option<f64>>),
}

/// One scored item. The lists have one entry for each token of the target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Score {
    /// Index of the item in the request.
    pub index: u64,
    /// Token ids of the target.
    pub token_ids: Vec<u32>,
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Natural logarithms of the probabilities; -9999 for a probability of 0.
    pub token_logprobs: Vec<f64>,
    /// Sum over number tokens of renormalised probability times value; null where no number token is possible.
    pub number_values: Vec<Option<f64>>,
    /// Probability of all number tokens together; null where none is possible.
    pub number_mass: Vec<Option<f64>>,
    /// The requested losses.
    pub losses: BTreeMap<LossName, Loss>,
    /// Cross entropy plus `lambda` times the first Number Token Loss of the request.
    pub total: Loss,
    /// The exponential of the mean cross entropy, whatever the reduction. Null where it is no finite number.
    #[schema(required)]
    pub perplexity: Option<f64>,
}

/// Body of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScoreResponse {
    /// `list`.
    pub object: String,
    /// The model that scored.
    pub model: String,
    /// The items in their order.
    pub data: Vec<Score>,
    /// Tokens of the prompts, and of the targets as completion tokens.
    pub usage: Usage,
}
