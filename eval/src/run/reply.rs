//! Replies of a server to the requests of an item, as `ntl-eval` reads them and the journal stores them.
//!
//! Responses are parsed leniently: every OpenAI-style server sends the required fields.

use std::collections::BTreeMap;

use ntl_api::{LocatedNumber, MethodName, Number, NumberInterval};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use crate::data::Item;
use crate::data::decisions::Question;
use crate::json_path::JsonPath;
use crate::metrics::Estimates;
use crate::metrics::cost::Cost;
use crate::metrics::decision::{Changes, most_probable};
use crate::metrics::estimates::AllEstimates;
use crate::metrics::judgement::Orders;
use crate::run::client::ClientError;
use crate::run::decisions::Decision;
use crate::settings::mode::Mode;

/// An item and everything that the server returned for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply<'a> {
    pub item: &'a Item,
    pub answer: Result<Answer, String>,
    /// Only in a run by a protocol.
    pub label: Option<Label>,
    /// Only with `--score`: likelihood of the true answer, or why it is unknown.
    pub target_score: Option<Result<TargetScore, String>>,
    /// The median of numbers that the server drew, if they were requested and any of them is a number.
    pub drawn_median: Option<f64>,
    /// How far the answer of a decision model changes in other requests.
    pub changes: Changes,
}

impl<'a> Reply<'a> {
    pub fn new(item: &'a Item, answer: Result<Answer, String>) -> Self {
        Self {
            item,
            answer,
            label: None,
            target_score: None,
            drawn_median: None,
            changes: Changes::default(),
        }
    }

    pub fn text(&self) -> Option<&str> {
        self.answer.as_ref().ok().map(|answer| answer.text.as_str())
    }

    pub fn number(&self) -> Option<&PredictedNumber> {
        self.answer.as_ref().ok()?.number.as_ref()
    }

    /// Returns why the likelihood of the true answer is unknown, if it was requested.
    pub fn score_error(&self) -> Option<&str> {
        self.target_score.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Returns the true answer in the form that scoring compares texts with: the text of its label, if there
    /// is one.
    pub fn reference(&self) -> &str {
        self.label.as_ref().map_or(&self.item.answer, |label| &label.text)
    }
}

/// A true answer after tokenizing and detokenizing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Label {
    /// Token ids, including the end of sequence if the tokenizer appends one.
    pub ids: Vec<u32>,
    /// The end of sequence, if the tokenizer appends one.
    pub end: Option<u32>,
    /// The text that the tokens decode to.
    pub text: String,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub text: String,
    pub finish_reason: Option<String>,
    /// The token ids, if the request includes `return_token_ids` and the server supports it.
    pub token_ids: Option<Vec<u32>>,
    /// Only in regress mode.
    pub number: Option<PredictedNumber>,
    /// Only in regress mode: the numbers of a structured answer, by path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, PredictedNumber>,
    #[serde(default, skip_serializing_if = "Cost::is_unknown")]
    pub cost: Cost,
    /// The answer of a decision model. Its journal only has decisions.
    #[serde(skip)]
    pub decision: Option<Decision>,
}

impl Answer {
    /// Returns the answer of a decision model, with the most probable option or the number as text.
    pub fn of_decision(question: &Question, decision: Decision) -> Self {
        let text = match &decision {
            Decision::Options(probabilities) => {
                most_probable(probabilities).and_then(|best| question.options().into_iter().nth(best))
            }
            Decision::Number(estimates) => Some(estimates.mean.to_string()),
            Decision::Refusal => None,
        };
        Self { text: text.unwrap_or_default(), decision: Some(decision), ..Self::default() }
    }

    /// Returns the part of a structured answer at a path: the number as text, and its distribution.
    pub fn field(mut self, path: &JsonPath) -> Self {
        let answer = serde_json::from_str::<Value>(&self.text).ok();
        self.text = match answer.as_ref().and_then(|answer| path.find(answer)) {
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let number = self.numbers.remove(&path.to_string());
        Self { number, numbers: BTreeMap::new(), ..self }
    }
}

/// The part of the server's number distribution that is scored. Without estimates it holds no quantiles and
/// no support.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedNumber {
    /// Trimmed mean, median and mode, or `None` if the server returns no value. If the open mass leaves the
    /// trimmed mean unbounded, the first one is the median, which is the server's value.
    #[serialize_always]
    pub estimates: Option<[f64; 3]>,
    /// Plain mean of the closed numbers.
    pub plain_mean: Option<f64>,
    pub mass_closed: f64,
    #[serde(default)]
    pub mass_open: f64,
    /// Whether the open mass leaves the trimmed mean unbounded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unbounded: bool,
    /// Levels and values.
    pub quantiles: Vec<(f64, Option<f64>)>,
    /// Levels of the quantiles that the open mass can move beyond all bounds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unbounded_quantiles: Vec<f64>,
    /// With `--interval`, the interval that the server returns, if any.
    pub interval: Option<NumberInterval>,
    /// Values and probabilities.
    pub support: Vec<(f64, f64)>,
    /// The most probable value in exact decimal notation, which may have more digits than an `f64`.
    pub mode_text: Option<String>,
    /// Why the server returns no value or another one than the trimmed mean, or that it found little mass on
    /// the scale.
    pub reason: Option<String>,
    /// The scores in both orders, of a pair whose two judgements are combined. No response has them.
    #[serde(skip)]
    pub orders: Option<Orders>,
}

impl PredictedNumber {
    /// Reads the number. A checkpoint that has only one estimate returns it for all three.
    fn of(number: &Number) -> Result<Self, ClientError> {
        check(number)?;
        // Adding 0 turns -0, the sum of nothing, into 0.
        let drawn = drawn_mass(number);
        let mass_closed = number.mass.closed + drawn + 0.0;
        let mass_open = number.mass.open - drawn + 0.0;
        let is_exact = number.sampled.is_none();
        let has_bounds =
            is_exact && METHODS_WITH_BOUNDS.iter().any(|method| method.as_str() == number.method);
        let may_move = mass_closed > 0.0 && mass_open > 0.0 && has_bounds;
        // A number that the server rejects for its little mass has no bounds of its value either.
        let has_no_bounds = number.bounds.value.is_none() && number.bounds.trimmed_mean.is_none();
        let is_unbounded = may_move && has_no_bounds;
        let bounds = number.quantiles.iter().zip(&number.bounds.quantiles);
        let unbounded = bounds.filter(|(_, bounds)| may_move && bounds.is_none());
        let masses = Self { mass_closed, mass_open, is_unbounded, ..Self::default() };
        let Some(value) = number.value else {
            return Ok(Self { reason: number.reason.clone(), ..masses });
        };
        // Requests set the objective `mean`, so the value is the trimmed mean or the server's fallback.
        let estimates = [Some(value), number.median, number.mode];
        Ok(Self {
            estimates: Some(estimates.map(|estimate| estimate.unwrap_or(value))),
            plain_mean: number.mean,
            quantiles: number.quantiles.iter().map(|quantile| (quantile.q, quantile.value)).collect(),
            unbounded_quantiles: unbounded.map(|(quantile, _)| quantile.q).collect(),
            interval: number.interval.clone(),
            support: number.support.iter().map(|point| (point.value, point.probability)).collect(),
            mode_text: number.support.first().map(|point| point.text.clone()),
            reason: number.reason.clone(),
            ..masses
        })
    }

    pub fn estimates(&self) -> Option<Estimates> {
        self.estimates.map(|[mean, median, mode]| Estimates { mean, median, mode })
    }

    /// `None` if the answer has no plain mean.
    pub fn all_estimates(&self) -> Option<AllEstimates> {
        let ([trimmed_mean, median, mode], mean) = self.estimates.zip(self.plain_mean)?;
        Some(AllEstimates { mode, median, trimmed_mean, mean, weighted_sum: mean * self.mass_closed })
    }
}

/// The methods whose bounds are null only if nothing bounds the value. Other methods never have bounds.
const METHODS_WITH_BOUNDS: [MethodName; 3] = [MethodName::Tree, MethodName::Xval, MethodName::Head];

/// Tolerance for rounding in sums of masses.
const MASS_TOLERANCE: f64 = 1e-6;

/// The part of the open mass that draws have placed on the values of the support.
fn drawn_mass(number: &Number) -> f64 {
    if number.sampled.is_none() {
        return 0.0;
    }
    let total: f64 = number.support.iter().map(|point| point.probability).sum();
    (total - number.mass.closed).clamp(0.0, number.mass.open.max(0.0))
}

/// Rejects impossible masses and probabilities, which would otherwise enter the scores.
fn check(number: &Number) -> Result<(), ClientError> {
    let mass = number.mass;
    for share in [mass.closed, mass.invalid, mass.open, mass.closed + mass.open] {
        if !(-MASS_TOLERANCE..=1.0 + MASS_TOLERANCE).contains(&share) {
            let problem = format!("its masses are {}, {} and {}", mass.closed, mass.invalid, mass.open);
            return Err(ClientError::ImpossibleNumber { problem });
        }
    }
    let mut probabilities = number.support.iter().map(|point| point.probability);
    let total: f64 = probabilities.clone().sum();
    // Draws add open mass to the support.
    let total_max = if number.sampled.is_some() { mass.closed + mass.open } else { mass.closed };
    if total > total_max + MASS_TOLERANCE || probabilities.any(|probability| probability < 0.0) {
        let closed = mass.closed;
        let problem =
            format!("its support has a total probability of {total}, but the closed mass is {closed}");
        return Err(ClientError::ImpossibleNumber { problem });
    }
    Ok(())
}

/// Likelihood of the true answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetScore {
    #[serde(default)]
    pub token_ids: Vec<u32>,
    /// Natural logarithms.
    pub token_logprobs: Vec<Option<f64>>,
    pub losses: Map<String, Value>,
}

/// Body of completion and chat responses.
#[derive(Debug, Clone, Deserialize)]
pub struct CompletionResponse {
    choices: Vec<Choice>,
    /// Servers may leave out fields.
    #[serde(default)]
    usage: Value,
}

#[derive(Debug, Clone, Deserialize)]
struct Choice {
    text: Option<String>,
    message: Option<Message>,
    finish_reason: Option<String>,
    number: Option<Number>,
    numbers: Option<Vec<LocatedNumber>>,
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Message {
    content: Option<String>,
}

impl CompletionResponse {
    /// The first choice. In regress mode a choice without a number is an error.
    pub fn into_answer(self, mode: Mode) -> Result<Answer, ClientError> {
        let choice = self.choices.into_iter().next().ok_or(ClientError::NoChoices)?;
        let cost = choice.cost(&self.usage);
        if mode == Mode::Regress && choice.number.is_none() && choice.numbers.is_none() {
            return Err(ClientError::NoNumber { reason: "its answer carries no `number`".to_owned() });
        }
        let text = choice.text.or_else(|| choice.message?.content).unwrap_or_default();
        let mut answer = Answer {
            text,
            finish_reason: choice.finish_reason,
            token_ids: choice.token_ids,
            cost,
            ..Answer::default()
        };
        if mode == Mode::Regress {
            answer.number = choice.number.as_ref().map(PredictedNumber::of).transpose()?;
            for field in choice.numbers.iter().flatten() {
                answer.numbers.insert(field.path.clone(), PredictedNumber::of(&field.number)?);
            }
        }
        Ok(answer)
    }
}

impl Choice {
    fn cost(&self, usage: &Value) -> Cost {
        let mut cost = Cost {
            requests: usage["x_engine"]["requests"].as_u64(),
            engine_tokens: engine_tokens(&usage["x_engine"]),
            prompt_tokens: usage["prompt_tokens"].as_u64(),
            completion_tokens: usage["completion_tokens"].as_u64(),
            ..Cost::default()
        };
        let mut numbers: Vec<_> = self.number.iter().collect();
        // Without a schema, all numbers of an answer come from the same positions.
        if numbers.is_empty() {
            numbers.extend(self.numbers.iter().flatten().map(|field| &field.number));
        }
        for number in numbers {
            let draws = number.sampled.as_ref().map_or(0, |sampled| sampled.draws);
            cost.positions = Some(cost.positions.unwrap_or(0).saturating_add(number.nodes));
            cost.draws = Some(cost.draws.unwrap_or(0).saturating_add(draws));
            cost.passes = Some(cost.passes.unwrap_or(0).saturating_add(number.forward_passes));
        }
        cost
    }
}

/// The tokens of prompts and answers that another engine computed.
fn engine_tokens(engine: &Value) -> Option<u64> {
    Some(engine["prompt_tokens"].as_u64()?.saturating_add(engine["completion_tokens"].as_u64()?))
}

/// Body of `/v1/score` responses.
#[derive(Debug, Clone, Deserialize)]
pub struct ScoreResponse {
    data: Vec<TargetScore>,
}

impl ScoreResponse {
    /// Returns the score of the only item of the request.
    pub fn into_only(self) -> Result<TargetScore, ClientError> {
        self.data.into_iter().next().ok_or(ClientError::NoChoices)
    }
}

/// Body of `/tokenize` responses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenizeResponse {
    pub tokens: Vec<u32>,
}

/// Body of `/detokenize` responses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DetokenizeResponse {
    pub prompt: String,
}

#[cfg(test)]
mod tests {
    use ntl_api::IntervalMethod;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_is_read_from_either_kind_of_response() {
        for body in [
            json!({ "choices": [{ "text": " 2", "finish_reason": "stop" }] }),
            json!({ "choices": [{ "message": { "role": "assistant", "content": " 2" }, "finish_reason": "stop" }] }),
        ] {
            let response = serde_json::from_value::<CompletionResponse>(body).unwrap();
            let answer = response.into_answer(Mode::Text).unwrap();
            assert_eq!((&*answer.text, answer.finish_reason.as_deref()), (" 2", Some("stop")));
        }
        let none = serde_json::from_value::<CompletionResponse>(json!({ "choices": [] })).unwrap();
        assert!(matches!(none.into_answer(Mode::Text), Err(ClientError::NoChoices)));
    }

    #[test]
    fn an_unbounded_mean_is_replaced_by_the_value_of_the_server() {
        let number = json!({
            "value": -9090.0, "objective": "mean", "estimate": "median", "method": "tree", "mean": -2e8,
            "trimmed_mean": -180723573.2, "median": -9090.0, "mode": -10100.0, "std": 1e9,
            "quantiles": [{ "q": 0.04, "value": -2e9 }, { "q": 0.5, "value": -9090.0 }], "support": [],
            "mass": { "closed": 0.95, "invalid": 0.0, "open": 0.05 },
            "bounds": { "value": null, "trimmed_mean": null, "median": [-9100.0, -9080.0], "quantiles": [null, [-9100.0, -9080.0]] },
            "nodes": 4096, "forward_passes": 40, "truncated": true, "reason": "open mass 0.05 exceeds trim 0.005"
        });
        let body = json!({ "choices": [{ "text": "-9090", "number": number }] });
        let response = serde_json::from_value::<CompletionResponse>(body).unwrap();
        let number = response.into_answer(Mode::Regress).unwrap().number.unwrap();
        assert_eq!(number.estimates, Some([-9090.0, -9090.0, -10100.0]));
        assert!(number.is_unbounded);
        assert_eq!(number.unbounded_quantiles, [0.04]);
        assert_eq!(number.reason.as_deref(), Some("open mass 0.05 exceeds trim 0.005"));
    }

    #[test]
    fn a_rating_of_too_little_mass_is_not_unbounded() {
        let reason = "closed mass 0.1 is below mass_min 0.5; the model would write \"The\" (0.7)";
        let number = json!({
            "value": null, "objective": "mean", "estimate": "trimmed_mean", "method": "tree", "mean": null,
            "trimmed_mean": null, "median": null, "mode": null, "std": null, "quantiles": [], "support": [],
            "mass": { "closed": 0.1, "invalid": 0.89, "open": 0.01 },
            "bounds": { "value": null, "trimmed_mean": [3.0, 3.2], "median": [3.0, 3.0], "quantiles": [] },
            "nodes": 9, "forward_passes": 4, "truncated": false, "reason": reason
        });
        let body = json!({ "choices": [{ "text": "", "number": number }] });
        let response = serde_json::from_value::<CompletionResponse>(body).unwrap();
        let number = response.into_answer(Mode::Regress).unwrap().number.unwrap();
        assert_eq!(
            (number.is_unbounded, number.estimates, number.reason.as_deref()),
            (false, None, Some(reason))
        );
    }

    #[test]
    fn an_answer_from_the_journal_is_bit_identical() {
        let number = PredictedNumber {
            estimates: Some([0.1 + 0.2, 1e-300, 5e-324]),
            plain_mean: Some(-1.0 / 3.0),
            mass_closed: 0.999_999_999_999_999_9,
            mass_open: 1e-17,
            is_unbounded: true,
            quantiles: vec![(0.05, None), (0.5, Some(1.0 / 3.0))],
            unbounded_quantiles: vec![0.05],
            interval: Some(NumberInterval {
                low: 0.1 + 0.2,
                high: 1e300,
                coverage: 0.9,
                method: IntervalMethod::Conformal,
                reason: None,
            }),
            support: vec![(-1_456.0, 0.123_456_789_012_345_67)],
            mode_text: Some("-1456".to_owned()),
            reason: None,
            orders: None,
        };
        let answer = Answer { text: "é\u{1}".to_owned(), number: Some(number), ..Answer::default() };
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<Answer>(&line).unwrap(), answer);
    }
}
