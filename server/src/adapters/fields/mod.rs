//! Validation of the request fields that completions and chats share: each alone, and with the others.

mod beams;
mod calibration;
mod guided;
mod interval;
mod number;
mod number_method;
mod number_scale;
mod sampling;
mod text;
mod unsupported;

use ntl_api::{CompletionRequest, NumberOptions, NumberRequest};

use super::number::NumberFormat;
use crate::error::{AppError, check, in_range};
use crate::request::{Decoding, GenerationRequest, ModelProfile, PromptInput, StreamOptions};
use beams::beam_job;
pub(crate) use calibration::model_calibration;
use number::{NumberModel, number_decoding};
use text::{N_MAX, TextFields};
pub(crate) use unsupported::WITHOUT_EFFECT;
pub(super) use unsupported::{check_chat, check_completion, check_message, check_part};

/// Most texts of one request: prompts times `n`, or times rationales.
const SEQUENCES_MAX: u64 = 1024;

/// Validates a request; its prompts come apart. The second value says how to show the number, where the request asks for
/// one.
pub(super) fn generation_request(
    prompts: Option<Vec<PromptInput>>,
    request: CompletionRequest,
    profile: &ModelProfile,
) -> Result<(GenerationRequest, Option<NumberFormat>), AppError> {
    let n = in_range("n", request.n, 1, 1..=N_MAX)?;
    let is_streamed = request.stream.unwrap_or(false);
    check(
        "stream_options",
        is_streamed || request.stream_options.is_none(),
        "is only allowed with `stream`: true",
    )?;
    let text = TextFields::read(&request, n, profile)?;
    let beams = beam_job(&request, n, &text)?;
    let (decoding, prompts, format) = match &request.number {
        None | Some(NumberRequest::Switch(false)) => {
            let prompts = check_prompts(prompts, text.paths(), text.paths_field())?;
            text.check_size(prompts.len(), profile)?;
            if !profile.writes_tokens {
                text.check_for_printed_number()?;
            }
            let decoding = match beams {
                Some(job) => Decoding::Beams { job, report: text.decoding.report },
                None => Decoding::Text(Box::new(text.decoding)),
            };
            (decoding, prompts, None)
        }
        Some(number) => {
            text.check_for_number()?;
            check("use_beam_search", beams.is_none(), "is not allowed with `number`; see `number.method`")?;
            check("number", profile.spells_numbers, "needs a model whose vocabulary can write numbers")?;
            let options = match number {
                NumberRequest::Switch(_) => NumberOptions::default(),
                NumberRequest::Options(options) => (**options).clone(),
            };
            text.check_sampling_for_number(&options)?;
            let before = text.before_number(request.max_tokens, profile);
            let seed = text.decoding.seed;
            let model = NumberModel { head: profile.number_head, calibrations: &profile.calibrations };
            let (number, format) = number_decoding(options, before, seed, model)?;
            let prompts = check_prompts(prompts, number.rationales(), "number.rationales")?;
            (Decoding::Number(Box::new(number)), prompts, Some(format))
        }
    };
    let include_usage = request.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let stream = is_streamed.then_some(StreamOptions { include_usage });
    let paper_decoding = request.paper_decoding.unwrap_or(false);
    Ok((GenerationRequest { prompts, decoding, stream, paper_decoding }, format))
}

/// Checks how many texts are asked for: so many for each prompt, as the field `multiplier` says.
fn check_prompts(
    prompts: Option<Vec<PromptInput>>,
    texts: u64,
    multiplier: &str,
) -> Result<Vec<PromptInput>, AppError> {
    let prompts = prompts.ok_or_else(|| AppError::field("prompt", "is missing"))?;
    check("prompt", !prompts.is_empty(), "must not be an empty list")?;
    let sequences = (prompts.len() as u64).saturating_mul(texts);
    let param = if texts > 1 { multiplier } else { "prompt" };
    let asked = format!("asks for {sequences} texts with {} prompts; at most {SEQUENCES_MAX}", prompts.len());
    check(param, sequences <= SEQUENCES_MAX, asked)?;
    Ok(prompts)
}

#[cfg(test)]
mod tests;
