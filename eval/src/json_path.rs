//! Paths to a value in JSON: `$.rooms[0].area`, `$['a b']`. Other parts of JSONPath are not supported.
//!
//! In: any spelling of a path. Out: the spelling that ntl-server uses, so that paths can be compared as
//! texts.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    /// As ntl-server writes the path, without regard to how it was given.
    text: String,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Name(String),
    Index(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a path such as $.price, $.rooms[0].area or $['a b']")]
pub struct NoPath(String);

impl FromStr for JsonPath {
    type Err = NoPath;

    fn from_str(text: &str) -> Result<Self, NoPath> {
        let steps = steps(text).ok_or_else(|| NoPath(text.to_owned()))?;
        let text = format!("${}", steps.iter().map(ToString::to_string).collect::<String>());
        Ok(Self { text, steps })
    }
}

fn steps(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = text.trim().strip_prefix('$')?;
    while !rest.is_empty() {
        let (step, left) = first_step(rest)?;
        steps.push(step);
        rest = left;
    }
    Some(steps)
}

/// Returns the first step and the text after it.
fn first_step(text: &str) -> Option<(Step, &str)> {
    if let Some(name) = text.strip_prefix('.') {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        return (end > 0).then(|| (Step::Name(name[..end].to_owned()), &name[end..]));
    }
    let inner = text.strip_prefix('[')?.trim_start();
    if let Some(quote @ ('\'' | '"')) = inner.chars().next() {
        let (name, rest) = quoted_name(&inner[1..], quote)?;
        return Some((Step::Name(name), rest.trim_start().strip_prefix(']')?));
    }
    let (index, rest) = inner.split_once(']')?;
    let index = index.trim_end();
    if !index.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some((Step::Index(index.parse().ok()?), rest))
}

/// Returns the name that `quote` ends, with the escape sequences of JSON and `\'`, and the text after it.
fn quoted_name(text: &str, quote: char) -> Option<(String, &str)> {
    let mut json = "\"".to_owned();
    let mut characters = text.char_indices();
    loop {
        match characters.next()? {
            (end, character) if character == quote => {
                json.push('"');
                let name = serde_json::from_str(&json).ok()?;
                return Some((name, &text[end + quote.len_utf8()..]));
            }
            (_, '\\') => match characters.next()?.1 {
                '\'' => json.push('\''),
                escaped => json.extend(['\\', escaped]),
            },
            (_, '"') => json.push_str("\\\""),
            (_, character) => json.push(character),
        }
    }
}

/// The form of ntl-server: names that are not words are in quotation marks.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Index(index) => return write!(f, "[{index}]"),
            Self::Name(name) => name,
        };
        let is_plain = name.chars().all(|character| character.is_alphanumeric() || character == '_');
        if is_plain && name.starts_with(|first: char| first.is_alphabetic() || first == '_') {
            return write!(f, ".{name}");
        }
        write!(f, "['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonPath {
    /// The name of the first step, and the path after it.
    pub fn split_first(&self) -> Option<(&str, Self)> {
        let name = self.first_name()?;
        Some((name, Self { text: self.text.clone(), steps: self.steps[1..].to_vec() }))
    }

    /// The name of the first step.
    pub fn first_name(&self) -> Option<&str> {
        match self.steps.first()? {
            Step::Name(name) => Some(name),
            Step::Index(_) => None,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the value at the path.
    pub fn find<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.steps.iter().try_fold(value, |value, step| match step {
            Step::Name(name) => value.get(name),
            Step::Index(index) => value.get(index),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_to_a_value_or_to_nothing() {
        let value = json!({"price": 5, "rooms": [{"area": 9}], "a b": {"it's": 3}});
        for (path, want) in [
            ("$.price", Some(json!(5))),
            ("$.rooms[0].area", Some(json!(9))),
            ("$['a b']['it\\'s']", Some(json!(3))),
            ("$.rooms[1]", None),
            ("$.price.x", None),
            ("$", Some(value.clone())),
        ] {
            let path: JsonPath = path.parse().unwrap();
            assert_eq!(path.find(&value), want.as_ref(), "{path}");
        }
        for text in ["price", "$price", "$.", "$[x]", "$[0", "$.a..b", "$[+1]", "$['a]", "$['a'", "$['\\d']"]
        {
            assert!(text.parse::<JsonPath>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_spelling_of_a_path_becomes_the_one_of_the_server() {
        for (spelling, want) in [
            ("$['price']", "$.price"),
            ("$[\"price\"]", "$.price"),
            (" $.price", "$.price"),
            ("$.unit-price", "$['unit-price']"),
            ("$[ 'rooms' ][ 00 ].area", "$.rooms[0].area"),
            ("$.größe", "$.größe"),
            ("$['\\u0061']", "$.a"),
            ("$.1st", "$['1st']"),
            ("$['']", "$['']"),
            ("$['it\\'s']", "$['it\\'s']"),
            ("$[\"it's\"]", "$['it\\'s']"),
            ("$['a\"b']", "$['a\"b']"),
            ("$['a\\\\b']", "$['a\\\\b']"),
            ("$['a']']", ""),
            ("$['x]y'][\"p']\"]", "$['x]y']['p\\']']"),
        ] {
            let found = spelling.parse::<JsonPath>().map_or_else(|_| String::new(), |path| path.to_string());
            assert_eq!(found, want, "{spelling}");
        }
    }
}
