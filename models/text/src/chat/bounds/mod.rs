//! Bounds of a chat template, which is an untrusted program from a checkpoint.
//!
//! In: a template's source. Out: its text, or an error, within [`FUEL`] instructions and the memory and time
//! limits of [`budget`].
//!
//! minijinja's fuel counts instructions, but one instruction may double a text or compare two lists of
//! millions. So [`program`] replaces instructions: those that create a value call a function of [`calls`],
//! and the time is checked before those that may take long. The functions, filters, tests and methods of
//! [`calls`] compute the size of a result before they create it. Every value stays small enough to be
//! displayed, compared and dropped.
//!
//! If minijinja would panic, the template is rejected.

mod budget;
mod calls;
mod constants;
mod program;
mod slice;

use std::panic::{AssertUnwindSafe, catch_unwind};

use minijinja::machinery::{Vm, make_string_output};
use minijinja::{AutoEscape, Environment, Error, Value};

pub(super) use budget::{ChargedBytes, display_text, limit_error};

/// Maximum number of instructions in a rendering, including those that check the time. A conversation of a
/// thousand messages needs about 100,000.
const FUEL: u64 = 2_000_000;

/// Maximum size of a template's output, in bytes.
const OUTPUT_BYTES_MAX: usize = 16 << 20;

/// Sets the bounds of an environment. Its own filters must be added before.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    calls::add_to(environment);
    environment.set_formatter(budget::format);
    environment.set_fuel(Some(FUEL));
}

/// Rejects a template that does not parse, or that needs too much stack, memory or time to compile.
pub(super) fn check(source: &str) -> Result<(), Error> {
    guarded(|| program::check(source))
}

/// Renders a template that [`check`] has accepted with these variables.
pub(super) fn render(environment: &Environment<'_>, source: &str, variables: Value) -> Result<String, Error> {
    let text = guarded(|| {
        let (instructions, blocks) = program::compile(source)?;
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        Vm::new(environment).eval(&instructions, variables, &blocks, &mut out, AutoEscape::None)?;
        Ok(text)
    })?;
    if text.len() > OUTPUT_BYTES_MAX {
        return Err(limit_error(format!("its text has more than {OUTPUT_BYTES_MAX} bytes")));
    }
    Ok(text)
}

/// Returns the result of `call`, or an error if minijinja panics: it divides by the number of arguments of
/// `loop.cycle()`, and splits the key of `'%(é)s'|format({})` within a character.
fn guarded<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(limit_error("minijinja panicked")))
}

#[cfg(test)]
mod tests;
