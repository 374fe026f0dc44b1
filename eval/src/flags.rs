//! Flags that every task takes.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use crate::client::BaseUrl;
use crate::gate::{Bound, parse_bound};

/// How a model is asked for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Greedy text; the last number in it is the prediction.
    Text,
    /// The server's number: trimmed mean for squared errors, median for absolute ones, mode for accuracy.
    Regress,
}

/// Flags that every task takes.
#[derive(Debug, clap::Args)]
pub struct Common {
    /// Base URL of the server, with or without `/v1`; repeat it to spread requests over several servers.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_ENDPOINT", value_delimiter = ',', required = true)]
    #[arg(help_heading = "Server")]
    pub endpoint: Vec<BaseUrl>,
    /// Model to ask. Default: the only one that the server lists.
    #[arg(long, value_name = "NAME", env = "NTL_EVAL_MODEL", help_heading = "Server")]
    pub model: Option<String>,
    /// Bearer token for the server.
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true, help_heading = "Server")]
    pub api_key: Option<String>,
    /// Requests in flight at once.
    #[arg(
        long,
        value_name = "N",
        env = "NTL_EVAL_CONCURRENCY",
        default_value = "16",
        help_heading = "Server"
    )]
    pub concurrency: NonZeroUsize,
    /// Seconds to wait for one answer before trying again (at most 4 times).
    #[arg(
        long,
        value_name = "SECONDS",
        env = "NTL_EVAL_TIMEOUT",
        default_value = "120",
        help_heading = "Server"
    )]
    pub timeout: NonZeroU64,
    /// How to ask for the answer.
    #[arg(long, value_enum, env = "NTL_EVAL_MODE", default_value = "text")]
    pub mode: Mode,
    /// Score the first N items only.
    #[arg(long, value_name = "N", env = "NTL_EVAL_LIMIT")]
    pub limit: Option<NonZeroUsize>,
    /// Seed of generated items.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SEED", default_value = "0")]
    pub seed: u64,
    /// Most tokens of a generated text; for `--mode text`.
    #[arg(long, value_name = "N", env = "NTL_EVAL_MAX_TOKENS", default_value = "32")]
    pub max_tokens: NonZeroU64,
    /// Folder for `report.json` and `samples.jsonl`; several splits go to a folder each, named after the split.
    #[arg(long, value_name = "DIR", env = "NTL_EVAL_OUT", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Print each split's report as one line of JSON instead of a table.
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// No progress on standard error.
    #[arg(long, help_heading = "Output")]
    pub quiet: bool,
    /// Exit with 3 when a metric of any split is below V (or has no value); repeatable.
    #[arg(long, value_name = "METRIC=V", value_parser = parse_bound, help_heading = "Gates")]
    pub fail_under: Vec<Bound>,
    /// Exit with 3 when a metric of any split is above V (or has no value); repeatable.
    #[arg(long, value_name = "METRIC=V", value_parser = parse_bound, help_heading = "Gates")]
    pub fail_over: Vec<Bound>,
}
