//! A user's own questions and answers, worded by `--template`, with examples from the same file before them.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::BoolishValueParser;
use ntl_common::regular_file::{self, SMALL_BYTES_MAX};
use ntl_core::numbers::parse::{last_number, with_decimal_point};
use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::own::{self, OwnFile, OwnItems, Skipped, delimiter};
use super::{AnswerField, Entry, Origin, Suite, Traits, from_file, number_rule, stop_of_short_answers};
use crate::data::read::{Truth, decimal_point_hint};
use crate::data::records::Record;
use crate::data::{DataError, Item};
use crate::error::UsageError;
use crate::format::shortened;
use crate::json_path::JsonPath;
use crate::settings::RunSettings;
use crate::settings::mode::{Mode, NumberRule};
use crate::template::{Template, UnknownField};

pub const ENTRY: Entry = Entry {
    name: "custom",
    about: "questions and answers of your own (--data FILE: JSON lines, a JSON array, CSV or TSV)",
    origin: Origin::Given,
};

/// How the items of a file become prompts and answers.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct CustomTask {
    /// Field of the question.
    #[arg(long, value_name = "NAME", default_value = "question")]
    pub question_field: String,
    /// Field of the answer.
    #[arg(long, value_name = "NAME", default_value = "answer")]
    pub answer_field: String,
    /// Put N other items of the file, drawn by `--seed`, with their answers before each question.
    #[arg(long, value_name = "N", env = "NTL_EVAL_SHOTS", default_value = "0")]
    pub shots: usize,
    /// Leave out items whose question or answer is missing, null or empty, and report how many. Without this
    /// flag they are an error.
    #[arg(long, env = "NTL_EVAL_SKIP_MISSING", value_parser = BoolishValueParser::new())]
    pub skip_missing: bool,
    /// Character between the fields of a CSV file: one such as `;`, or `tab`. With it, a file of any name is
    /// CSV. Default: the one that separates the names in the header, a comma, a semicolon or a tab.
    #[arg(long, value_name = "CHAR", env = "NTL_EVAL_DELIMITER", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Text mode: the number of an answer that counts. Default: the first one, or the last one if a chain of
    /// thought may precede it, with `--api chat` and with more than 32 `--max-tokens`.
    #[arg(long = "read", value_enum, value_name = "NUMBER", env = "NTL_EVAL_READ")]
    pub number_rule: Option<NumberRule>,
    #[command(flatten)]
    pub structured: Option<Structured>,
}

/// Structured answers.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Structured {
    /// File with a JSON schema: the answers are structured, and the numbers of `--fields` are scored.
    #[arg(required = false, long, value_name = "FILE", env = "NTL_EVAL_SCHEMA", requires = "fields")]
    pub schema: PathBuf,
    /// JSONPaths of the numbers to score, separated by commas, such as `$.price,$.rooms`. The true value of
    /// `$.price` is the field `price` of the file. Each number has its own report.
    #[arg(long, value_name = "PATHS", env = "NTL_EVAL_FIELDS", requires = "schema", value_delimiter = ',')]
    pub fields: Vec<JsonPath>,
}

/// Default of `--max-tokens` for structured answers.
const STRUCTURED_TOKENS_MAX: u64 = 256;

/// Structured answers have one suite per field.
pub fn suites(task: &CustomTask, run: &RunSettings) -> anyhow::Result<Vec<Suite>> {
    let Some(Structured { schema, fields }) = &task.structured else {
        return Ok(vec![suite(task, run, None)?]);
    };
    if run.after.is_some() || run.number.scale.is_some() {
        let message = "--schema is not possible with --after or --scale: the schema states the numbers";
        return Err(UsageError::new(message).into());
    }
    if !matches!(run.mode, Mode::Text | Mode::Regress) {
        return Err(UsageError::new("--schema needs --mode text or --mode regress").into());
    }
    let text = regular_file::read_text(schema, SMALL_BYTES_MAX)
        .with_context(|| format!("could not read {}", schema.display()))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| UsageError(format!("{} is not JSON: {error}", schema.display())))?;
    let mut suites = Vec::new();
    let mut names = Vec::new();
    for (index, path) in fields.iter().enumerate() {
        if fields[..index].contains(path) {
            return Err(UsageError(format!("--fields names `{path}` twice")).into());
        }
        let field = AnswerField { schema: value.clone(), path: path.clone() };
        let mut suite = suite(task, run, Some(field))?;
        let name = name_of_field(path, &names);
        suite.split = format!("{}.{name}", suite.split);
        suite.settings.insert("field".to_owned(), json!(path.to_string()));
        suite.settings.insert("schema".to_owned(), value.clone());
        suites.push(suite);
        names.push(name);
    }
    Ok(suites)
}

/// Returns the path as part of a file name. A number distinguishes it from the names of other paths, also on
/// file systems that ignore case.
fn name_of_field(path: &JsonPath, others: &[String]) -> String {
    let path = path.to_string();
    let path = path.trim_start_matches(['$', '.', '[', '\'']).trim_end_matches("']");
    let plain = path.replace(|c: char| !c.is_alphanumeric(), "_");
    let mut name = plain.clone();
    let mut number = 1;
    while others.iter().any(|other| other.to_lowercase() == name.to_lowercase()) {
        number += 1;
        name = format!("{plain}_{number}");
    }
    name
}

fn suite(task: &CustomTask, run: &RunSettings, field: Option<AnswerField>) -> anyhow::Result<Suite> {
    let Some(file) = run.data.as_deref() else {
        let message = "custom needs --data FILE, JSON lines, a JSON array, CSV or TSV";
        return Err(UsageError::new(message).into());
    };
    let answer = match &field {
        None => Column { name: task.answer_field.clone(), path: None },
        Some(field) => Column::of(&field.path)?,
    };
    let template = run.template();
    if template.is_some_and(|template| template.names("answer") || template.names(&answer.name)) {
        let message = "--template names the answer, which the model would only have to copy";
        return Err(UsageError::new(message).into());
    }
    let required = [task.question_field.as_str(), answer.name.as_str()];
    let reading = OwnFile { skip_missing: task.skip_missing, delimiter: task.delimiter };
    let OwnItems { records, split, skipped } = own::read(file, reading, &required)?;
    let items = records.iter().map(|record| item(task, &answer, run, record));
    let mut items = items.collect::<Result<Vec<Item>, DataError>>()?;
    let items_max = run.limit.map_or(items.len(), |limit| items.len().min(limit.get()));
    let texts = Texts::of(&records, &items[..items_max]);
    let has_numbers = items.iter().any(|item| item.truth.is_some());
    if run.mode == Mode::Regress
        && !has_numbers
        && let Some(Texts { example, .. }) = &texts
    {
        let file = file.display();
        let message =
            format!("no answer in {file} is a number, which --mode regress needs; for example {example}");
        return Err(UsageError(message).into());
    }
    let between = if template.is_some_and(Template::ends_in_space) { "" } else { " " };
    if task.shots > 0 {
        let solutions = match &task.structured {
            None => items.iter().map(|item| item.answer.clone()).collect(),
            Some(structured) => whole_answers(&records, structured, field.as_ref()),
        };
        add_shots(&mut items, &solutions, task.shots, run.seed, between)?;
    }
    items.truncate(items_max);
    let rule = task.number_rule.unwrap_or_else(|| number_rule(run));
    let stop_of_number = if has_numbers && field.is_none() { stop_of_short_answers(run, rule) } else { &[] };
    let mut settings = Map::from_iter([
        from_file(file),
        ("question_field".to_owned(), json!(task.question_field)),
        ("answer_field".to_owned(), json!(task.answer_field)),
        ("shots".to_owned(), json!(task.shots)),
    ]);
    settings.extend(skipped.as_ref().map(Skipped::setting));
    // A file of words alone is meant to be compared as text, unless its answers look like numbers.
    let texts = texts.filter(|texts| has_numbers || texts.has_decimal_comma);
    let texts = texts.map(|Texts { count, example, .. }| {
        format!("{count} of {items_max} answers are not numbers and are compared as text, such as {example}")
    });
    Ok(Suite {
        task: ENTRY.name,
        split,
        items,
        settings,
        traits: Traits {
            // After examples, a model continues with the next one.
            stop: if stop_of_number.is_empty() && task.shots > 0 { &["\n\n"] } else { stop_of_number },
            number_rule: rule,
            texts: !has_numbers,
            max_tokens: if field.is_some() { STRUCTURED_TOKENS_MAX } else { Traits::default().max_tokens },
            ..Traits::default()
        },
        notices: skipped.iter().map(Skipped::notice).chain(texts).collect(),
        field,
    })
}

/// The field of the file with the true answers.
struct Column {
    name: String,
    /// The path to the answer inside the field's JSON.
    path: Option<JsonPath>,
}

impl Column {
    /// `$.rooms[0].area` is in the field `rooms`, at `[0].area`.
    fn of(path: &JsonPath) -> Result<Self, UsageError> {
        let (name, rest) = path.split_first().ok_or_else(|| {
            UsageError(format!("--fields: `{path}` does not begin with the name of a field of the file"))
        })?;
        Ok(Self { name: name.to_owned(), path: Some(rest).filter(|rest| !rest.is_empty()) })
    }

    fn answer<'a>(&self, record: &'a Record) -> Result<Cow<'a, str>, DataError> {
        let Some(path) = &self.path else {
            return record.require_filled(&self.name, "answer").map(Cow::Borrowed);
        };
        let value = record.get(&self.name).and_then(|text| serde_json::from_str::<Value>(text).ok());
        match value.as_ref().and_then(|value| path.find(value)) {
            Some(Value::String(text)) => Ok(Cow::Owned(text.clone())),
            Some(found) if !found.is_null() => Ok(Cow::Owned(found.to_string())),
            _ => Err(record.problem(format!("there is no value at `{path}`"))),
        }
    }
}

fn item(task: &CustomTask, answer: &Column, run: &RunSettings, record: &Record) -> Result<Item, DataError> {
    let question = record.require_filled(&task.question_field, "question")?;
    let answer = answer.answer(record)?;
    let answer = answer.as_ref();
    let mut truth = Truth::NumberOrText.of(answer).flatten();
    if truth.is_none() && run.mode.reads_numbers_in_texts() {
        // The paper's code compares the last numbers of any two texts, so that a text with a number has a
        // truth.
        truth = last_number(answer);
    }
    let mut prompt = None;
    if let Some(template) = run.template() {
        let worded =
            template.render(|name| if name == "question" { Some(question) } else { record.get(name) });
        prompt = Some(worded.map_err(|UnknownField(name)| record.without(&name))?);
    }
    Ok(Item { question: question.to_owned(), answer: answer.to_owned(), truth, prompt, ..Item::default() })
}

/// Answers that are not numbers.
struct Texts {
    count: usize,
    /// One of them with its line, for a message. An answer with a decimal comma is the best example.
    example: String,
    has_decimal_comma: bool,
}

impl Texts {
    fn of(records: &[Record], items: &[Item]) -> Option<Self> {
        let texts = records.iter().zip(items).filter(|(_, item)| item.truth.is_none());
        let texts: Vec<(usize, &str)> = texts.map(|(record, item)| (record.line(), &*item.answer)).collect();
        let comma = texts.iter().find(|(_, answer)| with_decimal_point(answer).is_some());
        let (line, answer) = comma.or(texts.first())?;
        let example = format!("{:?} on line {line}{}", shortened(answer, 60), decimal_point_hint(answer));
        Some(Self { count: texts.len(), example, has_decimal_comma: comma.is_some() })
    }
}

/// Returns the whole structured answers as JSON, which are the same for every scored field: the properties of
/// the schema that a record has or, if the schema lists none, the fields of `--fields`.
fn whole_answers(records: &[Record], structured: &Structured, field: Option<&AnswerField>) -> Vec<String> {
    let properties = field.and_then(|field| field.schema.get("properties")?.as_object());
    let names: Vec<&str> = match properties {
        Some(properties) => properties.keys().map(String::as_str).collect(),
        None => structured.fields.iter().filter_map(JsonPath::first_name).collect(),
    };
    let mut answers = Vec::with_capacity(records.len());
    for record in records {
        let mut answer = Map::new();
        for &name in &names {
            let Some(text) = record.get(name) else { continue };
            let is_text = properties.is_some_and(|properties| properties[name]["type"] == "string");
            let value = if is_text { None } else { serde_json::from_str(text).ok() };
            answer.insert(name.to_owned(), value.unwrap_or_else(|| json!(text)));
        }
        answers.push(Value::Object(answer).to_string());
    }
    answers
}

/// Puts `count` other items before each item: the prompt, `between`, the solution and a blank line.
fn add_shots(
    items: &mut [Item],
    solutions: &[String],
    count: usize,
    seed: u64,
    between: &str,
) -> Result<(), UsageError> {
    let others = items.len().saturating_sub(1);
    if count > others {
        return Err(UsageError(format!("--shots {count} needs more than the {others} other items")));
    }
    if count == 0 {
        return Ok(());
    }
    let solved = items.iter().zip(solutions);
    let solved: Vec<String> =
        solved.map(|(item, solution)| format!("{}{between}{solution}\n\n", item.prompt())).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for (own, item) in items.iter_mut().enumerate() {
        let drawn = index::sample(&mut rng, others, count).into_iter();
        let drawn = drawn.map(|other| solved[other + usize::from(other >= own)].as_str());
        item.prompt = Some(drawn.chain([item.prompt()]).collect());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_other_items_drawn_by_the_seed() {
        let item = |number: usize| Item {
            question: format!("{number}?"),
            answer: number.to_string(),
            ..Item::default()
        };
        let shots = |seed| {
            let mut items: Vec<Item> = (0..9).map(item).collect();
            let solutions: Vec<String> = items.iter().map(|item| item.answer.clone()).collect();
            add_shots(&mut items, &solutions, 3, seed, " ").unwrap();
            items.iter().map(|item| item.prompt().to_owned()).collect::<Vec<_>>()
        };
        for (own, prompt) in shots(1).iter().enumerate() {
            let parts: Vec<&str> = prompt.split("\n\n").collect();
            assert_eq!((parts.len(), parts[3]), (4, format!("{own}?").as_str()));
            let solved =
                |part: &&str| part.split_once("? ").is_some_and(|(question, answer)| question == answer);
            assert!(parts[..3].iter().all(solved), "{prompt}");
            assert!(!parts[..3].iter().any(|part| part.starts_with(&format!("{own}?"))), "{prompt}");
        }
        assert_eq!(shots(1), shots(1));
        assert_ne!(shots(1), shots(2));
        let mut one = [item(0)];
        assert!(add_shots(&mut one, &["1".to_owned()], 1, 0, " ").is_err());
        add_shots(&mut one, &["1".to_owned()], 0, 0, " ").unwrap();
        assert_eq!(one[0].prompt, None);
    }
}
