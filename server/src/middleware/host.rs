//! Names of this server in requests (`Host`, `:authority`). A web page can make its own name resolve to
//! 127.0.0.1 (DNS rebinding) and then read responses as if they were from its server, but it cannot change
//! the name in its requests. The server therefore rejects other names if it listens on a loopback address
//! without API keys, or if `--allowed-hosts` is given.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header;
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::Response;
use ntl_common::printable::{printable, shortened};

use crate::error::AppError;
use crate::listen::Arrival;
use crate::settings::AllowedHosts;
use crate::state::AppState;

/// Maximum length of a name in an error message, as for names in the domain name system.
const NAME_CHARS_MAX: usize = 253;

pub(crate) async fn check(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, AppError> {
    // Without a listener, as in tests, there is no connection to protect.
    let Some(arrival) = request.extensions().get::<Arrival>() else { return Ok(next.run(request).await) };
    let settings = &app.settings;
    let is_open = arrival.listens_on_loopback && settings.api_keys.is_empty();
    if is_open || settings.allowed_hosts.always {
        let wrong = hosts(&request).find(|host| !is_allowed(host, arrival.address, &settings.allowed_hosts));
        if let Some(host) = wrong {
            return Err(AppError::HostNotAllowed(printable(&shortened(&host, NAME_CHARS_MAX)).into_owned()));
        }
    }
    Ok(next.run(request).await)
}

/// Returns the names in a request, with their ports.
fn hosts(request: &Request) -> impl Iterator<Item = String> {
    let header = request.headers().get_all(header::HOST).iter();
    let header = header.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
    header.chain(request.uri().authority().map(ToString::to_string))
}

/// Returns whether a request to `local` may have this host.
fn is_allowed(host: &str, local: IpAddr, allowed: &AllowedHosts) -> bool {
    let Some(names) = &allowed.names else { return true };
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().to_ascii_lowercase();
    let name = name.strip_suffix('.').unwrap_or(&name);
    if name == "localhost" || names.iter().any(|known| known == name) {
        return true;
    }
    match name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || address == local.to_canonical(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_the_address_of_the_connection_and_the_given_names_are_allowed() {
        let names = Some(vec!["models.example".to_owned(), "[2001:db8::9]".to_owned()]);
        let allowed = AllowedHosts { names, always: true };
        let local: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        for (host, passes) in [
            ("localhost", true),
            ("LocalHost:8000", true),
            ("localhost.", true),
            ("127.0.0.1:8000", true),
            ("127.1.2.3", true),
            ("[::1]:8000", true),
            ("192.0.2.1:80", true),
            ("Models.Example:8000", true),
            ("[2001:db8::9]:8000", true),
            ("192.0.2.2", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("models.example.evil.example", false),
            ("evil.example:127", false),
            ("x@localhost@evil.example", false),
            ("", false),
            ("a b", false),
        ] {
            assert_eq!(is_allowed(host, local, &allowed), passes, "{host}");
        }
        assert!(is_allowed("evil.example", local, &AllowedHosts { names: None, always: true }));
    }
}
