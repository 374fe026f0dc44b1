//! `POST /v1/decisions`: OpenAI's questions with a probability for every allowed answer. Fields that begin
//! with `x_` and the question `number` are ours.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::completions::EngineTokens;
use crate::number::{Number, NumberInterval, NumberMass, ObjectiveOption};
use crate::object::read_from_objects;
use crate::text_or_list::TextOrList;
use crate::whole::whole;

read_from_objects!(
    PromptCacheOptions,
    DecisionItem,
    DecisionPart,
    DecisionQuestion,
    DecisionChoice,
    DecisionLevel
);

/// Body of a request for decisions. Null means the default in every field; unknown fields are errors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecisionsRequest {
    /// Name of the model; may be omitted if only one model is served. `gpt-6-luna` and `jev-latest` name the
    /// first model, unless a model has this name.
    pub model: Option<String>,
    /// The text that the questions are about, or a conversation.
    #[schema(value_type = TextOrList<DecisionItem>, required = true)]
    pub input: Option<TextOrList<DecisionItem>>,
    /// 1 to 400 questions.
    #[schema(required = true, min_items = 1, max_items = 400)]
    pub questions: Option<Vec<DecisionQuestion>>,
    /// Accepted and changes nothing: requests with the same prefix share computed prefixes anyway.
    pub prompt_cache_key: Option<String>,
    /// Accepted and changes nothing.
    #[schema(value_type = Option<Object>)]
    pub prompt_cache_options: Option<PromptCacheOptions>,
    /// Accepted and changes nothing: the server does not monitor users.
    pub safety_identifier: Option<String>,
    /// How the options are read. Default: `labels`.
    pub x_read: Option<ReadName>,
    /// Average over this many rotations of the options, 1 to 255. Default 1.
    #[schema(minimum = 1, maximum = 255)]
    #[serde(default, deserialize_with = "whole")]
    pub x_orders: Option<u64>,
    /// Add an interval to scores and numbers, and a set of options to choices and predicates, with this
    /// coverage.
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

/// How long prompts stay cached. Other fields change nothing.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct PromptCacheOptions {
    /// `implicit` or `explicit`.
    #[schema(pattern = "^(implicit|explicit)$")]
    pub mode: Option<String>,
    /// `30m`.
    pub ttl: Option<String>,
}

/// Which texts are read from the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadName {
    /// Short labels, which the prompt gives to the options.
    Labels,
    /// The options' texts.
    Texts,
}

/// An item of a conversation: a message, a call, or the output of a call. Other fields are ignored.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct DecisionItem {
    /// `message` (the default), `function_call`, `function_call_output`, `custom_tool_call` or
    /// `custom_tool_call_output`.
    #[serde(rename = "type")]
    #[schema(
        pattern = "^(message|function_call|function_call_output|custom_tool_call|custom_tool_call_output)$"
    )]
    pub kind: Option<String>,
    /// Role of a message: `user`, `assistant`, `developer` or `system`.
    pub role: Option<String>,
    /// Content of a message.
    pub content: Option<TextOrList<DecisionPart>>,
    /// Id of the call, in a call and in its output.
    pub call_id: Option<String>,
    /// Name of the function or tool, in a call.
    pub name: Option<String>,
    /// Arguments of a function call.
    pub arguments: Option<String>,
    /// Input of a custom tool call.
    pub input: Option<String>,
    /// Output of a call.
    pub output: Option<TextOrList<DecisionPart>>,
}

/// A part of a message or of instructions. Other fields are ignored.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct DecisionPart {
    /// `input_text`, `output_text`, `refusal` or `input_json`.
    #[serde(rename = "type")]
    #[schema(required = true, pattern = "^(input_text|output_text|refusal|input_json)$")]
    pub kind: Option<String>,
    /// The text.
    pub text: Option<String>,
    /// The text of a refusal.
    pub refusal: Option<String>,
    /// An object or a list of objects: at most 32 levels, 10,000 values and 256 KiB.
    pub data: Option<Value>,
}

/// A question. The type decides which of the other fields are allowed.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DecisionQuestion {
    /// `predicate`, `choice`, `score` or `number`.
    #[serde(rename = "type")]
    #[schema(required = true, pattern = "^(predicate|choice|score|number)$")]
    pub kind: Option<String>,
    /// The name of the answer. The model does not read it.
    pub name: Option<String>,
    /// The question.
    #[schema(value_type = TextOrList<DecisionPart>, required = true)]
    pub instructions: Option<TextOrList<DecisionPart>>,
    /// Of a choice: 2 to 255 options.
    #[schema(min_items = 2, max_items = 255)]
    pub choices: Option<Vec<DecisionChoice>>,
    /// Of a score: 2 to 10 levels, the lowest one first.
    #[schema(min_items = 2, max_items = 10)]
    pub levels: Option<Vec<DecisionLevel>>,
    /// Of a number: the smallest allowed value.
    pub minimum: Option<f64>,
    /// Of a number: the largest allowed value.
    pub maximum: Option<f64>,
    /// Of a number with both: only `minimum` plus multiples of this are allowed.
    pub step: Option<f64>,
    /// Of a number: its unit, which the question names.
    pub unit: Option<String>,
    /// Of a number: which estimate `number` is. Default `mean`.
    pub objective: Option<ObjectiveOption>,
    /// As in the request, for this question.
    pub x_read: Option<ReadName>,
    /// As in the request, for this question.
    #[schema(minimum = 1, maximum = 255)]
    #[serde(default, deserialize_with = "whole")]
    pub x_orders: Option<u64>,
    /// As in the request, for this question.
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub x_coverage: Option<f64>,
    /// As in the request, for this question.
    #[schema(exclusive_minimum = 0, exclusive_maximum = 1)]
    pub x_tolerance: Option<f64>,
    /// As in the request, for this question.
    #[schema(minimum = 1, maximum = 4096)]
    #[serde(default, deserialize_with = "whole")]
    pub x_samples: Option<u64>,
}

/// An option of a choice.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DecisionChoice {
    /// Unique with its type: `"true"` and `true` differ.
    pub value: OptionValue,
    /// Its meaning, for the model.
    pub description: Option<String>,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a string or a boolean")]
pub enum OptionValue {
    Text(String),
    Flag(bool),
}

/// A level of a score.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct DecisionLevel {
    pub label: String,
    /// Its meaning, for the model.
    pub description: Option<String>,
}

/// The answers, in the order of the questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionsResponse {
    /// The model that answered.
    pub model: String,
    pub answers: Vec<DecisionAnswer>,
    pub usage: DecisionsUsage,
}

/// An answer. `x_bounds` has the fields that it bounds, with `[smallest, largest]` in place of each number.
/// If answers were sampled (`x_mass.samples`), each bound holds with a probability of at least 0.95.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DecisionAnswer {
    /// Whether a statement is true.
    Predicate {
        #[serialize_always]
        name: Option<String>,
        /// The probability of yes.
        probability: f64,
        x_mass: NumberMass,
        x_bounds: PredicateBounds,
        x_set: Option<OptionSet>,
    },
    /// One of several options.
    Choice {
        #[serialize_always]
        name: Option<String>,
        /// The most probable value.
        choice: OptionValue,
        probabilities: Vec<ValueProbability>,
        confidence: f64,
        x_mass: NumberMass,
        x_bounds: ChoiceBounds,
        x_set: Option<OptionSet>,
        /// A remark, such as that the options do not fit into the prompt.
        x_note: Option<String>,
    },
    /// A level.
    Score {
        #[serialize_always]
        name: Option<String>,
        /// The expected index of the level, from 0.
        score: f64,
        probabilities: Vec<LevelProbability>,
        confidence: f64,
        x_mass: NumberMass,
        x_bounds: ScoreBounds,
        x_interval: Option<NumberInterval>,
        /// A remark, such as that the levels do not fit into the prompt.
        x_note: Option<String>,
    },
    /// A number.
    Number {
        #[serialize_always]
        name: Option<String>,
        /// The estimate; null if the distribution has none.
        #[serialize_always]
        number: Option<f64>,
        unit: Option<String>,
        distribution: Box<Number>,
        x_mass: NumberMass,
        x_interval: Option<NumberInterval>,
    },
    /// The model writes none of the options.
    Refusal {
        #[serialize_always]
        name: Option<String>,
        x_mass: NumberMass,
    },
}

/// The probability of an option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueProbability {
    pub value: OptionValue,
    pub probability: f64,
}

/// The bounds of the probability of an option.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ValueBounds {
    pub value: OptionValue,
    pub probability: [f64; 2],
}

/// The probability of a level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LevelProbability {
    /// Its index, from 0.
    pub value: u64,
    pub label: String,
    pub probability: f64,
}

/// The bounds of the probability of a level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LevelBounds {
    /// Its index, from 0.
    pub value: u64,
    pub label: String,
    pub probability: [f64; 2],
}

/// The bounds of a predicate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PredicateBounds {
    pub probability: [f64; 2],
}

/// The bounds of a choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChoiceBounds {
    pub probabilities: Vec<ValueBounds>,
}

/// The bounds of a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScoreBounds {
    pub score: [f64; 2],
    pub probabilities: Vec<LevelBounds>,
}

/// A set of options that contains the correct one as often as `coverage` says.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OptionSet {
    /// In the order of the options.
    pub values: Vec<OptionValue>,
    pub coverage: f64,
    pub method: SetMethod,
    /// Why no calibration of the model applies, if it has some.
    pub reason: Option<String>,
}

/// How a set is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SetMethod {
    /// By a calibration file.
    Conformal,
    /// The most probable options that together have this probability, which the model may misjudge.
    Probabilities,
}

/// The tokens of a request.
#[skip_serializing_none]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionsUsage {
    /// Tokens of the prompts of all questions.
    pub input_tokens: u64,
    pub input_tokens_details: DecisionsInputDetails,
    /// 0, unless answers were sampled: the model writes nothing.
    pub output_tokens: u64,
    pub output_tokens_details: DecisionsOutputDetails,
    pub total_tokens: u64,
    /// The work of another engine, if one computes the model.
    pub x_engine: Option<EngineTokens>,
}

impl DecisionsUsage {
    pub fn of_input(input_tokens: u64) -> Self {
        Self {
            input_tokens,
            input_tokens_details: DecisionsInputDetails { cached_tokens: 0, cache_write_tokens: 0 },
            output_tokens: 0,
            output_tokens_details: DecisionsOutputDetails { reasoning_tokens: 0 },
            total_tokens: input_tokens,
            x_engine: None,
        }
    }
}

/// Cached tokens, which only another engine that samples answers reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionsInputDetails {
    pub cached_tokens: u64,
    pub cache_write_tokens: u64,
}

/// Tokens of a chain of thought, which only sampled answers can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DecisionsOutputDetails {
    pub reasoning_tokens: u64,
}

/// The response to a request with `x_dry_run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionPrompts {
    pub model: String,
    /// One for each question and order of its options.
    pub prompts: Vec<DecisionPrompt>,
}

/// The answers, or the prompts of a dry run.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum AnswersOrPrompts<T> {
    Answers(T),
    Prompts(DecisionPrompts),
}

/// A prompt and the texts that are read after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionPrompt {
    /// The index of the question.
    pub question: u64,
    /// The exact text that the model reads.
    pub text: String,
    pub token_ids: Vec<u32>,
    /// The text of each option, in the order of the request; empty for a number.
    pub answers: Vec<String>,
}
