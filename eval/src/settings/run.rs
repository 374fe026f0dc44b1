//! Settings of a run of any task.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::base_url::BaseUrl;
use super::decisions::DecisionSettings;
use super::gates::Gates;
use super::judge::JudgeSettings;
use super::mode::{Api, Mode};
use super::number::NumberSettings;
use crate::error::UsageError;
use crate::template::Template;

#[derive(Debug, Clone)]
pub struct RunSettings {
    /// File or directory of the data, if it is neither the cache nor generated.
    pub data: Option<PathBuf>,
    pub mode: Mode,
    /// Words the prompts. Without it, a prompt is the bare question.
    pub template: Option<Template>,
    /// System message of chat requests.
    pub system: Option<String>,
    /// Regress mode: the text after which the model's number is read. The task has a default.
    pub after: Option<String>,
    /// The beginning of the model's answer.
    pub prefill: Option<String>,
    /// Whether to request the likelihood of the true answers as well.
    pub score: bool,
    /// Maximum number of items.
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items and of the bootstrap.
    pub seed: u64,
    /// Maximum number of tokens of a generated text. The task has a default.
    pub max_tokens: Option<NonZeroU64>,
    /// Maximum number of tokens of a prompt.
    pub prompt_tokens: Option<NonZeroUsize>,
    pub number: NumberSettings,
    pub decisions: DecisionSettings,
    pub judge: JudgeSettings,
    pub server: ServerSettings,
    pub output: OutputSettings,
    pub gates: Gates,
}

impl RunSettings {
    /// Rejects settings that contradict each other. `writes_first` is whether every task has a text after
    /// which the model's number is read.
    pub fn check(&self, writes_first: bool) -> Result<(), UsageError> {
        let is_chat = self.server.api == Api::Chat;
        let is_regress = self.mode == Mode::Regress;
        let contradictions = [
            (
                self.mode == Mode::Paper && is_chat,
                "--mode paper uses beam search on plain completions and has no --api chat",
            ),
            (
                self.score && is_chat,
                "--score uses the likelihood of texts after plain prompts and has no --api chat",
            ),
            (
                self.prompt_tokens.is_some() && is_chat,
                "--prompt-tokens truncates plain prompts and has no --api chat, whose server words the prompt",
            ),
            (
                self.prompt_tokens.is_some() && self.mode == Mode::Paper,
                "--mode paper keeps the first 512 tokens of a prompt: leave out --prompt-tokens",
            ),
            (
                !is_regress && self.number != NumberSettings::default(),
                "--range, --scale, --interval, --trim, --digits-max, --decimals-max, --tolerance, --nodes-max, --precision, --time-max \
                 and --rationales need --mode regress",
            ),
            (!is_regress && self.after.is_some(), "--after needs --mode regress"),
            (
                !is_chat && self.system.is_some(),
                "--system is a chat message: use it with --api chat, or put the text into --template",
            ),
            (
                self.number.rationales.is_some() && !writes_first,
                "--rationales are texts before the number: specify with --after the text that ends them",
            ),
        ];
        let found = contradictions.into_iter().find(|(contradicts, _)| *contradicts);
        found.map_or(Ok(()), |(_, message)| Err(UsageError(message.to_owned())))
    }
}

#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The servers of one model.
    pub endpoints: Vec<BaseUrl>,
    /// Name of the model, if the server lists several.
    pub model: Option<String>,
    pub api: Api,
    /// Bearer token.
    pub api_key: Option<String>,
    /// Maximum number of concurrent requests.
    pub concurrency: NonZeroUsize,
    /// Maximum time without a byte of a response.
    pub timeout: Duration,
    /// Time without an available endpoint after which the run stops.
    pub unreachable_max: Duration,
    /// PEM file of certificates to trust, in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Maximum time of the run.
    pub deadline: Option<Duration>,
}

/// How to treat a run that the output directory already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExisting {
    Refuse,
    Resume,
    Overwrite,
}

#[derive(Debug, Clone)]
pub struct OutputSettings {
    /// Directory of the results.
    pub out: Option<PathBuf>,
    pub on_existing: OnExisting,
    /// Directory of the answers that all runs share.
    pub cache: Option<PathBuf>,
    /// File for the gates' results in JUnit's XML.
    pub junit: Option<PathBuf>,
    /// Names of the metrics to show first.
    pub first_metrics: Vec<String>,
    /// Whether to print reports as JSON.
    pub json: bool,
    /// Whether to show no progress.
    pub quiet: bool,
}
