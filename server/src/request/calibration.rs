//! Calibrations of a model's intervals, and whether one applies to a request.

use ntl_core::contract::{AfterMarker, NumberJob, NumberMethod};
use ntl_core::numbers::NumberValues;

/// The offset of the intervals of requests with these settings.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelCalibration {
    /// The distance by which both ends move outwards.
    pub(crate) offset: f64,
    pub(crate) settings: IntervalSettings,
}

/// Everything in a request that changes its interval, or whether it has one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct IntervalSettings {
    pub(crate) coverage: f64,
    /// Minimum closed mass of a number with an interval.
    pub(crate) mass_min: f64,
    pub(crate) job: NumberJob,
}

impl ModelCalibration {
    /// Returns why this calibration does not apply to a request, or `None` if it does.
    fn refusal(&self, request: &IntervalSettings) -> Option<String> {
        if (self.settings.coverage - request.coverage).abs() > 1e-9 {
            // 1 - alpha, without its rounding.
            let own = (self.settings.coverage * 1e9).round() / 1e9;
            return Some(format!("the calibration of this model is for an `interval` of {own}"));
        }
        let field = self.settings.different_field(request)?;
        Some(format!("the calibration of this model is for another `{field}`"))
    }
}

/// Returns the first calibration that applies. If none does, returns why the last one does not; `None`
/// without calibrations.
pub(crate) fn matching<'a>(
    all: &'a [ModelCalibration],
    request: &IntervalSettings,
) -> Result<&'a ModelCalibration, Option<String>> {
    let mut refusal = None;
    for calibration in all {
        refusal = calibration.refusal(request);
        if refusal.is_none() {
            return Ok(calibration);
        }
    }
    Err(refusal)
}

impl IntervalSettings {
    /// Returns the first field that differs and gives other distributions, or other requests without an
    /// interval.
    fn different_field(&self, other: &Self) -> Option<&'static str> {
        let a = &self.job;
        let b = &other.job;
        let values = match (a.values, b.values) {
            (NumberValues::Scale(_), _) | (_, NumberValues::Scale(_)) => "number.scale",
            _ => "number.range",
        };
        let fields = [
            (values, a.values == b.values),
            ("number.terminator", a.terminator == b.terminator),
            ("number.digits_max", a.limits.digits_max() == b.limits.digits_max()),
            ("number.decimals_max", a.limits.decimals_max() == b.limits.decimals_max()),
            ("number.sign", a.limits.has_sign() == b.limits.has_sign()),
            ("number.thousands", a.limits == b.limits),
            ("number.mass_min", is_same(self.mass_min, other.mass_min)),
        ];
        let different = fields.into_iter().find(|(_, is_same)| !is_same).map(|(field, _)| field);
        different_in_method(&a.method, &b.method)
            .or(different)
            .or_else(|| different_in_text(a.after.as_ref(), b.after.as_ref()))
    }
}

fn is_same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// The budget counts too: a smaller one leaves more mass open, and quantiles look only at closed mass.
fn different_in_method(a: &NumberMethod, b: &NumberMethod) -> Option<&'static str> {
    use NumberMethod::{Beam, Sample, Tree};
    match (a, b) {
        (Tree { tolerance: own, .. }, Tree { tolerance, .. }) if !is_same(*own, *tolerance) => {
            Some("number.tolerance")
        }
        (Tree { nodes_max: own, .. }, Tree { nodes_max, .. }) if own != nodes_max => Some("number.nodes_max"),
        (Tree { precision: own, .. }, Tree { precision, .. }) if own != precision => Some("number.precision"),
        (Sample { samples: own, .. }, Sample { samples, .. }) if own != samples => Some("number.samples"),
        (Beam { beams: own }, Beam { beams }) if own != beams => Some("number.beams"),
        (Tree { .. }, Tree { .. }) | (Sample { .. }, Sample { .. }) | (Beam { .. }, Beam { .. }) => None,
        (own, other) => (own != other).then_some("number.method"),
    }
}

/// The seed and the length of the text do not count.
fn different_in_text(a: Option<&AfterMarker>, b: Option<&AfterMarker>) -> Option<&'static str> {
    let (a, b) = match (a, b) {
        (None, None) => return None,
        (Some(a), Some(b)) => (a, b),
        (None, Some(_)) | (Some(_), None) => return Some("number.after"),
    };
    let own = &a.sampling;
    let other = &b.sampling;
    // Greedy text has nothing to draw from.
    let is_greedy = own.temperature <= 0.0 && other.temperature <= 0.0;
    let fields = [
        ("number.after", a.marker == b.marker),
        ("number.rationales", a.rationales == b.rationales),
        ("temperature", is_same(own.temperature, other.temperature)),
        ("top_p", is_greedy || is_same(own.top_p, other.top_p)),
        ("top_k", is_greedy || own.top_k == other.top_k),
        ("min_p", is_greedy || is_same(own.min_p, other.min_p)),
        ("presence_penalty", is_same(own.presence_penalty, other.presence_penalty)),
        ("frequency_penalty", is_same(own.frequency_penalty, other.frequency_penalty)),
        ("repetition_penalty", is_same(own.repetition_penalty, other.repetition_penalty)),
    ];
    fields.into_iter().find(|(_, is_same)| !is_same).map(|(field, _)| field)
}
