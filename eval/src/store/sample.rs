//! `samples.jsonl`, which runs write and which reports and comparisons read: one line per item, with
//! lm-eval's columns and then ours.
//!
//! Missing columns have defaults, so that the samples of other versions and programs can be read.

use ntl_core::numbers::parse::last_number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::metrics::Estimates;
use crate::metrics::numbers::Prediction;

/// An item, its answer and its scores.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Number of the item in its data.
    pub doc_id: u64,
    pub doc: Doc,
    /// The correct answer.
    pub target: Value,
    /// The prompt and the settings of the request.
    pub arguments: Value,
    /// One list of texts per request; empty if the request failed.
    pub resps: Vec<Vec<String>>,
    /// The number or text that is compared with the target.
    pub filtered_resps: Vec<Value>,
    /// The rule that found it.
    pub filter: String,
    /// Which of the columns below are scores of this item.
    pub metrics: Vec<String>,
    pub doc_hash: String,
    pub prompt_hash: String,
    pub target_hash: String,
    /// The true number; some programs omit it.
    pub truth: Option<f64>,
    /// 1 for an exact answer and 0 for any other. `None` if the request failed.
    pub accuracy: Option<Number>,
    /// Absolute error of the median, or `None` if no number was read.
    pub absolute_error: Option<f64>,
    pub prediction: Option<Estimates>,
    /// Columns that not every item has, by name: `strict`, `flexible`, `readings`, `exact`, `f1`, `module`,
    /// `mass_closed`, `mass_open`, `plain_mean`, `unbounded`, `number_reason`, `quantiles`,
    /// `unbounded_quantiles`, `interval`, `crps`, `crps_bounds`, `log_score`, `winkler`, `perplexity`,
    /// `losses`; of tasks that prescribe a form `exact_digits`, `digit_match`, `length_difference`; with a
    /// known distribution `crps_excess`, `kl`, `total_variation`, `true_coverage`, `sharpness`; of judgements
    /// `score`, `mode_score`, `spread`, `distribution`, of pairs also `orders`, `consistent`,
    /// `order_difference`, `order_distance`, `wins`, `verdict`, `preferred`; of decision models
    /// `question_type`, `expected_index`, `probabilities`, `brier`, `log_loss`, `confidence`, `order_change`,
    /// `repeat_change`, `batch_change`.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    /// Why there is no answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Doc {
    pub question: String,
    /// The input of an answer to judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The answer as the data has it.
    pub answer: Value,
}

impl Sample {
    /// Returns the true number: `truth`, or the last number of the target unless it is an option.
    pub fn truth(&self) -> Option<f64> {
        if self.is_decision() {
            return self.truth;
        }
        self.truth.or_else(|| match &self.target {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => last_number(text),
            _ => None,
        })
    }

    /// Returns the number that was read, if the item has a true number. The absolute error is the recorded
    /// one, if any.
    pub fn prediction(&self) -> Option<Prediction> {
        let prediction = Prediction::new(self.truth()?, self.prediction?);
        Some(Prediction {
            absolute_error: self.absolute_error.unwrap_or(prediction.absolute_error),
            ..prediction
        })
    }

    /// Returns the recorded absolute error, or the error of the median.
    pub fn absolute_error(&self) -> Option<f64> {
        self.absolute_error.or_else(|| Some(self.prediction()?.absolute_error))
    }

    /// Returns whether the request failed. Such an item is neither correct nor incorrect.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Returns whether the answer is a judgement, with or without a score.
    pub fn is_judged(&self) -> bool {
        self.more.contains_key("score")
    }

    /// Returns whether the item is a question for a decision model.
    pub fn is_decision(&self) -> bool {
        self.more.contains_key("question_type")
    }

    /// Returns whether the answer has to be a number. Judgements are numbers, with or without a human rating.
    pub fn asks_number(&self) -> bool {
        self.truth().is_some() || self.is_judged()
    }

    /// Returns whether the open mass leaves the trimmed mean unbounded.
    pub fn is_unbounded(&self) -> bool {
        self.more.get("unbounded") == Some(&Value::Bool(true))
    }

    /// Returns whether the answer is exact.
    pub fn right(&self) -> bool {
        self.score("accuracy").is_some_and(|accuracy| accuracy > 0.5)
    }

    /// A number by the name of its column. True counts as 1.
    pub fn score(&self, name: &str) -> Option<f64> {
        if name == "accuracy" {
            return self.accuracy.as_ref()?.as_f64();
        }
        let value = self.more.get(name)?;
        value.as_f64().or_else(|| value.as_bool().map(|right| f64::from(u8::from(right))))
    }

    /// The target as text.
    pub fn target_text(&self) -> String {
        plain(&self.target)
    }

    /// The texts that came back, joined.
    pub fn response(&self) -> String {
        self.resps.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" / ")
    }
}

/// A JSON value as a person would write it: texts without quotes.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
