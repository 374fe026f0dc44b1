//! Readers of the original file formats. Files that end in `.gz` are unpacked on the way.
//!
//! In: a file. Out: its items, in order; or an error that names the file and the line.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;

use super::{DataError, Item};

/// What an answer must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// A number, as a whole.
    Number,
    /// The number behind the last `#### `.
    AfterHashes,
    /// A number, a fraction, or anything else, which then has no truth to compute with.
    Maybe,
    /// Text.
    Text,
}

impl Truth {
    /// The value of an answer; `Err` where it must have one and has none.
    fn of(self, answer: &str) -> Result<Option<f64>, ()> {
        let finite = |text: &str| text.trim().parse().ok().filter(|value: &f64| value.is_finite());
        match self {
            Self::Number => finite(answer).map(Some).ok_or(()),
            Self::AfterHashes => {
                let last = answer.rsplit_once("#### ").ok_or(())?.1;
                finite(&last.replace([',', '$'], "")).map(Some).ok_or(())
            }
            Self::Maybe => Ok(finite(answer).or_else(|| fraction(answer))),
            Self::Text => Ok(None),
        }
    }
}

/// The value of a text that is a fraction of two integers and nothing else, such as `-7/3`.
pub fn fraction(text: &str) -> Option<f64> {
    let (above, below) = text.trim().split_once('/')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(above.strip_prefix('-').unwrap_or(above)) || !digits(below) {
        return None;
    }
    let value = above.parse::<f64>().ok()? / below.parse::<f64>().ok()?;
    value.is_finite().then_some(value)
}

fn item(file: &Path, line: usize, (question, answer): (&str, &str), truth: Truth) -> Result<Item, DataError> {
    let value = truth.of(answer).map_err(|()| DataError::Answer {
        file: file.to_owned(),
        line,
        answer: answer.to_owned(),
    })?;
    Ok(Item { question: question.to_owned(), answer: answer.to_owned(), truth: value, ..Item::default() })
}

/// The text of a file, unpacked.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub fn text(file: &Path) -> Result<String, DataError> {
    let read = || {
        let (mut text, opened) = (String::new(), File::open(file)?);
        if file.extension().is_some_and(|extension| extension == "gz") {
            MultiGzDecoder::new(opened).read_to_string(&mut text)?;
        } else {
            (&opened).read_to_string(&mut text)?;
        }
        Ok(text)
    };
    read().map_err(|source| DataError::Read { file: file.to_owned(), source })
}

fn filled(file: &Path, items: Vec<Item>) -> Result<Vec<Item>, DataError> {
    if items.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(items) }
}

/// A question and its answer on alternating lines, as DeepMind's mathematics dataset has them.
///
/// # Errors
/// The file cannot be read, is empty, has an odd number of lines, or an answer is not what it must be.
pub fn pairs(file: &Path, truth: Truth) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim).collect();
    let (pairs, []) = lines.as_chunks::<2>() else {
        return Err(DataError::OddLines { file: file.to_owned(), lines: lines.len() });
    };
    let items = pairs
        .iter()
        .enumerate()
        .map(|(index, [question, answer])| item(file, 2 * index + 2, (question, answer), truth));
    filled(file, items.collect::<Result<_, _>>()?)
}

#[derive(Deserialize)]
struct Question {
    question: String,
    answer: Value,
}

/// One object with `question` and `answer` a line, as GSM8K and the paper's preprocessed files have them.
///
/// # Errors
/// The file cannot be read, is empty, or a line or an answer is not what it must be.
pub fn questions(file: &Path, truth: Truth) -> Result<Vec<Item>, DataError> {
    let items = objects(file)?.map(|(line, object)| {
        let Question { question, answer } = object?;
        let answer = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
        item(file, line, (&question, &answer), truth)
    });
    filled(file, items.collect::<Result<_, _>>()?)
}

/// Lines of JSON, with their numbers from 1; blank ones left out.
fn objects<T: for<'de> Deserialize<'de>>(
    file: &Path,
) -> Result<impl Iterator<Item = (usize, Result<T, DataError>)>, DataError> {
    let text = text(file)?;
    let lines: Vec<(usize, String)> = text
        .split('\n')
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(index, line)| (index + 1, line.to_owned()))
        .collect();
    let file = file.to_owned();
    Ok(lines.into_iter().map(move |(line, text)| {
        let object = serde_json::from_str(&text).map_err(|error| DataError::Line {
            file: file.clone(),
            line,
            problem: error.to_string(),
        });
        (line, object)
    }))
}

/// `score<TAB>joke` a line, as rJokes has them.
///
/// # Errors
/// The file cannot be read, is empty, or a line has no tab or no score.
pub fn scores(file: &Path) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    let lines = text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty());
    let items = lines.map(|(index, line)| {
        let (score, joke) = line.trim().split_once('\t').ok_or_else(|| DataError::Line {
            file: file.to_owned(),
            line: index + 1,
            problem: "expected a score, a tab and a text".to_owned(),
        })?;
        item(file, index + 1, (joke, score), Truth::Number)
    });
    filled(file, items.collect::<Result<_, _>>()?)
}

#[derive(Deserialize)]
struct Passage {
    passage: PassageText,
}

#[derive(Deserialize)]
struct PassageText {
    text: String,
    questions: Vec<PassageQuestion>,
}

#[derive(Deserialize)]
struct PassageQuestion {
    question: String,
    answers: Vec<PassageAnswer>,
}

#[derive(Deserialize)]
struct PassageAnswer {
    text: String,
    label: Option<u8>,
}

/// SuperGLUE's MultiRC, one item a question, worded as the paper does: the passage, a blank line, `Question: `; the
/// answers labelled 1, joined by ` | `.
///
/// # Errors
/// The file cannot be read, is empty, or a line is not what it must be. Answers without labels are an error: the test
/// set has none.
pub fn passages(file: &Path) -> Result<Vec<Item>, DataError> {
    let mut items = Vec::new();
    for (line, object) in objects::<Passage>(file)? {
        let Passage { passage } = object?;
        for asked in passage.questions {
            if asked.answers.iter().any(|answer| answer.label.is_none()) {
                let problem = "the answers have no labels; use the validation set".to_owned();
                return Err(DataError::Line { file: file.to_owned(), line, problem });
            }
            let right = asked.answers.iter().filter(|answer| answer.label == Some(1));
            let answer = right.map(|answer| answer.text.as_str()).collect::<Vec<_>>().join(" | ");
            let question = format!("{}\n\nQuestion: {}", passage.text.trim(), asked.question.trim());
            items.push(Item { question, answer, ..Item::default() });
        }
    }
    filled(file, items)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
