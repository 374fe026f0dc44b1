//! Reads calibration files, checks that they belong to the served model, and adds them to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ntl_api::{CalibratedModel, Calibration, CalibrationError, DecisionCalibration};
use ntl_common::regular_file::{SMALL_BYTES_MAX, read_text};

use crate::apis;
use crate::request::{ModelCalibration, matching};
use crate::served::ServedModel;

/// Why a calibration file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationFileError {
    #[error("cannot read `{file}`")]
    Unreadable {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot use `{file}`")]
    Malformed {
        file: PathBuf,
        #[source]
        source: CalibrationError,
    },
    #[error("`{file}` belongs to the model `{calibrated}`, not to `{served}`")]
    OtherModel { file: PathBuf, calibrated: String, served: String },
    #[error(
        "`{file}` belongs to another checkpoint: its fingerprint is {calibrated}, the fingerprint of `{served}` is \
         {fingerprint}; calibrate again with ntl-eval"
    )]
    OtherCheckpoint { file: PathBuf, calibrated: String, served: String, fingerprint: String },
    #[error("`number` in `{file}` does not fit the model `{served}`: {message}")]
    Options { file: PathBuf, served: String, message: String },
    #[error(
        "`{first}` and `{second}` are for the same requests to the model `{served}`, but have the offsets {} and {}; give only \
         one of them",
        offsets.0, offsets.1
    )]
    Contradiction { first: PathBuf, second: PathBuf, served: String, offsets: (f64, f64) },
}

/// A calibration with the file that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationFile {
    path: PathBuf,
    calibration: AnyCalibration,
}

#[derive(Debug, Clone, PartialEq)]
enum AnyCalibration {
    Numbers(Box<Calibration>),
    Decisions(Box<DecisionCalibration>),
}

impl AnyCalibration {
    fn read(text: &str) -> Result<Self, CalibrationError> {
        #[derive(serde::Deserialize)]
        struct Format {
            format: String,
        }
        match serde_json::from_str(text) {
            Ok(Format { format }) if format == DecisionCalibration::FORMAT => {
                DecisionCalibration::read(text).map(|read| Self::Decisions(Box::new(read)))
            }
            _ => Calibration::read(text).map(|read| Self::Numbers(Box::new(read))),
        }
    }

    fn model(&self) -> &CalibratedModel {
        match self {
            Self::Numbers(calibration) => &calibration.model,
            Self::Decisions(calibration) => &calibration.model,
        }
    }
}

impl CalibrationFile {
    pub fn read(path: &Path) -> Result<Self, CalibrationFileError> {
        let path = path.to_owned();
        match read_text(&path, SMALL_BYTES_MAX) {
            Err(source) => Err(CalibrationFileError::Unreadable { file: path, source }),
            Ok(text) => match AnyCalibration::read(&text) {
                Err(source) => Err(CalibrationFileError::Malformed { file: path, source }),
                Ok(calibration) => Ok(Self { path, calibration }),
            },
        }
    }

    /// Rejects a file of another checkpoint. A file without a fingerprint is identified by the name of its
    /// model.
    fn check(&self, name: &str, fingerprint: Option<&str>) -> Result<(), CalibrationFileError> {
        let file = self.path.clone();
        let served = name.to_owned();
        let model = self.calibration.model();
        match (&model.fingerprint, fingerprint) {
            (Some(calibrated), Some(fingerprint)) if calibrated != fingerprint => {
                let calibrated = calibrated.clone();
                let fingerprint = fingerprint.to_owned();
                Err(CalibrationFileError::OtherCheckpoint { file, calibrated, served, fingerprint })
            }
            (Some(_), Some(_)) => Ok(()),
            _ if model.name == name => Ok(()),
            _ => Err(CalibrationFileError::OtherModel { file, calibrated: model.name.clone(), served }),
        }
    }
}

/// Returns the model with the calibrations of these files.
pub fn calibrated(
    mut model: ServedModel,
    files: &[CalibrationFile],
) -> Result<ServedModel, CalibrationFileError> {
    let mut of_numbers = Vec::new();
    let mut of_decisions: Vec<(&Path, DecisionCalibration)> = Vec::new();
    for file in files {
        file.check(&model.name, model.fingerprint().as_deref())?;
        match &file.calibration {
            AnyCalibration::Numbers(calibration) => {
                let calibration = apis::model_calibration(calibration, &model.profile);
                let calibration = calibration.map_err(|error| CalibrationFileError::Options {
                    file: file.path.clone(),
                    served: model.name.to_string(),
                    message: error.to_string(),
                })?;
                of_numbers.push((&*file.path, calibration));
            }
            AnyCalibration::Decisions(calibration) => {
                of_decisions.push((&file.path, DecisionCalibration::clone(calibration)));
            }
        }
    }
    check_agreement(&of_numbers, apply_to_same_numbers, |calibration| calibration.offset, &model.name)?;
    check_agreement(&of_decisions, apply_to_same_decision, |calibration| calibration.offset, &model.name)?;
    let profile = Arc::make_mut(&mut model.profile);
    profile.calibrations = of_numbers.into_iter().map(|(_, calibration)| calibration).collect();
    profile.decision_calibrations = of_decisions.into_iter().map(|(_, calibration)| calibration).collect();
    Ok(model)
}

fn apply_to_same_numbers(first: &ModelCalibration, second: &ModelCalibration) -> bool {
    matching(std::slice::from_ref(first), &second.settings).is_ok()
}

fn apply_to_same_decision(first: &DecisionCalibration, second: &DecisionCalibration) -> bool {
    first.decision == second.decision && (first.alpha - second.alpha).abs() < 1e-9
}

/// Rejects two calibrations that apply to the same requests and differ.
fn check_agreement<T>(
    calibrations: &[(&Path, T)],
    are_same: impl Fn(&T, &T) -> bool,
    offset: impl Fn(&T) -> f64,
    served: &str,
) -> Result<(), CalibrationFileError> {
    for (index, (second_file, second)) in calibrations.iter().enumerate() {
        for (first_file, first) in &calibrations[..index] {
            let offsets = (offset(first), offset(second));
            if are_same(first, second) && offsets.0.to_bits() != offsets.1.to_bits() {
                return Err(CalibrationFileError::Contradiction {
                    first: first_file.to_path_buf(),
                    second: second_file.to_path_buf(),
                    served: served.to_owned(),
                    offsets,
                });
            }
        }
    }
    Ok(())
}
