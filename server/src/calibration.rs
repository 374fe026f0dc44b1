//! Reads calibration files, checks that they belong to the served model, and adds them to it.

use std::path::{Path, PathBuf};

use ntl_api::{Calibration, CalibrationError};
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
    calibration: Calibration,
}

impl CalibrationFile {
    pub fn read(path: &Path) -> Result<Self, CalibrationFileError> {
        let path = path.to_owned();
        match read_text(&path, SMALL_BYTES_MAX) {
            Err(source) => Err(CalibrationFileError::Unreadable { file: path, source }),
            Ok(text) => match Calibration::read(&text) {
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
        let model = &self.calibration.model;
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
    model: ServedModel,
    files: &[CalibrationFile],
) -> Result<ServedModel, CalibrationFileError> {
    let read = |file: &CalibrationFile| {
        file.check(&model.name, model.fingerprint().as_deref())?;
        let calibration = apis::model_calibration(&file.calibration, &model.profile);
        calibration.map_err(|error| CalibrationFileError::Options {
            file: file.path.clone(),
            served: model.name.to_string(),
            message: error.to_string(),
        })
    };
    let calibrations = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    check_agreement(&calibrations, files, &model.name)?;
    Ok(model.with_calibrations(calibrations))
}

/// Rejects two calibrations that apply to the same requests and differ.
fn check_agreement(
    calibrations: &[ModelCalibration],
    files: &[CalibrationFile],
    served: &str,
) -> Result<(), CalibrationFileError> {
    for (index, (second, file)) in calibrations.iter().zip(files).enumerate() {
        for (first, other) in calibrations.iter().zip(files).take(index) {
            let applies = matching(std::slice::from_ref(first), &second.settings).is_ok();
            if applies && first.offset.to_bits() != second.offset.to_bits() {
                return Err(CalibrationFileError::Contradiction {
                    first: other.path.clone(),
                    second: file.path.clone(),
                    served: served.to_owned(),
                    offsets: (first.offset, second.offset),
                });
            }
        }
    }
    Ok(())
}
