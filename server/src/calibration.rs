//! Calibration files: read, compared with the model that they are given to, and added to it.

use std::path::{Path, PathBuf};

use ntl_api::{Calibration, CalibrationError};

use crate::adapters;
use crate::engine::ServedModel;

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
    #[error("`{file}` is of the model `{calibrated}`, not of `{served}`")]
    OtherModel { file: PathBuf, calibrated: String, served: String },
    #[error(
        "`{file}` is of another checkpoint: its fingerprint is {calibrated}, that of `{served}` is {fingerprint}; \
         calibrate again with ntl-eval"
    )]
    OtherCheckpoint { file: PathBuf, calibrated: String, served: String, fingerprint: String },
    #[error("`number` in `{file}` does not fit the model `{served}`: {message}")]
    Options { file: PathBuf, served: String, message: String },
}

/// A calibration with the file that it was read from.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationFile {
    path: PathBuf,
    calibration: Calibration,
}

impl CalibrationFile {
    pub fn read(path: &Path) -> Result<Self, CalibrationFileError> {
        let path = path.to_owned();
        match std::fs::read_to_string(&path) {
            Err(source) => Err(CalibrationFileError::Unreadable { file: path, source }),
            Ok(text) => match Calibration::read(&text) {
                Err(source) => Err(CalibrationFileError::Malformed { file: path, source }),
                Ok(calibration) => Ok(Self { path, calibration }),
            },
        }
    }

    /// Refuses a file of another checkpoint; of another name, where the file has no fingerprint.
    fn check(&self, name: &str, fingerprint: Option<&str>) -> Result<(), CalibrationFileError> {
        let (file, served) = (self.path.clone(), name.to_owned());
        let model = &self.calibration.model;
        match (&model.fingerprint, fingerprint) {
            (Some(calibrated), Some(fingerprint)) if calibrated != fingerprint => {
                let (calibrated, fingerprint) = (calibrated.clone(), fingerprint.to_owned());
                Err(CalibrationFileError::OtherCheckpoint { file, calibrated, served, fingerprint })
            }
            (Some(_), Some(_)) => Ok(()),
            _ if model.name == name => Ok(()),
            _ => Err(CalibrationFileError::OtherModel { file, calibrated: model.name.clone(), served }),
        }
    }
}

/// The model with the calibrations of these files.
pub fn calibrated(
    model: ServedModel,
    files: &[CalibrationFile],
) -> Result<ServedModel, CalibrationFileError> {
    let read = |file: &CalibrationFile| {
        file.check(&model.name, model.fingerprint.as_deref())?;
        let calibration = adapters::model_calibration(&file.calibration, model.number_head());
        calibration.map_err(|error| CalibrationFileError::Options {
            file: file.path.clone(),
            served: model.name.to_string(),
            message: error.to_string(),
        })
    };
    let calibrations = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(model.with_calibrations(calibrations))
}
