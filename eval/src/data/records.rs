//! Records with named fields: JSON lines, a JSON array, CSV or TSV. The reader unpacks files that end in
//! `.gz`.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};
use indexmap::IndexMap;
use serde_json::{Map, Value};

use super::DataError;
use super::read::{json_values, parse, text, unusable};

/// One item of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    file: PathBuf,
    line: usize,
    fields: IndexMap<String, Field>,
}

#[derive(Debug, Clone, PartialEq)]
enum Field {
    /// A text as it is, or a number of JSON as JSON.
    Text(String),
    /// A boolean, a list or an object, as JSON.
    Other(String),
    Null,
}

impl Field {
    fn of(value: Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::String(text) => Self::Text(text),
            Value::Number(number) => Self::Text(number.to_string()),
            other => Self::Other(other.to_string()),
        }
    }
}

impl Record {
    /// The line at which the record begins, from 1.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the text of a field, lists and objects as JSON, or `None` if there is no such field or it is
    /// null.
    pub fn get(&self, name: &str) -> Option<&str> {
        match self.fields.get(name)? {
            Field::Text(text) | Field::Other(text) => Some(text),
            Field::Null => None,
        }
    }

    /// Returns a field that has to be a text or a number. `role`: what the field is for the task, such as the
    /// question.
    ///
    /// # Errors
    /// There is no such field, and the error lists the fields that exist; or the field is null, a list, an
    /// object or a boolean.
    pub fn require(&self, name: &str, role: &str) -> Result<&str, DataError> {
        match self.fields.get(name) {
            Some(Field::Text(text)) => Ok(text),
            Some(Field::Other(json)) => Err(self.problem(unusable(role, json))),
            Some(Field::Null) => Err(self.problem(format!("the {role} is null; {SKIP_MISSING}"))),
            None => Err(self.without(name)),
        }
    }

    /// Like [`Self::require`].
    ///
    /// # Errors
    /// As for [`Self::require`], or the field is empty.
    pub fn require_filled(&self, name: &str, role: &str) -> Result<&str, DataError> {
        let text = self.require(name, role)?;
        if text.trim().is_empty() {
            return Err(self.problem(format!("the {role} is empty; {SKIP_MISSING}")));
        }
        Ok(text)
    }

    /// Returns the record with more or other texts.
    #[must_use]
    pub fn with<const N: usize>(&self, texts: [(&str, &str); N]) -> Self {
        let mut record = self.clone();
        for (name, text) in texts {
            record.fields.insert(name.to_owned(), Field::Text(text.to_owned()));
        }
        record
    }

    /// Returns whether there is such a field, which may be null or empty.
    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// Returns whether there is no such field, or whether it is null or empty.
    pub fn is_missing(&self, name: &str) -> bool {
        self.get(name).is_none_or(|text| text.trim().is_empty())
    }

    /// Returns the error that the record has no value for the field `name`.
    pub fn without(&self, name: &str) -> DataError {
        if self.has(name) {
            return self.problem(format!("field `{name}` is null"));
        }
        let names = self.fields.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.problem(format!("there is no field `{name}`; it has {names}"))
    }

    /// Returns an error that names the file and the line.
    pub fn problem(&self, problem: String) -> DataError {
        DataError::Line { file: self.file.clone(), line: self.line, problem }
    }
}

/// The advice for records without a value.
const SKIP_MISSING: &str = "--skip-missing leaves out such items";

/// Reads the records of a file: CSV or TSV if there is a `delimiter` or the name ends in `.csv` or `.tsv`.
/// Otherwise it is JSON, one object per line or objects in one array.
pub fn records(file: &Path, delimiter: Option<u8>) -> Result<Vec<Record>, DataError> {
    let text = text(file)?;
    let name = file.to_string_lossy().to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let delimiter = match delimiter {
        None if name.ends_with(".csv") => Some(delimiter_of(&text, b',')),
        None if name.ends_with(".tsv") => Some(delimiter_of(&text, b'\t')),
        delimiter => delimiter,
    };
    let records = match delimiter {
        Some(delimiter) => separated_records(file, &text, delimiter)?,
        None => json_records(file, &text)?,
    };
    if records.is_empty() { Err(DataError::Empty { file: file.to_owned() }) } else { Ok(records) }
}

/// Returns the delimiter that splits the header: the usual one unless the header would be a single name.
fn delimiter_of(text: &str, usual: u8) -> u8 {
    for delimiter in [usual, b',', b';', b'\t'] {
        let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(text.as_bytes());
        if reader.headers().is_ok_and(|header| header.len() > 1) {
            return delimiter;
        }
    }
    usual
}

/// Counts the lines before ascending positions of a text. The CSV reader's own count is one too small after
/// the line ends of Windows.
struct Lines<'a> {
    text: &'a [u8],
    position: usize,
    line: usize,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        Self { text: text.as_bytes(), position: 0, line: 1 }
    }

    /// Returns the line, from 1, of the record that the reader found at a position: the record begins after
    /// the line ends there.
    fn line(&mut self, position: Option<&Position>) -> usize {
        let position = position.map_or(0, |position| position.byte() as usize);
        while let Some((&byte, rest)) = self.text[self.position..].split_first()
            && (self.position < position || matches!(byte, b'\r' | b'\n'))
        {
            self.position += 1;
            self.line += usize::from(byte == b'\n' || byte == b'\r' && rest.first() != Some(&b'\n'));
        }
        self.line
    }

    /// Returns the error for a record that the reader could not read.
    fn unreadable(&mut self, file: &Path, error: &csv::Error, delimiter: u8) -> DataError {
        let line = self.line(error.position());
        DataError::Line { file: file.to_owned(), line, problem: record_problem(error, delimiter) }
    }
}

fn json_records(file: &Path, text: &str) -> Result<Vec<Record>, DataError> {
    if text.trim_start().starts_with(|first: char| !matches!(first, '{' | '[')) {
        return Err(DataError::NoRecords { file: file.to_owned() });
    }
    let mut records = Vec::new();
    for (line, text) in json_values(file, text)? {
        let object: Map<String, Value> = parse(file, line, text)?;
        let fields = object.into_iter().map(|(name, value)| (name, Field::of(value)));
        records.push(Record { file: file.to_owned(), line, fields: fields.collect() });
    }
    Ok(records)
}

/// Reads records whose fields are separated by `delimiter`, with the names of the fields in the first record.
fn separated_records(file: &Path, text: &str, delimiter: u8) -> Result<Vec<Record>, DataError> {
    let mut lines = Lines::of(text);
    if let Some(line) = unclosed_quote(text, delimiter) {
        let problem = "a quotation mark opens in this record and is never closed".to_owned();
        return Err(DataError::Line { file: file.to_owned(), line, problem });
    }
    let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(text.as_bytes());
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => return Err(lines.unreadable(file, &error, delimiter)),
    };
    if let Some(name) = duplicate(&header) {
        let problem = format!("the header has two fields `{name}`, and a name has to mean one of them");
        let line = lines.line(header.position());
        return Err(DataError::Line { file: file.to_owned(), line, problem });
    }
    let mut records = Vec::new();
    for found in reader.records() {
        let found = found.map_err(|error| lines.unreadable(file, &error, delimiter))?;
        let line = lines.line(found.position());
        let fields = header.iter().zip(&found).filter(|(name, _)| !name.trim().is_empty());
        let fields = fields.map(|(name, value)| (name.trim().to_owned(), Field::Text(value.to_owned())));
        records.push(Record { file: file.to_owned(), line, fields: fields.collect() });
    }
    Ok(records)
}

/// Returns the first name that a header has twice. Spreadsheets write empty names after the last column,
/// which do not count.
fn duplicate(header: &StringRecord) -> Option<&str> {
    let mut names = HashSet::new();
    header.iter().map(str::trim).filter(|name| !name.is_empty()).find(|name| !names.insert(*name))
}

fn record_problem(error: &csv::Error, delimiter: u8) -> String {
    let ErrorKind::UnequalLengths { expected_len, len, .. } = error.kind() else {
        return error.to_string();
    };
    let is_split = delimiter == b',' && len > expected_len;
    let hint =
        "; a text with a comma needs quotation marks, such as \"a, b\", and a decimal a point, such as 1.5";
    format!("it has {len} fields, the header {expected_len}{}", if is_split { hint } else { "" })
}

/// Returns the line of the last record if a quotation mark in it is never closed: the CSV reader then takes
/// the rest of the text for one field.
fn unclosed_quote(text: &str, delimiter: u8) -> Option<usize> {
    // The reader returns the appended record separately only if no quotation mark is open.
    let marked = text.as_bytes().chain(b"\n_".as_slice());
    let mut reader = ReaderBuilder::new();
    let reader = reader.delimiter(delimiter).has_headers(false).flexible(true).from_reader(marked);
    let last = reader.into_byte_records().filter_map(Result::ok).last()?;
    (last != vec!["_"]).then(|| Lines::of(text).line(last.position()))
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
        records(&file, None).map_err(|error| error.to_string().replace(&shown, ""))
    }

    #[test]
    fn fields_are_read_alike_from_every_format() {
        let json =
            "{\"text\": \"a, \\\"b\\\"\", \"n\": 1.50, \"no\": null}\n\n{\"text\": \"c\\nd\", \"n\": -2}\n";
        let csv = "\u{feff}text, n\n\"a, \"\"b\"\"\",1.50\n\"c\nd\",-2\n";
        let tsv = csv.replace(", n", "\tn").replace("\",", "\"\t");
        let array = format!("[{}]", json.replace("}\n\n", "},\n"));
        for (name, contents, n) in [
            ("x.jsonl", json, "1.5"),
            ("x.json", array.as_str(), "1.5"),
            ("x.csv", csv, "1.50"),
            ("X.CSV", csv, "1.50"),
            ("x.tsv", tsv.as_str(), "1.50"),
        ] {
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
            (
                "x.csv",
                "q,a\nx,1,5\n",
                "/x.csv line 2: it has 3 fields, the header 2; a text with a comma needs quotation marks, such as \"a, b\", and a \
                 decimal a point, such as 1.5",
            ),
            ("x.tsv", "q\ta\n1\t2\t3\n", "/x.tsv line 2: it has 3 fields, the header 2"),
            (
                "x.tsv",
                "q\ta\n\"b\t1\n",
                "/x.tsv line 2: a quotation mark opens in this record and is never closed",
            ),
            (
                "x.csv",
                "q,a, q\n1,2,3\n",
                "/x.csv line 1: the header has two fields `q`, and a name has to mean one of them",
            ),
            ("x.csv", "q,a\n", "/x.csv holds no questions"),
            ("x.json", " []", "/x.json holds no questions"),
            ("x.jsonl", "{\"q\": 1}\n[]\n", "/x.jsonl line 2: found a list, expected an object"),
            ("x.json", "[{\"q\": 1},\n\n7]", "/x.json line 3: found the number `7`, expected an object"),
            ("x.json", "[{\"q\": 1},\n {\"q\" 2}]", "/x.json line 2: it is not JSON (column 7)"),
        ] {
            assert_eq!(read(name, contents).unwrap_err(), said);
        }
    }

    #[test]
    fn a_field_that_a_task_needs_is_a_text_or_a_number() {
        let lines = "{\"q\": \"x\", \"a\": 7, \"n\": null, \"o\": {\"b\": [1]}, \"t\": true, \"e\": \" \"}";
        for (name, contents) in [("x.jsonl", format!("\n{lines}")), ("x.json", format!("[\n{lines}]"))] {
            let record = &read(name, &contents).unwrap()[0];
            assert_eq!(
                (record.require("q", "question").unwrap(), record.require("a", "answer").unwrap()),
                ("x", "7")
            );
            for (field, said) in [
                ("n", "line 2: the answer is null; --skip-missing leaves out such items"),
                ("o", "line 2: the answer `{\"b\":[1]}` is neither a number nor a text"),
                ("t", "line 2: the answer `true` is neither a number nor a text"),
                ("x", "line 2: there is no field `x`; it has q, a, n, o, t, e"),
                ("e", "line 2: the answer is empty; --skip-missing leaves out such items"),
            ] {
                let error = record.require_filled(field, "answer").unwrap_err().to_string();
                assert!(error.ends_with(said), "{error}");
            }
            assert_eq!(
                (record.get("o"), record.get("n"), record.require("e", "answer").unwrap()),
                (Some("{\"b\":[1]}"), None, " ")
            );
            assert!(record.without("n").to_string().ends_with("line 2: field `n` is null"));
            let missing = ["q", "n", "o", "x", "e"].map(|field| record.is_missing(field));
            assert_eq!(missing, [false, true, false, true, true]);
        }
    }

    #[test]
    fn lines_are_those_of_an_editor_for_every_kind_of_line_end() {
        let text = "q,a\n\n\"b\nc\",1\n2,3\n";
        for end in ["\n", "\r\n", "\r"] {
            let records = read("x.csv", &text.replace('\n', end)).unwrap();
            let lines: Vec<usize> = records.iter().map(Record::line).collect();
            assert_eq!(lines, [3, 5], "{end:?}");
            let named = |text: &str, line: usize| {
                let message = read("x.csv", &text.replace('\n', end)).unwrap_err();
                assert!(message.starts_with(&format!("/x.csv line {line}: ")), "{end:?}: {message}");
            };
            named(&format!("{text}4\n"), 6);
            named(&format!("{text}5,\"6\n"), 6);
            named("\nq,q\n1,2\n", 2);
            let arrays = "[\n{\"q\": 1},\n7]".replace('\n', if end == "\r" { "\n" } else { end });
            let message = read("x.json", &arrays).unwrap_err();
            assert!(message.starts_with("/x.json line 3: "), "{message}");
        }
    }

    #[test]
    fn the_header_shows_the_delimiter_unless_it_is_given() {
        for (name, contents) in [
            ("x.csv", "q;a\n\"b;c\";1,5\n"),
            ("x.csv", "q\ta\nb;c\t1,5\n"),
            ("x.tsv", "q;a\n\"b;c\";1,5\n"),
            ("x.csv", "q,a\nb;c,\"1,5\"\n"),
            ("x.csv", "\"q\";\"a\"\r\n\"b;c\";\"1,5\"\r\n"),
        ] {
            let record = &read(name, contents).unwrap()[0];
            assert_eq!((record.get("q"), record.get("a")), (Some("b;c"), Some("1,5")), "{contents}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.txt");
        fs::write(&file, "q,r|a\nb|1\n").unwrap();
        let record = &records(&file, Some(b'|')).unwrap()[0];
        assert_eq!((record.get("q,r"), record.get("a")), (Some("b"), Some("1")));
    }

    #[test]
    fn a_text_in_another_format_gets_a_list_of_the_formats() {
        for text in ["1 + 1\n2\n", "q,a\n1,2\n", "<html>"] {
            let message = read("x.txt", text).unwrap_err();
            assert!(message.starts_with("/x.txt holds neither JSON lines nor a JSON array; "), "{message}");
        }
        assert_eq!(read("x.txt", "\n").unwrap_err(), "/x.txt holds no questions");
    }

    #[test]
    fn columns_without_a_name_are_left_out() {
        let record = &read("x.csv", "q,,\n1,2,3\n").unwrap()[0];
        assert!(record.without("a").to_string().ends_with("there is no field `a`; it has q"));
    }
}
