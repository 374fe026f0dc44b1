//! A completion request, checked: what to decode for each prompt and how to answer.
//!
//! Not here: texts (`text`), numbers (`number_options`), token ids (`prompt`), fields that are refused (`unsupported`).

use std::sync::Arc;

use ntl_api::{CompletionRequest, MethodName, NumberRequest};
use ntl_core::engine::{BeamJob, Request};
use ntl_core::sampling::Guide;

use super::beams::beam_job;
use super::check;
use super::guided::Guided;
use super::number_options::NumberPlan;
use super::prompt::{PromptInput, prompts};
use super::text::{N_MAX, Shown, TextPlan, text_plan};
use super::unsupported::refuse_in_completion;
use crate::error::AppError;

/// What requests to one model must keep to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Whether prompt and answer live in different stacks.
    pub(crate) encoder_decoder: bool,
    /// Whether the vocabulary can write numbers.
    pub(crate) spells_numbers: bool,
    /// How numbers are found where only a number head says them.
    pub(crate) number_head: Option<MethodName>,
    /// Ids that the tokenizer knows.
    pub(crate) tokens: usize,
    /// Most tokens of a prompt.
    pub(crate) prompt_tokens_max: usize,
    /// Ids that end a sequence.
    pub(crate) eos_ids: Vec<u32>,
    /// Most tokens that a text may be asked to have.
    pub(crate) output_tokens_max: u64,
    /// Most alternatives to a token; `None` for the whole vocabulary.
    pub(crate) logprobs_max: Option<usize>,
}

/// A checked request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    /// What to complete.
    pub(crate) prompts: Vec<PromptInput>,
    /// What to decode for each prompt.
    pub(crate) wanted: Wanted,
    /// Whether the answer is streamed.
    pub(crate) stream: bool,
    /// Whether a stream ends with the usage.
    pub(crate) include_usage: bool,
    /// Whether to decode with the faults of the original code.
    pub(crate) paper_decoding: bool,
}

/// What to decode for each prompt.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Wanted {
    /// Ordinary text.
    Text(Box<TextPlan>),
    /// The most probable texts, with what is shown beside them.
    Beams(BeamJob, Shown),
    /// A number.
    Number(Box<NumberPlan>),
}

/// Checks a request against the rules of its model.
pub(crate) fn plan(request: CompletionRequest, rules: &Rules) -> Result<Plan, AppError> {
    refuse_in_completion(&request.others)?;
    let n = request.n.unwrap_or(1);
    check("n", (1..=N_MAX).contains(&n), format!("must be from 1 to {N_MAX}"))?;
    let stream = request.stream.unwrap_or(false);
    let stream_options = request.stream_options.clone();
    check("stream_options", stream || stream_options.is_none(), "goes only with `stream`: true")?;
    let text = text_plan(&request, n, rules)?;
    let beams = beam_job(&request, n, &text)?;
    let (wanted, prompts) = match request.number {
        None | Some(NumberRequest::Switch(false)) => {
            let prompts = prompts(request.prompt, text.paths(), text.paths_field())?;
            text.check_size(prompts.len(), rules)?;
            let shown = text.shown;
            let wanted = match beams {
                Some(job) => Wanted::Beams(job, shown),
                None => Wanted::Text(Box::new(text)),
            };
            (wanted, prompts)
        }
        Some(number) => {
            text.goes_with_a_number()?;
            check("use_beam_search", beams.is_none(), "does not go with `number`; see `number.method`")?;
            check("number", rules.spells_numbers, "needs a model whose vocabulary can write numbers")?;
            let options = match number {
                NumberRequest::Switch(_) => serde_json::Map::new(),
                NumberRequest::Options(options) => options,
            };
            let before = text.before_a_number(request.max_tokens, rules);
            let number = NumberPlan::new(options, before, text.seed(), rules.number_head)?;
            let prompts = prompts(request.prompt, number.rationales(), "number.rationales")?;
            (Wanted::Number(Box::new(number)), prompts)
        }
    };
    let include_usage = stream_options.and_then(|options| options.include_usage).unwrap_or(false);
    let paper_decoding = request.paper_decoding.unwrap_or(false);
    Ok(Plan { prompts, wanted, stream, include_usage, paper_decoding })
}

impl Wanted {
    /// What to decode for one more prompt: without a seed in the request every prompt gets its own. `guide` is the
    /// compiled [`Wanted::guided`].
    pub(crate) fn request(&self, guide: Option<&Arc<dyn Guide>>) -> Request {
        match self {
            Self::Text(plan) => Request::Text(plan.job(guide.cloned())),
            Self::Beams(job, _) => Request::Beams(job.clone()),
            Self::Number(plan) => Request::Number(plan.job()),
        }
    }

    /// What every text must be.
    pub(crate) fn guided(&self) -> Option<&Guided> {
        match self {
            Self::Text(plan) => plan.guided.as_ref(),
            Self::Beams(..) | Self::Number(_) => None,
        }
    }

    /// How many answers each prompt gets.
    pub(crate) fn answers_per_prompt(&self) -> u32 {
        match self {
            Self::Text(plan) => plan.n,
            Self::Beams(job, _) => job.n,
            Self::Number(_) => 1,
        }
    }

    /// What is shown beside the answers.
    pub(crate) fn shown(&self) -> Shown {
        match self {
            Self::Text(plan) => plan.shown,
            Self::Beams(_, shown) => *shown,
            Self::Number(_) => Shown::default(),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
