//! The tasks, one file each. A task turns its flags into [`Suite`]s; everything after that is common.

pub mod arithmetic;
pub mod generate;
pub mod gsm8k;
pub mod mathematics;
pub mod multiplication;
pub mod multirc;
pub mod rjokes;
mod shots;
pub mod splits;

use serde_json::{Map, Value, json};
use std::path::Path;

use crate::cli::flags::Common;
use crate::data::Item;
use crate::data::fetch::Source;
use crate::error::Error;

/// A task to run, with its flags.
#[derive(Debug, clap::Subcommand)]
pub enum Task {
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
}

/// What the exit code of a run says; part of its help.
const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: no report
  2  bad usage
  3  done, but a gate was missed
  4  done, but some items failed";

impl Task {
    /// What to ask.
    ///
    /// # Errors
    /// Flags that do not go together, or data that cannot be used.
    pub fn suites(&self) -> Result<Vec<Suite>, Error> {
        match self {
            Self::Arithmetic(args) => arithmetic::suites(args),
            Self::Gsm8k(args) => gsm8k::suites(args),
            Self::Mathematics(args) => mathematics::suites(args),
            Self::Multiplication(args) => multiplication::suites(args),
            Self::Multirc(args) => multirc::suites(args),
            Self::Rjokes(args) => rjokes::suites(args),
        }
    }

    /// How to ask it, and what to do with the answers.
    pub fn common(&self) -> &Common {
        match self {
            Self::Arithmetic(args) => &args.common,
            Self::Gsm8k(args) => &args.common,
            Self::Mathematics(args) => &args.common,
            Self::Multiplication(args) => &args.common,
            Self::Multirc(args) => &args.common,
            Self::Rjokes(args) => &args.common,
        }
    }
}

/// Items that are scored together, and what a report says about where they are from.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Name of the task.
    pub task: &'static str,
    /// Name of the split.
    pub split: String,
    /// What is asked.
    pub items: Vec<Item>,
    /// Settings of the task, for the report.
    pub settings: Map<String, Value>,
    /// How it is asked and judged.
    pub traits: Traits,
}

/// How the items of a task are asked and judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// What ends a generated text.
    pub stop: &'static [&'static str],
    /// Most tokens of a generated text, unless the command line says otherwise.
    pub max_tokens: u64,
    /// In regress mode: the text in front of the number.
    pub after: Option<&'static str>,
    /// Whether lm-eval's readings apply.
    pub lm_eval: bool,
    /// Whether answers are texts, and are compared as such.
    pub texts: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self { stop: &[], max_tokens: 32, after: None, lm_eval: false, texts: false }
    }
}

/// A line of `ntl-eval list`, and what `ntl-eval data` does.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// What it asks.
    pub about: &'static str,
    /// Where its data come from.
    pub origin: Origin,
}

/// Where data come from.
#[derive(Debug, Clone, Copy)]
pub enum Origin {
    /// From these files.
    Published(&'static [Source]),
    /// From a seed: file names and their items.
    Generated(fn(u64) -> Vec<(String, Vec<Item>)>),
}

/// All tasks.
pub const TASKS: [Entry; 6] = [
    arithmetic::ENTRY,
    gsm8k::ENTRY,
    mathematics::ENTRY,
    multiplication::ENTRY,
    multirc::ENTRY,
    rjokes::ENTRY,
];

/// The setting that says where items are from.
fn from_file(file: &Path) -> (String, Value) {
    ("data".to_owned(), json!(file.display().to_string()))
}
