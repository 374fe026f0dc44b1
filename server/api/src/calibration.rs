//! Calibration files: what makes the intervals of one model on one task cover as often as they say.
//!
//! `ntl-eval calibrate` writes them, `ntl-server --calibration` reads them. Reading is strict: an unknown field, another version or
//! figures that do not go together are errors.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::number::NumberOptions;

/// The value of `format`.
const FORMAT: &str = "ntl-calibration";

/// The value of `version`.
const VERSION: u32 = 1;

/// A calibration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// `ntl-calibration`.
    pub format: String,
    /// 1.
    pub version: u32,
    pub model: CalibratedModel,
    pub task: CalibratedTask,
    /// The `number` object of the requests. An interval is calibrated only where a request decodes numbers in the same way.
    pub number: NumberOptions,
    pub method: CalibrationMethod,
    /// Share of intervals that may miss the truth: the coverage is `1 - alpha`.
    pub alpha: f64,
    /// Number of items that the offset is computed from.
    pub n: u64,
    /// What both ends of an interval between the quantiles `alpha / 2` and `1 - alpha / 2` are moved outwards by.
    pub offset: f64,
    /// When the file was made, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}

/// The model of a calibration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedModel {
    /// The name that it was served under.
    pub name: String,
    /// `fingerprint` of `GET /v1/models/{id}`; null where the server told none.
    pub fingerprint: Option<String>,
}

/// The requests of a calibration, for people: a server cannot tell which task a prompt belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedTask {
    /// The name of the task.
    pub name: String,
    /// The route of the requests, such as `/v1/completions`.
    pub route: String,
    /// The template of the prompts, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The system message of the chats, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Number of examples in front of each question.
    #[serde(default)]
    pub shots: u64,
}

/// How an offset is computed and applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CalibrationMethod {
    /// Conformalized quantile regression.
    #[serde(rename = "cqr")]
    Cqr,
    /// The same for ratings, whose ends then are values of the scale.
    #[serde(rename = "cqr-ordinal")]
    CqrOrdinal,
}

/// What is wrong with a calibration file.
#[derive(Debug, Clone, PartialEq)]
pub enum CalibrationError {
    /// It is no JSON of this shape.
    NotRead(String),
    /// Its `format` is another one.
    Format(String),
    /// Its `version` is another one.
    Version(u32),
    /// `alpha` is not between 0 and 1.
    Alpha(f64),
    /// `offset` is no finite number.
    Offset(f64),
    /// `n` is too small for `alpha`: no interval of finite width has such a coverage.
    TooFew { n: u64, least: u64 },
    /// `method` does not go with `number.scale`.
    Method(CalibrationMethod),
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRead(message) => write!(f, "it is no calibration: {message}"),
            Self::Format(format) => write!(f, "`format` is {format:?}, not {FORMAT:?}"),
            Self::Version(version) => write!(f, "`version` is {version}; this program reads {VERSION}"),
            Self::Alpha(alpha) => write!(f, "`alpha` is {alpha}; it must be above 0 and below 1"),
            Self::Offset(offset) => write!(f, "`offset` is {offset}; it must be a finite number"),
            Self::TooFew { n, least } => write!(f, "`n` is {n}; this `alpha` needs at least {least} items"),
            Self::Method(CalibrationMethod::Cqr) => {
                write!(f, "`method` is \"cqr\" with `number.scale`; ratings need \"cqr-ordinal\"")
            }
            Self::Method(CalibrationMethod::CqrOrdinal) => {
                write!(f, "`method` is \"cqr-ordinal\" without `number.scale`")
            }
        }
    }
}

impl std::error::Error for CalibrationError {}

impl Calibration {
    /// A calibration of this format and version, checked.
    pub fn new(
        model: CalibratedModel,
        task: CalibratedTask,
        number: NumberOptions,
        offset: CalibratedOffset,
    ) -> Result<Self, CalibrationError> {
        let CalibratedOffset { alpha, n, offset } = offset;
        let method = match number.scale {
            Some(_) => CalibrationMethod::CqrOrdinal,
            None => CalibrationMethod::Cqr,
        };
        let (format, version, created) = (FORMAT.to_owned(), VERSION, None);
        Self { format, version, model, task, number, method, alpha, n, offset, created }.checked()
    }

    /// Reads the text of a file.
    pub fn read(text: &str) -> Result<Self, CalibrationError> {
        let read: Self =
            serde_json::from_str(text).map_err(|error| CalibrationError::NotRead(error.to_string()))?;
        read.checked()
    }

    /// The coverage of the intervals.
    pub fn coverage(&self) -> f64 {
        1.0 - self.alpha
    }

    fn checked(self) -> Result<Self, CalibrationError> {
        if self.format != FORMAT {
            return Err(CalibrationError::Format(self.format));
        }
        if self.version != VERSION {
            return Err(CalibrationError::Version(self.version));
        }
        if !(self.alpha > 0.0 && self.alpha < 1.0) {
            return Err(CalibrationError::Alpha(self.alpha));
        }
        if !self.offset.is_finite() {
            return Err(CalibrationError::Offset(self.offset));
        }
        // ceil((n + 1) (1 - alpha)) <= n, but for rounding.
        let least = (1.0 / self.alpha - 1.0 - 1e-9).ceil().max(1.0) as u64;
        if self.n < least {
            return Err(CalibrationError::TooFew { n: self.n, least });
        }
        let is_ordinal = self.method == CalibrationMethod::CqrOrdinal;
        if is_ordinal != self.number.scale.is_some() {
            return Err(CalibrationError::Method(self.method));
        }
        Ok(self)
    }
}

/// The figures of a [`Calibration`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibratedOffset {
    pub alpha: f64,
    pub n: u64,
    pub offset: f64,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn file() -> Value {
        json!({
            "format": "ntl-calibration",
            "version": 1,
            "model": {"name": "t5", "fingerprint": "00ff"},
            "task": {"name": "arithmetic", "route": "/v1/completions", "template": "Q: {question}", "shots": 0},
            "number": {"terminator": "eos"},
            "method": "cqr",
            "alpha": 0.1,
            "n": 9,
            "offset": -0.5,
            "created": "2026-01-01T00:00:00Z"
        })
    }

    fn with(field: &str, value: Value) -> Value {
        let mut file = file();
        file[field] = value;
        file
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let read = Calibration::read(&file().to_string()).unwrap();
        assert_eq!(Calibration::read(&serde_json::to_string(&read).unwrap()), Ok(read.clone()));
        assert!((read.coverage() - 0.9).abs() < 1e-12);
        let offset = CalibratedOffset { alpha: 0.1, n: 9, offset: -0.5 };
        let made = Calibration::new(read.model.clone(), read.task.clone(), read.number.clone(), offset);
        assert_eq!(made, Ok(Calibration { created: None, ..read }));
    }

    #[test]
    fn what_is_no_calibration_is_refused_with_the_field() {
        let mut without_task = file();
        without_task.as_object_mut().unwrap().remove("task");
        for (file, said) in [
            (json!({}), "missing field `format`"),
            (without_task, "missing field `task`"),
            (with("format", json!("csv")), "`format` is \"csv\", not \"ntl-calibration\""),
            (with("version", json!(2)), "`version` is 2; this program reads 1"),
            (with("alpha", json!(0)), "`alpha` is 0; it must be above 0 and below 1"),
            (with("alpha", json!(1)), "`alpha` is 1;"),
            (with("n", json!(8)), "`n` is 8; this `alpha` needs at least 9 items"),
            (with("offset", Value::Null), "invalid type: null"),
            (with("method", json!("cqr-ordinal")), "\"cqr-ordinal\" without `number.scale`"),
            (with("number", json!({"scale": [1, 5]})), "ratings need \"cqr-ordinal\""),
            (with("number", json!({"terminater": "eos"})), "unknown field `terminater`"),
            (
                with("model", json!({"name": "t5", "fingerprint": null, "dtype": "f32"})),
                "unknown field `dtype`",
            ),
            (with("offsets", json!([1])), "unknown field `offsets`"),
        ] {
            let error = Calibration::read(&file.to_string()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
