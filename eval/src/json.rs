//! What is wrong with a JSON text, in the words of JSON: serde's name types of this program.

use serde_json::error::Category;

/// A fragment such as ``missing field `question` `` or `found a list, expected an object`.
pub fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    if error.classify() != Category::Data {
        let place = match error.line() {
            // Often a line of a file, which the caller names.
            1 => format!("(column {})", error.column()),
            line => format!("(line {line}, column {})", error.column()),
        };
        let is_number = text == "number out of range";
        return format!("{} {place}", if is_number { "a number is out of range" } else { "it is not JSON" });
    }
    let text = text.replace("invalid type: ", "found ").replace("invalid value: ", "found ");
    // Every other part is the data's own text between quotation marks.
    let parts = text.split('"').enumerate();
    let parts = parts.map(|(index, part)| if index % 2 == 0 { plain(part) } else { part.to_owned() });
    parts.collect::<Vec<_>>().join("\"")
}

/// serde's phrases and those of JSON. Longer ones come before those that they contain.
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
    fn problems_name_fields_and_kinds_of_json_and_no_types() {
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
