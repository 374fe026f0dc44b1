//! Ordinary text as a request wants it: every field checked, alone and with the others.
//!
//! Not here: what sampling is made of (`sampling`), constraints (`guided`), prompts (`prompt`).

use std::sync::Arc;

use ntl_api::CompletionRequest;
use ntl_core::engine::TextJob;
use ntl_core::sampling::{Guide, SamplingParams};

use super::guided::{Guided, guided};
use super::number_method::TextBefore;
use super::sampling::{logit_bias, sampling, stop_token_ids, stops};
use super::{Rules, check, random_seed};
use crate::error::AppError;

/// Most tokens of a text where the request does not say.
const MAX_TOKENS: u64 = 16;

/// The same for a text before a number, which is a chain of thought rather than a phrase.
const MAX_TOKENS_BEFORE: u64 = 256;

pub(super) const N_MAX: u64 = 128;

/// Log-probabilities of one answer beyond what every position may have by default: 64 MiB of them.
const LOGPROBS_IN_ALL_MAX: u64 = 4 << 20;
const LOGPROBS_USUAL: u64 = 20;

/// Ordinary text; the seed is decided for each prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextPlan {
    /// Texts of each prompt that are returned.
    pub(super) n: u32,
    best_of: u32,
    max_tokens: usize,
    min_tokens: usize,
    sampling: SamplingParams,
    seed: Option<u64>,
    logit_bias: Arc<[(u32, f32)]>,
    stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    include_stop: bool,
    ignore_eos: bool,
    /// What is shown beside the texts.
    pub(super) shown: Shown,
    /// What every text must be.
    pub(super) guided: Option<Guided>,
}

/// What is shown beside the texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Alternatives to each token.
    pub(crate) logprobs: Option<usize>,
    /// What number tokens say at each token.
    pub(crate) number_tokens: bool,
    /// Alternatives to each token of the prompt, in an array of its own.
    pub(crate) prompt_logprobs: Option<usize>,
    /// The prompt in front of the text, with its log-probabilities where the text has them.
    pub(crate) echo: bool,
    /// Token ids.
    pub(crate) token_ids: bool,
}

impl Shown {
    /// Whether an answer says anything of its prompt.
    pub(crate) fn shows_prompt(self) -> bool {
        self.echo || self.token_ids || self.prompt_logprobs.is_some()
    }

    /// Alternatives to each token of the prompt that have to be computed.
    fn of_prompt(self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

/// The text that a request wants; `texts` for each of so many prompts.
pub(super) fn text_plan(request: &CompletionRequest, n: u64, rules: &Rules) -> Result<TextPlan, AppError> {
    let max = rules.output_tokens_max;
    let max_tokens = request.max_tokens.unwrap_or(MAX_TOKENS.min(max));
    check("max_tokens", max_tokens <= max, format!("must be at most {max}"))?;
    let min_tokens = request.min_tokens.unwrap_or(0);
    check("min_tokens", min_tokens <= max_tokens, format!("must be at most `max_tokens`, {max_tokens}"))?;
    let best_of = request.best_of.unwrap_or(n);
    let fits = (n..=N_MAX).contains(&best_of);
    check("best_of", fits, format!("must be from `n`, {n}, to {N_MAX}"))?;
    let streamed = request.stream.unwrap_or(false);
    check("best_of", best_of == n || !streamed, "above `n` does not go with `stream`")?;
    let guided = guided(request)?;
    if let Some(guided) = &guided {
        check(guided.param, request.ignore_eos != Some(true), "does not go with `ignore_eos`")?;
        check(guided.param, min_tokens == 0, "does not go with `min_tokens`")?;
    }
    Ok(TextPlan {
        n: n as u32,
        best_of: best_of as u32,
        max_tokens: max_tokens as usize,
        min_tokens: min_tokens as usize,
        sampling: sampling(request)?,
        seed: request.seed.map(i64::cast_unsigned),
        logit_bias: logit_bias(request.logit_bias.as_ref(), rules)?,
        stop: stops(request.stop.as_ref())?,
        stop_token_ids: stop_token_ids(request.stop_token_ids.as_ref(), rules)?,
        include_stop: request.include_stop_str_in_output.unwrap_or(false),
        ignore_eos: request.ignore_eos.unwrap_or(false),
        shown: shown(request, rules)?,
        guided,
    })
}

fn shown(request: &CompletionRequest, rules: &Rules) -> Result<Shown, AppError> {
    let logprobs = count("logprobs", request.logprobs, rules)?;
    let prompt_logprobs = count("prompt_logprobs", request.prompt_logprobs, rules)?;
    let streamed = request.stream.unwrap_or(false);
    check("prompt_logprobs", prompt_logprobs.is_none() || !streamed, "does not go with `stream`")?;
    let number_tokens = request.number_tokens.unwrap_or(false);
    check("number_tokens", logprobs.is_some() || !number_tokens, "goes only with `logprobs`")?;
    let echo = request.echo.unwrap_or(false);
    for (param, asked) in [("echo", echo), ("prompt_logprobs", prompt_logprobs.is_some())] {
        let message = "needs a decoder-only model; this one reads prompts with an encoder, which gives their tokens no \
                       probabilities. POST /v1/score gives those of a target";
        check(param, !(asked && rules.encoder_decoder), message)?;
    }
    let token_ids = request.return_token_ids.unwrap_or(false);
    Ok(Shown { logprobs, number_tokens, prompt_logprobs, echo, token_ids })
}

/// How many alternatives a field asks for.
fn count(param: &str, asked: Option<i64>, rules: &Rules) -> Result<Option<usize>, AppError> {
    let Some(asked) = asked else { return Ok(None) };
    let max = rules.logprobs_max.unwrap_or(rules.tokens);
    let message = match rules.logprobs_max {
        Some(max) => format!("must be from 0 to {max}: the server allows no more"),
        None => format!("must be from 0 to {max}, or -1 for the whole vocabulary"),
    };
    let count = if asked == -1 { Some(rules.tokens) } else { usize::try_from(asked).ok() };
    check(param, count.is_some_and(|count| count <= max), message)?;
    Ok(count)
}

impl TextPlan {
    /// How many texts are decoded for each prompt.
    pub(super) fn paths(&self) -> u64 {
        u64::from(self.best_of)
    }

    /// Which field says so.
    pub(super) fn paths_field(&self) -> &'static str {
        if self.best_of > self.n { "best_of" } else { "n" }
    }

    /// Refuses more log-probabilities than an answer should hold.
    pub(super) fn check_size(&self, prompts: usize, rules: &Rules) -> Result<(), AppError> {
        let texts = self.paths().saturating_mul(self.max_tokens as u64);
        let of_prompt = rules.prompt_tokens_max as u64;
        for (param, count, positions) in
            [("logprobs", self.shown.logprobs, texts), ("prompt_logprobs", self.shown.of_prompt(), of_prompt)]
        {
            let count = count.unwrap_or(0) as u64;
            let all = count.saturating_mul(positions).saturating_mul(prompts as u64);
            let message = format!("asks for up to {all} log-probabilities; at most {LOGPROBS_IN_ALL_MAX}");
            check(param, count <= LOGPROBS_USUAL || all <= LOGPROBS_IN_ALL_MAX, message)?;
        }
        Ok(())
    }

    /// Refuses what belongs to texts only.
    pub(super) fn goes_with_a_number(&self) -> Result<(), AppError> {
        check("n", self.n == 1, "must be 1 with `number`: it has one distribution")?;
        check("best_of", self.best_of == 1, "does not go with `number`")?;
        check("return_token_ids", !self.shown.token_ids, "does not go with `number`")?;
        self.refuse_steered("does not go with `number`")?;
        check("stop", self.stop.is_empty(), "does not go with `number`; see `number.terminator`")
    }

    /// Refuses what belongs to texts that are drawn token by token.
    pub(super) fn goes_with_beams(&self) -> Result<(), AppError> {
        let message = "does not go with `use_beam_search`";
        self.refuse_steered(message)?;
        check("stop", self.stop.is_empty(), message)?;
        // Clients send a temperature of 1 unasked.
        let (sampling, plain) = (self.sampling, SamplingParams::PLAIN);
        let unasked = sampling.temperature <= 0.0 || sampling.temperature.to_bits() == 1.0_f64.to_bits();
        for (param, asked) in [
            ("temperature", !unasked),
            ("top_p", sampling.top_p < plain.top_p),
            ("top_k", sampling.top_k != plain.top_k),
            ("min_p", sampling.min_p > plain.min_p),
            (
                "repetition_penalty",
                sampling.repetition_penalty.to_bits() != plain.repetition_penalty.to_bits(),
            ),
            ("presence_penalty", sampling.presence_penalty.abs() > 0.0),
            ("frequency_penalty", sampling.frequency_penalty.abs() > 0.0),
        ] {
            check(param, !asked, message)?;
        }
        Ok(())
    }

    /// Refuses what steers or reports single tokens.
    fn refuse_steered(&self, message: &str) -> Result<(), AppError> {
        let guided = self.guided.as_ref().map_or("", |guided| guided.param);
        for (param, asked) in [
            ("logprobs", self.shown.logprobs.is_some()),
            ("prompt_logprobs", self.shown.prompt_logprobs.is_some()),
            ("echo", self.shown.echo),
            ("logit_bias", !self.logit_bias.is_empty()),
            ("min_tokens", self.min_tokens > 0),
            ("ignore_eos", self.ignore_eos),
            ("stop_token_ids", !self.stop_token_ids.is_empty()),
            ("include_stop_str_in_output", self.include_stop),
            (guided, self.guided.is_some()),
        ] {
            check(param, !asked, message)?;
        }
        Ok(())
    }

    /// Most tokens of each text.
    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// How the text before a number is written; `max_tokens` is what the request says.
    pub(super) fn before_a_number(&self, max_tokens: Option<u64>, rules: &Rules) -> TextBefore {
        let max_tokens = max_tokens.unwrap_or(MAX_TOKENS_BEFORE.min(rules.output_tokens_max));
        TextBefore { sampling: self.sampling, max_tokens: max_tokens as usize }
    }

    pub(super) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The job of one more prompt, with the compiled constraint where there is one.
    pub(super) fn job(&self, guide: Option<Arc<dyn Guide>>) -> TextJob {
        let seed = self.seed.unwrap_or_else(random_seed);
        TextJob {
            n: self.n,
            best_of: self.best_of,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens,
            sampling: SamplingParams { seed, ..self.sampling },
            logit_bias: Arc::clone(&self.logit_bias),
            stop: self.stop.clone(),
            stop_token_ids: self.stop_token_ids.clone(),
            include_stop: self.include_stop,
            ignore_eos: self.ignore_eos,
            // Ids come with log-probabilities.
            logprobs: self.shown.logprobs.or(self.shown.token_ids.then_some(0)),
            prompt_logprobs: self.shown.of_prompt(),
            guide,
        }
    }
}
