//! Calibration files of decisions: which options the sets, or which levels the intervals, of one model on one
//! task must contain to be correct as often as they state.
//!
//! Read as strictly as the [calibrations](crate::Calibration) of numbers.

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::calibration::{CalibratedModel, CalibratedOffset, CalibratedTask, CalibrationError};
use crate::decisions::ReadName;

/// The value of `version`.
const VERSION: u32 = 1;

/// A calibration file of decisions.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionCalibration {
    /// `ntl-decision-calibration`.
    pub format: String,
    /// 1.
    pub version: u32,
    pub model: CalibratedModel,
    pub task: CalibratedTask,
    /// The server uses the calibration only for such questions.
    pub decision: CalibratedDecision,
    /// Share of sets or intervals that may miss the truth: the coverage is `1 - alpha`.
    pub alpha: f64,
    /// Number of questions that the offset is computed from.
    pub n: u64,
    /// Of predicates and choices: a set has every option with a probability of at least `1 - offset`. Of
    /// scores: the distance in levels by which an interval between two quantiles is extended at both ends.
    pub offset: f64,
    /// When the file was made, in RFC 3339.
    pub created: Option<String>,
}

/// The questions of a calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedDecision {
    #[serde(rename = "type")]
    pub kind: CalibratedKind,
    /// `x_read` of the requests.
    pub read: ReadName,
    /// `x_orders` of the requests.
    pub orders: u64,
}

/// The type of a question with options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CalibratedKind {
    Predicate,
    Choice,
    Score,
}

impl DecisionCalibration {
    /// The value of `format`.
    pub const FORMAT: &str = "ntl-decision-calibration";

    /// Returns a checked calibration of this format and version.
    pub fn new(
        model: CalibratedModel,
        task: CalibratedTask,
        decision: CalibratedDecision,
        offset: CalibratedOffset,
    ) -> Result<Self, CalibrationError> {
        let CalibratedOffset { alpha, n, offset } = offset;
        let format = Self::FORMAT.to_owned();
        Self { format, version: VERSION, model, task, decision, alpha, n, offset, created: None }.checked()
    }

    /// Reads and checks the text of a file.
    pub fn read(text: &str) -> Result<Self, CalibrationError> {
        let read: Self =
            serde_json::from_str(text).map_err(|error| CalibrationError::NotRead(error.to_string()))?;
        read.checked()
    }

    /// Returns the coverage of the sets and intervals.
    pub fn coverage(&self) -> f64 {
        1.0 - self.alpha
    }

    fn checked(self) -> Result<Self, CalibrationError> {
        if self.format != Self::FORMAT {
            return Err(CalibrationError::Format(self.format));
        }
        if self.version != VERSION {
            return Err(CalibrationError::Version(self.version));
        }
        let Self { alpha, n, offset, .. } = self;
        CalibratedOffset { alpha, n, offset }.check()?;
        Ok(self)
    }
}
