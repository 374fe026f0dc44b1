//! Settings of a run of any task. The flags of a field are in its attributes.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::BoolishValueParser;
use jiff::SignedDuration;
use ntl_common::regular_file::{self, SMALL_BYTES_MAX};

use super::base_url::BaseUrl;
use super::decisions::DecisionSettings;
use super::gates::Gates;
use super::judge::JudgeSettings;
use super::mode::{Api, Mode};
use super::number::NumberSettings;
use super::values::{at_least_one, metric};
use crate::error::UsageError;
use crate::template::{Template, unescaped};

#[derive(Debug, Clone, clap::Args)]
pub struct RunSettings {
    /// File or folder of the data. Default: the cache that `ntl-eval data` fills, `$NTL_EVAL_DATA_CACHE` or
    /// `~/.cache/ntl-eval`; `arithmetic` and `multiplication` generate their items, as `nupa`,
    /// `regression-in-context` and `densities` always do.
    #[arg(long, value_name = "PATH", env = "NTL_EVAL_DATA")]
    pub data: Option<PathBuf>,
    /// How the model answers.
    #[arg(long, value_enum, env = "NTL_EVAL_MODE", default_value = "text")]
    pub mode: Mode,
    /// Words the prompts, such as `Q: {question}\nA:`. `{{` and `}}` are braces; `\n`, `\t` and `\\` are a
    /// line feed, a tab and a backslash, also in `--system` and `--after`. Default: the bare question.
    #[arg(long, visible_alias = "prompt", value_name = "TEMPLATE", env = "NTL_EVAL_TEMPLATE")]
    template: Option<Template>,
    /// File of a template: as `--template`, with line feeds, tabs and backslashes as they are.
    #[arg(long, visible_alias = "rubric", value_name = "FILE", env = "NTL_EVAL_TEMPLATE_FILE", conflicts_with = "template", value_parser = template_file)]
    template_file: Option<Template>,
    /// System message before each question, with `--api chat`.
    #[arg(long, value_name = "TEXT", env = "NTL_EVAL_SYSTEM", value_parser = unescaped)]
    pub system: Option<String>,
    /// Regress mode: let the model write until this text, and read the number right after it. Default: `####
    /// ` for gsm8k; the other tasks read the number right after the prompt.
    #[arg(long, value_name = "MARKER", env = "NTL_EVAL_AFTER", value_parser = unescaped)]
    pub after: Option<String>,
    /// The beginning of the model's answer.
    #[arg(skip)]
    pub prefill: Option<String>,
    /// Also request the likelihood of the true answers from `/v1/score`: token accuracy, perplexity, losses.
    /// For decoder-only models a space separates prompt and answer if neither has one.
    #[arg(long, env = "NTL_EVAL_SCORE", value_parser = BoolishValueParser::new())]
    pub score: bool,
    /// Evaluate N items only, as a rule the first ones. `multiplication`, `nupa` and `densities` draw a
    /// random sample by `--seed`, with all modules in proportion, and `mathematics` N items of each module.
    /// `code-regression` keeps N items of each space, and `regression-in-context` N of each function.
    #[arg(long, value_name = "N", env = "NTL_EVAL_LIMIT", value_parser = at_least_one::<NonZeroUsize>)]
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items and of the bootstrap.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SEED", default_value = "0")]
    pub seed: u64,
    /// Maximum number of tokens of a generated text. Paper mode ignores it. Default: 256 for gsm8k, 64 for
    /// multirc, 8 for rjokes, 512 for judge, the longest answer and 16 for nupa, 32 for the others.
    #[arg(long, value_name = "N", env = "NTL_EVAL_MAX_TOKENS", value_parser = at_least_one::<NonZeroU64>)]
    pub max_tokens: Option<NonZeroU64>,
    /// Truncate longer prompts to N tokens, the end of sequence included. The model's `truncation_side` in
    /// `/v1/models` decides which end is dropped; if the server does not report it, the first tokens are
    /// dropped. The server's `/tokenize` counts the tokens. Not with `--api chat`. Default: no limit; paper
    /// mode always keeps the first 512 tokens, as the paper does.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PROMPT_TOKENS", value_parser = at_least_one::<NonZeroUsize>)]
    pub prompt_tokens: Option<NonZeroUsize>,
    #[command(flatten)]
    pub number: NumberSettings,
    #[arg(skip)]
    pub decisions: DecisionSettings,
    #[arg(skip)]
    pub judge: JudgeSettings,
    #[command(flatten)]
    pub server: ServerSettings,
    #[command(flatten)]
    pub output: OutputSettings,
    #[command(flatten)]
    pub gates: Gates,
}

impl RunSettings {
    /// Returns the template that words the prompts. Without one, a prompt is the bare question.
    pub fn template(&self) -> Option<&Template> {
        self.template.as_ref().or(self.template_file.as_ref())
    }

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

fn template_file(file: &str) -> Result<Template, String> {
    let text = regular_file::read_text(Path::new(file), SMALL_BYTES_MAX)
        .map_err(|error| format!("could not read {file}: {error}"))?;
    Template::from_text(&text).map_err(|error| error.to_string())
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerSettings {
    /// Base URL of the server, with or without `/v1`. Repeat it to spread requests over several servers of
    /// one model; if one of them dies, its items go to the others.
    #[arg(
        id = "endpoint",
        long = "endpoint",
        value_name = "URL",
        env = "NTL_EVAL_ENDPOINT",
        value_delimiter = ',',
        required = true
    )]
    pub endpoints: Vec<BaseUrl>,
    /// Name of the model. Default: the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODEL")]
    pub model: Option<String>,
    /// Route of the requests; `chat` for servers and models that support nothing else.
    #[arg(long, env = "NTL_EVAL_API", default_value = "completions", value_parser = Api::one_of(Api::OF_PROMPTS))]
    pub api: Api,
    /// Bearer token for the server.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Maximum number of concurrent requests.
    #[arg(long, value_name = "N", env = "NTL_EVAL_CONCURRENCY", default_value = "16", value_parser = at_least_one::<NonZeroUsize>)]
    pub concurrency: NonZeroUsize,
    /// Seconds without a byte of a response after which its item fails.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIMEOUT", default_value = "120", value_parser = whole_seconds)]
    pub timeout: Duration,
    /// Stop the run, with exit code 4 and no report, when no endpoint has been available for this long:
    /// seconds, or a time such as `90s` or `5m`. Until then, requests are retried. `--resume` continues the
    /// run.
    #[arg(long, value_name = "TIME", env = "NTL_EVAL_UNREACHABLE_MAX", default_value = "2m", value_parser = duration)]
    pub unreachable_max: Duration,
    /// PEM file of certificates to trust, in addition to the system's (or `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`).
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Seconds for the whole run. Items without an answer by then have failed; `--resume` continues with
    /// them.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_DEADLINE", value_parser = whole_seconds)]
    pub deadline: Option<Duration>,
}

/// Reads seconds, at least one.
fn whole_seconds(text: &str) -> Result<Duration, String> {
    at_least_one(text).map(|seconds: NonZeroU64| Duration::from_secs(seconds.get()))
}

/// Reads seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    time.ok_or_else(|| "expected a time such as 120, 90s or 2m".to_owned())
}

/// How to treat a run that the output directory already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExisting {
    Refuse,
    Resume,
    Overwrite,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputSettings {
    /// Folder for `report.json`, `samples.jsonl` and `journal.jsonl`. Several splits get a folder each, named
    /// after the split.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_OUT")]
    pub out: Option<PathBuf>,
    /// Continue the run whose journal is in `--out`. Answers in the journal are not requested again.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Replace the run in `--out`, finished or not. Without this flag such a folder is refused.
    #[arg(long, requires = "out", conflicts_with = "resume")]
    overwrite: bool,
    /// Folder of answers that all runs share: the same request goes to the same model only once. (Downloaded
    /// data are elsewhere: see `--data`.)
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_ANSWERS")]
    pub cache: Option<PathBuf>,
    /// File for the results of the gates in JUnit's XML, one suite per split. It is also written if the run
    /// stops with an error.
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_JUNIT")]
    pub junit: Option<PathBuf>,
    /// Show these metrics first, in this order. Every metric that has data is computed in any case.
    #[arg(long = "metric", value_name = "NAME,...", env = "NTL_EVAL_METRIC", value_delimiter = ',', value_parser = metric)]
    pub first_metrics: Vec<String>,
    /// Print each split's report as one line of JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Show no progress on standard error.
    #[arg(long)]
    pub quiet: bool,
}

impl OutputSettings {
    pub fn on_existing(&self) -> OnExisting {
        match (self.resume, self.overwrite) {
            (_, true) => OnExisting::Overwrite,
            (true, false) => OnExisting::Resume,
            (false, false) => OnExisting::Refuse,
        }
    }
}
