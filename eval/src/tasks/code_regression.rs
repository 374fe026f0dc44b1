//! Measurements of programs and networks from their text: the format of RegressLM's published data sets
//! (`input`, `target` and `space`), with rank correlations for each space.
//!
//! Prompts are worded as in the published evaluation. The published estimate is the median of samples, so
//! every metric uses the median, and a run can draw samples to compare them with the exact distribution.

use std::collections::HashMap;

use indexmap::IndexSet;
use serde_json::{Map, Value, json};

use super::own::{self, OwnFile};
use super::{Entry, Origin, Suite, Traits, from_file};
use crate::data::records::Record;
use crate::data::{DataError, Item};
use crate::error::UsageError;
use crate::settings::RunSettings;
use crate::settings::mode::Mode;

pub const ENTRY: Entry = Entry {
    name: "code-regression",
    about: "memory, latency and accuracy of programs and networks (RegressLM's data: --data FILE); Spearman and Kendall",
    origin: Origin::Given,
};

/// The metrics that a run shows first, and for each space.
const FIRST_METRICS: [&str; 4] = ["spearman", "kendall", "mae", "log_mae"];

const FORMAT: &str =
    "code-regression needs --data FILE, JSON lines of objects with `input`, `target` and `space`";

pub fn suites(spaces: &[String], run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    if run.mode != Mode::Regress {
        return Err(UsageError::new("code-regression needs --mode regress").into());
    }
    let Some(file) = run.data.as_deref() else { return Err(UsageError::new(FORMAT).into()) };
    let own = own::read(file, OwnFile::default(), &[])?;
    let items = own.records.iter().map(|record| item(record, run.template().is_none()));
    let all = items.collect::<Result<Vec<Item>, DataError>>()?;
    let known: IndexSet<&str> = all.iter().filter_map(|item| item.module.as_deref()).collect();
    if let Some(space) = spaces.iter().find(|space| !known.contains(space.as_str())) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        let file = file.display();
        return Err(UsageError(format!("--space: {file} has no `{space}`; it has {known}")).into());
    }
    let mut settings = Map::from_iter([from_file(file), ("spaces".to_owned(), json!(spaces))]);
    if let Some(draws) = &run.number.draws {
        settings.insert("draws".to_owned(), json!(draws));
    }
    let items_max = run.limit.map_or(usize::MAX, usize::from);
    Ok(vec![Suite {
        task: ENTRY.name,
        split: own.split,
        items: first_of_each_space(all, spaces, items_max),
        settings,
        traits: Traits { first_metrics: &FIRST_METRICS, medians: true, ..Traits::default() },
        ..Suite::default()
    }])
}

/// Keeps the items of these spaces, at most `items_max` of each. Files are sorted by space.
fn first_of_each_space(mut items: Vec<Item>, spaces: &[String], items_max: usize) -> Vec<Item> {
    let mut counts = HashMap::<String, usize>::new();
    items.retain(|item| {
        let space = item.module.clone().unwrap_or_default();
        let is_wanted = spaces.is_empty() || spaces.contains(&space);
        let count = counts.entry(space).or_default();
        *count += usize::from(is_wanted);
        is_wanted && *count <= items_max
    });
    items
}

/// `is_worded`: whether the prompt is worded as in the published evaluation.
fn item(record: &Record, is_worded: bool) -> Result<Item, DataError> {
    let input = record.require("input", "input")?;
    let space = record.require_filled("space", "space")?;
    let answer = record.get("target").ok_or_else(|| record.without("target"))?;
    let truth = first_number(answer).ok_or_else(|| {
        record.problem(format!("the target `{answer}` is neither a finite number nor a list of numbers"))
    })?;
    let prompt = if is_worded { Some(worded(record, space, input)?) } else { None };
    Ok(Item {
        question: input.to_owned(),
        answer: truth.to_string(),
        truth: Some(truth),
        module: Some(space.to_owned()),
        prompt,
        ..Item::default()
    })
}

/// Returns a number, or the first one of a list: the published evaluation uses the first objective.
fn first_number(target: &str) -> Option<f64> {
    let number = match target.trim().parse::<f64>() {
        Ok(number) => number,
        Err(_) => *serde_json::from_str::<Vec<f64>>(target).ok()?.first()?,
    };
    number.is_finite().then_some(number)
}

/// Returns the prompt of the published evaluation.
fn worded(record: &Record, space: &str, input: &str) -> Result<String, DataError> {
    match space {
        "APPS" | "KBSS" => Ok(format!("{space}\n{input}")),
        "CDSS" => {
            let language = language(record).ok_or_else(|| {
                let problem = "a prompt of CDSS names the language, which neither `language` nor `metadata` \
                               of this item has; word the prompts with --template";
                record.problem(problem.to_owned())
            })?;
            Ok(format!("# CDSS\n# Language: {language}\n{input}"))
        }
        _ => Ok(format!("{space}\n\n{input}")),
    }
}

fn language(record: &Record) -> Option<String> {
    if let Some(language) = record.get("language") {
        return Some(language.to_owned());
    }
    let metadata: Value = serde_json::from_str(record.get("metadata")?).ok()?;
    Some(metadata.get("language")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_number_or_the_first_one_of_a_list() {
        for (target, want) in [
            ("0.9347", Some(0.9347)),
            ("1e-05", Some(1e-5)),
            ("-3", Some(-3.0)),
            ("[2.5, 7]", Some(2.5)),
            ("[]", None),
            ("[null]", None),
            ("NaN", None),
            ("inf", None),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(first_number(target), want, "{target}");
        }
    }

    #[test]
    fn a_limit_counts_for_each_space() {
        let item = |(space, answer): &(&str, &str)| Item {
            module: Some((*space).to_owned()),
            answer: (*answer).to_owned(),
            ..Item::default()
        };
        let all =
            || [("A", "1"), ("A", "2"), ("A", "3"), ("B", "4"), ("C", "5"), ("B", "6")].iter().map(item);
        let kept = |spaces: &[&str], limit| -> String {
            let spaces: Vec<String> = spaces.iter().map(|&space| space.to_owned()).collect();
            first_of_each_space(all().collect(), &spaces, limit).into_iter().map(|item| item.answer).collect()
        };
        assert_eq!((kept(&[], 2).as_str(), kept(&["B"], 1).as_str()), ("12456", "4"));
        assert_eq!(kept(&["C", "A"], usize::MAX), "1235");
    }
}
