//! Limits of a rendering: the total bytes of all values, the time, and the depth and expanded size of each
//! value.

use std::fmt::{self, Write};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use minijinja::value::{DynObject, Object, ObjectRepr, ValueKind};
use minijinja::{AutoEscape, Error, ErrorKind, Output, State, Value, escape_formatter};
use rustix::time::{ClockId, clock_gettime};

/// Maximum total size of all values that a rendering creates, including the text, in bytes.
const BYTES_MAX: usize = 128 << 20;

/// Maximum computing time of a rendering. An instruction that has started is completed.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum nesting depth of lists and maps, since display, comparison and drop recurse. JSON has at most 128.
const DEPTH_MAX: usize = 200;

/// Approximate size of a list element, in bytes.
pub(super) const ELEMENT_BYTES: usize = 32;

/// Maximum number of bytes that one byte of a text becomes when a list with the text is displayed (`\u{1}`).
const DISPLAY_GROWTH: usize = 5;

/// Maximum number of bytes that one byte of a text becomes when it is escaped.
pub(super) const ESCAPED_GROWTH: usize = 6;

/// The resources that a rendering has used.
#[derive(Debug)]
struct Usage {
    bytes: AtomicUsize,
    /// The computing time of the thread at the beginning.
    began: Duration,
}

impl Object for Usage {}

pub(in super::super) fn limit_error(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

fn too_large() -> Error {
    limit_error(format!("it creates more than {BYTES_MAX} bytes"))
}

/// The computing time of this thread: on a busy machine, no template is rejected because of others.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// Adds to the bytes that a rendering has created, and checks its time.
pub(super) fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    let usage =
        state.get_or_set_temp_object("used", || Usage { bytes: AtomicUsize::new(0), began: thread_time() });
    if thread_time().saturating_sub(usage.began) > TIME_MAX {
        return Err(limit_error(format!("it takes more than {} s", TIME_MAX.as_secs())));
    }
    let created_bytes = usage.bytes.fetch_add(bytes.min(BYTES_MAX), Ordering::Relaxed);
    if created_bytes.saturating_add(bytes) > BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

/// Returns the size of a value in bytes, not counting the contents of its elements.
pub(super) fn size(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(1).saturating_mul(ELEMENT_BYTES),
    }
}

/// Returns the size of a list with one element per list element, or per character of a text, in bytes.
pub(super) fn elements_size(value: &Value) -> usize {
    value.len().unwrap_or(0).saturating_mul(ELEMENT_BYTES)
}

/// Returns the maximum size of a displayed value, in bytes. A part that occurs twice counts twice.
pub(super) fn expanded_size(value: &Value) -> Result<usize, Error> {
    let mut left = BYTES_MAX;
    expand(value, 0, &mut left)?;
    Ok(BYTES_MAX - left)
}

fn expand(value: &Value, depth: usize, left: &mut usize) -> Result<(), Error> {
    let text_bytes = match (value.as_str(), value.as_bytes()) {
        (Some(text), _) => text.len().saturating_mul(DISPLAY_GROWTH),
        (None, Some(bytes)) => bytes.len().saturating_mul(DISPLAY_GROWTH),
        (None, None) => 0,
    };
    *left = left.checked_sub(text_bytes.saturating_add(ELEMENT_BYTES)).ok_or_else(too_large)?;
    let Some(object) = value.as_object() else { return Ok(()) };
    if depth == DEPTH_MAX {
        return Err(limit_error(format!("it nests lists and maps more than {DEPTH_MAX} deep")));
    }
    if depth > 0 {
        refuse_mutable(object)?;
    }
    match object.repr() {
        ObjectRepr::Map => {
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                expand(&key, depth + 1, left)?;
                expand(&value, depth + 1, left)?;
            }
        }
        ObjectRepr::Seq | ObjectRepr::Iterable => {
            for element in object.try_iter().into_iter().flatten() {
                expand(&element, depth + 1, left)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Rejects a namespace or a loop as part of another value: they are mutable, so a template could put one into
/// itself.
pub(super) fn refuse_mutable(object: &DynObject) -> Result<(), Error> {
    // The types are private to minijinja.
    if ["::Namespace", "::Loop"].iter().any(|name| object.type_name().ends_with(name)) {
        return Err(limit_error("a namespace or a loop cannot be part of another value"));
    }
    Ok(())
}

/// Charges the result of an instruction and checks its depth and expanded size. A lazy iterable becomes a
/// list.
pub(super) fn materialized(state: &State, value: Value) -> Result<Value, Error> {
    let value = if value.kind() == ValueKind::Iterable {
        let mut list = Vec::new();
        for element in value.try_iter()? {
            charge(state, ELEMENT_BYTES)?;
            list.push(element);
        }
        Value::from(list)
    } else {
        charge(state, size(&value))?;
        value
    };
    if value.as_object().is_some() {
        expanded_size(&value)?;
    }
    Ok(value)
}

/// A text that charges its growth to the budget.
struct Charged<'a, 'b> {
    state: &'a State<'b, 'b>,
    text: String,
}

impl Write for Charged<'_, '_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        charge(self.state, part.len()).map_err(|_| fmt::Error)?;
        self.text.push_str(part);
        Ok(())
    }
}

/// A byte buffer that charges its growth to the budget.
pub(in super::super) struct ChargedBytes<'a, 'b> {
    state: &'a State<'b, 'b>,
    bytes: Vec<u8>,
}

impl<'a, 'b> ChargedBytes<'a, 'b> {
    pub(in super::super) fn new(state: &'a State<'b, 'b>) -> Self {
        Self { state, bytes: Vec::new() }
    }

    pub(in super::super) fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

impl io::Write for ChargedBytes<'_, '_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        charge(self.state, part.len()).map_err(io::Error::other)?;
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns a value as displayed by `{{ }}`.
pub(in super::super) fn display_text(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        charge(state, text.len())?;
        return Ok(text.to_owned());
    }
    let mut charged = Charged { state, text: String::new() };
    write!(charged, "{value}").map_err(|_| too_large())?;
    Ok(charged.text)
}

/// Writes a value to the text, or to the capture of `{% set %}` or a macro.
pub(super) fn format(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    let bytes = match value.as_str() {
        Some(text) => text.len(),
        None => display_text(state, value)?.len(),
    };
    let growth = if matches!(state.auto_escape(), AutoEscape::None) { 1 } else { ESCAPED_GROWTH };
    charge(state, bytes.saturating_mul(growth))?;
    escape_formatter(out, state, value)
}
