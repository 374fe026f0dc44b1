//! Paths to a value in JSON: `$.rooms[0].area`, `$['a b']`. Other parts of JSONPath are not supported.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
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
        let steps = || {
            let mut steps = Vec::new();
            let mut rest = text.strip_prefix('$')?;
            while !rest.is_empty() {
                let (step, left) = first_step(rest)?;
                steps.push(step);
                rest = left;
            }
            Some(steps)
        };
        let steps = steps().ok_or_else(|| NoPath(text.to_owned()))?;
        Ok(Self { text: text.to_owned(), steps })
    }
}

/// Returns the first step and the text after it.
fn first_step(text: &str) -> Option<(Step, &str)> {
    if let Some(name) = text.strip_prefix('.') {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        return (end > 0).then(|| (Step::Name(name[..end].to_owned()), &name[end..]));
    }
    if let Some(quoted) = text.strip_prefix("['") {
        let (name, rest) = quoted.split_once("']")?;
        return Some((Step::Name(name.replace("\\'", "'").replace("\\\\", "\\")), rest));
    }
    let (index, rest) = text.strip_prefix('[')?.split_once(']')?;
    Some((Step::Index(index.parse().ok()?), rest))
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl JsonPath {
    /// The name of the first step, and the path after it.
    pub fn split_first(&self) -> Option<(&str, Self)> {
        match self.steps.split_first()? {
            (Step::Name(name), rest) => Some((name, Self { text: self.text.clone(), steps: rest.to_vec() })),
            (Step::Index(_), _) => None,
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
        for text in ["price", "$price", "$.", "$[x]", "$[0", "$.a..b"] {
            assert!(text.parse::<JsonPath>().is_err(), "{text}");
        }
    }
}
