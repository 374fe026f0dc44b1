//! The question for a number: its options become those of the `number` object.

use ntl_api::{MethodName, NumberCriteria, NumberOptions, NumberScale};
use ntl_core::contract::{NumberJob, NumberOutcome};

use super::figures::MASS_MIN;
use super::{NumberFigures, Reading};
use crate::apis::fields::{NumberNames, number_question};
use crate::apis::number::NumberFormat;
use crate::error::{AppError, check};
use crate::request::ModelProfile;

/// The limit of a side without a `minimum` or `maximum`: no number of at most 12 digits is beyond it.
const UNLIMITED: f64 = 1e12;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NumberQuestion {
    pub(super) criteria: NumberCriteria,
    pub(super) job: NumberJob,
    pub(super) format: NumberFormat,
}

impl NumberQuestion {
    /// `path` is the path of the object with these criteria, with its point.
    pub(super) fn new(
        path: &str,
        criteria: NumberCriteria,
        reading: Reading,
        profile: &ModelProfile,
    ) -> Result<Self, AppError> {
        let param = |name: &str| format!("{path}{name}");
        for (name, value) in
            [("minimum", criteria.minimum), ("maximum", criteria.maximum), ("step", criteria.step)]
        {
            let fits = value.is_none_or(|value| value.is_finite() && value.abs() <= UNLIMITED);
            check(&param(name), fits, format!("must be a number from -{UNLIMITED} to {UNLIMITED}"))?;
        }
        let low = criteria.minimum.unwrap_or(-UNLIMITED);
        let high = criteria.maximum.unwrap_or(UNLIMITED);
        check(&param("minimum"), low <= high, "must not be above `maximum`")?;
        let is_closed = criteria.minimum.is_some() && criteria.maximum.is_some();
        check(&param("step"), is_closed || criteria.step.is_none(), "needs `minimum` and `maximum`")?;
        let is_range = criteria.step.is_none() && (criteria.minimum.is_some() || criteria.maximum.is_some());
        let is_sampled = profile.sampling.is_some();
        let options = NumberOptions {
            objective: criteria.objective,
            range: is_range.then_some([low, high]),
            scale: criteria.step.map(|step| NumberScale::Named { low, high, step: Some(step) }),
            interval: reading.coverage,
            // A regression head has one value and nothing to search.
            tolerance: (profile.number_head != Some(MethodName::Head) && !is_sampled)
                .then_some(reading.tolerance),
            samples: is_sampled.then_some(reading.samples as u64),
            ..NumberOptions::default()
        };
        let names = NumberNames { scale: &param("step"), objective: &param("objective") };
        let (job, format) = number_question(options, names, profile)?;
        Ok(Self { criteria, job, format })
    }

    pub(super) fn shown(&self, outcome: NumberOutcome) -> NumberFigures {
        let (_, mut number) = self.format.show(&outcome);
        let mass = outcome.distribution.mass();
        if number.value.is_some() && mass.closed + mass.open < MASS_MIN {
            number.value = None;
            number.estimate = None;
            number.reason = Some(format!("numbers have less than {MASS_MIN:e} of the probability"));
        }
        let unit = self.criteria.unit.clone();
        NumberFigures { number, unit, mass, method: self.format.method(), outcome }
    }
}
