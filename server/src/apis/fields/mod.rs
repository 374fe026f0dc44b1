//! Validation of the request fields that completions and chats share: each alone, and with the others.

mod beams;
mod calibration;
mod guided;
mod interval;
mod number;
mod number_fields;
mod number_method;
mod number_scale;
mod sampling;
mod text;
mod unsupported;

use ntl_api::{CompletionRequest, NumberOptions, NumberRequest};
use ntl_core::contract::{NumberJob, Request};
use ntl_core::sampling::SamplingParams;
use ntl_text::checkpoint::TruncationSide;
use serde_json::Value;

use super::number::NumberFormat;
use crate::error::{AppError, check, in_range, required};
use crate::request::{GenerationRequest, ModelProfile, PromptInput, Truncation};
use beams::beam_job;
pub(crate) use calibration::model_calibration;
pub(super) use number::NumberNames;
use number::number_job;
use number_fields::{fields_job, schema_of};
pub(super) use number_fields::{message_tokens, wants_number};
use number_method::TextBefore;
use text::TextFields;
pub(super) use text::{LOGPROB_IDS_MAX, N_MAX};
pub(crate) use unsupported::{RESPONSES_SHARED, WITHOUT_EFFECT};
pub(super) use unsupported::{
    check_chat, check_completion, check_message, check_part, check_response_item, check_response_part,
    check_responses,
};

/// Maximum number of texts in one request: prompts times `n`, or times rationales.
const SEQUENCES_MAX: u64 = 1024;

/// The names of fields that are not called the same in all APIs.
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldNames {
    pub(super) max_tokens: &'static str,
    /// Whether the response has log-probabilities.
    pub(super) logprobs: &'static str,
    /// Number of alternatives to each token.
    pub(super) alternatives: &'static str,
    pub(super) response_format: &'static str,
}

impl FieldNames {
    pub(super) const COMPLETIONS: Self = Self {
        max_tokens: "max_tokens",
        logprobs: "logprobs",
        alternatives: "logprobs",
        response_format: "response_format",
    };
}

/// Validates the number of a decision, which no text precedes.
pub(super) fn number_question(
    options: NumberOptions,
    names: NumberNames<'_>,
    profile: &ModelProfile,
) -> Result<(NumberJob, NumberFormat), AppError> {
    number_job(options, names, TextBefore { sampling: SamplingParams::PLAIN, max_tokens: 0 }, profile)
}

/// Validates a request; its prompts come apart. `arguments` are the schemas of the functions that the model
/// may call, if it has to call one. The second value is the format of the number, if the request has one.
pub(super) fn generation_request(
    prompts: Option<Vec<PromptInput>>,
    request: CompletionRequest,
    names: FieldNames,
    arguments: Option<&[Value]>,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    if let Some(labels @ 2..) = profile.labels {
        let message =
            format!("predicts {labels} labels, neither a text nor a number; use /classify or /pooling");
        return Err(AppError::field("model", message));
    }
    let n = in_range("n", request.n, 1, 1..=N_MAX)?;
    let is_streamed = request.stream.unwrap_or(false);
    check(
        "stream_options",
        is_streamed || request.stream_options.is_none(),
        "is only allowed with `stream`: true",
    )?;
    let truncation = truncation(request.truncate_prompt_tokens, request.truncation_side, profile)?;
    let mut text = TextFields::read(&request, n, names, profile)?;
    let beams = beam_job(&request, n, &text)?;
    let options = match &request.number {
        None | Some(NumberRequest::Switch(false)) => None,
        Some(NumberRequest::Switch(true)) => Some(NumberOptions::default()),
        Some(NumberRequest::Options(options)) => Some((**options).clone()),
    };
    let schemas = arguments.or(schema_of(text.guided.as_ref()).map(std::slice::from_ref));
    let (decoding, prompts, format) = match (options, schemas) {
        (None, _) => {
            let prompts = check_prompts(prompts, text.paths(), text.paths_field())?;
            if !profile.writes_tokens() {
                text.check_for_printed_number()?;
            }
            if profile.notation.is_some() {
                text.check_for_number_tokens()?;
                let message = "is not allowed with this model, which writes numbers in dedicated tokens";
                check("use_beam_search", beams.is_none(), message)?;
            }
            (beams.map_or(Request::Text(text.job), Request::Beams), prompts, None)
        }
        (Some(options), Some(schemas)) => {
            let prompts = check_prompts(prompts, text.paths(), text.paths_field())?;
            let (fields, format) = fields_job(&options, schemas, profile)?;
            text.job.fields = Some(fields);
            (Request::Text(text.job), prompts, Some(format))
        }
        (Some(options), None) => {
            text.check_for_number()?;
            check("use_beam_search", beams.is_none(), "is not allowed with `number`; see `number.method`")?;
            check("number", profile.spells_numbers, "needs a model whose vocabulary can write numbers")?;
            text.check_sampling_for_number(&options, profile)?;
            let before = text.before_number(request.max_tokens, profile);
            let has_text = options.after.is_none() || before.max_tokens > 0;
            check(names.max_tokens, has_text, "must be at least 1 with `number.after`")?;
            let (job, format) = number_job(options, NumberNames::DEFAULT, before, profile)?;
            let rationales = job.after.as_ref().map_or(1, |after| u64::from(after.rationales));
            let prompts = check_prompts(prompts, rationales, "number.rationales")?;
            (Request::Number(job), prompts, Some(format))
        }
    };
    let request = GenerationRequest {
        prompts,
        truncation,
        add_special_tokens: request.add_special_tokens.unwrap_or(true),
        decoding,
        seed: request.seed.map(i64::cast_unsigned),
        guided: text.guided,
        token_rules: text.token_rules,
        calls: None,
        report: text.report,
        paper_decoding: request.paper_decoding.unwrap_or(false),
        cache_salt: request.cache_salt.filter(|salt| !salt.is_empty()),
        is_streamed,
        include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    };
    Ok((request, format))
}

/// Reads `truncate_prompt_tokens` and `truncation_side`.
pub(super) fn truncation(
    truncate_prompt_tokens: Option<i64>,
    truncation_side: Option<ntl_api::TruncationSide>,
    profile: &ModelProfile,
) -> Result<Option<Truncation>, AppError> {
    let max = profile.prompt_tokens_max;
    let tokens_max = match truncate_prompt_tokens {
        None => return Ok(None),
        Some(-1) => max,
        Some(tokens) => {
            let tokens_max = usize::try_from(tokens).ok().filter(|tokens| (1..=max).contains(tokens));
            tokens_max.ok_or_else(|| {
                AppError::field("truncate_prompt_tokens", format!("must be -1 or in 1..{max}, not {tokens}"))
            })?
        }
    };
    let side = match truncation_side {
        None => profile.truncation_side,
        Some(ntl_api::TruncationSide::Left) => TruncationSide::Left,
        Some(ntl_api::TruncationSide::Right) => TruncationSide::Right,
    };
    Ok(Some(Truncation { tokens_max, side }))
}

/// Checks the number of texts: `texts` for each prompt, which the field `multiplier` sets.
fn check_prompts(
    prompts: Option<Vec<PromptInput>>,
    texts: u64,
    multiplier: &str,
) -> Result<Vec<PromptInput>, AppError> {
    let prompts = required("prompt", prompts)?;
    check("prompt", !prompts.is_empty(), "must not be an empty list")?;
    check_sequences(prompts.len(), texts, multiplier)?;
    Ok(prompts)
}

/// Returns the number of texts: `texts` for each prompt, which the field `multiplier` sets.
pub(super) fn check_sequences(prompts: usize, texts: u64, multiplier: &str) -> Result<u64, AppError> {
    let sequences = (prompts as u64).saturating_mul(texts);
    let param = if texts > 1 { multiplier } else { "prompt" };
    let message = format!("asks for {sequences} texts with {prompts} prompts; at most {SEQUENCES_MAX}");
    check(param, sequences <= SEQUENCES_MAX, message)?;
    Ok(sequences)
}

#[cfg(test)]
mod tests;
