//! The command line as typed. What only a task knows is checked by that task.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::tasks::{arithmetic, gsm8k, mathematics, multiplication, multirc, rjokes};
use crate::{compare, page};

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: no report
  2  bad usage
  3  done, but a gate was missed
  4  done, but some items failed";

/// Scores models behind an OpenAI-style endpoint on numeric benchmarks.
#[derive(Debug, Parser)]
#[command(name = "ntl-eval", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// A task to run, or a question about tasks.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Sums and differences of integers (DeepMind mathematics, add_sub_multiple).
    #[command(after_help = EXIT_CODES)]
    Arithmetic(Box<arithmetic::Args>),
    /// School arithmetic in words (GSM8K).
    #[command(after_help = EXIT_CODES)]
    Gsm8k(Box<gsm8k::Args>),
    /// DeepMind's mathematics dataset, per module and together.
    #[command(after_help = EXIT_CODES)]
    Mathematics(Box<mathematics::Args>),
    /// Products of integers of 1 to 6 digits.
    #[command(after_help = EXIT_CODES)]
    Multiplication(Box<multiplication::Args>),
    /// Questions about texts, answered in words (SuperGLUE MultiRC).
    #[command(after_help = EXIT_CODES)]
    Multirc(Box<multirc::Args>),
    /// Upvotes of jokes (rJokes).
    #[command(after_help = EXIT_CODES)]
    Rjokes(Box<rjokes::Args>),
    /// Fetch the data of a task into the cache, or generate them.
    Data(DataArgs),
    /// Compare two runs over the same items.
    Compare(compare::Args),
    /// Write report.md and report.html of finished runs.
    Report(page::Args),
    /// List the tasks.
    List,
}

/// Flags of `data`.
#[derive(Debug, clap::Args)]
pub struct DataArgs {
    /// Which task's data.
    pub task: String,
    /// Where to. Default: the cache, `$NTL_EVAL_CACHE` or `~/.cache/ntl-eval`, in a folder named after the task.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Take the files from this URL, where they are by their names, instead of the official place.
    #[arg(long, value_name = "URL", env = "NTL_EVAL_MIRROR")]
    pub mirror: Option<String>,
    /// Seed of generated data.
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
}
