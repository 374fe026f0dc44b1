//! The tasks, one file each. A task turns its flags into [`Suite`]s; everything after that is the same for all.

pub mod arithmetic;
pub mod custom;
pub mod generate;
pub mod gsm8k;
pub mod judge;
pub mod mathematics;
pub mod multiplication;
pub mod multirc;
pub mod rjokes;
mod shots;
pub mod splits;

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cli::tasks::Task;
use crate::console::UsageError;
use crate::data::Item;
use crate::data::fetch::Source;
use crate::template::{Template, UnknownField};

/// Reads or generates the items of a task.
///
/// # Errors
/// Flags contradict each other ([`UsageError`]), or data cannot be used.
pub fn suites(task: &Task) -> anyhow::Result<Vec<Suite>> {
    let mut suites = match task {
        // The fields of its records go into the template as well.
        Task::Custom(args) => return custom::suites(args),
        Task::Judge(args) => return judge::suites(args),
        Task::Arithmetic(args) => arithmetic::suites(args),
        Task::Gsm8k(args) => gsm8k::suites(args),
        Task::Mathematics(args) => mathematics::suites(args),
        Task::Multiplication(args) => multiplication::suites(args),
        Task::Multirc(args) => multirc::suites(args),
        Task::Rjokes(args) => rjokes::suites(args),
    }?;
    if let Some(template) = task.common().template() {
        word(&mut suites, template)?;
    }
    Ok(suites)
}

fn word(suites: &mut [Suite], template: &Template) -> Result<(), UsageError> {
    for item in suites.iter_mut().flat_map(|suite| &mut suite.items) {
        if item.prompt.is_some() {
            return Err(UsageError(
                "--template and --shots both word the prompts; leave one of them out".to_owned(),
            ));
        }
        let question = |name: &str| (name == "question").then_some(item.question.as_str());
        let worded = template.render(question).map_err(|UnknownField(name)| {
            UsageError(format!("--template: there is no field `{name}`; there is {{question}}"))
        })?;
        item.prompt = Some(worded);
    }
    Ok(())
}

/// Items that one report is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    pub task: &'static str,
    pub split: String,
    pub items: Vec<Item>,
    /// Settings of the task, for the report.
    pub settings: Map<String, Value>,
    pub traits: Traits,
}

impl Suite {
    /// What a person may not know of the answers.
    pub fn notice(&self) -> Option<String> {
        let (n, texts) = (self.items.len(), self.items.iter().filter(|item| item.truth.is_none()).count());
        (self.traits.mixed && 0 < texts && texts < n)
            .then(|| format!("{texts} of {n} answers are no numbers: they are compared as text"))
    }
}

/// How the items of a task are requested and scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    pub stop: &'static [&'static str],
    /// Default of `--max-tokens`.
    pub max_tokens: u64,
    /// Regress mode: the text in front of the number.
    pub after: Option<&'static str>,
    /// Whether lm-eval's filters apply.
    pub lm_eval: bool,
    /// Whether answers are compared as texts.
    pub texts: bool,
    /// Whether a run says how many answers are no numbers where others are.
    pub mixed: bool,
    /// Whether the numbers are judgements.
    pub judges: bool,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            stop: &[],
            max_tokens: 32,
            after: None,
            lm_eval: false,
            texts: false,
            mixed: false,
            judges: false,
        }
    }
}

/// A line of `ntl-eval list`, and what `ntl-eval data` does.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub about: &'static str,
    pub origin: Origin,
}

#[derive(Debug, Clone, Copy)]
pub enum Origin {
    Published(&'static [Source]),
    /// By `--data` alone.
    Given,
    /// From a seed to file names and their items.
    Generated(fn(u64) -> Vec<(String, Vec<Item>)>),
}

pub const TASKS: [Entry; 8] = [
    arithmetic::ENTRY,
    gsm8k::ENTRY,
    mathematics::ENTRY,
    multiplication::ENTRY,
    multirc::ENTRY,
    rjokes::ENTRY,
    custom::ENTRY,
    judge::ENTRY,
];

fn from_file(file: &Path) -> (String, Value) {
    ("data".to_owned(), json!(file.display().to_string()))
}
