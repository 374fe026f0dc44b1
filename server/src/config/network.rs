//! Allowed origins and connection deadlines of the network flags.

use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::uri::Authority;

use super::args::{LimitArgs, NetworkArgs};
use super::{ConfigError, seconds};
use crate::listen::ConnectionSettings;
use crate::quota::Quota;
use crate::settings::{AllowedHosts, Origins};

/// Connections of one address beyond its share that wait; as many as the operating system's queue holds by
/// default.
const WAITING_MAX: usize = 1024;

/// Eviction spares clients that have just come, and those that are only a little slow.
const EVICT_AFTER: Duration = Duration::from_secs(1);

/// The limits and deadlines of connections. The time for an answer is the sum of those of its parts.
pub(super) fn connection_settings(network: &NetworkArgs, limits: &LimitArgs) -> ConnectionSettings {
    let body = seconds(network.body_timeout);
    let write = seconds(network.write_timeout);
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

/// Returns the names that `--allowed-hosts` and `--host` give the server.
pub(super) fn allowed_hosts(flags: &[String], host: &str) -> Result<AllowedHosts, ConfigError> {
    let always = !flags.is_empty();
    if flags.iter().any(|name| name == "*") {
        return Ok(AllowedHosts { names: None, always });
    }
    if let Some(wrong) = flags.iter().find(|name| !is_host_name(name)) {
        return Err(ConfigError::UnusableHost(wrong.clone()));
    }
    let names = flags.iter().map(String::as_str).chain([host]).map(str::to_ascii_lowercase).collect();
    Ok(AllowedHosts { names: Some(names), always })
}

/// Returns the default quota of API keys.
pub(super) fn quota(network: &NetworkArgs) -> Quota {
    Quota::default_of([
        network.requests_per_minute,
        network.requests_per_day,
        network.tokens_per_minute,
        network.tokens_per_day,
        network.upstream_budget,
    ])
}

fn is_host_name(name: &str) -> bool {
    name.parse::<Authority>().is_ok_and(|authority| authority.host() == name && !name.is_empty())
}

pub(super) fn origins(flags: &[String]) -> Result<Origins, ConfigError> {
    if flags.is_empty() {
        return Ok(Origins::None);
    }
    if flags.iter().any(|origin| origin == "*") {
        return Ok(Origins::Any);
    }
    let mut origins = Vec::new();
    for text in flags {
        let Some(origin) = origin(text) else { return Err(ConfigError::UnusableOrigin(text.clone())) };
        origins.push(origin);
    }
    Ok(Origins::These(origins))
}

/// A scheme, a host and an optional port, as browsers send them.
fn origin(text: &str) -> Option<HeaderValue> {
    let (scheme, authority) = text.split_once("://")?;
    let is_authority = authority.parse::<Authority>().is_ok() && !authority.contains('@');
    if scheme.is_empty() || !is_authority {
        return None;
    }
    HeaderValue::from_str(text).ok()
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
    fn an_address_may_hold_all_places_but_an_eighth_unless_another_share_is_given() {
        let share = |flags: &[&str]| config(flags).unwrap().connections.address_connections_max;
        assert_eq!(share(&[]), 1792);
        for (connections, want) in [("1", 1), ("2", 1), ("8", 7), ("9", 7)] {
            assert_eq!(share(&["--connections-max", connections]), want, "{connections}");
        }
        assert_eq!(share(&["--connections-per-address-max", "5"]), 5);
    }

    #[test]
    fn quotas_are_for_keys_and_from_one_to_a_million_millions() {
        let quota = |flags: &[&str]| config(flags).map(|config| config.http.quota);
        assert_eq!(quota(&[]).unwrap(), Quota::default());
        let both = quota(&["--api-key=a", "--requests-per-day=7", "--tokens-per-minute=9"]).unwrap();
        assert_eq!(both, Quota::parse(&["tokens-per-minute=9", "requests-per-day=7"]).unwrap());
        let error = quota(&["--tokens-per-day=9"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "--tokens-per-day: a quota is for API keys; add --api-key-file FILE or --api-key KEY"
        );
        for wrong in ["--requests-per-minute=0", "--tokens-per-day=1000000000001", "--tokens-per-day=-1"] {
            let error = Args::try_parse_from(["ntl-server", "--api-key=a", wrong]).unwrap_err().to_string();
            assert!(error.contains(wrong.split_once('=').unwrap().0), "{error}");
        }
    }

    #[test]
    fn allowed_hosts_are_names_without_ports() {
        let hosts = |flags: &[&str]| config(flags).map(|config| config.http.allowed_hosts);
        let default = hosts(&["--host", "Box"]).unwrap();
        assert_eq!(default, AllowedHosts { names: Some(vec!["box".to_owned()]), always: false });
        let named = hosts(&["--allowed-hosts", "A.example,[::2]"]).unwrap();
        assert!(
            named.always && named.names.unwrap().starts_with(&["a.example".to_owned(), "[::2]".to_owned()])
        );
        assert_eq!(hosts(&["--allowed-hosts=*"]).unwrap(), AllowedHosts { names: None, always: true });
        for wrong in ["a.example:80", "http://a.example", "a b", "u@a.example", ""] {
            let error = hosts(&["--allowed-hosts", wrong]).unwrap_err();
            assert!(matches!(error, ConfigError::UnusableHost(_)), "{wrong}");
        }
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
}
