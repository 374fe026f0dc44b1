//! The field `number.interval`.

use ntl_api::{MethodName, NumberOptions};
use ntl_core::contract::NumberJob;

use crate::apis::number::{IntervalEnds, IntervalFormat, NumberFormat};
use crate::error::{AppError, check};
use crate::request::{IntervalSettings, ModelCalibration, matching};

/// Returns the format of a job's interval, if the options request one.
pub(super) fn interval(
    options: &NumberOptions,
    format: &NumberFormat,
    job: &NumberJob,
    calibrations: &[ModelCalibration],
) -> Result<Option<IntervalFormat>, AppError> {
    let Some(coverage) = options.interval else { return Ok(None) };
    check("number.interval", coverage > 0.0 && coverage < 1.0, "must be above 0 and below 1")?;
    let message = "is not allowed with `number.method` \"token\", which finds no distribution";
    check("number.interval", format.method != MethodName::Token, message)?;
    let settings = IntervalSettings { coverage, mass_min: format.mass_min, job: job.clone() };
    let ends = match matching(calibrations, &settings) {
        Ok(calibration) => IntervalEnds::Conformal { offset: calibration.offset },
        Err(reason) => IntervalEnds::Quantiles { reason },
    };
    Ok(Some(IntervalFormat { coverage, values: job.values, ends }))
}
