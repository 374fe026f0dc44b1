//! Labelled questions of a user's file for a decision model: predicates, choices, scores and numbers.
//!
//! The server words the prompts. The truths of scores and numbers are the correct level and number.

use std::collections::HashSet;

use serde_json::{Map, json};

use super::{Entry, Origin, Suite, Traits, from_file, own};
use crate::data::Item;
use crate::data::decisions::{self, Question, QuestionKind, described, option_text, state_text};
use crate::error::UsageError;
use crate::settings::RunSettings;
use crate::settings::mode::{Api, Mode};

pub const ENTRY: Entry = Entry {
    name: "decisions",
    about: "labelled questions of your own for /v1/decisions or /v1/systemone (--data FILE)",
    origin: Origin::Given,
};

/// The metrics that a run shows first.
const FIRST_METRICS: [&str; 9] = [
    "accuracy",
    "brier",
    "log_loss",
    "calibration_error",
    "mae",
    "refused",
    "order_change",
    "repeat_change",
    "batch_change",
];

/// Returns one suite, whose modules are the types of the questions.
pub fn suites(run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let Some(file) = run.data.as_deref() else {
        let message = "decisions needs --data FILE, JSON lines or a JSON array of questions";
        return Err(UsageError::new(message).into());
    };
    check(run)?;
    let mut questions = decisions::read(file)?;
    questions.truncate(run.limit.map_or(usize::MAX, usize::from));
    if run.server.api == Api::Systemone
        && let Some(question) = questions.iter().find(|question| has_equal_texts(question))
    {
        return Err(UsageError(format!(
            "the options of {:?} differ only in their types, which --api systemone cannot express",
            question.instructions
        ))
        .into());
    }
    let settings = &run.decisions;
    if settings.batch && !has_common_state(&questions) {
        return Err(UsageError::new("--batch: no two questions of the file have the same input").into());
    }
    Ok(vec![Suite {
        task: ENTRY.name,
        split: own::name(file),
        items: questions.into_iter().map(item).collect(),
        settings: Map::from_iter([
            from_file(file),
            ("reorder".to_owned(), json!(settings.reorder)),
            ("repeat".to_owned(), json!(settings.repeat)),
            ("batch".to_owned(), json!(settings.batch)),
        ]),
        traits: Traits { first_metrics: &FIRST_METRICS, ..Traits::default() },
        ..Suite::default()
    }])
}

fn check(run: &RunSettings) -> Result<(), UsageError> {
    let refused = [
        (run.mode != Mode::Text, "decisions reads the probabilities of answers: leave out --mode"),
        (
            run.template().is_some() || run.system.is_some() || run.after.is_some(),
            "decisions sends typed questions, whose prompts the server words: leave out --template, --system and --after",
        ),
        (
            run.score || run.max_tokens.is_some() || run.prompt_tokens.is_some(),
            "decisions has no texts: leave out --score, --max-tokens and --prompt-tokens",
        ),
        (
            run.decisions.repeat && run.output.cache.is_some(),
            "--repeat compares two answers to the same request, and --cache would send it once: leave one of them out",
        ),
    ];
    match refused.iter().find(|(refused, _)| *refused) {
        Some((_, why)) => Err(UsageError((*why).to_owned())),
        None => Ok(()),
    }
}

fn has_equal_texts(question: &Question) -> bool {
    let mut texts = HashSet::new();
    matches!(question.kind, QuestionKind::Choice { .. })
        && !question.options().into_iter().all(|text| texts.insert(text))
}

fn has_common_state(questions: &[Question]) -> bool {
    let mut states = HashSet::new();
    !questions.iter().all(|question| states.insert(question.state.to_string()))
}

fn item(question: Question) -> Item {
    let (answer, truth) = match &question.kind {
        QuestionKind::Number { expected, .. } => (expected.to_string(), Some(*expected)),
        QuestionKind::Score { expected, .. } => (correct_option(&question), Some(*expected as f64)),
        QuestionKind::Predicate { .. } | QuestionKind::Choice { .. } => (correct_option(&question), None),
    };
    Item {
        question: text(&question),
        answer,
        truth,
        module: Some(question.type_name().to_owned()),
        decision: Some(question),
        ..Item::default()
    }
}

fn correct_option(question: &Question) -> String {
    let index = question.expected_index().unwrap_or_default();
    question.options().into_iter().nth(index).unwrap_or_default()
}

/// Returns everything about a question that reports show and that distinguishes it from others.
fn text(question: &Question) -> String {
    let mut text = format!("{}\n\n{}", state_text(&question.state), question.instructions);
    match &question.kind {
        QuestionKind::Predicate { criteria, .. } => {
            for (option, meaning) in [("true", &criteria.when_true), ("false", &criteria.when_false)] {
                if meaning.is_some() {
                    text += &format!("\n- {}", described(option, meaning.as_deref()));
                }
            }
        }
        QuestionKind::Choice { choices, .. } => {
            for choice in choices {
                text +=
                    &format!("\n- {}", described(&option_text(&choice.value), choice.description.as_deref()));
            }
        }
        QuestionKind::Score { levels, .. } => {
            for level in levels {
                text += &format!("\n- {}", described(&level.label, level.description.as_deref()));
            }
        }
        QuestionKind::Number { criteria, .. } => {
            if let Some(unit) = &criteria.unit {
                text += &format!(" ({unit})");
            }
        }
    }
    text
}
