//! `--config FILE`: values of flags from a TOML file, under the names of the flags.
//!
//! A flag overrides its environment variable, that overrides the file, and that overrides the default. The settings of
//! the file that are given nowhere else are added to the command line as flags, so they follow the rules and have the
//! error messages of the flags.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use super::args::Args;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArgsError {
    /// Help, the version, or a wrong flag.
    #[error(transparent)]
    Flags(#[from] clap::Error),
    #[error("cannot read the configuration in `{file}`")]
    Unreadable {
        file: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the configuration in `{file}` is not valid TOML: {message}")]
    NotToml { file: PathBuf, message: String },
    #[error("`{key}` in `{file}` is not a setting; settings have the names of the flags")]
    UnknownKey { file: PathBuf, key: String },
    #[error("`{key}` in `{file}` must be a string, a whole number, true, false or a list of them")]
    UnusableValue { file: PathBuf, key: String },
    #[error("in `{file}`: {message}")]
    WrongValue { file: PathBuf, message: String },
}

impl Args {
    /// Reads a command line (the name of the program first) and the file that it names.
    pub fn read(line: impl IntoIterator<Item = OsString>) -> Result<Self, ArgsError> {
        let mut line: Vec<OsString> = line.into_iter().collect();
        let matches = Self::command().try_get_matches_from(&line).map_err(with_model_tip)?;
        // Subcommands have no settings.
        let file = matches.get_one::<PathBuf>("config").filter(|_| matches.subcommand_name().is_none());
        let Some(file) = file else {
            return Ok(Self::from_arg_matches(&matches)?);
        };
        let flags = flags(file, &matches)?;
        line.splice(line.len().min(1)..line.len().min(1), flags);
        let matches =
            Self::command().try_get_matches_from(line).and_then(|matches| Self::from_arg_matches(&matches));
        matches.map_err(|error| wrong_value(file, &error))
    }
}

/// Says how to name a model, where a folder stands alone on the command line, or behind `serve`.
fn with_model_tip(mut error: clap::Error) -> clap::Error {
    let kinds = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument, ErrorKind::ArgumentConflict];
    let is_word = kinds.contains(&error.kind());
    let word = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg].into_iter().find_map(|kind| {
        match error.get(kind) {
            Some(ContextValue::String(word)) => Some(word.clone()),
            _ => None,
        }
    });
    let is_command = |word: &str| Args::command().find_subcommand(word).is_some();
    let word = word.filter(|word| is_word && !word.starts_with('-') && !is_command(word));
    let Some(word) = word else { return error };
    let folder = if word == "serve" { "DIR" } else { &word };
    let tip = format!("a checkpoint folder is served by a flag: `ntl-server --model {folder}`");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// The settings of a file that neither the command line nor the environment gives, as flags.
fn flags(file: &Path, matches: &ArgMatches) -> Result<Vec<OsString>, ArgsError> {
    let unreadable = |source| ArgsError::Unreadable { file: file.to_owned(), source };
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| ArgsError::NotToml {
        file: file.to_owned(),
        message: error.to_string().trim_end().replace('\n', " "),
    })?;
    let command = Args::command();
    let mut flags = Vec::new();
    for (key, value) in table {
        let is_setting = |arg: &&clap::Arg| arg.get_env().is_some() && arg.get_id() != "config";
        let argument = command.get_arguments().filter(is_setting).find(|arg| arg.get_long() == Some(&key));
        let unknown = || ArgsError::UnknownKey { file: file.to_owned(), key: key.clone() };
        let id = argument.ok_or_else(unknown)?.get_id().as_str();
        let unusable = || ArgsError::UnusableValue { file: file.to_owned(), key: key.clone() };
        let values = texts(value).ok_or_else(unusable)?;
        let source = matches.value_source(id);
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            flags.extend(values.into_iter().map(|value| OsString::from(format!("--{key}={value}"))));
        }
    }
    Ok(flags)
}

/// A value, or the values of a list, as they are typed on a command line.
fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => {
            let one = |value| if let Value::Array(_) = value { None } else { texts(value)?.pop() };
            values.into_iter().map(one).collect()
        }
        Value::String(text) => Some(vec![text]),
        Value::Integer(number) => Some(vec![number.to_string()]),
        Value::Boolean(yes) => Some(vec![yes.to_string()]),
        Value::Float(_) | Value::Datetime(_) | Value::Table(_) => None,
    }
}

/// The first lines of clap's message; the rest is about usage.
fn wrong_value(file: &Path, error: &clap::Error) -> ArgsError {
    let text = error.to_string();
    let message = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or(&text);
    ArgsError::WrongValue { file: file.to_owned(), message: message.trim().replace('\n', " ") }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    /// A command line over a file with this text.
    fn read(text: &str, flags: &[&str]) -> Result<Args, ArgsError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.toml");
        std::fs::write(&file, text).unwrap();
        let line = ["ntl-server", "--config", file.to_str().unwrap()];
        Args::read(line.iter().chain(flags).map(OsString::from))
    }

    #[test]
    fn a_flag_comes_before_the_file_and_the_file_before_the_default() {
        let text = "port = 9000\nhost = \"0.0.0.0\"\nmodel = [\"a=/a\", \"b=/b\"]\nqueue-max = 5\n";
        let args = read(text, &["--port", "9001"]).unwrap();
        assert_eq!((args.network.port, args.network.host.as_str()), (9001, "0.0.0.0"));
        assert_eq!((args.limits.queue_max, args.limits.concurrency_max), (5, 256));
        assert_eq!(args.models.models, ["a=/a", "b=/b"]);
        let args = read(text, &["--model", "c=/c"]).unwrap();
        assert_eq!(args.models.models, ["c=/c"]);
        // A file that would have no effect is refused.
        assert!(matches!(read(text, &["openapi"]), Err(ArgsError::Flags(_))));
    }

    #[test]
    fn a_folder_without_its_flag_gets_the_flag_as_a_tip() {
        for (line, tip) in [
            (&["ntl-server", "/models/t5"][..], "`ntl-server --model /models/t5`"),
            (&["ntl-server", "serve", "/models/t5"], "`ntl-server --model DIR`"),
            (&["ntl-server", "--port", "1", "t5"], "`ntl-server --model t5`"),
        ] {
            let error = Args::read(line.iter().map(OsString::from)).unwrap_err().to_string();
            assert!(error.contains(tip), "{error}");
        }
        let error = Args::read(["ntl-server", "--modle", "x"].map(OsString::from)).unwrap_err().to_string();
        assert!(error.contains("--model") && !error.contains("by a flag"), "{error}");
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, message) in [
            ("prot = 1", "`prot` in"),
            ("config = \"x\"", "`config` in"),
            ("help = 1", "`help` in"),
            ("[network]\nport = 1", "`network` in"),
            ("port = 1.5", "`port` in"),
            ("log-scale-embeddings = 1.0", "`log-scale-embeddings` in"),
            ("log-scale-embeddings = \"perhaps\"", "--log-scale-embeddings"),
            ("model = [[\"x\"]]", "`model` in"),
            ("port = \"x\"", "--port"),
            ("port = 70000", "70000"),
            ("dtype = \"f8\"", "f8"),
            ("tls-cert = \"x\"", "--tls-key"),
            ("port = ", "is not valid TOML"),
        ] {
            let error = read(text, &[]).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("server.toml"), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
        let line = ["ntl-server", "--config", "/no/such.toml"].map(OsString::from);
        assert!(matches!(Args::read(line), Err(ArgsError::Unreadable { .. })));
    }

    #[test]
    fn the_example_names_every_flag_and_shows_the_defaults() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/ntl-server.toml");
        let text = std::fs::read_to_string(file).unwrap();
        // Settings without a default are shown behind `#: `.
        let shown: String =
            text.lines().map(|line| format!("{}\n", line.trim_start_matches("#: "))).collect();
        let table: Table = shown.parse().unwrap();
        for argument in Args::command().get_arguments().filter(|arg| arg.get_env().is_some()) {
            let name = argument.get_long().unwrap();
            assert!(name == "config" || table.contains_key(name), "{name} is missing in the example");
        }
        let from_file = Args::read(["ntl-server", "--config", file].map(OsString::from)).unwrap();
        let from_nothing = Args::read(["ntl-server".into()]).unwrap();
        assert_eq!(Config::try_from(from_file).unwrap(), Config::try_from(from_nothing).unwrap());
    }
}
