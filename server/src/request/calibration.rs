//! Calibrations of a model's intervals, and whether one holds for a request.

use ntl_core::engine::{NumberJob, NumberMethod};
use ntl_core::numbers::NumberValues;

/// The offset of intervals of one coverage, for numbers that are decoded in one way.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelCalibration {
    pub(crate) coverage: f64,
    /// What both ends are moved outwards by.
    pub(crate) offset: f64,
    /// A job whose intervals it is for.
    pub(crate) job: NumberJob,
}

impl ModelCalibration {
    /// Why it is not for intervals of this coverage of this job; `None` where it is.
    fn refusal(&self, coverage: f64, job: &NumberJob) -> Option<String> {
        if (self.coverage - coverage).abs() > 1e-9 {
            // 1 - alpha, without its rounding.
            let own = (self.coverage * 1e9).round() / 1e9;
            return Some(format!("the calibration of this model is for an `interval` of {own}"));
        }
        let field = different_field(&self.job, job)?;
        Some(format!("the calibration of this model is for another `number.{field}`"))
    }
}

/// The first calibration that holds; else why the last one does not, where there is any.
pub(crate) fn matching<'a>(
    all: &'a [ModelCalibration],
    coverage: f64,
    job: &NumberJob,
) -> Result<&'a ModelCalibration, Option<String>> {
    let mut refusal = None;
    for calibration in all {
        refusal = calibration.refusal(coverage, job);
        if refusal.is_none() {
            return Ok(calibration);
        }
    }
    Err(refusal)
}

/// The first field that gives the two jobs different distributions. Budgets are not among them: they change how exactly a
/// distribution is known.
fn different_field(a: &NumberJob, b: &NumberJob) -> Option<&'static str> {
    let is_same_method = match (&a.method, &b.method) {
        (NumberMethod::Tree { precision: own, .. }, NumberMethod::Tree { precision, .. }) => own == precision,
        (NumberMethod::Sample { samples: own, .. }, NumberMethod::Sample { samples, .. }) => own == samples,
        (own, other) => own == other,
    };
    let marker = |job: &NumberJob| job.after.as_ref().map(|after| after.marker.clone());
    let rationales = |job: &NumberJob| job.after.as_ref().map(|after| after.rationales);
    let fields = [
        ("method", is_same_method),
        ("scale", a.values == b.values),
        ("terminator", a.terminator == b.terminator),
        ("digits_max", a.limits.digits_max() == b.limits.digits_max()),
        ("decimals_max", a.limits.decimals_max() == b.limits.decimals_max()),
        ("sign", a.limits.has_sign() == b.limits.has_sign()),
        ("thousands", a.limits == b.limits),
        ("after", marker(a) == marker(b)),
        ("rationales", rationales(a) == rationales(b)),
    ];
    fields.into_iter().find(|(_, is_same)| !is_same).map(|(field, _)| match (field, a.values, b.values) {
        ("scale", NumberValues::Scale(_), _) | ("scale", _, NumberValues::Scale(_)) => "scale",
        ("scale", ..) => "range",
        _ => field,
    })
}
