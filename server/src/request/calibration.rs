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
    /// Returns the differences between a request and the requests that this calibration is for.
    fn differences(&self, request: &IntervalSettings) -> Vec<String> {
        let mut differences = Vec::new();
        if (self.settings.coverage - request.coverage).abs() > 1e-9 {
            // 1 - alpha, without its rounding.
            let coverage = (self.settings.coverage * 1e9).round() / 1e9;
            differences.push(format!("an `interval` of {coverage}"));
        }
        let fields = self.settings.different_fields(request);
        differences.extend(fields.into_iter().map(|field| format!("another `{field}`")));
        differences
    }
}

/// Returns the first calibration that applies. If none does, returns the differences of the calibrations with
/// the fewest; `None` without calibrations.
pub(crate) fn matching<'a>(
    calibrations: &'a [ModelCalibration],
    request: &IntervalSettings,
) -> Result<&'a ModelCalibration, Option<String>> {
    let mut nearest: Vec<Vec<String>> = Vec::new();
    for calibration in calibrations {
        let differences = calibration.differences(request);
        if differences.is_empty() {
            return Ok(calibration);
        }
        let fewest = nearest.first().map_or(usize::MAX, Vec::len);
        if differences.len() < fewest {
            nearest.clear();
        }
        if differences.len() <= fewest && !nearest.contains(&differences) {
            nearest.push(differences);
        }
    }
    let subject = match nearest.len() {
        0 => return Err(None),
        1 => "calibration of this model is",
        _ => "nearest calibrations of this model are",
    };
    let requests: Vec<String> = nearest.iter().map(|differences| differences.join(" and ")).collect();
    Err(Some(format!("the {subject} for {}", requests.join(", or for "))))
}

impl IntervalSettings {
    /// Returns the fields that differ and give other distributions, or other requests without an interval.
    fn different_fields(&self, other: &Self) -> Vec<&'static str> {
        let a = &self.job;
        let b = &other.job;
        let values = match (a.values, b.values) {
            (NumberValues::Scale(_), _) | (_, NumberValues::Scale(_)) => "number.scale",
            _ => "number.range",
        };
        let mut fields = in_method(a, b);
        fields.extend([
            ("number.time_max", a.time_max == b.time_max),
            (values, a.values == b.values),
            ("number.terminator", a.terminator == b.terminator),
            ("number.digits_max", a.limits.digits_max() == b.limits.digits_max()),
            ("number.decimals_max", a.limits.decimals_max() == b.limits.decimals_max()),
            ("number.sign", a.limits.has_sign() == b.limits.has_sign()),
            ("number.thousands", a.limits.thousands() == b.limits.thousands()),
            ("number.mass_min", is_same(self.mass_min, other.mass_min)),
        ]);
        fields.extend(in_text(a.after.as_ref(), b.after.as_ref()));
        fields.into_iter().filter(|(_, is_same)| !is_same).map(|(field, _)| field).collect()
    }
}

fn is_same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits()
}

/// A field, and whether it is the same in two requests.
type Compared = (&'static str, bool);

/// Compares the budgets of methods, too: a smaller one leaves more mass open, and quantiles look only at
/// closed mass.
fn in_method(a: &NumberJob, b: &NumberJob) -> Vec<Compared> {
    use NumberMethod::{Beam, Sample, Tree};
    match (&a.method, &b.method) {
        (
            Tree { tolerance: own_tolerance, nodes_max: own_nodes_max, precision: own_precision },
            Tree { tolerance, nodes_max, precision },
        ) => vec![
            ("number.tolerance", is_same(*own_tolerance, *tolerance)),
            ("number.nodes_max", a.search_nodes_max(*own_nodes_max) == b.search_nodes_max(*nodes_max)),
            ("number.sampling", a.open_draws.is_some() == b.open_draws.is_some()),
            ("number.precision", own_precision == precision),
        ],
        (Sample { samples: own_samples, .. }, Sample { samples, .. }) => {
            vec![("number.samples", own_samples == samples)]
        }
        (Beam { beams: own_beams }, Beam { beams }) => vec![("number.beams", own_beams == beams)],
        (a, b) => vec![("number.method", a == b)],
    }
}

/// Compares the texts before numbers. The seed and the length of a text do not count.
fn in_text(a: Option<&AfterMarker>, b: Option<&AfterMarker>) -> Vec<Compared> {
    let (a, b) = match (a, b) {
        (None, None) => return Vec::new(),
        (Some(a), Some(b)) => (a, b),
        (None, Some(_)) | (Some(_), None) => return vec![("number.after", false)],
    };
    let markers = ("number.after", a.marker == b.marker);
    let rationales = ("number.rationales", a.rationales == b.rationales);
    let (a, b) = (&a.sampling, &b.sampling);
    // Greedy text has nothing to draw from.
    let is_greedy = a.temperature <= 0.0 && b.temperature <= 0.0;
    vec![
        markers,
        rationales,
        ("temperature", is_same(a.temperature, b.temperature)),
        ("top_p", is_greedy || is_same(a.top_p, b.top_p)),
        ("top_k", is_greedy || a.top_k == b.top_k),
        ("min_p", is_greedy || is_same(a.min_p, b.min_p)),
        ("presence_penalty", is_same(a.presence_penalty, b.presence_penalty)),
        ("frequency_penalty", is_same(a.frequency_penalty, b.frequency_penalty)),
        ("repetition_penalty", is_same(a.repetition_penalty, b.repetition_penalty)),
    ]
}
