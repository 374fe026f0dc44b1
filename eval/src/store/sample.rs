//! `samples.jsonl`: one line an item, with lm-eval's columns and ours behind them, as a run writes it and as reports and
//! comparisons read it.
//!
//! Missing columns have defaults, so that the samples of other versions and programs can be read.

use ntl_core::numbers::parse::last_number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use crate::metrics::Estimates;
use crate::metrics::numbers::Prediction;

/// What was asked, what came back, and how good it was.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Number of the item in its data.
    pub doc_id: u64,
    pub doc: Doc,
    /// What would have been right.
    pub target: Value,
    /// What was sent: the prompt, and how it was to be continued.
    pub arguments: Value,
    /// One list of texts per request; empty where the request failed.
    pub resps: Vec<Vec<String>>,
    /// What exactness is judged by.
    pub filtered_resps: Vec<Value>,
    /// The rule that found it.
    pub filter: String,
    /// Which of the columns below are scores of this item.
    pub metrics: Vec<String>,
    pub doc_hash: String,
    pub prompt_hash: String,
    pub target_hash: String,
    /// The number that was asked for; some programs leave it out.
    pub truth: Option<f64>,
    /// 1 where the answer is exact, else 0.
    pub accuracy: Option<Number>,
    /// Of the median; missing where no number was read.
    pub absolute_error: Option<f64>,
    pub prediction: Option<Estimates>,
    /// Columns that not every item has, by name: `strict`, `flexible`, `readings`, `exact`, `f1`, `module`, `mass_closed`,
    /// `mass_open`, `plain_mean`, `unbounded`, `number_reason`, `quantiles`, `unbounded_quantiles`, `interval`, `crps`, `crps_bounds`, `log_score`, `winkler`, `perplexity`,
    /// `losses`; of judgements `score`, `mode_score`, `spread`, `distribution`, of pairs also `orders`, `consistent`, `order_difference`,
    /// `order_distance`, `wins`, `verdict`, `preferred`.
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
    /// As written.
    pub answer: Value,
}

impl Sample {
    /// The number that was asked for: `truth`, else the last number of the target.
    pub fn truth(&self) -> Option<f64> {
        self.truth.or_else(|| match &self.target {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => last_number(text),
            _ => None,
        })
    }

    /// The number that was read, where one was asked for. The absolute error is the one that is written, if any.
    pub fn prediction(&self) -> Option<Prediction> {
        let prediction = Prediction::new(self.truth()?, self.prediction?);
        Some(Prediction {
            absolute_error: self.absolute_error.unwrap_or(prediction.absolute_error),
            ..prediction
        })
    }

    /// As written, else that of the median.
    pub fn absolute_error(&self) -> Option<f64> {
        self.absolute_error.or_else(|| Some(self.prediction()?.absolute_error))
    }

    /// Whether the request failed; such an item is neither right nor wrong.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether the answer is a judgement, also one without a score.
    pub fn is_judged(&self) -> bool {
        self.more.contains_key("score")
    }

    /// Whether the answer has to be a number: judgements are numbers also where people made none.
    pub fn asks_number(&self) -> bool {
        self.truth().is_some() || self.is_judged()
    }

    /// Whether the open mass leaves the trimmed mean unbounded.
    pub fn is_unbounded(&self) -> bool {
        self.more.get("unbounded") == Some(&Value::Bool(true))
    }

    /// Whether the answer is exact.
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
