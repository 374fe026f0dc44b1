//! Questions with numeric answers, and the two-line text format that the NTL paper keeps them in.
//!
//! In: a file with a question and its answer on alternating lines. Out: [`Item`]s in file order. Invariant: every
//! label is finite.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A question with its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The text that the model sees.
    pub question: String,
    /// The answer as written.
    pub answer: String,
    /// The answer's value.
    pub label: f64,
}

/// Why a data file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Not there, not readable, or not UTF-8.
    #[error("could not read {}", .file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No lines.
    #[error("{} holds no questions", .file.display())]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// A question without an answer.
    #[error("{} has {lines} lines; expected pairs of a question and its answer", .file.display())]
    OddLines {
        /// The file.
        file: PathBuf,
        /// How many there are, blank ones at the end left out.
        lines: usize,
    },
    /// An answer that is no finite number.
    #[error("{} line {line}: the answer {answer:?} is not a number", .file.display())]
    Answer {
        /// The file.
        file: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What stands there.
        answer: String,
    },
}

/// Reads at most `limit` pairs; the whole file is checked all the same.
///
/// # Errors
/// The file cannot be read, is empty, has an odd number of lines, or an answer is not a number.
pub fn read_pairs(file: &Path, limit: usize) -> Result<Vec<Item>, DataError> {
    let text =
        fs::read_to_string(file).map_err(|source| DataError::Read { file: file.to_owned(), source })?;
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim).collect();
    let (pairs, []) = lines.as_chunks::<2>() else {
        return Err(DataError::OddLines { file: file.to_owned(), lines: lines.len() });
    };
    if pairs.is_empty() {
        return Err(DataError::Empty { file: file.to_owned() });
    }
    let mut items = Vec::with_capacity(pairs.len());
    for (index, [question, answer]) in pairs.iter().enumerate() {
        let label = answer.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(|| {
            DataError::Answer { file: file.to_owned(), line: 2 * index + 2, answer: (*answer).to_owned() }
        })?;
        items.push(Item { question: (*question).to_owned(), answer: (*answer).to_owned(), label });
    }
    items.truncate(limit);
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limit: usize) -> Result<Vec<Item>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pairs.txt");
        fs::write(&file, text).unwrap();
        read_pairs(&file, limit)
            .map_err(|error| error.to_string().replace(folder.path().to_str().unwrap(), ""))
    }

    #[test]
    fn lines_are_read_in_pairs() {
        let items = read("What is 1 + 1?\r\n2\n -1 - 1 \n -2 \n\n", usize::MAX).unwrap();
        let rows: Vec<(&str, &str, f64)> =
            items.iter().map(|item| (&*item.question, &*item.answer, item.label)).collect();
        assert_eq!(rows, [("What is 1 + 1?", "2", 2.0), ("-1 - 1", "-2", -2.0)]);
        assert_eq!(read("a\n1\nb\n2\n", 1).unwrap().len(), 1);
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        for (text, message) in [
            ("", "/pairs.txt holds no questions"),
            ("\n \n", "/pairs.txt holds no questions"),
            ("a\n1\nb\n", "/pairs.txt has 3 lines; expected pairs of a question and its answer"),
            ("a\n1\nb\ntwo\n", "/pairs.txt line 4: the answer \"two\" is not a number"),
            ("a\nNaN\n", "/pairs.txt line 2: the answer \"NaN\" is not a number"),
        ] {
            assert_eq!(read(text, 1), Err(message.to_owned()), "{text:?}");
        }
        let error = read_pairs(Path::new("/nowhere/pairs.txt"), 1).unwrap_err();
        assert_eq!(error.to_string(), "could not read /nowhere/pairs.txt");
    }
}
