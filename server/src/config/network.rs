//! API keys, allowed origins and connection deadlines of the network flags.

use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::Authority;

use super::args::{LimitArgs, NetworkArgs};
use super::{ConfigError, seconds};
use crate::listen::ConnectionSettings;
use crate::settings::{ApiKeys, Origins};

/// Connections of one address beyond its share that wait; as many as the operating system's queue holds by default.
const WAITING_MAX: usize = 1024;

/// Eviction spares clients that have just come, and those that are only a little slow.
const EVICT_AFTER: Duration = Duration::from_secs(1);

/// The limits and deadlines of connections. The time for an answer is the sum of those of its parts.
pub(super) fn connection_settings(network: &NetworkArgs, limits: &LimitArgs) -> ConnectionSettings {
    let (body, write) = (seconds(network.body_timeout), seconds(network.write_timeout));
    let connections_max = network.connections_max as usize;
    // An eighth of the places is for other addresses.
    let share = (connections_max - connections_max.div_ceil(8)).max(1);
    ConnectionSettings {
        connections_max,
        address_connections_max: network.connections_per_address_max.map_or(share, |max| max as usize),
        waiting_max: WAITING_MAX,
        evict_after: EVICT_AFTER,
        header_time_max: seconds(network.header_timeout),
        idle_time_max: seconds(network.idle_timeout),
        write_time_max: write,
        answer_time_max: body + seconds(limits.request_timeout) + write,
    }
}

/// The keys of the flags and those of the file.
pub(super) fn api_keys(mut keys: Vec<String>, file: Option<PathBuf>) -> Result<ApiKeys, ConfigError> {
    if let Some(file) = file {
        let text = std::fs::read_to_string(&file)
            .map_err(|source| ConfigError::KeyFile { file: file.clone(), source })?;
        let before = keys.len();
        let lines = text.lines().map(str::trim);
        keys.extend(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned));
        if keys.len() == before {
            return Err(ConfigError::NoKey(file));
        }
    }
    let usable = |key: &String| !key.is_empty() && !key.contains(char::is_whitespace);
    if keys.iter().all(usable) { Ok(ApiKeys::new(keys)) } else { Err(ConfigError::UnusableKey) }
}

pub(super) fn origins(flags: &[String]) -> Result<Origins, ConfigError> {
    if flags.is_empty() {
        return Ok(Origins::None);
    }
    if flags.iter().any(|origin| origin == "*") {
        return Ok(Origins::Any);
    }
    let origins: Result<_, _> = flags.iter().map(|origin| self::origin(origin)).collect();
    Ok(Origins::These(origins?))
}

/// A scheme, a host and an optional port, as browsers send them.
fn origin(text: &str) -> Result<HeaderValue, ConfigError> {
    let unusable = || ConfigError::UnusableOrigin(text.to_owned());
    let (scheme, authority) = text.split_once("://").ok_or_else(unusable)?;
    let is_authority = authority.parse::<Authority>().is_ok() && !authority.contains('@');
    if scheme.is_empty() || !is_authority {
        return Err(unusable());
    }
    HeaderValue::from_str(text).map_err(|_| unusable())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::{Args, Config};

    fn config(flags: &[&str]) -> Result<Config, ConfigError> {
        Config::try_from(Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap())
    }

    #[test]
    fn keys_come_from_flags_and_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("keys");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            config(&["--api-key", "first", "--api-key-file", file.to_str().unwrap()])
        };
        assert_eq!(format!("{:?}", read("# ours\n\nsecond\n third \n").unwrap().http.api_keys), "3 keys");
        assert!(matches!(read("two words\n"), Err(ConfigError::UnusableKey)));
        assert!(matches!(read("# none\n"), Err(ConfigError::NoKey(_))));
        let gone = config(&["--api-key-file", "/no/such/file"]).unwrap_err();
        assert_eq!(gone.to_string(), "cannot read API keys from `/no/such/file`");
    }

    #[test]
    fn an_address_may_hold_all_places_but_an_eighth_unless_another_share_is_given() {
        let share = |flags: &[&str]| config(flags).unwrap().connections.address_connections_max;
        assert_eq!(share(&[]), 1792);
        for (connections, want) in [("1", 1), ("2", 1), ("8", 7), ("9", 7)] {
            assert_eq!(share(&["--connections-max", connections]), want, "{connections}");
        }
        assert_eq!(share(&["--connections-per-address-max", "5"]), 5);
    }

    #[test]
    fn origins_are_those_of_web_pages() {
        let origins = |flags: &[&str]| config(flags).map(|config| config.http.cors_origins);
        assert_eq!(origins(&[]).unwrap(), Origins::None);
        assert_eq!(origins(&["--cors-origin", "*"]).unwrap(), Origins::Any);
        let two = origins(&["--cors-origin", "https://a.example,http://localhost:3000"]).unwrap();
        assert!(matches!(two, Origins::These(origins) if origins.len() == 2));
        for wrong in ["example.com", "https://", "https://a.example/path", "://a", "https://u@a.example"] {
            assert!(
                matches!(origins(&["--cors-origin", wrong]), Err(ConfigError::UnusableOrigin(_))),
                "{wrong}"
            );
        }
    }

    #[test]
    fn keys_are_checked_and_never_shown() {
        assert!(matches!(config(&["--api-key", "a b"]), Err(ConfigError::UnusableKey)));
        let config = config(&["--api-key", "secret,other"]).unwrap();
        let shown = format!("{config:?}");
        assert!(shown.contains("2 keys") && !shown.contains("secret"), "{shown}");
    }
}
