//! The command line as typed. What only a task knows is checked by that task.

use clap::{Parser, Subcommand};

use crate::tasks::arithmetic;

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
    /// List the tasks.
    List,
}
