//! Calibration files, which give the intervals of one model on one task the coverage that they state.
//!
//! `ntl-eval calibrate` writes them, `ntl-server --calibration` reads them. Reading is strict: an unknown
//! field, another version or figures that contradict each other are errors.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::number::NumberOptions;

/// The value of `format`.
const FORMAT: &str = "ntl-calibration";

/// The value of `version`.
const VERSION: u32 = 1;

/// A calibration file.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// `ntl-calibration`.
    pub format: String,
    /// 1.
    pub version: u32,
    pub model: CalibratedModel,
    pub task: CalibratedTask,
    /// The `number` object of the requests, with its defaults written out. The server uses the calibration
    /// only for requests with the same settings.
    pub number: NumberOptions,
    /// With `number.after`: the temperature of the text before the number.
    pub temperature: Option<f64>,
    pub method: CalibrationMethod,
    /// Share of intervals that may miss the truth: the coverage is `1 - alpha`.
    pub alpha: f64,
    /// Number of items that the offset is computed from.
    pub n: u64,
    /// Distance by which an interval between the quantiles `alpha / 2` and `1 - alpha / 2` is extended at
    /// both ends.
    pub offset: f64,
    /// When the file was made, in RFC 3339.
    pub created: Option<String>,
}

/// The model of a calibration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedModel {
    /// The name that it was served under.
    pub name: String,
    /// `fingerprint` of `GET /v1/models/{id}`; null if the server reported none.
    pub fingerprint: Option<String>,
}

/// The requests of a calibration. Only people need this description: a server cannot know a prompt's task.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedTask {
    /// The name of the task.
    pub name: String,
    /// The route of the requests, such as `/v1/completions`.
    pub route: String,
    /// The template of the prompts, if any.
    pub template: Option<String>,
    /// The system message of the chats, if any.
    pub system: Option<String>,
    /// Number of examples before each question.
    #[serde(default)]
    pub shots: u64,
}

/// How an offset is computed and applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CalibrationMethod {
    /// Conformalized quantile regression.
    #[serde(rename = "cqr")]
    Cqr,
    /// The same for ratings: the ends of the intervals are values of the scale.
    #[serde(rename = "cqr-ordinal")]
    CqrOrdinal,
}

/// The reason why a calibration file is invalid.
#[derive(Debug, Clone, PartialEq)]
pub enum CalibrationError {
    /// The text is not JSON with the fields of a [`Calibration`].
    NotRead(String),
    /// `format` is not `ntl-calibration`.
    Format(String),
    /// `version` is not 1.
    Version(u32),
    /// `alpha` is not between 0 and 1.
    Alpha(f64),
    /// `offset` is not a finite number.
    Offset(f64),
    /// `n` is too small for `alpha`: no interval of finite width has this coverage.
    TooFew { n: u64, least: u64 },
    /// `method` does not match `number.scale`.
    Method(CalibrationMethod),
}

impl fmt::Display for CalibrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRead(message) => write!(f, "it is not a calibration: {message}"),
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
    /// Returns a checked calibration of this format and version.
    pub fn new(
        model: CalibratedModel,
        task: CalibratedTask,
        settings: CalibratedSettings,
        offset: CalibratedOffset,
    ) -> Result<Self, CalibrationError> {
        let CalibratedOffset { alpha, n, offset } = offset;
        let CalibratedSettings { number, temperature } = settings;
        let temperature = if number.after.is_some() { temperature } else { None };
        let number = number.explicit();
        let method = match number.scale {
            Some(_) => CalibrationMethod::CqrOrdinal,
            None => CalibrationMethod::Cqr,
        };
        let format = FORMAT.to_owned();
        let version = VERSION;
        let created = None;
        Self { format, version, model, task, number, temperature, method, alpha, n, offset, created }
            .checked()
    }

    /// Reads and checks the text of a file.
    pub fn read(text: &str) -> Result<Self, CalibrationError> {
        let read: Self =
            serde_json::from_str(text).map_err(|error| CalibrationError::NotRead(error.to_string()))?;
        read.checked()
    }

    /// Returns the coverage of the intervals.
    pub fn coverage(&self) -> f64 {
        1.0 - self.alpha
    }

    /// Returns the `mass_min` of the requests. A file without this field is older than the present default of
    /// 0; the default was then 0.5 with a scale.
    pub fn mass_min(&self) -> f64 {
        let older = if self.number.scale.is_some() { 0.5 } else { 0.0 };
        self.number.mass_min.unwrap_or(older)
    }

    /// Returns the temperature of the text before the number. A file without this field comes from an
    /// `ntl-eval` that generated a single text greedily and sampled `rationales` at temperature 1.
    pub fn temperature(&self) -> f64 {
        let older = if self.number.rationales.is_some() { 1.0 } else { 0.0 };
        self.temperature.unwrap_or(older)
    }

    fn checked(self) -> Result<Self, CalibrationError> {
        if self.format != FORMAT {
            return Err(CalibrationError::Format(self.format));
        }
        if self.version != VERSION {
            return Err(CalibrationError::Version(self.version));
        }
        let Self { alpha, n, offset, .. } = self;
        CalibratedOffset { alpha, n, offset }.check()?;
        let is_ordinal = self.method == CalibrationMethod::CqrOrdinal;
        if is_ordinal != self.number.scale.is_some() {
            return Err(CalibrationError::Method(self.method));
        }
        Ok(self)
    }
}

/// The settings of the requests of a [`Calibration`].
#[derive(Debug, Clone, PartialEq)]
pub struct CalibratedSettings {
    pub number: NumberOptions,
    /// The temperature of texts.
    pub temperature: Option<f64>,
}

/// The figures of a [`Calibration`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibratedOffset {
    pub alpha: f64,
    pub n: u64,
    pub offset: f64,
}

impl CalibratedOffset {
    pub(crate) fn check(self) -> Result<(), CalibrationError> {
        let Self { alpha, n, offset } = self;
        if !(alpha > 0.0 && alpha < 1.0) {
            return Err(CalibrationError::Alpha(alpha));
        }
        if !offset.is_finite() {
            return Err(CalibrationError::Offset(offset));
        }
        // ceil((n + 1) (1 - alpha)) <= n, except for rounding.
        let least = (1.0 / alpha - 1.0 - 1e-9).ceil().max(1.0) as u64;
        if n < least { Err(CalibrationError::TooFew { n, least }) } else { Ok(()) }
    }
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
            "number": {"terminator": "eos", "nodes_max": 10},
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
        let settings = CalibratedSettings { number: read.number.clone(), temperature: None };
        let made = Calibration::new(read.model.clone(), read.task.clone(), settings, offset);
        let number = read.number.clone().explicit();
        assert_eq!(made, Ok(Calibration { created: None, number, ..read }));
    }

    #[test]
    fn a_new_calibration_records_every_setting_that_changes_the_distribution() {
        let made = |number: Value| {
            let read = Calibration::read(&file().to_string()).unwrap();
            let number = serde_json::from_value(number).unwrap();
            let settings = CalibratedSettings { number, temperature: Some(0.5) };
            let offset = CalibratedOffset { alpha: 0.1, n: 9, offset: -0.5 };
            json!(Calibration::new(read.model, read.task, settings, offset).unwrap())
        };
        let common =
            json!({"digits_max": 12, "decimals_max": 6, "sign": true, "terminator": "any", "mass_min": 0.0});
        for (sent, added) in [
            (json!({}), json!({"tolerance": 0.001, "sampling": true})),
            (json!({"sampling": false}), json!({"tolerance": 0.001, "nodes_max": 4096})),
            (json!({"tolerance": 0.5, "nodes_max": 10}), json!({"sampling": true})),
            (json!({"method": "sample"}), json!({"samples": 64})),
            (json!({"method": "beam", "mass_min": 0.25, "digits_max": 3}), json!({"beams": 4})),
        ] {
            let mut want = common.clone();
            for (name, value) in added.as_object().unwrap().iter().chain(sent.as_object().unwrap()) {
                want[name] = value.clone();
            }
            let file = made(sent);
            assert_eq!((&file["number"], &file["temperature"]), (&want, &Value::Null));
        }
        let after = made(json!({"after": "Rating:"}));
        assert_eq!((&after["number"]["rationales"], &after["temperature"]), (&json!(1), &json!(0.5)));
    }

    #[test]
    fn an_older_file_has_the_settings_that_were_the_defaults_of_its_time() {
        let read = |number: Value| Calibration::read(&with("number", number).to_string()).unwrap();
        let rating = |number: Value| {
            let mut file = with("number", number);
            file["method"] = json!("cqr-ordinal");
            Calibration::read(&file.to_string()).unwrap()
        };
        let mass_min = [
            read(json!({})).mass_min(),
            rating(json!({"scale": [1, 5]})).mass_min(),
            rating(json!({"scale": [1, 5], "mass_min": 0.25})).mass_min(),
        ];
        assert_eq!(json!(mass_min), json!([0.0, 0.5, 0.25]));
        let temperature = [
            read(json!({"after": "#"})).temperature(),
            read(json!({"after": "#", "rationales": 8})).temperature(),
        ];
        assert_eq!(json!(temperature), json!([0.0, 1.0]));
    }

    #[test]
    fn an_invalid_calibration_is_rejected_with_the_field_named() {
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
