//! Labelled questions for decision models, one JSON object per row. `docs/EVAL.md` describes the fields.
//!
//! In: JSON lines, or an array of objects. Out: [`Question`]s whose expected answer is one of the allowed
//! ones. Errors name the file, the line and the field.

use std::collections::HashSet;
use std::path::Path;

use ntl_api::{DecisionChoice, DecisionLevel, NumberCriteria, OptionValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use strum::IntoStaticStr;

use super::DataError;
use super::read::{json_values, text};
use crate::format::shortened;
use crate::json;

/// Maximum number of options or levels of a question.
const OPTIONS_MAX: usize = 255;

/// A question and its correct answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// A text, an object or a list.
    pub state: Value,
    pub instructions: String,
    pub kind: QuestionKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, IntoStaticStr)]
#[serde(tag = "type", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum QuestionKind {
    Predicate {
        criteria: PredicateCriteria,
        expected: bool,
    },
    /// `expected` is an index.
    Choice {
        choices: Vec<DecisionChoice>,
        expected: usize,
    },
    /// `expected` is an index.
    Score {
        levels: Vec<DecisionLevel>,
        expected: usize,
    },
    Number {
        criteria: NumberCriteria,
        expected: f64,
    },
}

/// The meanings of the answers to a predicate.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredicateCriteria {
    #[serde(rename = "true", skip_serializing_if = "Option::is_none")]
    pub when_true: Option<String>,
    #[serde(rename = "false", skip_serializing_if = "Option::is_none")]
    pub when_false: Option<String>,
}

impl Question {
    /// Returns the name of the type in files and reports.
    pub fn type_name(&self) -> &'static str {
        (&self.kind).into()
    }

    /// Returns the options as texts, in the order of the file. `false` is the first option of a predicate. A
    /// number has none.
    pub fn options(&self) -> Vec<String> {
        match &self.kind {
            QuestionKind::Predicate { .. } => vec!["false".to_owned(), "true".to_owned()],
            QuestionKind::Choice { choices, .. } => {
                choices.iter().map(|one| option_text(&one.value)).collect()
            }
            QuestionKind::Score { levels, .. } => levels.iter().map(|level| level.label.clone()).collect(),
            QuestionKind::Number { .. } => Vec::new(),
        }
    }

    /// Returns the index of the correct option, or `None` for a number.
    pub fn expected_index(&self) -> Option<usize> {
        match self.kind {
            QuestionKind::Predicate { expected, .. } => Some(usize::from(expected)),
            QuestionKind::Choice { expected, .. } | QuestionKind::Score { expected, .. } => Some(expected),
            QuestionKind::Number { .. } => None,
        }
    }
}

/// Returns the value of an option without its type.
pub fn option_text(value: &OptionValue) -> String {
    match value {
        OptionValue::Text(text) => text.clone(),
        OptionValue::Flag(flag) => flag.to_string(),
    }
}

/// Returns an option with its meaning, if it has one.
pub fn described(option: &str, description: Option<&str>) -> String {
    description.map_or_else(|| option.to_owned(), |description| format!("{option}: {description}"))
}

/// Returns a state as text: JSON on one line, as common servers and Python write it, unless it is a text.
pub fn state_text(state: &Value) -> String {
    match state {
        Value::String(text) => text.clone(),
        other => spaced_json(other),
    }
}

fn spaced_json(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(spaced_json).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|(name, value)| format!("{}: {}", json!(name), spaced_json(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

/// A row as it is in the file. Other fields, such as `id` and `tags`, are ignored.
#[derive(Deserialize)]
struct StoredQuestion {
    #[serde(rename = "type")]
    kind: String,
    input: Value,
    instructions: String,
    criteria: Option<PredicateCriteria>,
    choices: Option<Vec<DecisionChoice>>,
    levels: Option<Vec<DecisionLevel>>,
    minimum: Option<f64>,
    maximum: Option<f64>,
    step: Option<f64>,
    unit: Option<String>,
    expected: Value,
}

/// A problem with a field.
struct Problem {
    field: &'static str,
    message: String,
}

fn problem<T>(field: &'static str, message: impl Into<String>) -> Result<T, Problem> {
    Err(Problem { field, message: message.into() })
}

/// Reads the questions of a file.
pub fn read(file: &Path) -> Result<Vec<Question>, DataError> {
    let text = text(file)?;
    let mut questions = Vec::new();
    for (line, text) in json_values(file, &text)? {
        let problem = match parse(text) {
            Err(problem) => problem,
            Ok(row) => match question(row) {
                Ok(question) => {
                    questions.push(question);
                    continue;
                }
                Err(Problem { field, message }) => format!("field `{field}`: {message}"),
            },
        };
        return Err(DataError::Line { file: file.to_owned(), line, problem });
    }
    if questions.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(questions) }
}

fn parse(text: &str) -> Result<StoredQuestion, String> {
    let object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| json::problem_in_line(&error))?;
    serde_path_to_error::deserialize(Value::Object(object)).map_err(|error| {
        let mut problem = json::problem(error.inner());
        // The whole message of a value with several types.
        if problem == "a string or a boolean" {
            problem = "expected a text, true or false".to_owned();
        }
        match error.path().to_string().as_str() {
            "." => problem,
            path => format!("field `{path}`: {problem}"),
        }
    })
}

fn question(row: StoredQuestion) -> Result<Question, Problem> {
    if !matches!(row.input, Value::String(_) | Value::Object(_) | Value::Array(_)) {
        return problem("input", format!("`{}` is not a text, an object or a list", row.input));
    }
    if row.instructions.trim().is_empty() {
        return problem("instructions", "it is empty");
    }
    let kind = match row.kind.as_str() {
        "predicate" => QuestionKind::Predicate {
            criteria: row.criteria.unwrap_or_default(),
            expected: match row.expected {
                Value::Bool(expected) => expected,
                other => return problem("expected", format!("`{other}` is not true or false")),
            },
        },
        "choice" => {
            let choices = listed("choices", row.choices)?;
            let mut values = HashSet::new();
            if let Some(twice) = choices.iter().find(|one| !values.insert(&one.value)) {
                return problem(
                    "choices",
                    format!("the value {:?} is there twice", option_text(&twice.value)),
                );
            }
            let expected = choices.iter().position(|choice| match &choice.value {
                OptionValue::Text(text) => row.expected == text.as_str(),
                OptionValue::Flag(flag) => row.expected == *flag,
            });
            let Some(expected) = expected else {
                return problem("expected", format!("`{}` is not the value of a choice", row.expected));
            };
            QuestionKind::Choice { choices, expected }
        }
        "score" => {
            let levels = listed("levels", row.levels)?;
            let index = row.expected.as_u64().and_then(|index| usize::try_from(index).ok());
            let Some(expected) = index.filter(|index| *index < levels.len()) else {
                let last = levels.len() - 1;
                return problem(
                    "expected",
                    format!("`{}` is not the index of a level, 0 to {last}", row.expected),
                );
            };
            QuestionKind::Score { levels, expected }
        }
        "number" => {
            let Some(expected) = row.expected.as_f64() else {
                return problem("expected", format!("`{}` is not a number", row.expected));
            };
            let StoredQuestion { minimum, maximum, step, unit, .. } = row;
            let criteria = NumberCriteria { minimum, maximum, step, unit, objective: None };
            QuestionKind::Number { criteria, expected }
        }
        other => {
            let other = shortened(other, 60);
            return problem("type", format!("{other:?} is not predicate, choice, score or number"));
        }
    };
    Ok(Question { state: row.input, instructions: row.instructions, kind })
}

fn listed<T>(field: &'static str, list: Option<Vec<T>>) -> Result<Vec<T>, Problem> {
    match list {
        None => problem(field, "it is missing, and this type needs it"),
        Some(list) if (2..=OPTIONS_MAX).contains(&list.len()) => Ok(list),
        Some(list) => problem(field, format!("it has {} entries, expected 2 to {OPTIONS_MAX}", list.len())),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(lines: &str) -> Result<Vec<Question>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.jsonl");
        fs::write(&file, lines).unwrap();
        let shown = folder.path().display().to_string();
        super::read(&file).map_err(|error| error.to_string().replace(&shown, ""))
    }

    #[test]
    fn the_correct_option_is_found_with_its_type() {
        let choices = r#""choices": [{"value": "true"}, {"value": true, "description": "yes"}]"#;
        let row = |expected: &str| {
            format!(
                r#"{{"type": "choice", "input": "x", "instructions": "i", {choices}, "expected": {expected}}}"#
            )
        };
        let questions = read(&format!("{}\n\n{}\n", row("true"), row("\"true\""))).unwrap();
        let indices: Vec<_> = questions.iter().map(Question::expected_index).collect();
        assert_eq!(indices, [Some(1), Some(0)]);
        assert_eq!(questions[0].options(), ["true", "true"]);
    }

    #[test]
    fn a_bad_row_is_rejected_with_its_line_and_field() {
        let row = |more: &str| format!(r#"{{"input": "x", "instructions": "i", {more}}}"#);
        for (line, said) in [
            ("{\"type\": 1".to_owned(), "it is not JSON (column 10)"),
            ("7".to_owned(), "found the number `7`, expected an object"),
            (row(r#""expected": 1"#), "missing field `type`"),
            (
                row(r#""type": "box", "expected": 1"#),
                "field `type`: \"box\" is not predicate, choice, score or number",
            ),
            (
                row(r#""type": "predicate", "expected": "yes""#),
                "field `expected`: `\"yes\"` is not true or false",
            ),
            (
                row(r#""type": "predicate", "expected": true, "criteria": {"yes": "y"}"#),
                "field `criteria.yes`: unknown field `yes`, expected `true` or `false`",
            ),
            (
                row(r#""type": "choice", "expected": "a""#),
                "field `choices`: it is missing, and this type needs it",
            ),
            (
                row(r#""type": "choice", "expected": "a", "choices": [{"value": "a"}]"#),
                "field `choices`: it has 1 entries, expected 2 to 255",
            ),
            (
                row(r#""type": "choice", "expected": "a", "choices": [{"value": "a"}, {"value": 7}]"#),
                "field `choices[1].value`: expected a text, true or false",
            ),
            (
                row(r#""type": "choice", "expected": "a", "choices": [{"value": "a"}, {"value": "a"}]"#),
                "field `choices`: the value \"a\" is there twice",
            ),
            (
                row(
                    r#""type": "choice", "expected": true, "choices": [{"value": "true"}, {"value": false}]"#,
                ),
                "field `expected`: `true` is not the value of a choice",
            ),
            (
                row(r#""type": "score", "expected": 2, "levels": [{"label": "a"}, {"label": "b"}]"#),
                "field `expected`: `2` is not the index of a level, 0 to 1",
            ),
            (
                row(r#""type": "score", "expected": 0, "levels": [{"label": "a"}, {"name": "b"}]"#),
                "field `levels[1].name`: unknown field `name`, expected `label` or `description`",
            ),
            (row(r#""type": "number", "expected": "7""#), "field `expected`: `\"7\"` is not a number"),
            (
                r#"{"type": "number", "input": 7, "instructions": "i", "expected": 7}"#.to_owned(),
                "field `input`: `7` is not a text, an object or a list",
            ),
            (
                r#"{"type": "number", "input": "x", "instructions": " ", "expected": 7}"#.to_owned(),
                "field `instructions`: it is empty",
            ),
        ] {
            assert_eq!(read(&format!("\n{line}\n")).unwrap_err(), format!("/x.jsonl line 2: {said}"));
        }
        assert_eq!(read("\n").unwrap_err(), "/x.jsonl holds no questions");
    }
}
