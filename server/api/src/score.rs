//! `POST /v1/score`: log-probabilities and training losses of given targets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::Usage;
use crate::object::read_from_objects;
use crate::whole::whole;

read_from_objects!(ScoreItem);

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

/// A prompt with a target that follows it, or with candidates for the target.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ScoreItem {
    /// Input of the encoder, or the text before the target.
    pub prompt: TextOrIds,
    /// The text to score. Not empty. One of `target` and `candidates` is required.
    pub target: Option<TextOrIds>,
    /// Texts to compare, 1 to 1000, and at most 16384 in all items. The prompt and prefixes that candidates
    /// share are computed once.
    #[schema(min_items = 1, max_items = 1000)]
    pub candidates: Option<Vec<TextOrIds>>,
    /// Only if all candidates are numbers: the true number, for the losses over the candidates.
    pub value: Option<f64>,
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
    /// The relative error of each whole number, `NumberLevelLoss` of ntloss.
    #[serde(rename = "ntl-level")]
    NtlLevel,
}

impl LossName {
    /// All losses.
    pub const ALL: [Self; 7] =
        [Self::Ce, Self::NtlWas, Self::NtlWasCdf, Self::NtlMse, Self::NtlMae, Self::NtlHuber, Self::NtlLevel];
}

/// How the losses of a target's tokens are reduced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReductionName {
    /// The mean: for cross entropy over all tokens, for a Number Token Loss over the number tokens, for
    /// `ntl-level` over the numbers.
    #[default]
    Mean,
    /// The sum.
    Sum,
    /// One value for each token; 0 for a token without this loss.
    None,
}

/// Body of a score request. Null means the default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoreRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The items to score, 1 to 1024.
    #[schema(value_type = Vec<ScoreItem>, required = true, min_items = 1, max_items = 1024)]
    pub items: Option<Vec<ScoreItem>>,
    /// Which losses to return. Default: all.
    pub losses: Option<Vec<LossName>>,
    /// Weight of the Number Token Loss in the total, 0 to 1000000. Default 0.3.
    #[schema(minimum = 0, maximum = 1000000)]
    pub lambda: Option<f64>,
    /// Default `mean`.
    pub reduction: Option<ReductionName>,
    /// Make probability on text cost more than the worst number, as ntloss does. Default false, as in the
    /// paper.
    pub reweigh: Option<bool>,
    /// Only for `ntl-was`: how much worse the farthest number token is than the nearest wrong one, above 1,
    /// at most 1000000, as in ntloss. Default: as much as its distance.
    #[schema(exclusive_minimum = 1, maximum = 1000000)]
    pub squash_factor: Option<f64>,
    /// Only for `candidates`: whether their log-probabilities are divided by their numbers of tokens before
    /// the softmax. Default false.
    pub normalize_by_length: Option<bool>,
    /// Only for `candidates` with a `value`: the width of the target distribution of DIST2, above 0, at most
    /// 1000000. Default 1.
    #[schema(exclusive_minimum = 0, maximum = 1000000)]
    pub tau: Option<f64>,
    /// Also score the end of sequence after the target, as in training. Default true.
    pub add_eos: Option<bool>,
    /// Name of the user; changes nothing.
    pub user: Option<String>,
}

/// A loss after its reduction. Null if it is infinite, because the target has no probability, and for a
/// Number Token Loss of a model whose numbers are all one token (xVal).
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
    /// Sum over number tokens of renormalised probability times value; null if no number token is possible.
    pub number_values: Vec<Option<f64>>,
    /// Probability of all number tokens together; null if none is possible.
    pub number_mass: Vec<Option<f64>>,
    /// The requested losses.
    pub losses: BTreeMap<LossName, Loss>,
    /// Cross entropy plus `lambda` times the first Number Token Loss of the request.
    pub total: Loss,
    /// The exponential of the mean cross entropy, regardless of the reduction. Null if it is not finite.
    #[schema(required)]
    pub perplexity: Option<f64>,
}

/// A candidate and how probable it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateScore {
    /// The text of the request, or the text of its token ids.
    pub text: String,
    /// Its token ids, including the end of the sequence if that is scored.
    pub token_ids: Vec<u32>,
    /// Natural logarithm of its probability after the prompt, the sum over its tokens; -9999 for a
    /// probability of 0.
    pub logprob: f64,
    /// The softmax over the log-probabilities of the item's candidates. Candidates with equal tokens count
    /// once, and each shows the whole probability of these tokens.
    pub probability: f64,
}

/// Losses over candidates that are numbers. Null if infinite.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateLosses {
    /// RAFT: the squared difference of `value` and the sum of probability times number. Candidates with equal
    /// tokens count once.
    pub raft: Option<f64>,
    /// DIST2: the divergence of the numbers' probabilities from a distribution around `value`. A number that
    /// several candidates spell has the sum of their probabilities.
    pub dist2: Option<f64>,
}

/// An item with candidates, scored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CandidateScores {
    /// Index of the item in the request.
    pub index: u64,
    /// The candidates in their order.
    pub candidates: Vec<CandidateScore>,
    /// Losses over the candidates, if the item has a `value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub losses: Option<CandidateLosses>,
}

/// A scored item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ScoredItem {
    /// An item with a `target`.
    Target(Score),
    /// An item with `candidates`.
    Candidates(CandidateScores),
}

/// Body of a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScoreResponse {
    /// `list`.
    pub object: String,
    /// The model that scored.
    pub model: String,
    /// The items in their order.
    pub data: Vec<ScoredItem>,
    /// Token counts of the prompts, and of the targets as completion tokens.
    pub usage: Usage,
}
