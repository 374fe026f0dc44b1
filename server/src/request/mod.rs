//! Validated requests, independent of the API that they came through.
//!
//! The `apis` make them from JSON bodies; [`crate::served`] tokenizes their prompts and runs their jobs. A
//! value of these types needs no further check, except of prompt lengths and token ids, which only the
//! tokenizer knows.

mod calibration;
mod calls;
mod decision;
mod engine_work;
mod labels;
mod profile;
mod prompt;
mod record;
mod score;
mod size;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ntl_core::Prompt;
use ntl_core::contract::{Job, NumberMethod, Request};
use ntl_core::guide::Guide;
use ntl_text::guide::{Constraint, TokenRules};

pub(crate) use calibration::{IntervalSettings, ModelCalibration, matching};
pub(crate) use calls::{CallParsing, ToolSupport};
pub(crate) use decision::{MODEL_ALIASES, default_decision_template};
pub(crate) use engine_work::EngineWork;
pub(crate) use labels::LabelPrompts;
pub(crate) use profile::{AnswerSampling, ModelProfile};
pub(crate) use prompt::{PromptInput, Truncation, into_prompts};
pub(crate) use record::RequestRecord;
pub(crate) use score::{ScoreInput, ScoreTokens, TargetTokens};
pub(crate) use size::{
    classify_size, detokenized_size, embeddings_size, labels_size, number_bytes, predictions_size,
    score_size, tokenized_size,
};

/// Prompts and what to decode for each of them.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) prompts: Vec<PromptInput>,
    pub(crate) truncation: Option<Truncation>,
    /// Whether prompts that are texts get the special tokens of training.
    pub(crate) add_special_tokens: bool,
    /// The decoding of each prompt, without its seed and its guide.
    pub(crate) decoding: Request,
    /// Without a seed, each prompt gets a random one.
    pub(crate) seed: Option<u64>,
    pub(crate) guided: Option<Guided>,
    pub(crate) token_rules: TokenRules,
    /// The calls that the texts may have, if the request offers tools.
    pub(crate) calls: Option<CallParsing>,
    pub(crate) report: ReportOptions,
    /// Decode with the faults of the original code.
    pub(crate) paper_decoding: bool,
    /// The prefix cache is shared with requests with the same text.
    pub(crate) cache_salt: Option<String>,
    pub(crate) is_streamed: bool,
    /// Whether a stream ends with the token counts.
    pub(crate) include_usage: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client {
    /// The same number for the same client: clients are scheduled round-robin.
    pub(crate) id: u64,
    /// Whether other clients must not use its cached prefixes.
    pub(crate) has_own_prefixes: bool,
}

impl Client {
    /// Returns the salt of the prefix cache for a request with this text as `cache_salt`. It is 0 for
    /// requests that share one cache.
    pub(crate) fn cache_salt(self, text: Option<&str>) -> u64 {
        let owner = self.has_own_prefixes.then_some(self.id);
        if owner.is_none() && text.is_none() {
            return 0;
        }
        let mut hasher = DefaultHasher::new();
        (owner, text).hash(&mut hasher);
        hasher.finish()
    }
}

/// Who waits for a response, and how long.
#[derive(Debug)]
pub(crate) struct Requester {
    pub(crate) client: Client,
    /// Counts the tokens of the request.
    pub(crate) record: Arc<RequestRecord>,
    /// When the request had arrived.
    pub(crate) started: Instant,
    /// Maximum time from there to the end of the response.
    pub(crate) time_max: Duration,
}

/// A constraint on the text, and the request field that holds it (for error messages).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Guided {
    pub(crate) param: &'static str,
    pub(crate) constraint: Constraint,
}

/// The parts of a response in addition to its texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReportOptions {
    /// Log-probabilities of each token and of this many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// Report the expected value and the mass of the number tokens at each position.
    pub(crate) number_tokens: bool,
    /// Name tokens by their ids instead of their texts.
    pub(crate) tokens_as_ids: bool,
    /// Log-probabilities of each prompt token and of this many alternatives.
    pub(crate) prompt_logprobs: Option<usize>,
    /// Repeat the prompt before the text.
    pub(crate) echo: bool,
    pub(crate) token_ids: bool,
}

impl ReportOptions {
    pub(crate) fn includes_prompt(self) -> bool {
        self.echo || self.token_ids || self.prompt_logprobs.is_some()
    }

    /// How many alternatives to each prompt token have to be computed.
    pub(crate) fn prompt_alternatives(self) -> Option<usize> {
        let echoed = if self.echo { self.logprobs } else { None };
        self.prompt_logprobs.max(echoed)
    }
}

impl GenerationRequest {
    /// Returns the engine's job for one more prompt. `guide` is the compiled [`Self::guided`].
    pub(crate) fn job(&self, prompt: Prompt, guide: Option<&Arc<dyn Guide>>) -> Job {
        let seed = self.seed.unwrap_or_else(random_seed);
        let prompt_seed = prompt_seed(&prompt);
        let mut decoding = self.decoding.clone();
        match &mut decoding {
            Request::Text(job) => {
                job.sampling.seed = seed;
                job.guide = guide.cloned();
            }
            Request::Number(job) => {
                if let NumberMethod::Sample { sampling, .. } = &mut job.method {
                    // The numbers must not be drawn by the same random numbers as the text before them.
                    sampling.seed = if job.after.is_some() { !seed } else { seed };
                }
                if let Some(open) = &mut job.open_draws {
                    // Without a seed, the distribution after a prompt is the same in each response.
                    let seed = self.seed.unwrap_or(prompt_seed);
                    open.seed = if job.after.is_some() { !seed } else { seed };
                }
                if let Some(after) = &mut job.after {
                    after.sampling.seed = seed;
                }
            }
            Request::Beams(_)
            | Request::Score(_)
            | Request::Candidates(_)
            | Request::Options(_)
            | Request::Labels
            | Request::Embedding(_) => {}
        }
        Job { paper_decoding: self.paper_decoding, ..Job::new(prompt, decoding) }
    }

    pub(crate) fn choices_per_prompt(&self) -> u32 {
        match &self.decoding {
            Request::Text(job) => job.n,
            Request::Beams(job) => job.n,
            Request::Number(_)
            | Request::Score(_)
            | Request::Candidates(_)
            | Request::Options(_)
            | Request::Labels
            | Request::Embedding(_) => 1,
        }
    }
}

/// A seed that differs between prompts (FNV-1a over their ids), so that errors of different draws do not add
/// up.
fn prompt_seed(prompt: &Prompt) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    prompt.ids().fold(BASIS, |hash, id| (hash ^ u64::from(id)).wrapping_mul(PRIME))
}

fn random_seed() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}
