//! The tasks, one file each. A task turns its settings into [`Suite`]s; everything after that is the same for
//! all.

pub mod arithmetic;
pub mod code_regression;
pub mod custom;
pub mod decisions;
pub mod densities;
pub mod generate;
pub mod gsm8k;
pub mod judge;
pub mod mathematics;
pub mod multiplication;
pub mod multirc;
pub mod nupa;
pub mod own;
pub mod regression_in_context;
pub mod rjokes;
mod shots;
pub mod splits;

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::data::Item;
use crate::data::fetch::Source;
use crate::error::UsageError;
use crate::json_path::JsonPath;
use crate::settings::RunSettings;
use crate::settings::mode::{Api, Mode, NumberRule};
use crate::template::{Template, UnknownField};

/// Words the prompts of all items with a template that names the question only.
pub fn word(suites: &mut [Suite], template: &Template, run: &RunSettings) -> Result<(), UsageError> {
    for suite in suites.iter_mut().filter(|suite| !suite.traits.lm_eval && !suite.traits.texts) {
        suite.traits.number_rule = number_rule(run);
        if suite.traits.stop.is_empty() {
            suite.traits.stop = stop_of_short_answers(run, suite.traits.number_rule);
        }
    }
    for item in suites.iter_mut().flat_map(|suite| &mut suite.items) {
        if item.prompt.is_some() {
            return Err(UsageError(
                "--template and --shots both word the prompts; leave one of them out".to_owned(),
            ));
        }
        let worded = template.render(|name| (name == "question").then_some(item.question.as_str()));
        item.prompt = Some(worded.map_err(|UnknownField(name)| {
            UsageError(format!("--template: there is no field `{name}`; there is {{question}}"))
        })?);
    }
    Ok(())
}

/// Default of `--max-tokens`.
const SHORT_ANSWER_TOKENS: u64 = 32;

/// Returns which number of a text is the answer to a question in the user's words. An answer that may be
/// long, or that a chat model writes, may begin with a chain of thought.
fn number_rule(run: &RunSettings) -> NumberRule {
    let is_short = run.max_tokens.is_none_or(|tokens| tokens.get() <= SHORT_ANSWER_TOKENS);
    match (run.mode, run.server.api) {
        (Mode::Text, Api::Completions) if is_short => NumberRule::First,
        _ => NumberRule::Last,
    }
}

/// Returns the texts that end a short answer: it ends the line that the template begins.
fn stop_of_short_answers(run: &RunSettings, rule: NumberRule) -> &'static [&'static str] {
    let continues_line = run.template().is_some_and(Template::ends_in_text);
    match (rule, run.server.api) {
        (NumberRule::First, Api::Completions) if continues_line => &["\n"],
        _ => &[],
    }
}

/// Items that one report is about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suite {
    pub task: &'static str,
    pub split: String,
    pub items: Vec<Item>,
    /// Settings of the task, for the report.
    pub settings: Map<String, Value>,
    pub traits: Traits,
    /// Facts about the data that the user may not know; each is one line.
    pub notices: Vec<String>,
    /// The number of a structured answer that the items are about.
    pub field: Option<AnswerField>,
}

/// A number of a structured answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerField {
    /// JSON schema of the answer.
    pub schema: Value,
    pub path: JsonPath,
}

/// How the items of a task are requested and scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    pub stop: &'static [&'static str],
    /// Default of `--max-tokens`.
    pub max_tokens: u64,
    /// Text mode: which number of an answer counts, unless the question prescribes its form.
    pub number_rule: NumberRule,
    /// Regress mode: the text before the number.
    pub after: Option<&'static str>,
    /// Whether lm-eval's filters apply.
    pub lm_eval: bool,
    /// Whether answers are compared as texts.
    pub texts: bool,
    /// Whether the numbers are judgements.
    pub judges: bool,
    /// Whether every metric of predicted distributions uses their medians.
    pub medians: bool,
    /// Names of the metrics that tables show first, after those of `--metric`.
    pub first_metrics: &'static [&'static str],
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            stop: &[],
            max_tokens: SHORT_ANSWER_TOKENS,
            number_rule: NumberRule::Last,
            after: None,
            lm_eval: false,
            texts: false,
            judges: false,
            medians: false,
            first_metrics: &[],
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
    /// The user's file, which `--data` names.
    Given,
    /// Generated: maps a seed to file names and their items.
    Generated(fn(u64) -> Vec<(String, Vec<Item>)>),
    /// Generated in each run: a file of questions and answers could not hold everything about the items.
    Seed,
}

pub const TASKS: [Entry; 14] = [
    arithmetic::ENTRY,
    code_regression::ENTRY,
    gsm8k::ENTRY,
    mathematics::ENTRY,
    multiplication::ENTRY,
    multirc::ENTRY,
    nupa::ENTRY,
    regression_in_context::ENTRY,
    densities::ENTRY,
    rjokes::ENTRY,
    custom::ENTRY,
    judge::ENTRY,
    judge::verify::ENTRY,
    decisions::ENTRY,
];

/// Rejects settings that a task with generated items and separate metrics cannot follow.
fn check_generated(task: &str, run: &RunSettings) -> Result<(), UsageError> {
    let refused = [
        (run.data.is_some(), format!("{task} generates its items from --seed: leave out --data")),
        (run.mode == Mode::Paper, format!("{task} is no task of the NTL paper: it has no --mode paper")),
    ];
    let found = refused.into_iter().find(|(refused, _)| *refused);
    found.map_or(Ok(()), |(_, message)| Err(UsageError(message)))
}

fn from_file(file: &Path) -> (String, Value) {
    ("data".to_owned(), json!(file.display().to_string()))
}
