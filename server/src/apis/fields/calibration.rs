//! Calibration files, read like the requests that they are for.

use ntl_api::{Calibration, MethodName};
use ntl_core::sampling::SamplingParams;

use super::number::{NumberNames, number_job};
use super::number_method::TextBefore;
use crate::error::AppError;
use crate::request::{IntervalSettings, ModelCalibration, ModelProfile};

/// Returns the calibration of a file for a model, or an error if the model does not decode such numbers.
pub(crate) fn model_calibration(
    file: &Calibration,
    profile: &ModelProfile,
) -> Result<ModelCalibration, AppError> {
    // The length of the text before the number is not part of the settings.
    let sampling = SamplingParams { temperature: file.temperature(), ..SamplingParams::PLAIN };
    let text = TextBefore { sampling, max_tokens: 1 };
    let mut options = file.number.clone();
    if profile.number_head == Some(MethodName::Head) {
        // A regression head has one value and nothing to search.
        (options.tolerance, options.nodes_max, options.sampling) = (None, None, None);
    }
    let (job, _) = number_job(options, NumberNames::DEFAULT, text, profile)?;
    let coverage = file.coverage();
    let mass_min = file.mass_min();
    let settings = IntervalSettings { coverage, mass_min, job };
    Ok(ModelCalibration { offset: file.offset, settings })
}
