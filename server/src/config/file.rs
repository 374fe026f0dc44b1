//! `--config FILE`: values of flags from a TOML file, under the names of the flags.
//!
//! A flag overrides its environment variable, that overrides the file, and that overrides the default. The
//! settings of the file that are given nowhere else are added to the command line as flags, so they follow
//! the rules and have the error messages of the flags. Relative paths begin at the directory of the file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use ntl_common::regular_file::{SMALL_BYTES_MAX, read_text};
use ntl_common::similar::most_similar;
use toml::{Table, Value};

use super::args::Args;
use super::environment::Environment;
use super::models::split_name;
use super::remote::is_url;
use crate::hub::HubReference;

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
    /// The line itself may have a key.
    #[error("the configuration in `{file}` is not valid TOML: line {line}: {message}")]
    NotToml { file: PathBuf, line: usize, message: String },
    #[error("`{key}` in `{file}` is not a setting; settings have the names of the flags{}", hint(.similar.as_ref()))]
    UnknownKey { file: PathBuf, key: String, similar: Option<String> },
    #[error("`{key}` in `{file}` must be a string, a whole number, true, false or a list of them")]
    UnusableValue { file: PathBuf, key: String },
    #[error("in `{file}`: {message}")]
    WrongValue { file: PathBuf, message: String },
}

fn hint(similar: Option<&String>) -> String {
    similar.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

impl Args {
    /// Reads a command line (the name of the program first), its environment and the file that it names.
    pub fn read(
        line: impl IntoIterator<Item = OsString>,
        environment: &Environment,
    ) -> Result<Self, ArgsError> {
        let mut line: Vec<OsString> = line.into_iter().collect();
        let typed = line.clone();
        let mut matches = parse(&line, &typed, environment)?;
        // Subcommands have no settings.
        if matches.subcommand_name().is_some() {
            return Ok(Self::from_arg_matches(&matches)?);
        }
        let old = environment.old_names(&matches);
        if !old.is_empty() {
            insert(&mut line, old);
            matches = parse(&line, &typed, environment)?;
        }
        let Some(file) = matches.get_one::<PathBuf>("config") else {
            return Ok(Self::from_arg_matches(&matches)?);
        };
        insert(&mut line, flags(file, &matches)?);
        let matches =
            Self::command().try_get_matches_from(line).and_then(|matches| Self::from_arg_matches(&matches));
        matches.map_err(|error| wrong_value(file, &error))
    }
}

/// Parses a command line. Errors name the variables of the flags that were not `typed`.
fn parse(
    line: &[OsString],
    typed: &[OsString],
    environment: &Environment,
) -> Result<ArgMatches, clap::Error> {
    let matches = Args::command().try_get_matches_from(line);
    matches.map_err(|error| environment.blame(with_model_tip(error), typed))
}

/// Inserts flags after the name of the program.
fn insert(line: &mut Vec<OsString>, flags: Vec<OsString>) {
    let start = line.len().min(1);
    line.splice(start..start, flags);
}

/// Adds a tip to an error about a directory that is alone on the command line, or after `serve`.
fn with_model_tip(mut error: clap::Error) -> clap::Error {
    let kinds = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument, ErrorKind::ArgumentConflict];
    let is_word = kinds.contains(&error.kind());
    let word = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg].into_iter().find_map(|kind| {
        match error.get(kind) {
            Some(ContextValue::String(word)) => Some(word.clone()),
            _ => None,
        }
    });
    let Some(word) = word else { return error };
    if !is_word || word.starts_with('-') || Args::command().find_subcommand(&word).is_some() {
        return error;
    }
    let folder = if word == "serve" { "DIR" } else { &word };
    let tip = format!("a checkpoint folder is served by a flag: `ntl-server --model {folder}`");
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

fn read_table(file: &Path) -> Result<Table, ArgsError> {
    let text = read_text(file, SMALL_BYTES_MAX)
        .map_err(|source| ArgsError::Unreadable { file: file.to_owned(), source })?;
    text.parse().map_err(|error: toml::de::Error| ArgsError::NotToml {
        file: file.to_owned(),
        line: error.span().map_or(1, |at| line_of(&text, at.start)),
        message: error.message().replace('\n', " "),
    })
}

/// Returns the settings of a file as flags, except those that the command line or the environment sets.
fn flags(file: &Path, matches: &ArgMatches) -> Result<Vec<OsString>, ArgsError> {
    let table = read_table(file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    // Absolute, so that it does not look like a name and a path if it has an equals sign.
    let folder = folder.map(std::path::absolute).transpose();
    let folder = folder.map_err(|source| ArgsError::Unreadable { file: file.to_owned(), source })?;
    let command = Args::command();
    let mut settings: Vec<&clap::Arg> = command.get_arguments().collect();
    settings.retain(|arg| arg.get_env().is_some() && arg.get_id() != "config");
    let mut flags = Vec::new();
    for (key, value) in table {
        let argument = settings.iter().copied().find(|arg| {
            arg.get_long() == Some(&key) || arg.get_all_aliases().is_some_and(|names| names.contains(&&*key))
        });
        let Some(argument) = argument else {
            let names = settings.iter().filter_map(|arg| arg.get_long());
            let similar = most_similar(&key.replace('_', "-"), names).map(str::to_owned);
            return Err(ArgsError::UnknownKey { file: file.to_owned(), key, similar });
        };
        let Some(values) = texts(value) else {
            return Err(ArgsError::UnusableValue { file: file.to_owned(), key });
        };
        let source = matches.value_source(argument.get_id().as_str());
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            for value in values {
                let value = match &folder {
                    Some(folder) => with_paths_below(folder, argument, &value),
                    None => value,
                };
                flags.push(OsString::from(format!("--{key}={value}")));
            }
        }
    }
    Ok(flags)
}

/// Returns the value of a setting whose relative paths, if it has any, begin at this directory.
fn with_paths_below(folder: &Path, argument: &clap::Arg, value: &str) -> String {
    let form = argument.get_value_names().and_then(<[_]>::first).map_or("", |name| name.as_str());
    if !["DIR", "FILE"].iter().any(|path| form.ends_with(path)) {
        return value.to_owned();
    }
    let may_have_name = form.starts_with("[NAME=]");
    let Some(delimiter) = argument.get_value_delimiter() else {
        return path_below(folder, value, may_have_name);
    };
    let parts: Vec<String> =
        value.split(delimiter).map(|part| path_below(folder, part, may_have_name)).collect();
    parts.join(&delimiter.to_string())
}

fn path_below(folder: &Path, text: &str, may_have_name: bool) -> String {
    let (name, path) = if may_have_name { split_name(text) } else { (None, text) };
    if path.is_empty() || is_url(path) || HubReference::is_meant_by(path) {
        return text.to_owned();
    }
    let path = folder.join(path).display().to_string();
    match name {
        Some(name) => format!("{name}={path}"),
        None => path,
    }
}

/// Returns the number of the line with this byte, counted from 1.
fn line_of(text: &str, byte: usize) -> usize {
    1 + text.bytes().take(byte).filter(|&byte| byte == b'\n').count()
}

/// Returns a value, or the values of a list, in the form of the command line.
fn texts(value: Value) -> Option<Vec<String>> {
    match value {
        Value::Array(values) => values
            .into_iter()
            .map(|value| if let Value::Array(_) = value { None } else { texts(value)?.pop() })
            .collect(),
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
    use super::super::args::LimitArgs;
    use super::*;

    /// A command line over a file with this text.
    fn read(text: &str, flags: &[&str]) -> Result<Args, ArgsError> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.toml");
        std::fs::write(&file, text).unwrap();
        let line = ["ntl-server", "--config", file.to_str().unwrap()];
        Args::read(line.iter().chain(flags).map(OsString::from), &Environment::default())
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
    fn relative_paths_begin_at_the_directory_of_the_file() {
        let text = r#"
            model = ["models/t5", "a=b/c", "/abs", "x=http://127.0.0.1:1/v1,http://127.0.0.1:2/v1", "z=hf:o/n"]
            calibration = "a=c.json,y=d.json"
            adapter = ["./lora"]
            api-key-file = "keys"
            adapters-from = "."
            host = "localhost"
            tool-parser = "none"
        "#;
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("with=sign");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("server.toml");
        std::fs::write(&file, text).unwrap();
        let line = ["ntl-server", "--config", file.to_str().unwrap(), "--calibration=z.json"];
        let args = Args::read(line.map(OsString::from), &Environment::default()).unwrap();
        let below = |path: &str| format!("{}/{path}", folder.display());
        let models = [
            &*below("models/t5"),
            &format!("a={}", below("b/c")),
            "/abs",
            "x=http://127.0.0.1:1/v1",
            "http://127.0.0.1:2/v1",
            "z=hf:o/n",
        ];
        assert_eq!(args.models.models, models);
        assert_eq!(args.models.calibrations, ["z.json"], "of the command line");
        assert_eq!(args.models.adapters, [below("./lora")]);
        assert_eq!(args.network.api_key_file, Some(below("keys").into()));
        assert_eq!(args.models.adapters_from, Some(below(".").into()));
        assert_eq!((&*args.network.host, &*args.models.tool_parsers[0]), ("localhost", "none"));
    }

    #[test]
    fn settings_that_name_files_say_so_in_their_help() {
        let is_path = |arg: &&clap::Arg| {
            arg.get_value_parser().type_id() == clap::value_parser!(PathBuf).type_id()
                && arg.get_env().is_some()
        };
        for arg in Args::command().get_arguments().filter(is_path) {
            let form = arg.get_value_names().unwrap()[0].as_str();
            assert!(form.ends_with("DIR") || form.ends_with("FILE"), "{form}");
        }
    }

    #[test]
    fn a_folder_without_its_flag_gets_the_flag_as_a_tip() {
        for (line, tip) in [
            (&["ntl-server", "/models/t5"][..], "`ntl-server --model /models/t5`"),
            (&["ntl-server", "serve", "/models/t5"], "`ntl-server --model DIR`"),
            (&["ntl-server", "--port", "1", "t5"], "`ntl-server --model t5`"),
        ] {
            let error =
                Args::read(line.iter().map(OsString::from), &Environment::default()).unwrap_err().to_string();
            assert!(error.contains(tip), "{error}");
        }
        let error = Args::read(["ntl-server", "--modle", "x"].map(OsString::from), &Environment::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("--model") && !error.contains("by a flag"), "{error}");
    }

    #[test]
    fn the_old_names_of_settings_are_read_from_flags_the_environment_and_a_file() {
        let limits = |args: Args| {
            let LimitArgs { prefix_cache_bytes_max, body_bytes_max, bodies_bytes_max, .. } = args.limits;
            (prefix_cache_bytes_max, body_bytes_max.get(), bodies_bytes_max.get())
        };
        let want = (1 << 10, 2 << 10, 3 << 10);
        let text = "prefix-cache-limit = 1024\nbody-limit = \"2KiB\"\nbodies-limit = \"3KiB\"\n";
        assert_eq!(limits(read(text, &[]).unwrap()), want);
        let flags = ["--prefix-cache-limit=1KiB", "--body-limit", "2048", "--bodies-limit=3072"];
        assert_eq!(limits(read("", &flags).unwrap()), want);
        let variables =
            [("NTL_PREFIX_CACHE_LIMIT", "1024"), ("NTL_BODY_LIMIT", "2KiB"), ("NTL_BODIES_LIMIT", "3KiB")];
        let environment = Environment::new(variables.map(|(name, value)| (name.into(), value.into())));
        let line = |flags: &[&str]| {
            let line = ["ntl-server"].iter().chain(flags).map(OsString::from);
            limits(Args::read(line, &environment).unwrap())
        };
        assert_eq!(line(&[]), want);
        assert_eq!(line(&["--body-bytes-max=5"]), (1 << 10, 5, 3 << 10), "a flag overrides the environment");
        let help = Args::command().render_long_help().to_string();
        assert!(
            !help.contains("body-limit") && help.contains("--body-bytes-max"),
            "the old names are hidden"
        );
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named() {
        for (text, message) in [
            ("prot = 1", "did you mean `port`?"),
            ("prot = 1", "`prot` in"),
            ("api_key_file = \"x\"", "did you mean `api-key-file`?"),
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
        let error = read("port = 1\napi-key = [\"secret\n", &[]).unwrap_err().to_string();
        assert!(error.contains("line 2") && !error.contains("secret"), "{error}");
        let line = ["ntl-server", "--config", "/no/such.toml"].map(OsString::from);
        assert!(matches!(Args::read(line, &Environment::default()), Err(ArgsError::Unreadable { .. })));
    }

    #[test]
    fn the_example_names_every_flag_and_shows_the_defaults() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/ntl-server.toml");
        let text = std::fs::read_to_string(file).unwrap();
        // Lines that begin with `#: ` show settings without a default.
        let shown: String =
            text.lines().map(|line| format!("{}\n", line.trim_start_matches("#: "))).collect();
        let table: Table = shown.parse().unwrap();
        for argument in Args::command().get_arguments().filter(|arg| arg.get_env().is_some()) {
            let name = argument.get_long().unwrap();
            assert!(name == "config" || table.contains_key(name), "{name} is missing in the example");
        }
        let from_file =
            Args::read(["ntl-server", "--config", file].map(OsString::from), &Environment::default())
                .unwrap();
        let from_nothing = Args::read(["ntl-server".into()], &Environment::default()).unwrap();
        assert_eq!(Config::try_from(from_file).unwrap(), Config::try_from(from_nothing).unwrap());
    }
}
