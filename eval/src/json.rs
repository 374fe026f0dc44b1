//! Describes errors in JSON texts in JSON's terms, because serde's messages name Rust types.

use serde_json::error::Category;

/// Returns a fragment such as ``missing field `question` `` or `found a list, expected an object`.
pub fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if error.classify() != Category::Data {
        // The first line is often a line of a file, which the caller names.
        let line = Some(error.line()).filter(|line| *line > 1).map(|line| format!("line {line}, "));
        return syntax_problem(error, &line.unwrap_or_default());
    }
    let text = text.replace("invalid type: ", "found ").replace("invalid value: ", "found ");
    // Every other part is text from the data, in quotation marks.
    let parts = text.split('"').enumerate();
    let parts = parts.map(|(index, part)| if index % 2 == 0 { plain(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("\"")
}

/// Like [`problem`], for a line of a longer text: the caller names the line of the error.
pub fn problem_in_line(error: &serde_json::Error) -> String {
    if error.classify() == Category::Data { problem(error) } else { syntax_problem(error, "") }
}

fn syntax_problem(error: &serde_json::Error, line: &str) -> String {
    let is_number = error.to_string().starts_with("number out of range");
    let problem = if is_number { "a number is out of range" } else { "it is not JSON" };
    format!("{problem} ({line}column {})", error.column())
}

/// Serde's phrases and their replacements in JSON's terms. Longer phrases come before the phrases that they
/// contain.
const PHRASES: [(&str, &str); 17] = [
    ("floating point ", "the number "),
    ("integer ", "the number "),
    ("boolean ", ""),
    ("found string ", "found the text "),
    ("found map", "found an object"),
    ("found sequence", "found a list"),
    ("expected a string", "expected a text"),
    ("expected a map", "expected an object"),
    ("expected a sequence", "expected a list"),
    ("expected a boolean", "expected true or false"),
    ("expected f64", "expected a number"),
    ("expected u8", "expected a whole number"),
    ("expected u32", "expected a whole number"),
    ("expected u64", "expected a whole number"),
    ("expected usize", "expected a whole number"),
    ("expected i64", "expected a whole number"),
    ("expected unit", "expected null"),
];

fn plain(part: &str) -> String {
    let mut text = PHRASES.iter().fold(part.to_owned(), |text, (from, to)| text.replace(from, to));
    if let Some((before, _)) = text.split_once("expected struct ") {
        text = format!("{before}expected an object");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[expect(dead_code, reason = "only errors are looked at")]
        inner: Inner,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are looked at")]
    struct Inner {
        text: String,
        number: f64,
        ids: Vec<u32>,
    }

    #[test]
    fn problems_name_fields_and_json_types_instead_of_rust_types() {
        for (text, want) in [
            ("{}", "missing field `inner`"),
            ("7", "found the number `7`, expected an object"),
            ("\"f64\"", "found the text \"f64\", expected an object"),
            ("{\"inner\": null}", "found null, expected an object"),
            ("{\"inner\": {\"text\": 1}}", "found the number `1`, expected a text"),
            ("{\"inner\": {\"number\": \"u8\"}}", "found the text \"u8\", expected a number"),
            ("{\"inner\": {\"number\": [1]}}", "found a list, expected a number"),
            ("{\"inner\": {\"ids\": {}}}", "found an object, expected a list"),
            ("{\"inner\": {\"ids\": [-1]}}", "found the number `-1`, expected a whole number"),
            ("{\"inner\": {\"ids\": true}}", "found `true`, expected a list"),
            ("{\"inner\": ", "it is not JSON (column 10)"),
            ("{\"inner\": {\"number\": 1e999}}", "a number is out of range (column 26)"),
            ("{\"inner\": NaN}", "it is not JSON (column 11)"),
            ("{\n\"inner\": NaN}", "it is not JSON (line 2, column 10)"),
        ] {
            let error = serde_json::from_str::<Outer>(text).unwrap_err();
            assert_eq!(problem(&error), want, "{text}");
        }
    }
}
