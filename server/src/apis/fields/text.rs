//! The fields of ordinary text.

use std::sync::Arc;

use ntl_api::{CompletionRequest, MethodName, NumberOptions};
use ntl_core::contract::TextJob;
use ntl_core::sampling::SamplingParams;
use ntl_text::guide::TokenRules;

use super::FieldNames;
use super::guided::guided;
use super::number_method::TextBefore;
use super::sampling::{logit_bias, sampling, stop_strings, stop_token_ids, token_rules};
use crate::error::{AppError, check};
use crate::request::{Guided, ModelProfile, ReportOptions};

/// Default of `max_tokens`.
const MAX_TOKENS: u64 = 16;

/// Default of `max_tokens` for a text before a number: a chain of thought is longer than a phrase.
const MAX_TOKENS_BEFORE_NUMBER: u64 = 256;

pub(in crate::apis) const N_MAX: u64 = 128;

pub(in crate::apis) const LOGPROB_IDS_MAX: usize = 1024;

/// The validated text fields, which a beam search or a number may restrict further.
pub(super) struct TextFields {
    pub(super) job: TextJob,
    pub(super) report: ReportOptions,
    pub(super) guided: Option<Guided>,
    pub(super) token_rules: TokenRules,
    names: FieldNames,
}

impl TextFields {
    /// Validates the fields of a request for `n` texts.
    pub(super) fn read(
        request: &CompletionRequest,
        n: u64,
        names: FieldNames,
        profile: &ModelProfile,
    ) -> Result<Self, AppError> {
        let max = profile.output_tokens_max;
        let usual = profile.notation.as_ref().map_or(MAX_TOKENS, |notation| notation.answer_tokens() as u64);
        let max_tokens = request.max_tokens.unwrap_or(usual.min(max));
        check(names.max_tokens, max_tokens <= max, format!("must be at most {max}"))?;
        let min_tokens = request.min_tokens.unwrap_or(0);
        let message = format!("must be at most `{}`, {max_tokens}", names.max_tokens);
        check("min_tokens", min_tokens <= max_tokens, message)?;
        let best_of = request.best_of.unwrap_or(n);
        check("best_of", (n..=N_MAX).contains(&best_of), format!("must be from `n`, {n}, to {N_MAX}"))?;
        let is_streamed = request.stream.unwrap_or(false);
        check("best_of", best_of == n || !is_streamed, "above `n` is not allowed with `stream`")?;
        let guided = guided(request, names.response_format)?;
        if let Some(guided) = &guided {
            check(guided.param, request.ignore_eos != Some(true), "is not allowed with `ignore_eos`")?;
            check(guided.param, min_tokens == 0, "is not allowed with `min_tokens`")?;
        }
        let mut report = report(request, names, profile)?;
        let logprobs = report.logprobs;
        let prompt_logprobs = report.prompt_alternatives();
        let logprob_ids = logprob_ids(request, max_tokens, names, profile)?;
        // The answer shows all of them.
        report.logprobs = logprobs.map(|count| count.max(logprob_ids.len()));
        let skips_special = request.skip_special_tokens.unwrap_or(true);
        let job = TextJob {
            n: n as u32,
            best_of: best_of as u32,
            max_tokens: max_tokens as usize,
            min_tokens: min_tokens as usize,
            sampling: sampling(request)?,
            logit_bias: logit_bias(request.logit_bias.as_ref(), profile)?,
            stop: stop_strings(request.stop.as_ref())?,
            stop_token_ids: stop_token_ids(request.stop_token_ids.as_deref(), profile)?,
            include_stop: request.include_stop_str_in_output.unwrap_or(false),
            ignore_eos: request.ignore_eos.unwrap_or(false),
            // The engine reports token ids with the log-probabilities.
            logprobs: logprobs.or(report.token_ids.then_some(0)),
            logprob_ids: logprob_ids.into(),
            prompt_logprobs,
            guide: None,
            shown_ids: if skips_special { Arc::from([]) } else { Arc::clone(&profile.special_ids) },
            fields: None,
        };
        let token_rules = token_rules(request, profile)?;
        Ok(Self { job, report, guided, token_rules, names })
    }

    /// How many texts are decoded for each prompt.
    pub(super) fn paths(&self) -> u64 {
        u64::from(self.job.best_of)
    }

    /// The field that says so.
    pub(super) fn paths_field(&self) -> &'static str {
        let job = &self.job;
        if job.best_of > job.n { "best_of" } else { "n" }
    }

    /// Refuses fields that a number does not have.
    pub(super) fn check_for_number(&self) -> Result<(), AppError> {
        let job = &self.job;
        let message = "is not allowed with `number`";
        check("n", job.n == 1, "must be 1 with `number`: it has one distribution")?;
        check("best_of", job.best_of == 1, message)?;
        check("return_token_ids", !self.report.token_ids, message)?;
        self.refuse_token_fields(message)?;
        check("stop", job.stop.is_empty(), "is not allowed with `number`; see `number.terminator`")
    }

    /// Refuses fields that a beam search does not have.
    pub(super) fn check_for_beams(&self) -> Result<(), AppError> {
        let message = "is not allowed with `use_beam_search`";
        self.refuse_token_fields(message)?;
        check("stop", self.job.stop.is_empty(), message)?;
        self.refuse_sampling(true, message)
    }

    /// Refuses fields that the printed number of a regression head does not have. Samples and beams pass: all
    /// of them are that number.
    pub(super) fn check_for_printed_number(&self) -> Result<(), AppError> {
        self.refuse_token_fields(
            "needs a model that writes tokens; this one is a regression head, which predicts one number",
        )
    }

    /// Refuses fields that a text of dedicated number tokens does not have: each is one complete answer.
    pub(super) fn check_for_number_tokens(&self) -> Result<(), AppError> {
        let message = "is not allowed with this model, which writes numbers in dedicated tokens";
        for (param, asked) in [
            ("allowed_token_ids", !self.token_rules.allowed.is_empty()),
            ("bad_words", !self.token_rules.bad_words.is_empty()),
            ("min_tokens", self.job.min_tokens > 0),
            ("ignore_eos", self.job.ignore_eos),
        ] {
            check(param, !asked, message)?;
        }
        self.guided.as_ref().map_or(Ok(()), |guided| check(guided.param, false, message))
    }

    /// Rejects sampling for a number without a text before it: the distribution of the number is the model's.
    pub(super) fn check_sampling_for_number(
        &self,
        options: &NumberOptions,
        profile: &ModelProfile,
    ) -> Result<(), AppError> {
        if options.after.is_some() {
            return Ok(());
        }
        if profile.notation.is_some() && options.method == Some(MethodName::Sample) {
            let sampling = self.job.sampling;
            check("temperature", sampling.temperature > 0.0, "must be above 0 for draws of numbers")?;
            return self.refuse_penalties("has no effect on draws of numbers");
        }
        // Greedy numbers are not draws.
        let may_be_greedy = options.method != Some(MethodName::Sample);
        let message = "has no effect on a number: its distribution is that of temperature 1. It is for the text before a \
                       number, which `number.after` asks for";
        self.refuse_sampling(may_be_greedy, message)
    }

    /// Refuses what changes the distribution that tokens are sampled from.
    fn refuse_sampling(&self, may_be_greedy: bool, message: &str) -> Result<(), AppError> {
        let sampling = self.job.sampling;
        let plain = SamplingParams::PLAIN;
        let is_greedy = sampling.temperature <= 0.0 && may_be_greedy;
        // Clients send a temperature of 1 by default.
        let is_default = is_greedy || sampling.temperature.to_bits() == plain.temperature.to_bits();
        for (param, asked) in [
            ("temperature", !is_default),
            ("top_p", sampling.top_p < plain.top_p),
            ("top_k", sampling.top_k != plain.top_k),
            ("min_p", sampling.min_p > plain.min_p),
        ] {
            check(param, !asked, message)?;
        }
        self.refuse_penalties(message)
    }

    fn refuse_penalties(&self, message: &str) -> Result<(), AppError> {
        let sampling = self.job.sampling;
        let is_repetition_penalised =
            sampling.repetition_penalty.to_bits() != SamplingParams::PLAIN.repetition_penalty.to_bits();
        for (param, asked) in [
            ("repetition_penalty", is_repetition_penalised),
            ("presence_penalty", sampling.presence_penalty.abs() > 0.0),
            ("frequency_penalty", sampling.frequency_penalty.abs() > 0.0),
        ] {
            check(param, !asked, message)?;
        }
        Ok(())
    }

    /// Refuses fields that steer or report single tokens.
    fn refuse_token_fields(&self, message: &str) -> Result<(), AppError> {
        let Self { job, report, guided, token_rules, names } = self;
        for (param, asked) in [
            (names.logprobs, report.logprobs.is_some()),
            ("prompt_logprobs", report.prompt_logprobs.is_some()),
            ("echo", report.echo),
            ("logit_bias", !job.logit_bias.is_empty()),
            ("allowed_token_ids", !token_rules.allowed.is_empty()),
            ("bad_words", !token_rules.bad_words.is_empty()),
            ("min_tokens", job.min_tokens > 0),
            ("ignore_eos", job.ignore_eos),
            ("stop_token_ids", !job.stop_token_ids.is_empty()),
            ("include_stop_str_in_output", job.include_stop),
            ("skip_special_tokens", !job.shown_ids.is_empty()),
        ] {
            check(param, !asked, message)?;
        }
        guided.as_ref().map_or(Ok(()), |guided| check(guided.param, false, message))
    }

    /// Returns the options of the text before a number; `max_tokens` comes from the request.
    pub(super) fn before_number(&self, max_tokens: Option<u64>, profile: &ModelProfile) -> TextBefore {
        let max_tokens = max_tokens.unwrap_or(MAX_TOKENS_BEFORE_NUMBER.min(profile.output_tokens_max));
        TextBefore { sampling: self.job.sampling, max_tokens: max_tokens as usize }
    }
}

fn report(
    request: &CompletionRequest,
    names: FieldNames,
    profile: &ModelProfile,
) -> Result<ReportOptions, AppError> {
    let logprobs = alternatives(names.alternatives, request.logprobs, profile)?;
    let prompt_logprobs = alternatives("prompt_logprobs", request.prompt_logprobs, profile)?;
    let is_streamed = request.stream.unwrap_or(false);
    check("prompt_logprobs", prompt_logprobs.is_none() || !is_streamed, "is not allowed with `stream`")?;
    let number_tokens = request.number_tokens.unwrap_or(false);
    check("number_tokens", logprobs.is_some() || !number_tokens, "is only allowed with `logprobs`")?;
    let tokens_as_ids = request.return_tokens_as_token_ids.unwrap_or(false);
    let echo = request.echo.unwrap_or(false);
    for (param, asked) in [("echo", echo), ("prompt_logprobs", prompt_logprobs.is_some())] {
        let message = "needs a decoder-only model; the encoder of this model gives prompt tokens no probabilities. \
                       POST /v1/score returns those of a target";
        check(param, !(asked && profile.encoder_decoder), message)?;
    }
    let token_ids = request.return_token_ids.unwrap_or(false);
    Ok(ReportOptions { logprobs, number_tokens, tokens_as_ids, prompt_logprobs, echo, token_ids })
}

/// The ids that replace the most probable alternatives.
fn logprob_ids(
    request: &CompletionRequest,
    max_tokens: u64,
    names: FieldNames,
    profile: &ModelProfile,
) -> Result<Vec<u32>, AppError> {
    let ids = request.logprob_token_ids.clone().unwrap_or_default();
    if ids.is_empty() {
        return Ok(ids);
    }
    let field = "logprob_token_ids";
    check(field, ids.len() <= LOGPROB_IDS_MAX, format!("must be at most {LOGPROB_IDS_MAX} token ids"))?;
    check(field, request.logprobs.is_some(), "is only allowed with `logprobs`")?;
    let message = format!("has no effect where `{}` is 0: it is for generated tokens", names.max_tokens);
    check(field, max_tokens > 0, message)?;
    profile.known_ids(field, ids)
}

/// Returns the number of alternatives to a token that a field requests; -1 requests the whole vocabulary.
fn alternatives(param: &str, option: Option<i64>, profile: &ModelProfile) -> Result<Option<usize>, AppError> {
    let Some(number) = option else { return Ok(None) };
    let max = profile.logprobs_max.unwrap_or(profile.tokens);
    let count = if number == -1 { Some(profile.tokens) } else { usize::try_from(number).ok() };
    if let Some(count) = count.filter(|&count| count <= max) {
        return Ok(Some(count));
    }
    Err(AppError::field(
        param,
        match profile.logprobs_max {
            Some(max) => format!("must be from 0 to {max}: the server allows no more"),
            None => format!("must be from 0 to {max}, or -1 for the whole vocabulary"),
        },
    ))
}
