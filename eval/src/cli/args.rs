//! The commands. A task checks those of its flags that depend on each other.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ntl_common::manual::ManualArgs;

use super::compare::CompareArgs;
use super::tasks::Task;
use crate::calibrate::CalibrateSettings;

const EXAMPLES: &str = "\
Examples:
  ntl-eval data gsm8k
  ntl-eval gsm8k --endpoint http://127.0.0.1:8000 --out results
  ntl-eval report results
`ntl-eval TASK --help` has the flags and exit codes of a run.";

/// Scores models behind an OpenAI-style endpoint on numeric benchmarks.
#[derive(Debug, Parser)]
#[command(name = "ntl-eval", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a task.
    #[command(flatten)]
    Task(Task),
    /// Download the data of a task into the cache, or generate them.
    Data(DataArgs),
    /// Compare two runs over the same items, or run a task on two models and compare the runs.
    Compare(Box<CompareArgs>),
    /// Make a file that calibrates a server's intervals, from a finished run.
    Calibrate(CalibrateSettings),
    /// Write report.md and report.html of finished runs.
    Report(ReportArgs),
    /// List the tasks.
    List,
    /// Write man pages and shell completions.
    Manual(ManualArgs),
}

#[derive(Debug, Args)]
pub struct DataArgs {
    /// Name of the task.
    pub task: String,
    /// Target folder. Default: a folder named after the task in the cache of data, `$NTL_EVAL_DATA_CACHE` or
    /// `~/.cache/ntl-eval`.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Download the files from this URL, under their names, instead of the official place.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_MIRROR")]
    pub mirror: Option<String>,
    /// PEM file of certificates to trust, in addition to the system's (or `SSL_CERT_FILE` and
    /// `SSL_CERT_DIR`).
    #[arg(long, value_name = "FILE", env = "NTL_EVAL_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Seed of generated data.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Folders of runs (as `--out` wrote them), or folders up to three levels above several: then each run
    /// gets its report, and the named folder a page that shows them side by side.
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
}
