//! Bounds of a chat template, which is a program from a file that is not trusted.
//!
//! In: a template's source. Out: its text, or an error, within [`FUEL`] instructions and the memory and time of a
//! [`budget`].
//!
//! Jinja's own fuel counts instructions, but one instruction may double a text or compare two lists of millions. So
//! [`program`] changes the instructions: what makes a value calls a function of [`calls`], and the clock is read before
//! what may take long. The functions, filters, tests and methods there know the size of a result before they make it, and
//! keep every value small enough to be shown, compared and dropped.

mod budget;
mod calls;
mod constants;
mod program;

use minijinja::machinery::{Vm, make_string_output};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

pub(super) use budget::{ChargedBytes, shown};
pub(super) use program::compile;

/// Most instructions of a rendering, those that read the clock included: a conversation of a thousand messages takes some
/// 100,000.
const FUEL: u64 = 2_000_000;

/// Most bytes of a template's text.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Sets the bounds of an environment, once its own filters are added.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    calls::add_to(environment);
    environment.set_formatter(budget::format);
    environment.set_fuel(Some(FUEL));
}

/// Compiles a template and renders it with these variables.
pub(super) fn render(environment: &Environment<'_>, source: &str, variables: Value) -> Result<String, Error> {
    let (instructions, blocks) = compile(source)?;
    let mut text = String::new();
    let mut out = make_string_output(&mut text);
    Vm::new(environment).eval(&instructions, variables, &blocks, &mut out, AutoEscape::None)?;
    if text.len() > OUTPUT_BYTES_MAX {
        let reason = format!("its text has more than {OUTPUT_BYTES_MAX} bytes");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
