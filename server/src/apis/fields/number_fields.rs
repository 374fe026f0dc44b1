//! The `number` object of a request with JSON schemas, of its text or of the arguments of functions: the
//! numbers that the schemas name, and the values that they list.

use ntl_api::{CompletionRequest, MethodName, NumberOptions, NumberRequest};
use ntl_core::contract::FieldsJob;
use ntl_core::numbers::NumberValues;
use ntl_text::guide::{Constraint, has_fields};
use serde_json::Value;

use super::guided::has_schema;
use super::number::{NumberNames, limits, number_format};
use super::number_method;
use crate::apis::number::{IntervalEnds, IntervalFormat, NumberFormat, engine_objective};
use crate::error::{AppError, check};
use crate::request::{Guided, ModelProfile};

/// Maximum number of tokens of a number: two times 20 digits, a sign, a point and a space.
const FIELD_TOKENS_MAX: usize = 43;

pub(in crate::apis) fn wants_number(number: Option<&NumberRequest>) -> bool {
    !matches!(number, None | Some(NumberRequest::Switch(false)))
}

/// Returns the default maximum of tokens of a message: the `room` in its context, at most `max`. A number
/// without a structured text has another default, and `None` leaves it. `is_call`: whether the message has to
/// call a function.
pub(in crate::apis) fn message_tokens(
    request: &CompletionRequest,
    is_call: bool,
    room: Option<usize>,
    max: u64,
) -> Option<u64> {
    let wants_number = wants_number(request.number.as_ref());
    if wants_number && !is_call && !has_schema(request) {
        return None;
    }
    let Some(room) = room else { return Some(max) };
    // The search of a number looks further than the text.
    let beyond = if wants_number { FIELD_TOKENS_MAX } else { 0 };
    // If there is no room at all, the engine rejects the request: it knows both lengths.
    Some((room.saturating_sub(beyond) as u64).clamp(1, max))
}

/// The JSON schema of a constraint.
pub(super) fn schema_of(guided: Option<&Guided>) -> Option<&Value> {
    match &guided?.constraint {
        Constraint::Json { schema, .. } => Some(schema),
        Constraint::Regex(_)
        | Constraint::Choice(_)
        | Constraint::Grammar(_)
        | Constraint::Structural(_)
        | Constraint::Calls(_) => None,
    }
}

/// Validates the options and fills in the defaults.
pub(super) fn fields_job(
    options: &NumberOptions,
    schemas: &[Value],
    profile: &ModelProfile,
) -> Result<(FieldsJob, NumberFormat), AppError> {
    let message = "with a JSON schema needs an engine that reports the token ids of its texts: vLLM, llama.cpp or \
                   ntl-server";
    check("number", profile.guides_texts, message)?;
    let message = "with a JSON schema needs a model that writes numbers digit by digit";
    let is_spelt = profile.spells_numbers && profile.number_head.is_none() && profile.notation.is_none();
    check("number", is_spelt, message)?;
    let message = "needs a JSON schema that names numbers or lists values";
    check("number", schemas.iter().any(has_fields), message)?;
    refuse(options)?;
    let mut format =
        number_format(options, MethodName::Tree, NumberValues::All, NumberNames::DEFAULT.objective)?;
    let tree = number_method::tree_limits(options)?;
    let limits = limits(options)?;
    format.interval = interval(options, profile)?;
    format.is_of_fields = true;
    let decimals = format.decimals.map_or(limits.decimals_max(), |decimals| decimals as u8);
    let job = FieldsJob {
        limits,
        tolerance: tree.tolerance,
        nodes_max: tree.nodes_max,
        precision: tree.precision,
        time_max: number_method::time_max(options)?,
        objective: engine_objective(format.objective),
        estimation: format.estimation,
        mass_min: format.mass_min,
        decimals,
    };
    Ok((job, format))
}

/// Rejects options that the schema replaces, or that are for one number.
fn refuse(options: &NumberOptions) -> Result<(), AppError> {
    let is_tree = options.method.is_none_or(|method| method == MethodName::Tree);
    check("number.method", is_tree, "must be \"tree\" with a JSON schema")?;
    for (param, is_given) in [
        ("number.range", options.range.is_some()),
        ("number.scale", options.scale.is_some()),
        ("number.sign", options.sign.is_some()),
        ("number.thousands", options.thousands.is_some()),
        ("number.terminator", options.terminator.is_some()),
    ] {
        check(param, !is_given, "is not allowed with a JSON schema, which states the numbers")?;
    }
    for (param, is_given) in [
        ("number.sampling", options.sampling == Some(true)),
        ("number.after", options.after.is_some()),
        ("number.rationales", options.rationales.is_some()),
        ("number.samples", options.samples.is_some()),
        ("number.beams", options.beams.is_some()),
    ] {
        check(param, !is_given, "is not allowed with a JSON schema")?;
    }
    Ok(())
}

/// Calibrations are for single numbers.
fn interval(options: &NumberOptions, profile: &ModelProfile) -> Result<Option<IntervalFormat>, AppError> {
    let Some(coverage) = options.interval else { return Ok(None) };
    check("number.interval", coverage > 0.0 && coverage < 1.0, "must be above 0 and below 1")?;
    let reason = "the calibration of this model is not for numbers in structured text";
    let reason = (!profile.calibrations.is_empty()).then(|| reason.to_owned());
    Ok(Some(IntervalFormat { coverage, values: NumberValues::All, ends: IntervalEnds::Quantiles { reason } }))
}
