//! Separates a growing text into ordinary text and calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::format::{CallFormat, Step};
use super::object::{Call, Inner, ObjectScan, Progress};

/// The next part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolPart {
    Text(String),
    /// A call of this function begins.
    Call(String),
    /// More of the arguments of the last call.
    Arguments(String),
}

/// The part of a text that a grammar guides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guidance {
    Nothing,
    /// All calls, which may follow a text.
    Calls,
    /// The whole text, which consists of calls.
    Everything,
}

/// The parser of one text.
pub struct ToolParser {
    format: Box<dyn CallFormat>,
    functions: Arc<[String]>,
    calls_max: usize,
    guidance: Guidance,
    /// The text that no part contains yet.
    rest: String,
    /// Bytes at its beginning that are markup of a call that may follow.
    opening: usize,
    /// The object after the markup, while it is read.
    object: Option<Object>,
    calls: usize,
}

struct Object {
    scan: ObjectScan,
    /// The function, if the object has only the arguments.
    name: Option<String>,
    /// Bytes of the object up to which the arguments are returned, if the call has begun.
    returned: Option<usize>,
}

impl ToolParser {
    pub(super) fn new(
        format: Box<dyn CallFormat>,
        functions: Arc<[String]>,
        calls_max: usize,
        guidance: Guidance,
    ) -> Self {
        let (rest, opening, object, calls) = (String::new(), 0, None, 0);
        Self { format, functions, calls_max, guidance, rest, opening, object, calls }
    }

    /// Adds text and returns the parts that are certain.
    pub fn push(&mut self, text: &str) -> Vec<ToolPart> {
        self.rest.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// Returns the rest. Call once, after the last text.
    pub fn finish(&mut self) -> Vec<ToolPart> {
        let mut parts = Vec::new();
        let has_begun = self.object.take().is_some_and(|object| object.returned.is_some());
        let is_markup = match self.guidance {
            Guidance::Nothing => self.calls > 0 && self.format.ends_in_markup(&self.rest),
            // Only further calls follow a call, and the last one may have no arguments yet.
            Guidance::Calls => self.calls > 0,
            Guidance::Everything => true,
        };
        if !has_begun && !is_markup {
            self.take_text(self.rest.len(), &mut parts);
        }
        parts
    }

    /// Returns `false` if it needs more text.
    fn advance(&mut self, parts: &mut Vec<ToolPart>) -> bool {
        if let Some(object) = self.object.take() {
            return self.read(object, parts);
        }
        match self.format.step(&self.rest[self.opening..]) {
            Step::Wait => return false,
            Step::Text(bytes) => self.take_text(self.opening + bytes, parts),
            Step::Opening(bytes) => self.opening += bytes,
            Step::Closing(bytes) => drop(self.rest.drain(..bytes)),
            Step::Call(bytes) => self.begin(bytes, None),
            Step::Arguments { name_bytes, bytes } => {
                let name = self.rest[self.opening..][..name_bytes].to_owned();
                self.begin(bytes, Some(name));
            }
        }
        true
    }

    fn begin(&mut self, bytes: usize, name: Option<String>) {
        self.opening += bytes;
        self.object = Some(Object { scan: ObjectScan::default(), name, returned: None });
    }

    /// Reads more of an object.
    fn read(&mut self, mut object: Object, parts: &mut Vec<ToolPart>) -> bool {
        let text = &self.rest[self.opening..];
        let progress = object.scan.advance(text);
        if self.guidance != Guidance::Nothing && self.calls < self.calls_max {
            self.return_begun(&mut object, progress, parts);
        }
        let (has_begun, text) = (object.returned.is_some(), &self.rest[self.opening..]);
        match progress {
            Progress::Unfinished => {
                self.object = Some(object);
                return false;
            }
            Progress::Ended(bytes) if has_begun => self.accept(bytes),
            Progress::Ended(bytes) => match object.call(&text[..bytes]) {
                Some(call) if self.functions.contains(&call.name) => {
                    self.accept(bytes);
                    if self.calls <= self.calls_max {
                        parts.push(ToolPart::Call(call.name));
                        parts.push(ToolPart::Arguments(call.arguments));
                    }
                }
                _ => self.reject(bytes, parts),
            },
            Progress::Invalid(at) if has_begun => {
                self.accept(at);
                self.format.reject();
            }
            Progress::Invalid(at) => self.reject(at, parts),
        }
        true
    }

    /// Returns the beginning of a call whose end the grammar guarantees.
    fn return_begun(&self, object: &mut Object, progress: Progress, parts: &mut Vec<ToolPart>) {
        let text = &self.rest[self.opening..];
        let end = match progress {
            Progress::Unfinished => text.len(),
            Progress::Ended(bytes) | Progress::Invalid(bytes) => bytes,
        };
        let arguments = match &object.name {
            Some(_) => Some(Inner { start: 0, end: None }),
            None => object.scan.inner(),
        };
        let Some(Inner { start, end: arguments_end }) = arguments else { return };
        if object.returned.is_none() {
            let name = object.name.clone().or_else(|| Call::name_before_arguments(&text[..start]));
            let Some(name) = name.filter(|name| self.functions.contains(name)) else { return };
            parts.push(ToolPart::Call(name));
            object.returned = Some(start);
        }
        if let Some(returned) = &mut object.returned {
            let end = arguments_end.unwrap_or(end);
            if end > *returned {
                parts.push(ToolPart::Arguments(text[*returned..end].to_owned()));
                *returned = end;
            }
        }
    }

    /// Removes a call, whose object has this many bytes, from the text.
    fn accept(&mut self, bytes: usize) {
        self.rest.drain(..self.opening + bytes);
        self.opening = 0;
        self.calls += 1;
    }

    /// Makes an object of this many bytes ordinary text.
    fn reject(&mut self, bytes: usize, parts: &mut Vec<ToolPart>) {
        self.take_text(self.opening + bytes, parts);
        self.format.reject();
    }

    fn take_text(&mut self, bytes: usize, parts: &mut Vec<ToolPart>) {
        let text: String = self.rest.drain(..bytes).collect();
        self.opening = 0;
        match parts.last_mut() {
            _ if text.is_empty() => {}
            Some(ToolPart::Text(before)) => before.push_str(&text),
            _ => parts.push(ToolPart::Text(text)),
        }
    }
}

impl Object {
    /// The call, if the whole object is one.
    fn call(self, object: &str) -> Option<Call> {
        match self.name {
            None => Call::read(object, self.scan.inner()),
            Some(name) => {
                serde_json::from_str::<Map<String, Value>>(object).ok()?;
                Some(Call { name, arguments: object.to_owned() })
            }
        }
    }
}
