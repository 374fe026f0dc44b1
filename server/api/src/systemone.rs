//! `POST /v1/systemone`: TypeSafe's questions with a probability for every allowed answer. Fields that begin
//! with `x_` and the question `number` are ours.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::EngineTokens;
use crate::decisions::{OptionSet, ReadName};
use crate::in_order::InOrder;
use crate::number::{Number, NumberInterval, NumberMass, ObjectiveOption};
use crate::object::read_from_objects;
use crate::whole::whole;

read_from_objects!(SystemOneQuestion, NumberCriteria);

/// Body of a request. Null means the default; unknown fields at the top level are ignored.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SystemOneRequest {
    /// Name of the model; may be omitted if only one model is served. `jev-latest` and `gpt-6-luna` name the
    /// first model, unless a model has this name.
    pub model: Option<String>,
    /// What the questions are about: a string, an object or an array.
    #[schema(required = true)]
    pub state: Option<Value>,
    /// Questions by id. The model does not read the ids.
    #[schema(value_type = std::collections::BTreeMap<String, SystemOneQuestion>, required = true)]
    pub questions: Option<InOrder<SystemOneQuestion>>,
    /// Images, which this server rejects. An empty object changes nothing.
    pub assets: Option<Value>,
    /// How the options are read. Default: `labels`.
    pub x_read: Option<ReadName>,
    /// Average over this many rotations of the options, 1 to 255. Default 1.
    #[schema(minimum = 1, maximum = 255)]
    #[serde(default, deserialize_with = "whole")]
    pub x_orders: Option<u64>,
    /// Add an interval to scores and numbers, and a set of options to choices and nouls, with this coverage.
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub x_coverage: Option<f64>,
    /// The search for options stops when the open mass is at most this share of the closed mass. Default
    /// 0.001.
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub x_tolerance: Option<f64>,
    /// Only if the engine of the model reports no probabilities: number of answers that are sampled for each
    /// question and order, 1 to 4096. Default 64.
    #[schema(minimum = 1, maximum = 4096)]
    #[serde(default, deserialize_with = "whole")]
    pub x_samples: Option<u64>,
    /// Return the prompts instead of answers. Default false.
    pub x_dry_run: Option<bool>,
}

/// A question.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct SystemOneQuestion {
    /// `noul`, `choice`, `score` or `number`.
    #[serde(rename = "type")]
    #[schema(required = true, pattern = "^(noul|choice|score|number)$")]
    pub kind: Option<String>,
    /// The question: a string, an object or an array.
    pub instructions: Option<Value>,
    /// Of a noul: descriptions of `true` and `false`. Of a choice: the description of each of 1 to 255
    /// options, or null. Of a score: 1 to 255 levels, the lowest one first. Of a number: `minimum`,
    /// `maximum`, `step`, `unit` and `objective`, all of them optional.
    pub criteria: Option<Value>,
}

/// The criteria of a number.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct NumberCriteria {
    /// The smallest allowed value.
    pub minimum: Option<f64>,
    /// The largest allowed value.
    pub maximum: Option<f64>,
    /// With both: only `minimum` plus multiples of this are allowed.
    pub step: Option<f64>,
    /// The unit, which the question names.
    pub unit: Option<String>,
    /// Which estimate `number` is. Default `mean`.
    pub objective: Option<ObjectiveOption>,
}

/// The answers, in the order of the questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SystemOneResponse {
    /// The model that answered.
    pub model: String,
    #[schema(value_type = std::collections::BTreeMap<String, SystemOneAnswer>)]
    pub answers: InOrder<SystemOneAnswer>,
    pub usage: SystemOneUsage,
}

/// An answer. `x_bounds` has the fields that it bounds, with `[smallest, largest]` in place of each number.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SystemOneAnswer {
    /// Whether a statement is true.
    Noul {
        /// The probability of true.
        noul: f64,
        x_mass: NumberMass,
        x_bounds: NoulBounds,
        x_set: Option<OptionSet>,
    },
    /// One of several options.
    Choice {
        /// The most probable option.
        choice: String,
        #[schema(value_type = std::collections::BTreeMap<String, f64>)]
        probabilities: InOrder<f64>,
        confidence: f64,
        x_mass: NumberMass,
        x_bounds: NamedBounds,
        x_set: Option<OptionSet>,
        /// A remark, such as that the options do not fit into the prompt.
        x_note: Option<String>,
    },
    /// A level.
    Score {
        /// The expected index of the level, from 0.
        score: f64,
        /// The levels by index.
        #[schema(value_type = std::collections::BTreeMap<String, Value>)]
        legend: InOrder<Value>,
        #[schema(value_type = std::collections::BTreeMap<String, f64>)]
        probabilities: InOrder<f64>,
        confidence: f64,
        x_mass: NumberMass,
        x_bounds: NamedBounds,
        x_interval: Option<NumberInterval>,
        /// A remark, such as that the levels do not fit into the prompt.
        x_note: Option<String>,
    },
    /// A number.
    Number {
        /// The estimate; null if the distribution has none.
        #[serialize_always]
        number: Option<f64>,
        unit: Option<String>,
        distribution: Box<Number>,
        x_mass: NumberMass,
        x_interval: Option<NumberInterval>,
    },
}

/// The bounds of a noul.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NoulBounds {
    pub noul: [f64; 2],
}

/// The bounds of a choice or a score.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NamedBounds {
    /// Of a score.
    pub score: Option<[f64; 2]>,
    #[schema(value_type = std::collections::BTreeMap<String, [f64; 2]>)]
    pub probabilities: InOrder<[f64; 2]>,
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SystemOneUsage {
    /// Tokens of the prompts of all questions.
    pub input_tokens: u64,
    /// 0, unless answers were sampled: the model writes nothing.
    pub output_tokens: u64,
    /// The work of another engine, if one computes the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x_engine: Option<EngineTokens>,
}

/// The body of an error of this route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SystemOneError {
    pub detail: SystemOneDetail,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SystemOneDetail {
    /// With status 422: the request is invalid.
    Invalid(Vec<InvalidField>),
    /// With any other status.
    Failed { error_type: String, message: String },
}

/// An invalid field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvalidField {
    /// `body`, then the path of the field: names, and indices of lists.
    pub loc: Vec<PathStep>,
    pub msg: String,
    #[serde(rename = "type")]
    pub kind: String,
}

/// A step of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PathStep {
    Index(u64),
    Name(String),
}
