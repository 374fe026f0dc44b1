//! The field `number.interval`.

use ntl_api::{MethodName, NumberOptions};
use ntl_core::engine::NumberJob;

use crate::adapters::number::{IntervalEnds, IntervalFormat};
use crate::error::{AppError, check};
use crate::request::{ModelCalibration, matching};

/// How to show the interval of a job, where the options ask for one.
pub(super) fn interval(
    options: &NumberOptions,
    method: MethodName,
    job: &NumberJob,
    calibrations: &[ModelCalibration],
) -> Result<Option<IntervalFormat>, AppError> {
    let Some(coverage) = options.interval else { return Ok(None) };
    check("number.interval", coverage > 0.0 && coverage < 1.0, "must be above 0 and below 1")?;
    let message = "is not allowed with `number.method` \"token\", which finds no distribution";
    check("number.interval", method != MethodName::Token, message)?;
    let ends = match matching(calibrations, coverage, job) {
        Ok(calibration) => IntervalEnds::Conformal { offset: calibration.offset },
        Err(reason) => IntervalEnds::Quantiles { reason },
    };
    Ok(Some(IntervalFormat { coverage, values: job.values, ends }))
}
