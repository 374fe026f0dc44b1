//! Calibration files, read as the requests that they are for.

use ntl_api::{Calibration, MethodName};
use ntl_core::sampling::SamplingParams;

use super::number::{NumberModel, number_decoding};
use super::number_method::TextBefore;
use crate::error::AppError;
use crate::request::ModelCalibration;

/// The calibration of a file for a model with this number head. An error where the model does not decode such numbers.
pub(crate) fn model_calibration(
    file: &Calibration,
    head: Option<MethodName>,
) -> Result<ModelCalibration, AppError> {
    // A calibration holds whatever the length of the text before the number.
    let text = TextBefore { sampling: SamplingParams::PLAIN, max_tokens: 1 };
    let model = NumberModel { head, ..NumberModel::default() };
    let (number, _) = number_decoding(file.number.clone(), text, Some(0), model)?;
    Ok(ModelCalibration { coverage: file.coverage(), offset: file.offset, job: number.job })
}
