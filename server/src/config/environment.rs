//! The environment of the program, as far as clap does not read it: old names of variables, and which
//! variable an error is about.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, CommandFactory, ValueEnum};

use super::args::Args;
use crate::telemetry::LogFormat;

const PREFIX: &str = "NTL_";

/// The environment variables whose names begin with `NTL_`.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut values = BTreeMap::new();
        for (name, value) in variables {
            if let Ok(name) = name.into_string()
                && name.starts_with(PREFIX)
            {
                values.insert(name, value);
            }
        }
        Self(values)
    }

    /// Returns the values of variables with old names as flags, unless the command line or a variable with
    /// the new name sets them.
    pub(super) fn old_names(&self, matches: &ArgMatches) -> Vec<OsString> {
        let mut flags = Vec::new();
        for argument in Args::command().get_arguments() {
            let is_set = matches!(
                matches.value_source(argument.get_id().as_str()),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            );
            if let (Some(long), Some(value), false) = (argument.get_long(), self.old_value(argument), is_set)
            {
                let mut flag = OsString::from(format!("--{long}="));
                flag.push(value);
                flags.push(flag);
            }
        }
        flags
    }

    fn old_value(&self, argument: &Arg) -> Option<&OsStr> {
        let names = argument.get_all_aliases().unwrap_or_default();
        names.into_iter().find_map(|name| self.0.get(&variable(name))).map(OsString::as_os_str)
    }

    /// Names the environment variable in an error about a value that comes from it and not from the command
    /// line.
    pub(super) fn blame(&self, mut error: clap::Error, line: &[OsString]) -> clap::Error {
        let Some(ContextValue::String(subject)) = error.get(ContextKind::InvalidArg).cloned() else {
            return error;
        };
        // Such as `--port <PORT>`.
        let flag = subject.split([' ', '=']).next().and_then(|word| word.strip_prefix("--"));
        let command = Args::command();
        let Some(argument) = command.get_arguments().find(|argument| argument.get_long() == flag) else {
            return error;
        };
        let names: Vec<&str> =
            argument.get_long().into_iter().chain(argument.get_all_aliases().unwrap_or_default()).collect();
        let variable = names.iter().map(|name| variable(name)).find(|name| self.0.contains_key(name));
        if let (Some(variable), false) = (variable, names.iter().any(|name| is_typed(name, line))) {
            let subject = format!("{variable}' in the environment, for '{subject}");
            error.insert(ContextKind::InvalidArg, ContextValue::String(subject));
        }
        error
    }

    /// Returns a note on the variables that set the flags which a message names, or an empty text.
    pub fn note(&self, message: &str, line: &[OsString]) -> String {
        for word in message.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let name = variable(flag);
            if !is_typed(flag, line) && self.0.contains_key(&name) {
                return format!(" (the environment variable {name} is set)");
            }
        }
        String::new()
    }
}

/// Returns the environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// Returns whether a command line has a flag.
fn is_typed(flag: &str, line: &[OsString]) -> bool {
    typed_value(flag, line).is_some()
}

/// Returns the text after `--flag=`, or the word after `--flag`.
fn typed_value<'a>(flag: &str, line: &'a [OsString]) -> Option<&'a str> {
    let mut words = line.iter().map(|word| word.to_str().unwrap_or_default());
    while let Some(word) = words.next() {
        let Some(rest) = word.strip_prefix("--").and_then(|name| name.strip_prefix(flag)) else { continue };
        if rest.is_empty() {
            return Some(words.next().unwrap_or_default());
        }
        if let Some(value) = rest.strip_prefix('=') {
            return Some(value);
        }
    }
    None
}

/// Returns the log format of a command line that may be invalid, so that its error has this format.
pub fn log_format(line: &[OsString], environment: &Environment) -> LogFormat {
    let flag = "log-format";
    let name = typed_value(flag, line).or_else(|| environment.0.get(&variable(flag))?.to_str());
    name.and_then(|name| LogFormat::from_str(name, false).ok()).unwrap_or(LogFormat::Compact)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        Environment::new(variables.iter().map(|&(name, value)| (name.into(), value.into())))
    }

    fn line(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_note_names_the_variable_unless_the_flag_is_typed() {
        let environment = environment(&[("NTL_THREADS", "9"), ("HOME", "/")]);
        let note = |words: &[&str]| environment.note("--threads 9 is too many", &line(words));
        assert_eq!(note(&["ntl-server"]), " (the environment variable NTL_THREADS is set)");
        for typed in [&["ntl-server", "--threads", "9"][..], &["ntl-server", "--threads=9"]] {
            assert_eq!(note(typed), "", "{typed:?}");
        }
        assert_eq!(environment.note("--port is taken", &[]), "");
    }

    #[test]
    fn the_log_format_is_read_from_lines_that_are_invalid() {
        let set = environment(&[("NTL_LOG_FORMAT", "json")]);
        for (words, format) in [
            (&["x", "--wrong", "--log-format", "json"][..], LogFormat::Json),
            (&["x", "--log-format=json"], LogFormat::Json),
            (&["x", "--log-format=xml"], LogFormat::Compact),
            (&["x", "--log-format"], LogFormat::Compact),
            (&["x"], LogFormat::Compact),
        ] {
            assert_eq!(log_format(&line(words), &Environment::default()), format, "{words:?}");
        }
        assert_eq!(log_format(&line(&["x"]), &set), LogFormat::Json);
        assert_eq!(log_format(&line(&["x", "--log-format=compact"]), &set), LogFormat::Compact);
    }
}
