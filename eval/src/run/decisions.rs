//! The two APIs of decision models: bodies of requests, and answers read from responses.
//!
//! Requests have only the fields that both the official servers and their imitations accept, unless the
//! settings have fields of `ntl-server`. An answer that lacks a field, or whose probabilities do not add up,
//! is an error that names it.

use ntl_api::{DecisionChoice, NumberCriteria};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::data::decisions::{PredicateCriteria, Question, QuestionKind, described, option_text, state_text};
use crate::metrics::Estimates;
use crate::run::client::{ClientError, Route};
use crate::settings::decisions::{DecisionSettings, Reordering};
use crate::settings::mode::Api;

/// Probabilities add up to 1 within this, or within [`ROUNDING`] per option if that is more.
const SUM_TOLERANCE: f64 = 0.05;

/// Rounding error of a probability with two decimals.
const ROUNDING: f64 = 0.005;

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Probabilities in the order of [`Question::options`], which add up to 1.
    Options(Vec<f64>),
    Number(Estimates),
    /// None of the allowed answers.
    Refusal,
}

impl Decision {
    /// Returns the largest change of an option's probability. An answer that turns into a refusal counts as a
    /// change of 1. `None` for numbers.
    pub fn change(&self, other: &Self) -> Option<f64> {
        match (self, other) {
            (Self::Options(a), Self::Options(b)) => {
                Some(a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max))
            }
            (Self::Refusal, Self::Refusal) => Some(0.0),
            (Self::Options(_), Self::Refusal) | (Self::Refusal, Self::Options(_)) => Some(1.0),
            (Self::Number(_), _) | (_, Self::Number(_)) => None,
        }
    }
}

/// Which of the two APIs requests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecisionApi {
    OpenAi,
    SystemOne,
}

/// A question, with its options in the file's order or in another one.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub question: &'a Question,
    pub reordering: Option<Reordering>,
}

/// The part of a response that is read.
#[derive(Debug, Deserialize)]
pub struct DecisionsBody {
    answers: Value,
}

impl DecisionApi {
    /// Returns `None` for the APIs of prompts.
    pub fn of(api: Api) -> Option<Self> {
        match api {
            Api::Decisions => Some(Self::OpenAi),
            Api::Systemone => Some(Self::SystemOne),
            Api::Completions | Api::Chat => None,
        }
    }

    pub fn route(self) -> Route {
        match self {
            Self::OpenAi => Route::Decisions,
            Self::SystemOne => Route::Systemone,
        }
    }

    /// Returns the fields that are the same in all requests, except for the model.
    pub fn settings(settings: &DecisionSettings) -> Map<String, Value> {
        let mut fields = Map::new();
        if let Some(read) = settings.read {
            fields.insert("x_read".to_owned(), json!(read));
        }
        if let Some(orders) = settings.orders {
            fields.insert("x_orders".to_owned(), json!(orders));
        }
        fields
    }

    /// Returns the body of a request. All questions have the state of the first one.
    pub fn body(self, model: &str, asked: &[Asked<'_>], settings: &DecisionSettings) -> Value {
        let state = asked.first().map_or(&Value::Null, |first| &first.question.state);
        let mut body = match self {
            Self::OpenAi => {
                let mut questions = Vec::new();
                for asked in asked {
                    questions.push(asked.openai());
                }
                json!({ "model": model, "input": state_text(state), "questions": questions })
            }
            Self::SystemOne => {
                let mut questions = Map::new();
                for (index, asked) in asked.iter().enumerate() {
                    questions.insert(id(index), asked.systemone());
                }
                json!({ "model": model, "state": state, "questions": questions })
            }
        };
        for (name, value) in Self::settings(settings) {
            body[name] = value;
        }
        body
    }

    /// Reads one answer per question.
    pub fn read(self, asked: &[Asked<'_>], response: &DecisionsBody) -> Result<Vec<Decision>, ClientError> {
        let mut decisions = Vec::with_capacity(asked.len());
        for (index, Asked { question, .. }) in asked.iter().enumerate() {
            let (place, answer) = match self {
                Self::OpenAi => (format!("answers[{index}]"), response.answers.get(index)),
                Self::SystemOne => (format!("answers.{}", id(index)), response.answers.get(id(index))),
            };
            let decision = match answer {
                Some(answer) => self.decision(question, answer),
                None => Err("is missing".to_owned()),
            };
            decisions.push(decision.map_err(|problem| ClientError::UnusableDecision {
                problem: format!("`{place}` {problem}"),
            })?);
        }
        Ok(decisions)
    }

    /// The error is a fragment that follows the place of the answer.
    fn decision(self, question: &Question, answer: &Value) -> Result<Decision, String> {
        let found = answer.get("type").and_then(Value::as_str).ok_or("has no `type`")?;
        if found == "refusal" {
            return Ok(Decision::Refusal);
        }
        let want = match (self, &question.kind) {
            (Self::SystemOne, QuestionKind::Predicate { .. }) => "noul",
            _ => question.type_name(),
        };
        if found != want {
            return Err(format!("has the type {found:?}, expected {want:?}"));
        }
        let closed = answer.get("x_mass").and_then(|mass| mass.get("closed")?.as_f64());
        // System One has no refusals. `ntl-server` then returns equal probabilities.
        if closed.is_some_and(|closed| closed <= 0.0) {
            return Ok(Decision::Refusal);
        }
        match &question.kind {
            QuestionKind::Predicate { .. } => {
                let name = if self == Self::OpenAi { "probability" } else { "noul" };
                let found = answer.get(name).ok_or_else(|| format!("has no `{name}`"))?;
                let probability =
                    found.as_f64().ok_or_else(|| format!("has `{name}` {found}, not a number"))?;
                let probability = checked(probability)?;
                distribution(vec![1.0 - probability, probability])
            }
            QuestionKind::Choice { choices, .. } => {
                let options = choices.iter().map(|choice| (json!(choice.value), option_text(&choice.value)));
                distribution(self.probabilities(answer, options)?)
            }
            QuestionKind::Score { levels, .. } => {
                let options = (0..levels.len()).map(|index| (json!(index), index.to_string()));
                distribution(self.probabilities(answer, options)?)
            }
            QuestionKind::Number { .. } => number(answer),
        }
    }

    /// Returns the probabilities of options, which OpenAI's API identifies by their values and System One by
    /// their texts.
    fn probabilities(
        self,
        answer: &Value,
        options: impl Iterator<Item = (Value, String)>,
    ) -> Result<Vec<f64>, String> {
        let entries = answer.get("probabilities").ok_or("has no `probabilities`")?;
        let mut probabilities = Vec::new();
        for (value, text) in options {
            let own = match self {
                Self::SystemOne => entries.get(&text),
                Self::OpenAi => {
                    let entries = entries.as_array().ok_or("has no list `probabilities`")?;
                    let own = entries.iter().find(|entry| entry.get("value") == Some(&value));
                    own.and_then(|entry| entry.get("probability"))
                }
            };
            let own = own.and_then(Value::as_f64);
            probabilities.push(checked(own.ok_or_else(|| format!("has no probability of {value}"))?)?);
        }
        Ok(probabilities)
    }
}

/// Rejects a number that is not a probability, up to rounding.
fn checked(probability: f64) -> Result<f64, String> {
    if (-1e-6..=1.0 + 1e-6).contains(&probability) {
        Ok(probability.clamp(0.0, 1.0))
    } else {
        Err(format!("has the probability {probability}, expected 0 to 1"))
    }
}

/// Rejects probabilities that cannot be the result of rounding, and scales the others to a sum of 1.
fn distribution(mut probabilities: Vec<f64>) -> Result<Decision, String> {
    let tolerance = SUM_TOLERANCE.max(ROUNDING * probabilities.len() as f64);
    let sum: f64 = probabilities.iter().sum();
    if sum <= 0.0 || (sum - 1.0).abs() > tolerance {
        return Err(format!("has probabilities that add up to {sum}"));
    }
    for probability in &mut probabilities {
        *probability /= sum;
    }
    Ok(Decision::Options(probabilities))
}

/// Reads a number of `ntl-server`. Without a distribution, its estimate is used for all metrics.
fn number(answer: &Value) -> Result<Decision, String> {
    let Value::Number(number) = answer.get("number").ok_or("has no `number`")? else {
        return Ok(Decision::Refusal);
    };
    let mean = number.as_f64().ok_or("has a `number` that is out of range")?;
    let distribution = &answer["distribution"];
    Ok(Decision::Number(Estimates {
        mean,
        median: distribution["median"].as_f64().unwrap_or(mean),
        mode: distribution["mode"].as_f64().unwrap_or(mean),
    }))
}

fn id(index: usize) -> String {
    format!("q{index}")
}

impl Asked<'_> {
    fn choices(&self, choices: &[DecisionChoice]) -> Vec<DecisionChoice> {
        match self.reordering {
            Some(reordering) => reordering.apply(choices.to_vec()),
            None => choices.to_vec(),
        }
    }

    fn openai(&self) -> Value {
        let Question { instructions, kind, .. } = self.question;
        let name = self.question.type_name();
        match kind {
            QuestionKind::Predicate { criteria, .. } => {
                json!({ "type": name, "instructions": with_criteria(instructions, criteria) })
            }
            QuestionKind::Choice { choices, .. } => {
                json!({ "type": name, "instructions": instructions, "choices": self.choices(choices) })
            }
            QuestionKind::Score { levels, .. } => {
                json!({ "type": name, "instructions": instructions, "levels": levels })
            }
            QuestionKind::Number { criteria, .. } => {
                let mut question = json!({ "type": name, "instructions": instructions });
                if let (Some(question), Value::Object(criteria)) = (question.as_object_mut(), json!(criteria))
                {
                    question.extend(criteria);
                }
                question
            }
        }
    }

    fn systemone(&self) -> Value {
        let Question { instructions, kind, .. } = self.question;
        let (name, criteria) = match kind {
            QuestionKind::Predicate { criteria, .. } if *criteria == PredicateCriteria::default() => {
                return json!({ "type": "noul", "instructions": instructions });
            }
            QuestionKind::Predicate { criteria, .. } => ("noul", json!(criteria)),
            QuestionKind::Choice { choices, .. } => {
                let mut options = Map::new();
                for DecisionChoice { value, description } in self.choices(choices) {
                    options.insert(option_text(&value), json!(description));
                }
                ("choice", Value::Object(options))
            }
            QuestionKind::Score { levels, .. } => {
                let mut texts = Vec::new();
                for level in levels {
                    texts.push(described(&level.label, level.description.as_deref()));
                }
                ("score", json!(texts))
            }
            QuestionKind::Number { criteria, .. } if *criteria == NumberCriteria::default() => {
                return json!({ "type": "number", "instructions": instructions });
            }
            QuestionKind::Number { criteria, .. } => ("number", json!(criteria)),
        };
        json!({ "type": name, "instructions": instructions, "criteria": criteria })
    }
}

/// OpenAI's predicates have no criteria, so that they become lines of the instructions.
fn with_criteria(instructions: &str, criteria: &PredicateCriteria) -> String {
    let mut text = instructions.to_owned();
    for (name, meaning) in [("True", &criteria.when_true), ("False", &criteria.when_false)] {
        if let Some(meaning) = meaning {
            text += &format!("\n{name}: {meaning}");
        }
    }
    text
}
