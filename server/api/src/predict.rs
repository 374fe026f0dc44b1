//! `POST /predict`: the probabilities of labels in the shape of text-embeddings-inference.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::models::TruncationSide;

/// One text, or two texts that are read as a pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, or a list of one or two strings")]
pub enum PredictText {
    Text(String),
    Texts(Vec<String>),
}

/// The texts of a request for predictions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string, a list of one or two strings, or a list of such lists")]
pub enum PredictInputs {
    /// One text or pair.
    One(PredictText),
    /// Up to 1024 texts and pairs, each in a list.
    Each(Vec<Vec<String>>),
}

/// Body of a request for predictions. Null means the default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PredictRequest {
    /// Name of the model; may be omitted if only one model is served.
    pub model: Option<String>,
    /// The texts.
    #[schema(value_type = PredictInputs, required = true)]
    pub inputs: Option<PredictInputs>,
    /// Whether scores are values before the activation of the model. Default false.
    pub raw_scores: Option<bool>,
    /// Whether inputs that are too long for the model lose tokens. Default false.
    pub truncate: Option<bool>,
    /// Only with `truncate`: the end at which they lose them. Default `right`.
    pub truncation_direction: Option<TruncationSide>,
}

/// The score of one label.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Prediction {
    /// The probability, or the value with `raw_scores`.
    pub score: f64,
    /// The label.
    pub label: String,
}

/// The labels, the one with the highest score first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PredictResponse {
    /// The labels of one text or pair.
    One(Vec<Prediction>),
    /// The labels of each text or pair of a list of lists.
    Each(Vec<Vec<Prediction>>),
}
