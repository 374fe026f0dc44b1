//! The fields of the `number` object that belong to one method or to the text before the number.
//!
//! Invariant: an option of another method is refused, since the answer would look as if it had been used.

use std::time::Duration;

use ntl_api::{MethodName, NumberOptions};
use ntl_core::contract::{AfterMarker, NumberMethod, OpenDraws, Precision};
use ntl_core::numbers::{Estimation, Objective};
use ntl_core::sampling::SamplingParams;

use crate::error::{AppError, check, in_range};
use crate::request::ModelProfile;

const NODES_MAX: u64 = 65_536;
const SAMPLES_MAX: u64 = 4096;
const BEAMS_MAX: u64 = 64;
const RATIONALES_MAX: u64 = 64;

/// Maximum number of decoder positions of all trees of one prompt: the engine keeps each until the response
/// is complete.
const ALL_NODES_MAX: u64 = 262_144;

/// Every token is searched for the marker, so a long one costs time.
const AFTER_BYTES_MAX: usize = 1024;

/// How the text before a number is written. The seed comes with each job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct TextBefore {
    pub(super) sampling: SamplingParams,
    pub(super) max_tokens: usize,
}

/// The method of the request. A model with a number head has only one, and so has a model without
/// probabilities.
pub(super) fn name(options: &NumberOptions, profile: &ModelProfile) -> Result<MethodName, AppError> {
    let head = profile.number_head;
    if profile.sampling.is_some() {
        let name = options.method.unwrap_or(MethodName::Sample);
        let message = "must be \"sample\" or absent: the engine of this model reports no probabilities";
        check("number.method", name == MethodName::Sample, message)?;
        return Ok(name);
    }
    let name = options.method.or(head).unwrap_or(MethodName::Tree);
    match head {
        Some(head) => {
            let message = format!("must be \"{}\" or absent: this model has a number head", head.as_str());
            check("number.method", name == head, message)?;
        }
        None => {
            let needs_head = [MethodName::Xval, MethodName::Head].contains(&name);
            check("number.method", !needs_head, "is only for models with a number head")?;
        }
    }
    let fits = name != MethodName::Head || options.after.is_none();
    check("number.after", fits, "is not allowed with this model, which writes no text")?;
    Ok(name)
}

/// The engine's method; its seed is 0 until a job is made. `objective` and `estimation` define the estimate
/// that `precision` is about, `sampling` the draws. The number of a number head is a tree, too: one leaf for
/// each way to write the sign.
pub(super) fn method(
    options: &NumberOptions,
    name: MethodName,
    objective: Objective,
    estimation: Estimation,
    sampling: SamplingParams,
    profile: &ModelProfile,
) -> Result<NumberMethod, AppError> {
    check_method_options(options, name, profile.sampling.is_some())?;
    match name {
        MethodName::Tree | MethodName::Xval | MethodName::Head => tree(options, objective, estimation),
        MethodName::Sample => {
            let samples =
                in_range("number.samples", options.samples, NumberOptions::SAMPLES, 1..=SAMPLES_MAX)?;
            let precision = precision(options)?;
            let precision =
                precision.map(|width| Precision { width, objectives: vec![objective], estimation });
            Ok(NumberMethod::Sample { samples: samples as u32, sampling, precision })
        }
        MethodName::Beam => {
            let beams = in_range("number.beams", options.beams, NumberOptions::BEAMS, 1..=BEAMS_MAX)?;
            Ok(NumberMethod::Beam { beams: beams as usize })
        }
        MethodName::Token => Ok(NumberMethod::Token),
    }
}

/// `samples_answers`: whether sampling may stop early.
fn check_method_options(
    options: &NumberOptions,
    name: MethodName,
    samples_answers: bool,
) -> Result<(), AppError> {
    for (param, is_given, owner) in [
        ("number.tolerance", options.tolerance.is_some(), MethodName::Tree),
        ("number.nodes_max", options.nodes_max.is_some(), MethodName::Tree),
        ("number.precision", options.precision.is_some(), MethodName::Tree),
        ("number.time_max", options.time_max.is_some(), MethodName::Tree),
        ("number.sampling", options.sampling.is_some(), MethodName::Tree),
        ("number.samples", options.samples.is_some(), MethodName::Sample),
        ("number.beams", options.beams.is_some(), MethodName::Beam),
    ] {
        let owner_name = owner.as_str();
        let name_given = name.as_str();
        let message = format!("is only allowed with `number.method` \"{owner_name}\", not \"{name_given}\"");
        let is_tree = owner == MethodName::Tree && name == MethodName::Xval;
        let is_stop = samples_answers && ["number.precision", "number.time_max"].contains(&param);
        check(param, !is_given || name == owner || is_tree || is_stop, message)?;
    }
    Ok(())
}

/// The limits of a tree.
pub(super) struct TreeOptions {
    pub(super) tolerance: f64,
    pub(super) nodes_max: usize,
    pub(super) precision: Option<f64>,
}

fn tree(
    options: &NumberOptions,
    objective: Objective,
    estimation: Estimation,
) -> Result<NumberMethod, AppError> {
    let TreeOptions { tolerance, nodes_max, precision } = tree_limits(options)?;
    let precision = precision.map(|width| Precision { width, objectives: vec![objective], estimation });
    Ok(NumberMethod::Tree { tolerance, nodes_max, precision })
}

pub(super) fn tree_limits(options: &NumberOptions) -> Result<TreeOptions, AppError> {
    let tolerance = options.tolerance.unwrap_or(NumberOptions::TOLERANCE);
    check("number.tolerance", tolerance > 0.0 && tolerance < 1.0, "must be above 0 and below 1")?;
    let nodes_max = in_range("number.nodes_max", options.nodes_max, NumberOptions::NODES_MAX, 1..=NODES_MAX)?;
    let rationales = options.rationales.unwrap_or(1);
    let message = format!("times `number.rationales` must be at most {ALL_NODES_MAX}");
    check("number.nodes_max", nodes_max.saturating_mul(rationales) <= ALL_NODES_MAX, message)?;
    Ok(TreeOptions { tolerance, nodes_max: nodes_max as usize, precision: precision(options)? })
}

fn precision(options: &NumberOptions) -> Result<Option<f64>, AppError> {
    let precision = options.precision;
    check("number.precision", precision.is_none_or(|width| width >= 0.0), "must not be negative")?;
    Ok(precision)
}

/// How the open mass of a tree is sampled; the seed is 0 until a job is made. A tree with a given `nodes_max`
/// ends there. The few numbers of a head leave nothing open.
pub(super) fn open_draws(options: &NumberOptions, name: MethodName) -> Option<OpenDraws> {
    let is_sampled = name == MethodName::Tree && options.sampling.unwrap_or(true);
    let search_nodes_max = options.nodes_max.unwrap_or(NumberOptions::SEARCH_NODES_MAX) as usize;
    is_sampled.then_some(OpenDraws { search_nodes_max, draws: NumberOptions::DRAWS, seed: 0 })
}

/// The maximum time of each tree; `None` also if it exceeds the largest [`Duration`].
pub(super) fn time_max(options: &NumberOptions) -> Result<Option<Duration>, AppError> {
    let Some(seconds) = options.time_max else { return Ok(None) };
    check("number.time_max", seconds > 0.0, "must be a number of seconds above 0")?;
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// The text before the number; its seed is 0 until a job is made.
pub(super) fn after(options: &NumberOptions, text: TextBefore) -> Result<Option<AfterMarker>, AppError> {
    let Some(marker) = options.after.clone() else { return Ok(None) };
    let fits = (1..=AFTER_BYTES_MAX).contains(&marker.len());
    check("number.after", fits, format!("must have 1 to {AFTER_BYTES_MAX} bytes"))?;
    let rationales = options.rationales.unwrap_or(1) as u32;
    let TextBefore { sampling, max_tokens } = text;
    Ok(Some(AfterMarker { marker, rationales, sampling, max_tokens }))
}

/// Checks the number of texts, before anything is multiplied by it.
pub(super) fn check_rationales(options: &NumberOptions, profile: &ModelProfile) -> Result<(), AppError> {
    let rationales = in_range("number.rationales", options.rationales, 1, 1..=RATIONALES_MAX)?;
    let fits = rationales == 1 || options.after.is_some();
    check("number.rationales", fits, "is only allowed with `number.after`")?;
    let is_one = rationales == 1 || profile.sampling.is_none();
    check("number.rationales", is_one, "is not allowed for this model: each sampled answer has its own text")
}
