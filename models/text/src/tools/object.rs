//! Reads the JSON object of a call as it is written, one byte once.

use serde_json::{Map, Value};

/// How far an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Unfinished,
    /// It ends before this byte.
    Ended(usize),
    /// No JSON continues with this byte.
    Invalid(usize),
}

/// The scan of an object that begins at the first byte of a growing text.
#[derive(Debug, Default)]
pub(super) struct ObjectScan {
    scanned: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// The first object within the object.
    inner: Option<Inner>,
}

/// A range of bytes whose end may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inner {
    pub(super) start: usize,
    pub(super) end: Option<usize>,
}

impl ObjectScan {
    /// Scans the new bytes of `text`.
    pub(super) fn advance(&mut self, text: &str) -> Progress {
        for (at, &byte) in text.as_bytes().iter().enumerate().skip(self.scanned) {
            self.scanned = at + 1;
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    if byte == b'{' && self.depth == 1 && self.inner.is_none() {
                        self.inner = Some(Inner { start: at, end: None });
                    }
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth -= 1;
                    if let (1, Some(Inner { end: end @ None, .. })) = (self.depth, &mut self.inner) {
                        *end = Some(at + 1);
                    }
                    if self.depth == 0 {
                        return Progress::Ended(at + 1);
                    }
                }
                // Outside of strings, JSON has only numbers, three words and punctuation.
                b'a'..=b'z' | b'0'..=b'9' | b'E' | b'+' | b'-' | b'.' | b',' | b':' => {}
                _ if byte.is_ascii_whitespace() => {}
                _ => return Progress::Invalid(at),
            }
        }
        Progress::Unfinished
    }

    pub(super) fn inner(&self) -> Option<Inner> {
        self.inner
    }
}

/// The name of a call and its arguments as JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) arguments: String,
}

impl Call {
    /// Reads a whole object. The arguments stay as the model wrote them, if they are the first object in it.
    pub(super) fn read(object: &str, inner: Option<Inner>) -> Option<Self> {
        let (name, arguments) = name_and_arguments(object)?;
        let written = inner.and_then(|Inner { start, end }| object.get(start..end?));
        let arguments = match arguments {
            Value::Null => "{}".to_owned(),
            // Some models quote the JSON.
            Value::String(text) => {
                serde_json::from_str::<Map<String, Value>>(&text).ok()?;
                text
            }
            Value::Object(fields) => {
                let written = written.filter(|text| {
                    serde_json::from_str::<Map<String, Value>>(text).is_ok_and(|written| written == fields)
                });
                written.map_or_else(|| Value::Object(fields).to_string(), str::to_owned)
            }
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => return None,
        };
        Some(Self { name, arguments })
    }

    /// Reads the name from the beginning of an object, up to the arguments.
    pub(super) fn name_before_arguments(beginning: &str) -> Option<String> {
        let (name, arguments) = name_and_arguments(&format!("{beginning}{{}}}}"))?;
        (!arguments.is_null()).then_some(name)
    }
}

/// The arguments are null if there are none.
fn name_and_arguments(object: &str) -> Option<(String, Value)> {
    let mut fields: Map<String, Value> = serde_json::from_str(object).ok()?;
    let Value::String(name) = fields.remove("name")? else { return None };
    let arguments = fields.remove("arguments").or_else(|| fields.remove("parameters"));
    Some((name, arguments.unwrap_or_default()))
}
