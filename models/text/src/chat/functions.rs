//! Functions that Hugging Face adds to Jinja: `raise_exception`, `strftime_now`, and a `tojson` that writes
//! like Python.

use std::io;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::bounds::{ChargedBytes, display_text, limit_error};

/// Maximum size of a strftime format, in bytes.
const FORMAT_BYTES_MAX: usize = 1_000;

/// The message of `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
}

fn raise_exception(state: &State, message: &Value) -> Result<String, Error> {
    let message = display_text(state, message)?;
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// Returns the local time in the format of Python's `strftime`.
#[expect(clippy::disallowed_methods, reason = "the date in a prompt")]
fn strftime_now(format: &str) -> Result<String, Error> {
    if format.len() > FORMAT_BYTES_MAX {
        return Err(limit_error(format!("a strftime format above {FORMAT_BYTES_MAX} bytes")));
    }
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Writes JSON like Python's `json.dumps` with `ensure_ascii=False`.
fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Templates use the other options of Hugging Face's `tojson` only with their default values.
    let mut bytes = ChargedBytes::new(state);
    let written = match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, OneLine)),
    };
    let text = written.map_err(io::Error::from).and_then(|()| {
        String::from_utf8(bytes.into_vec()).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    });
    text.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// Python's separators for a single line: `, ` and `: `.
pub(super) struct OneLine;

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
