//! Flags that every task takes.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use super::base_url::BaseUrl;
use super::bound::Bound;

/// How a model is asked for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Greedy text; the last number in it is the prediction.
    Text,
    /// The server's number: trimmed mean for squared errors, median for absolute ones, mode for accuracy.
    Regress,
    /// As the NTL paper's evaluation code: 4 beams (1 for xVal), its length rule, its metrics with all their peculiarities.
    Paper,
}

impl Mode {
    /// The name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Regress => "regress",
            Self::Paper => "paper",
        }
    }
}

/// Which route is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`, the prompt as the user's message.
    Chat,
}

/// Flags that every task takes.
#[derive(Debug, Clone, clap::Args)]
pub struct Common {
    /// File or folder of the data. Default: the cache that `ntl-eval data` fills; generated where the task can.
    #[arg(long, value_name = "PATH", env = "NTL_EVAL_DATA")]
    pub data: Option<PathBuf>,
    /// How to ask for the answer.
    #[arg(long, value_enum, env = "NTL_EVAL_MODE", default_value = "text")]
    pub mode: Mode,
    /// Also ask the server's `/v1/score` for the likelihood of the true answers: token accuracy, perplexity, losses.
    #[arg(long, env = "NTL_EVAL_SCORE")]
    pub score: bool,
    /// Score the first N items only.
    #[arg(long, value_name = "N", env = "NTL_EVAL_LIMIT")]
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items and of the bootstrap.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SEED", default_value = "0")]
    pub seed: u64,
    /// Most tokens of a generated text; not in paper mode, which has a rule for it. Default: 256 for gsm8k, 64 for
    /// multirc, 8 for rjokes, else 32.
    #[arg(long, value_name = "N", env = "NTL_EVAL_MAX_TOKENS")]
    pub max_tokens: Option<NonZeroU64>,
    /// Cut longer prompts to N tokens, the end of sequence included, as the paper's code does at 512; the server's
    /// `/tokenize` counts. Default: leave them; in paper mode always 512.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PROMPT_TOKENS")]
    pub prompt_tokens: Option<NonZeroUsize>,
    /// Who is asked.
    #[command(flatten)]
    pub server: ServerFlags,
    /// Where answers and results go.
    #[command(flatten)]
    pub output: OutputFlags,
    /// What decides the exit code.
    #[command(flatten)]
    pub gates: GateFlags,
}

/// Who is asked.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ServerFlags {
    /// Base URL of the server, with or without `/v1`; repeat it to spread requests over several servers.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_ENDPOINT", value_delimiter = ',', required = true)]
    pub endpoint: Vec<BaseUrl>,
    /// Model to ask. Default: the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODEL")]
    pub model: Option<String>,
    /// Which route to ask; `chat` for servers and models that know nothing else.
    #[arg(long, value_enum, env = "NTL_EVAL_API", default_value = "completions")]
    pub api: Api,
    /// Bearer token for the server.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests in flight at once.
    #[arg(long, value_name = "N", env = "NTL_EVAL_CONCURRENCY", default_value = "16")]
    pub concurrency: NonZeroUsize,
    /// Seconds to wait for one answer before trying again (at most 4 times).
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_TIMEOUT", default_value = "120")]
    pub timeout: NonZeroU64,
    /// Seconds for the whole run; what is not answered by then has failed, and `--resume` can go on from there.
    #[arg(long, value_name = "SECONDS", env = "NTL_EVAL_DEADLINE")]
    pub deadline: Option<NonZeroU64>,
}

/// Where answers and results go.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputFlags {
    /// Folder for `report.json`, `samples.jsonl` and `journal.jsonl`; several splits go to a folder each, named after
    /// the split.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_OUT")]
    pub out: Option<PathBuf>,
    /// Go on with the run whose journal is in `--out`; what it knows is not asked again.
    #[arg(long, requires = "out")]
    pub resume: bool,
    /// Folder of answers that all runs share; the same request to the same model is asked once.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_ANSWERS")]
    pub cache: Option<PathBuf>,
    /// Print each split's report as one line of JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// No progress on standard error.
    #[arg(long)]
    pub quiet: bool,
}

/// What decides the exit code.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Gates")]
pub struct GateFlags {
    /// Exit with 3 when a metric of any split is below V (or has no value); repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_under: Vec<Bound>,
    /// Exit with 3 when a metric of any split is above V (or has no value); repeatable.
    #[arg(long, value_name = "METRIC=V")]
    pub fail_over: Vec<Bound>,
    /// Exit with 3 when a metric is worse than in the report of this folder: the whole 95% interval is on the worse side
    /// of the value there.
    #[arg(long, value_name = "DIR")]
    pub baseline: Option<PathBuf>,
}
