//! Validated requests, independent of the API that they came through.
//!
//! The adapters make them from JSON bodies; [`crate::engine`] tokenizes their prompts and runs their jobs. A value of
//! these types needs no further check, except of prompt lengths and token ids, which only the tokenizer knows.

mod calibration;
mod profile;
mod prompt;
mod score;

use std::sync::Arc;

use ntl_core::engine::{BeamJob, NumberJob, NumberMethod, Request, TextJob};
use ntl_core::sampling::Guide;
use ntl_models::guide::Constraint;

pub(crate) use calibration::{ModelCalibration, matching};
pub(crate) use profile::ModelProfile;
pub(crate) use prompt::PromptInput;
pub(crate) use score::{ScoreInput, ScoreTokens, TargetTokens};

/// Prompts and what to decode for each of them.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompts: Vec<PromptInput>,
    pub(crate) decoding: Decoding,
    /// `None`: one response body.
    pub(crate) stream: Option<StreamOptions>,
    /// Decode with the faults of the original code.
    pub(crate) paper_decoding: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    /// Whether the stream ends with the token counts.
    pub(crate) include_usage: bool,
}

/// What to decode for each prompt.
#[derive(Debug)]
pub(crate) enum Decoding {
    Text(Box<TextDecoding>),
    Beams { job: BeamJob, report: ReportOptions },
    Number(Box<NumberDecoding>),
}

#[derive(Debug)]
pub(crate) struct TextDecoding {
    /// The job of each prompt, without its seed and its guide.
    pub(crate) job: TextJob,
    pub(crate) seed: Option<u64>,
    pub(crate) report: ReportOptions,
    pub(crate) guided: Option<Guided>,
}

#[derive(Debug, Clone)]
pub(crate) struct NumberDecoding {
    /// The job of each prompt, without its seeds.
    pub(crate) job: NumberJob,
    pub(crate) seed: Option<u64>,
}

/// A constraint on the text, and the request field that holds it (for error messages).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guided {
    pub(crate) param: &'static str,
    pub(crate) constraint: Constraint,
}

/// What an answer reports beside its texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReportOptions {
    /// Log-probabilities of each token and of this many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// What the number tokens say at each position.
    pub(crate) number_tokens: bool,
    /// Log-probabilities of each prompt token and of this many alternatives.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Repeat the prompt in front of the text.
    pub(crate) echo: bool,
    pub(crate) token_ids: bool,
}

impl ReportOptions {
    pub(crate) fn includes_prompt(self) -> bool {
        self.echo || self.token_ids || self.prompt_logprobs.is_some()
    }

    /// How many alternatives to each prompt token have to be computed.
    pub(crate) fn prompt_alternatives(self) -> Option<usize> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

impl Decoding {
    /// The engine's job for one more prompt. Without a seed in the request each prompt gets a random one. `guide` is the
    /// compiled [`Decoding::guided`].
    pub(crate) fn job(&self, guide: Option<&Arc<dyn Guide>>) -> Request {
        match self {
            Self::Text(text) => {
                let mut job = TextJob { guide: guide.cloned(), ..text.job.clone() };
                job.sampling.seed = text.seed.unwrap_or_else(random_seed);
                Request::Text(job)
            }
            Self::Beams { job, .. } => Request::Beams(job.clone()),
            Self::Number(number) => Request::Number(number.job()),
        }
    }

    pub(crate) fn guided(&self) -> Option<&Guided> {
        match self {
            Self::Text(text) => text.guided.as_ref(),
            Self::Beams { .. } | Self::Number(_) => None,
        }
    }

    pub(crate) fn choices_per_prompt(&self) -> u32 {
        match self {
            Self::Text(text) => text.job.n,
            Self::Beams { job, .. } => job.n,
            Self::Number(_) => 1,
        }
    }

    pub(crate) fn report(&self) -> ReportOptions {
        match self {
            Self::Text(text) => text.report,
            Self::Beams { report, .. } => *report,
            Self::Number(_) => ReportOptions::default(),
        }
    }
}

impl NumberDecoding {
    pub(crate) fn job(&self) -> NumberJob {
        let mut job = self.job.clone();
        let seed = self.seed.unwrap_or_else(random_seed);
        if let NumberMethod::Sample { seed: draws, .. } = &mut job.method {
            // The numbers must not be drawn by the same random numbers as the text before them.
            *draws = if job.after.is_some() { !seed } else { seed };
        }
        if let Some(after) = &mut job.after {
            after.sampling.seed = seed;
        }
        job
    }

    /// How many texts are written for each prompt.
    pub(crate) fn rationales(&self) -> u64 {
        self.job.after.as_ref().map_or(1, |after| u64::from(after.rationales))
    }
}

fn random_seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}
