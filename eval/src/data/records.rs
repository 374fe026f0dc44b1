//! Records with named fields: JSON lines and CSV. Files that end in `.gz` are unpacked on the way.

use std::io::Read;
use std::path::{Path, PathBuf};

use csv::{ErrorKind, ReaderBuilder};
use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::DataError;
use super::read::{lines, parse, text};
use crate::format::shortened;

/// One item of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    file: PathBuf,
    line: usize,
    /// Texts as they are; numbers, lists and objects of JSON as JSON. Null is no value.
    fields: IndexMap<String, String>,
    /// The fields that are neither texts nor numbers.
    others: Vec<String>,
}

impl Record {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// # Errors
    /// There is no such field; the error names those that there are.
    pub fn require(&self, name: &str) -> Result<&str, DataError> {
        self.get(name).ok_or_else(|| self.without(name))
    }

    /// As `require`.
    ///
    /// # Errors
    /// The field is empty, or neither a text nor a number.
    pub fn require_answer(&self, name: &str) -> Result<&str, DataError> {
        let answer = self.require(name)?;
        if self.others.iter().any(|other| other == name) {
            let answer = shortened(answer, 60);
            return Err(self.problem(format!("the answer `{answer}` is neither a number nor a text")));
        }
        if answer.trim().is_empty() {
            return Err(self.problem("the answer is empty".to_owned()));
        }
        Ok(answer)
    }

    /// The error that it has no such field.
    pub fn without(&self, name: &str) -> DataError {
        let names = self.fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.problem(format!("there is no field `{name}`; it has {names}"))
    }

    /// An error that names the file and the line.
    pub fn problem(&self, problem: String) -> DataError {
        DataError::Line { file: self.file.clone(), line: self.line, problem }
    }
}

/// The records of a file, CSV if its name says so, else one JSON object a line.
pub fn records(file: &Path) -> Result<Vec<Record>, DataError> {
    let text = text(file)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let name = file.to_string_lossy();
    let is_csv = [".csv", ".csv.gz"].iter().any(|ending| name.ends_with(ending));
    let records = if is_csv { csv_records(file, text)? } else { json_records(file, text)? };
    if records.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(records) }
}

fn json_records(file: &Path, text: &str) -> Result<Vec<Record>, DataError> {
    let record = |(line, text)| {
        let object: Map<String, Value> = parse(file, line, text)?;
        let is_other = |value: &Value| value.is_boolean() || value.is_array() || value.is_object();
        let others =
            object.iter().filter(|(_, value)| is_other(value)).map(|(name, _)| name.clone()).collect();
        let fields = object.into_iter().filter_map(|(name, value)| match value {
            Value::Null => None,
            Value::String(text) => Some((name, text)),
            other => Some((name, other.to_string())),
        });
        Ok(Record { file: file.to_owned(), line, fields: fields.collect(), others })
    };
    lines(text).map(record).collect()
}

fn csv_records(file: &Path, text: &str) -> Result<Vec<Record>, DataError> {
    let failed = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        let problem = match error.kind() {
            ErrorKind::UnequalLengths { expected_len, len, .. } => {
                format!("it has {len} fields, the header {expected_len}")
            }
            _ => error.to_string(),
        };
        DataError::Line { file: file.to_owned(), line, problem }
    };
    if let Some(line) = unclosed_quote(text) {
        let problem = "a quotation mark opens in this record and is never closed".to_owned();
        return Err(DataError::Line { file: file.to_owned(), line, problem });
    }
    let mut reader = ReaderBuilder::new().from_reader(text.as_bytes());
    let header = reader.headers().map_err(failed)?.clone();
    let mut records = Vec::new();
    for found in reader.records() {
        let found = found.map_err(failed)?;
        let line = found.position().map_or(1, |position| position.line() as usize);
        let fields =
            header.iter().zip(&found).map(|(name, value)| (name.trim().to_owned(), value.to_owned()));
        records.push(Record { file: file.to_owned(), line, fields: fields.collect(), others: Vec::new() });
    }
    Ok(records)
}

/// The line of the last record if a quotation mark in it is never closed: the CSV reader then takes the rest of the text for one field.
fn unclosed_quote(text: &str) -> Option<usize> {
    // The appended record is read as a record of its own only where no quotation mark is open.
    let marked = text.as_bytes().chain(b"\n_".as_slice());
    let reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(marked);
    let last = reader.into_byte_records().filter_map(Result::ok).last()?;
    let line = last.position().map_or(1, |position| position.line() as usize);
    (last != vec!["_"]).then_some(line)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(name: &str, contents: &str) -> Result<Vec<Record>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        fs::write(&file, contents).unwrap();
        let shown = format!("{}", folder.path().display());
        records(&file).map_err(|error| error.to_string().replace(&shown, ""))
    }

    #[test]
    fn fields_are_read_alike_from_json_lines_and_csv() {
        let json =
            "{\"text\": \"a, \\\"b\\\"\", \"n\": 1.50, \"no\": null}\n\n{\"text\": \"c\\nd\", \"n\": -2}\n";
        let csv = "\u{feff}text, n\n\"a, \"\"b\"\"\",1.50\n\"c\nd\",-2\n";
        for (name, contents, n) in [("x.jsonl", json, "1.5"), ("x.csv", csv, "1.50")] {
            let records = read(name, contents).unwrap();
            let fields: Vec<_> = records
                .iter()
                .map(|record| (record.get("text").unwrap(), record.get("n").unwrap()))
                .collect();
            assert_eq!(fields, [("a, \"b\"", n), ("c\nd", "-2")], "{name}");
            assert_eq!(records[0].get("no"), None);
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        for (name, contents, said) in [
            ("x.csv", "q,a\n1,2\n3\n", "/x.csv line 3: it has 1 fields, the header 2"),
            (
                "x.csv",
                "q,a\n\"b, 1\n2,3\n",
                "/x.csv line 2: a quotation mark opens in this record and is never closed",
            ),
            ("x.csv", "q,a\n", "/x.csv holds no questions"),
            ("x.jsonl", "{\"q\": 1}\n[]\n", "/x.jsonl line 2: found a list, expected an object"),
        ] {
            assert_eq!(read(name, contents).unwrap_err(), said);
        }
        let records = read("x.csv", "q,a\n1,2\n").unwrap();
        let error = records[0].require("question").unwrap_err().to_string();
        assert!(error.ends_with("x.csv line 2: there is no field `question`; it has q, a"), "{error}");
    }
}
