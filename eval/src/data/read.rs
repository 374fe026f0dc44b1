//! Readers of the original file formats. Files that end in `.gz` are unpacked on the way.
//!
//! In: a file. Out: its items, in order; or an error that names the file and the line.

use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ntl_common::regular_file;
use ntl_core::numbers::parse::{fraction, whole_number, with_decimal_point};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{DataError, Item};
use crate::format::shortened;
use crate::json;

/// How the answers of a data set are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truth {
    /// A number and nothing else, as a person writes it: `-$1,234.50`.
    Number,
    /// A text that ends in `#### ` and a number.
    AfterHashes,
    /// A number, a fraction, or a text without a truth.
    NumberOrText,
    /// A text without a truth, even if it is a number.
    Text,
}

impl Truth {
    /// Returns the value of an answer that has one, or `None` if the answer lacks the value that it must
    /// have.
    pub fn of(self, answer: &str) -> Option<Option<f64>> {
        match self {
            Self::Number | Self::AfterHashes => whole_number(self.number_in(answer)?).map(Some),
            Self::NumberOrText => Some(whole_number(answer).or_else(|| fraction(answer))),
            Self::Text => Some(None),
        }
    }

    /// Returns the part of an answer that holds the number, or `None` if there is no such part.
    fn number_in(self, answer: &str) -> Option<&str> {
        match self {
            Self::AfterHashes => answer.rsplit_once("#### ").map(|(_, last)| last),
            Self::Number | Self::NumberOrText | Self::Text => Some(answer),
        }
    }
}

/// Returns the end of an error about a text that is not a number: an example with a decimal point if the text
/// has a decimal comma.
pub fn decimal_point_hint(text: &str) -> String {
    with_decimal_point(text)
        .map_or_else(String::new, |example| format!("; decimals need a point, such as {example}"))
}

fn item(file: &Path, line: usize, question: &str, answer: &str, truth: Truth) -> Result<Item, DataError> {
    let value = truth.of(answer).ok_or_else(|| {
        let lack =
            if truth == Truth::AfterHashes { "has no number after `#### `" } else { "is not a number" };
        let hint = truth.number_in(answer).map_or_else(String::new, decimal_point_hint);
        let problem = format!("the answer {:?} {lack}{hint}", shortened(answer, 60));
        DataError::Line { file: file.to_owned(), line, problem }
    })?;
    Ok(Item { question: question.to_owned(), answer: answer.to_owned(), truth: value, ..Item::default() })
}

/// Maximum size of a data file, in bytes, after decompression. The largest test set of the tasks has 20 MB.
const TEXT_BYTES_MAX: u64 = 256 << 20;

/// The first line of the small text that Git leaves in place of a large file.
const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/";

/// The first bytes of files that are not text in UTF-8, and what such a file is.
const OTHER_FORMATS: [(&[u8], &str); 6] = [
    (b"PK\x03\x04", "a spreadsheet (.xlsx, .ods) or another ZIP archive: export the table as CSV"),
    (b"\xd0\xcf\x11\xe0", "a spreadsheet (.xls) or another Office file: export the table as CSV"),
    (
        b"PAR1",
        "Parquet, which is not read: convert it to JSON lines, for example with pandas: \
         read_parquet(FILE).to_json(\"data.jsonl\", orient=\"records\", lines=True)",
    ),
    (b"\x1f\x8b", "compressed by gzip, but its name does not end in .gz"),
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
];

const UTF_16: &str = "text in UTF-16: save it as UTF-8, or convert it with `iconv -f UTF-16 -t UTF-8`";

/// Returns what a file is, if it is not text in UTF-8.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, format)) = OTHER_FORMATS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return Some(format);
    }
    // UTF-16 without a mark of its byte order.
    matches!(bytes, [0, 1..=255, ..] | [1..=255, 0, ..]).then_some(UTF_16)
}

/// Returns the text of a file, unpacked, without a byte order mark.
pub fn text(file: &Path) -> Result<String, DataError> {
    text_within(file, TEXT_BYTES_MAX)
}

fn text_within(path: &Path, bytes_max: u64) -> Result<String, DataError> {
    let file = path.to_owned();
    if path.is_dir() {
        return Err(DataError::IsFolder { file });
    }
    let packed = path.extension().is_some_and(|extension| extension == "gz");
    let bytes = match read_unpacked(path, packed, bytes_max) {
        Ok(bytes) => bytes,
        Err(source) => return Err(DataError::Read { file, source }),
    };
    if bytes.len() as u64 > bytes_max {
        return Err(DataError::TooLarge { file, bytes_max, packed });
    }
    if bytes.starts_with(LFS_POINTER.as_bytes()) {
        return Err(DataError::LfsPointer { file });
    }
    if let Some(format) = other_format(&bytes) {
        return Err(DataError::OtherFormat { file, format });
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes()[..error.utf8_error().valid_up_to()].iter();
        let line = before.filter(|byte| **byte == b'\n').count() + 1;
        DataError::Line { file, line, problem: NOT_UTF_8.to_owned() }
    })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.remove(0);
    }
    Ok(text)
}

/// Reads a file up to one byte more than `bytes_max`, which distinguishes a text that is too large from one
/// that just fits. Pointers of Git LFS are not packed, even if their name ends in `.gz`.
fn read_unpacked(file: &Path, packed: bool, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut opened = regular_file::open(file, u64::MAX)?;
    let mut start = Vec::new();
    opened.by_ref().take(LFS_POINTER.len() as u64).read_to_end(&mut start)?;
    let is_pointer = start == LFS_POINTER.as_bytes();
    let whole = start.as_slice().chain(opened);
    let mut bytes = Vec::new();
    if packed && !is_pointer {
        MultiGzDecoder::new(whole).take(bytes_max + 1).read_to_end(&mut bytes)?;
    } else {
        whole.take(bytes_max + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

const NOT_UTF_8: &str = "it is not UTF-8 text; if it is in Latin-1 or Windows-1252, save it as UTF-8, or convert it with \
                         `iconv -f WINDOWS-1252 -t UTF-8`";

const BYTE_ORDER_MARK: char = '\u{feff}';

fn non_empty(file: &Path, items: Vec<Item>) -> Result<Vec<Item>, DataError> {
    if items.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(items) }
}

/// Reads questions and answers on alternating lines, the format of DeepMind's mathematics dataset.
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

/// Returns the lines that are not blank, with their numbers from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n')
        .enumerate()
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
}

/// Returns the JSON values of a text with their lines, from 1: the elements of an array, or one value per
/// line.
pub(super) fn json_values<'a>(file: &Path, text: &'a str) -> Result<Vec<(usize, &'a str)>, DataError> {
    if !text.trim_start().starts_with('[') {
        return Ok(lines(text).collect());
    }
    let elements: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| DataError::Line {
        file: file.to_owned(),
        line: error.line(),
        problem: json::problem_in_line(&error),
    })?;
    let (mut line, mut counted) = (1, 0);
    let mut values = Vec::with_capacity(elements.len());
    for element in elements {
        let start = element.get().as_ptr().addr() - text.as_ptr().addr();
        line += text[counted..start].matches('\n').count();
        counted = start;
        values.push((line, element.get()));
    }
    Ok(values)
}

pub(super) fn parse<'a, T: Deserialize<'a>>(file: &Path, line: usize, text: &'a str) -> Result<T, DataError> {
    serde_json::from_str(text).map_err(|error| {
        let problem = json::problem(&error);
        DataError::Line { file: file.to_owned(), line, problem }
    })
}

#[derive(Deserialize)]
struct Gsm8kLine {
    question: String,
    answer: Value,
}

/// Reads objects with `question` and `answer`, one per line or in one array. GSM8K and the paper's
/// preprocessed files have one per line.
pub fn questions(file: &Path, truth: Truth) -> Result<Vec<Item>, DataError> {
    let text = text(file)?;
    let items = json_values(file, &text)?.into_iter().map(|(line, text)| {
        let Gsm8kLine { question, answer } = parse(file, line, text)?;
        let answer = match answer {
            Value::String(answer) => answer,
            Value::Number(answer) => answer.to_string(),
            other => {
                let problem = unusable("answer", &other.to_string());
                return Err(DataError::Line { file: file.to_owned(), line, problem });
            }
        };
        item(file, line, &question, &answer, truth)
    });
    non_empty(file, items.collect::<Result<_, _>>()?)
}

/// Returns the problem with a field, such as the answer, whose JSON value is neither a text nor a number.
pub(super) fn unusable(role: &str, json: &str) -> String {
    match json {
        "null" => format!("the {role} is null"),
        other => format!("the {role} `{}` is neither a number nor a text", shortened(other, 60)),
    }
}

/// Reads rJokes: `score<TAB>joke` per line.
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

/// Reads SuperGLUE's MultiRC, one item per question, worded as in the paper: the passage, a blank line and
/// `Gsm8kLine: `. The answer joins the texts with label 1 by ` | `. Answers without labels, as in the test
/// set, are an error.
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
