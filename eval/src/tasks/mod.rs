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

use crate::cli::tasks::Task;
use crate::data::Item;
use crate::data::fetch::Source;

/// Reads or generates the items of a task.
///
/// # Errors
/// Flags contradict each other ([`UsageError`](crate::console::UsageError)), or data cannot be used.
pub fn suites(task: &Task) -> anyhow::Result<Vec<Suite>> {
    match task {
        Task::Arithmetic(args) => arithmetic::suites(args),
        Task::Gsm8k(args) => gsm8k::suites(args),
        Task::Mathematics(args) => mathematics::suites(args),
        Task::Multiplication(args) => multiplication::suites(args),
        Task::Multirc(args) => multirc::suites(args),
        Task::Rjokes(args) => rjokes::suites(args),
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
