//! Readers of the original file formats. Files that end in `.gz` are unpacked on the way.
//!
//! In: a file. Out: its items, in order; or an error that names the file and the line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;

use super::{DataError, Item};
use crate::format::shortened;
use crate::json;

/// What answers of a data set are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// A number as a whole.
    Number,
    /// A text with a number behind its last `#### `.
    AfterHashes,
    /// A number, a fraction, or a text without a truth.
    Maybe,
    /// As `Maybe`; numbers may be written as people do, `-$1,234.50`.
    Written,
    Text,
}

impl Truth {
    /// `None` where an answer must have a value and has none.
    pub fn of(self, answer: &str) -> Option<Option<f64>> {
        let finite = |text: &str| text.trim().parse().ok().filter(|value: &f64| value.is_finite());
        match self {
            Self::Number => finite(answer).map(Some),
            Self::AfterHashes => {
                let (_, last) = answer.rsplit_once("#### ")?;
                finite(&last.replace([',', '$'], "")).map(Some)
            }
            Self::Maybe => Some(finite(answer).or_else(|| fraction(answer))),
            Self::Written => {
                Some(finite(answer).or_else(|| fraction(answer)).or_else(|| finite(&plain(answer)?)))
            }
            Self::Text => Some(None),
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

/// A number without its dollar sign and the commas between groups of three digits; `None` where the text is anything else.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, size) = text.strip_prefix('-').map_or(("", text), |size| ("-", size));
    let size = size.strip_prefix('$').unwrap_or(size);
    let (whole, fraction) = size.split_once('.').map_or((size, None), |(whole, part)| (whole, Some(part)));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut groups = whole.split(',');
    let first = groups.next()?;
    let is_grouped = first.len() <= 3 && groups.clone().all(|group| group.len() == 3 && is_digits(group));
    let is_whole = is_digits(first) && (is_grouped || groups.next().is_none());
    (is_whole && fraction.is_none_or(is_digits)).then(|| format!("{sign}{}", size.replace(',', "")))
}

fn item(file: &Path, line: usize, question: &str, answer: &str, truth: Truth) -> Result<Item, DataError> {
    let value = truth.of(answer).ok_or_else(|| {
        let lack =
            if truth == Truth::AfterHashes { "has no number behind `#### `" } else { "is not a number" };
        let problem = format!("the answer {:?} {lack}", shortened(answer, 60));
        DataError::Line { file: file.to_owned(), line, problem }
    })?;
    Ok(Item { question: question.to_owned(), answer: answer.to_owned(), truth: value, ..Item::default() })
}

/// Largest text that is read. The largest test set of the tasks takes 20 MB.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// The first line of the small text that Git leaves in place of a large file.
const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/";

/// The text of a file, unpacked.
pub fn text(file: &Path) -> Result<String, DataError> {
    text_within(file, TEXT_BYTES_MAX)
}

fn text_within(file: &Path, bytes_max: u64) -> Result<String, DataError> {
    let own = || file.to_owned();
    if file.is_dir() {
        return Err(DataError::IsFolder { file: own() });
    }
    let packed = file.extension().is_some_and(|extension| extension == "gz");
    let read = || -> io::Result<Vec<u8>> {
        let opened = File::open(file)?;
        let mut bytes = Vec::new();
        // One byte more tells a text that is too large from one that just fits.
        if packed && !starts_as_pointer(file)? {
            MultiGzDecoder::new(opened).take(bytes_max + 1).read_to_end(&mut bytes)?;
        } else {
            opened.take(bytes_max + 1).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    };
    let failed = |source| DataError::Read { file: own(), source };
    let bytes = read().map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(DataError::TooLarge { file: own(), bytes_max, packed });
    }
    if bytes.starts_with(LFS_POINTER.as_bytes()) {
        return Err(DataError::LfsPointer { file: own() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes()[..error.utf8_error().valid_up_to()].iter();
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        DataError::Line { file: own(), line, problem: "it is not UTF-8 text".to_owned() }
    })
}

/// Whether a file that should be packed is a pointer of Git LFS.
fn starts_as_pointer(file: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(file)?.take(LFS_POINTER.len() as u64).read_to_end(&mut start)?;
    Ok(start == LFS_POINTER.as_bytes())
}

fn non_empty(file: &Path, items: Vec<Item>) -> Result<Vec<Item>, DataError> {
    if items.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(items) }
}

/// A question and its answer on alternating lines, as DeepMind's mathematics dataset has them.
pub fn pairs(file: &Path, truth: Truth) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    if text.starts_with("{\"") {
        return Err(DataError::NotPairs { file: file.to_owned() });
    }
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim).collect();
    let (pairs, []) = lines.as_chunks::<2>() else {
        return Err(DataError::OddLines { file: file.to_owned(), lines: lines.len() });
    };
    let items = pairs
        .iter()
        .enumerate()
        .map(|(index, [question, answer])| item(file, 2 * index + 2, question, answer, truth));
    non_empty(file, items.collect::<Result<_, _>>()?)
}

/// Lines that are not blank, with their numbers from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n')
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
}

pub(super) fn parse<'a, T: Deserialize<'a>>(file: &Path, line: usize, text: &'a str) -> Result<T, DataError> {
    serde_json::from_str(text).map_err(|error| {
        let problem = json::problem(&error);
        DataError::Line { file: file.to_owned(), line, problem }
    })
}

#[derive(Deserialize)]
struct Question {
    question: String,
    answer: Value,
}

/// One object with `question` and `answer` a line, as GSM8K and the paper's preprocessed files have them.
pub fn questions(file: &Path, truth: Truth) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    let items = lines(&text).map(|(line, text)| {
        let Question { question, answer } = parse(file, line, text)?;
        let answer = answer.as_str().map_or_else(|| answer.to_string(), str::to_owned);
        item(file, line, &question, &answer, truth)
    });
    non_empty(file, items.collect::<Result<_, _>>()?)
}

/// `score<TAB>joke` a line, as rJokes has them.
pub fn scores(file: &Path) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    let items = lines(&text).map(|(line, text)| {
        let (score, joke) = text.trim().split_once('\t').ok_or_else(|| DataError::Line {
            file: file.to_owned(),
            line,
            problem: "expected a score, a tab and a text".to_owned(),
        })?;
        item(file, line, joke, score, Truth::Number)
    });
    non_empty(file, items.collect::<Result<_, _>>()?)
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
/// Answers without labels are an error: the test set has none.
pub fn passages(file: &Path) -> Result<Vec<Item>, DataError> {
    let mut items = Vec::new();
    for (line, text) in lines(&text(file)?) {
        let Passage { passage } = parse(file, line, text)?;
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
    non_empty(file, items)
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
