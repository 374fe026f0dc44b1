//! Number understanding and processing: the 41 tasks of the NUPA test (Yang et al. 2024, "Number Cookbook",
//! arXiv:2411.03766) and their 12 easier and harder variants, in four ranges of length.
//!
//! Items are generated from the seed. The ranges, operands and scores follow the paper's description; the
//! wording and the generator are new. Splits are the ranges, modules are the tasks.

pub mod draw;
pub mod problem;

use std::num::NonZeroUsize;

use serde_json::{Map, json};
use strum::IntoStaticStr;

use self::problem::{Kind, Level};
use super::splits::limited;
use super::{Entry, Origin, Suite, Traits, check_generated};
use crate::data::Item;
use crate::error::UsageError;
use crate::metrics::forms::Form;
use crate::settings::RunSettings;
use crate::settings::mode::Mode;
use crate::settings::values::at_least_one;

pub const ENTRY: Entry = Entry {
    name: "nupa",
    about: "41 tasks on integers, floats, fractions and scientific notation, in four lengths",
    origin: Origin::Seed,
};

/// The range of the number of digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Length {
    /// 1 to 4 digits, or 1 to 10 if the task is easy for long numbers.
    Short,
    /// 5 to 8 digits, or 11 to 20.
    Medium,
    /// 9 to 14 digits, or 21 to 60.
    Long,
    /// 15 to 20 digits, or 61 to 100.
    VeryLong,
}

impl Length {
    fn name(self) -> &'static str {
        self.into()
    }
}

/// Which items are generated.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct NupaTask {
    /// Ranges of length, each of which gets a report. Default: all four.
    #[arg(
        long = "split",
        value_enum,
        value_name = "LENGTH,...",
        env = "NTL_EVAL_SPLIT",
        value_delimiter = ','
    )]
    #[arg(default_values_t = [Length::Short, Length::Medium, Length::Long, Length::VeryLong], hide_default_value = true)]
    pub lengths: Vec<Length>,
    /// Tasks, such as `integer_add`; `integer`, `float`, `fraction` or `scientific`; `all`: the 41 tasks; or
    /// `variants`: the 12 easier and harder ones, such as `float_multiply_easy`.
    #[arg(
        long = "module",
        value_name = "NAME,...",
        env = "NTL_EVAL_MODULE",
        value_delimiter = ',',
        default_value = "all"
    )]
    pub modules: Vec<String>,
    /// Items of each task and length, or all if there are fewer.
    #[arg(long, value_name = "N", env = "NTL_EVAL_PER_MODULE", default_value = "100", value_parser = at_least_one::<NonZeroUsize>)]
    pub per_module: NonZeroUsize,
}

/// The metrics that a run shows first.
const FIRST_METRICS: [&str; 4] = ["accuracy", "exact_digits", "digit_match", "length_difference"];

/// Tokens of an answer beyond one per character, for a few words before the number.
const WORDS_TOKENS: usize = 16;

pub fn suites(task: &NupaTask, run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    check_generated(ENTRY.name, run)?;
    let chosen = kinds(&task.modules)?;
    let mut kinds = chosen.clone();
    kinds.retain(|kind| run.mode != Mode::Regress || kind.has_value_answer());
    if kinds.is_empty() {
        let message = "the answers of these tasks are fractions or in scientific notation, which --mode regress does not read";
        return Err(UsageError(message.to_owned()).into());
    }
    let mut notices = Vec::new();
    if kinds.len() < chosen.len() {
        notices.push(format!(
            "--mode regress covers {} of {} tasks: the answers of the others are fractions or in scientific notation",
            kinds.len(),
            chosen.len()
        ));
    }
    let mut suites = Vec::with_capacity(task.lengths.len());
    for length in &task.lengths {
        let mut items = draw::items(&kinds, *length, task.per_module, run.seed);
        if let Some(limit) = run.limit {
            items = limited(items, limit.get(), run.seed);
        }
        let longest = items.iter().map(|item: &Item| item.answer.len()).max().unwrap_or(0);
        let names: Vec<String> = kinds.iter().map(|kind| kind.name()).collect();
        suites.push(Suite {
            task: ENTRY.name,
            split: length.name().to_owned(),
            items,
            settings: Map::from_iter([
                ("data".to_owned(), json!("generated")),
                ("modules".to_owned(), json!(names)),
                ("per_module".to_owned(), json!(task.per_module)),
            ]),
            traits: Traits {
                max_tokens: (longest + WORDS_TOKENS) as u64,
                first_metrics: &FIRST_METRICS,
                ..Traits::default()
            },
            // Each suite prints its notices.
            notices: std::mem::take(&mut notices),
            field: None,
        });
    }
    Ok(suites)
}

/// Returns the tasks that names stand for, in the order of [`Kind::all`].
fn kinds(names: &[String]) -> Result<Vec<Kind>, UsageError> {
    let all = Kind::all();
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|kind| is_named(kind, name))) {
        let known: Vec<String> = all.iter().map(Kind::name).collect();
        return Err(UsageError(format!(
            "--module {unknown}: there is no such task; there are all, variants, integer, float, fraction, scientific, {}",
            known.join(", ")
        )));
    }
    Ok(all.into_iter().filter(|kind| names.iter().any(|name| is_named(kind, name))).collect())
}

/// Returns whether a name stands for a task, alone or among others.
fn is_named(kind: &Kind, name: &str) -> bool {
    let is_standard = kind.level == Level::Standard;
    match name {
        "all" => is_standard,
        "variants" => !is_standard,
        "integer" => is_standard && kind.form == Form::Integer,
        "float" => is_standard && kind.form == Form::Decimal,
        "fraction" => is_standard && kind.form == Form::Fraction,
        "scientific" => is_standard && kind.form == Form::Scientific,
        name => kind.name() == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Vec<Kind> {
        kinds(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn there_are_41_tasks_and_12_variants() {
        assert_eq!((chosen(&["all"]).len(), chosen(&["variants"]).len()), (41, 12));
        let counts = ["integer", "float", "fraction", "scientific"].map(|name| chosen(&[name]).len());
        assert_eq!(counts, [16, 12, 7, 6]);
        assert_eq!(chosen(&["all"]).iter().filter(|kind| kind.has_value_answer()).count(), 25);
        assert_eq!(chosen(&["integer_add", "integer", "integer_add"]), chosen(&["integer"]));
        assert!(kinds(&["integer_root".to_owned()]).unwrap_err().0.contains("there are all, "));
    }
}
