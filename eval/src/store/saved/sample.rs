//! One line of `samples.jsonl`, as a reader sees it.

use ntl_core::numbers::parse::last_number;
use serde::Deserialize;
use serde_json::{Map, Value};

/// What was asked, what came back, and how good it was.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// Number of the item in its data.
    pub doc_id: u64,
    /// The item.
    pub doc: Doc,
    /// What would have been right.
    pub target: Value,
    /// What came back, one list of texts per request.
    pub resps: Vec<Vec<String>>,
    /// What was read from that.
    pub filtered_resps: Vec<Value>,
    /// Which of the fields are scores of this item.
    pub metrics: Vec<String>,
    /// 1 where the answer is exact, else 0.
    pub accuracy: Option<f64>,
    /// Missing where no number was read.
    pub absolute_error: Option<f64>,
    /// The number that was asked for, where the writer says it.
    #[serde(rename = "truth")]
    written_truth: Option<f64>,
    /// The numbers that were read, one per kind of metric.
    pub prediction: Option<Estimates>,
    /// Of which part of the task.
    pub module: Option<String>,
    /// Closed mass behind the number.
    pub mass_closed: Option<f64>,
    /// Why there is no answer.
    pub error: Option<String>,
    /// Other scores, by name.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A question with its answer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Doc {
    /// The question.
    pub question: String,
    /// The answer as written.
    pub answer: Value,
}

/// The best answers to three questions.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Estimates {
    /// For squared errors.
    pub mean: f64,
    /// For absolute errors.
    pub median: f64,
    /// For exact matches.
    pub mode: f64,
}

impl Sample {
    /// The number that was asked for: `truth`, else the last number of the target.
    pub fn truth(&self) -> Option<f64> {
        self.written_truth.or_else(|| match &self.target {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => last_number(text),
            _ => None,
        })
    }

    /// The truth and what was read, where both are there.
    pub fn read(&self) -> Option<(f64, Estimates)> {
        self.truth().zip(self.prediction)
    }

    /// As written, else how far the median is off.
    pub fn absolute_error(&self) -> Option<f64> {
        self.absolute_error.or_else(|| self.read().map(|(truth, read)| (read.median - truth).abs()))
    }

    /// Whether the request failed; such an item is neither right nor wrong.
    pub fn failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether the answer is exact.
    pub fn right(&self) -> bool {
        self.accuracy.is_some_and(|accuracy| accuracy > 0.5)
    }

    /// A score by its name, where this item has one.
    pub fn score(&self, name: &str) -> Option<f64> {
        let value = self.rest.get(name)?;
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
