//! The filter of log lines (`--log`, `RUST_LOG`): directives such as `debug` or `ntl_models=debug,info`.
//!
//! [`EnvFilter`] takes any word as a target, so a misspelt level would turn the log off. This module rejects
//! words that are neither a level nor a target. Packages of other authors may log what they read from
//! clients; below the level `info` they log only if the filter names them.

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;

use ntl_common::similar::most_similar;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The packages of this program that log.
const TARGETS: [&str; 7] =
    ["ntl_server", "ntl_models", "ntl_engine", "ntl_core", "ntl_kernels", "ntl_cuda", "ntl_mistralrs"];

/// Packages of other authors that log.
const FOREIGN_TARGETS: [&str; 12] = [
    "axum",
    "h2",
    "hyper",
    "hyper_util",
    "log",
    "mio",
    "mistralrs",
    "opentelemetry",
    "rustls",
    "tokio",
    "tower",
    "tower_http",
];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error(
        "`{word}` is neither a log level nor a target{}; the levels are {}, the targets are packages such as {}",
        hint(.near), LEVELS.join(", "), TARGETS[..3].join(", ")
    )]
    UnknownWord { word: String, near: Option<&'static str> },
    #[error("`{level}` is not a log level{}; the levels are {}", hint(.near), LEVELS.join(", "))]
    UnknownLevel { level: String, near: Option<&'static str> },
    #[error("`{0}` is not a log filter; write one such as `debug` or `ntl_models=debug,info`")]
    Unreadable(String),
}

fn hint(near: &Option<&'static str>) -> String {
    near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default()
}

/// A filter, and the packages of other authors that it names.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) filter: EnvFilter,
    pub(super) foreign: ForeignTargets,
}

/// Packages of other authors whose lines below `info` are wanted.
#[derive(Debug)]
pub(super) struct ForeignTargets(Vec<String>);

impl ForeignTargets {
    /// Returns whether a line of this origin may be logged, as far as this list decides it.
    pub(super) fn allow(&self, metadata: &Metadata<'_>) -> bool {
        self.allow_line(metadata.target(), *metadata.level())
    }

    fn allow_line(&self, target: &str, level: Level) -> bool {
        let package = package(target);
        // `INFO` and the levels above it.
        level <= Level::INFO || TARGETS.contains(&package) || self.0.iter().any(|name| name == package)
    }
}

/// Returns the package of a target such as `hyper::proto`.
fn package(target: &str) -> &str {
    target.split(['[', ':', '=']).next().unwrap_or(target)
}

/// Reads a filter.
pub(super) fn parse(text: &str) -> Result<Parsed, FilterError> {
    let directives = text.split(',').map(str::trim).filter(|directive| !directive.is_empty());
    directives.clone().try_for_each(check)?;
    let filter = EnvFilter::try_new(text).map_err(|_| FilterError::Unreadable(text.to_owned()))?;
    let foreign = ForeignTargets(directives.map(|directive| package(directive).to_owned()).collect());
    Ok(Parsed { filter, foreign })
}

fn check(directive: &str) -> Result<(), FilterError> {
    // Spans and their fields stay unchecked: their names are open.
    match directive.rsplit_once('=').filter(|(_, level)| !level.ends_with(['}', ']'])) {
        Some((target, level)) => {
            if !is_level(level) {
                let near = most_similar(level, LEVELS);
                return Err(FilterError::UnknownLevel { level: level.to_owned(), near });
            }
            check_target(target, false)
        }
        None if is_level(directive) => Ok(()),
        None => check_target(directive, true),
    }
}

fn is_level(word: &str) -> bool {
    let is_number = matches!(word.as_bytes(), [b'0'..=b'5']);
    is_number || LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word))
}

/// Rejects targets that are misspelt. A word without a level has to be a known target, since it may be a
/// misspelt level.
fn check_target(target: &str, is_alone: bool) -> Result<(), FilterError> {
    let package = package(target);
    if package.is_empty() || TARGETS.contains(&package) || FOREIGN_TARGETS.contains(&package) {
        return Ok(());
    }
    let near = if is_alone {
        most_similar(package, TARGETS.into_iter().chain(LEVELS))
    } else {
        most_similar(package, TARGETS)
    };
    if near.is_none() && !is_alone {
        return Ok(());
    }
    Err(FilterError::UnknownWord { word: package.to_owned(), near })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_targets_pass() {
        for text in [
            "info",
            "WARN",
            "0",
            "off",
            "",
            "ntl_models=debug,info",
            "ntl_server::listen=trace",
            "hyper=debug, warn",
            "ntl_engine",
            "sqlx=warn",
            "ntl_server[request]=debug",
            "[request{id=a}]=trace",
            "ntl_server[request]",
        ] {
            assert!(parse(text).is_ok(), "{text}: {:?}", parse(text).err());
        }
    }

    #[test]
    fn misspelt_levels_and_targets_are_rejected_with_the_names_that_exist() {
        for (text, message) in [
            ("wran", "`wran` is neither a log level nor a target (did you mean `warn`?)"),
            (
                "xyzzy",
                "`xyzzy` is neither a log level nor a target; the levels are off, error, warn, info, debug, trace",
            ),
            ("info,wran", "`wran` is neither"),
            ("ntl_models=degub", "`degub` is not a log level (did you mean `debug`?); the levels are off,"),
            (
                "ntl_modles=debug",
                "`ntl_modles` is neither a log level nor a target (did you mean `ntl_models`?)",
            ),
            ("ntl_server=", "`` is not a log level"),
            ("[[=info", "is not a log filter"),
        ] {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text} was taken")).to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn other_packages_log_details_only_if_the_filter_names_them() {
        let lines = [
            ("hyper::proto::h1", Level::TRACE),
            ("h2::codec", Level::DEBUG),
            ("rustls", Level::WARN),
            ("ntl_engine::run", Level::TRACE),
        ];
        for (filter, want) in [
            ("trace", [false, false, true, true]),
            ("hyper=trace", [true, false, true, true]),
            ("debug,h2::codec=debug,hyper", [true, true, true, true]),
            ("[request{id=a}]=trace", [false, false, true, true]),
        ] {
            let foreign = parse(filter).unwrap().foreign;
            let allowed = lines.map(|(target, level)| foreign.allow_line(target, level));
            assert_eq!(allowed, want, "{filter}");
        }
    }

    #[test]
    fn the_targets_are_the_packages_of_the_workspace_that_log() {
        for name in TARGETS {
            assert!(name.starts_with("ntl_"), "{name}");
        }
        assert!(module_path!().starts_with(TARGETS[0]));
    }
}
