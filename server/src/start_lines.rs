//! Three lines for a person at a terminal: what is served, and where to look. Programs read the log instead.

use std::io::IsTerminal;
use std::net::SocketAddr;

use ntl_common::printable::printable;

use crate::config::{Config, ModelConfig, ModelSource};
use crate::listen::Listener;
use crate::settings::HttpSettings;
use crate::telemetry;

/// Returns the URL of the playground, or of a page that shows whether the server is healthy.
pub(crate) fn page(listener: &Listener, settings: &HttpSettings) -> String {
    format!("{}{}", url(listener), first_page(settings).1)
}

fn url(listener: &Listener) -> String {
    let address = listener.local_addr().map(reachable).unwrap_or_default();
    let scheme = if listener.is_tls() { "https" } else { "http" };
    format!("{scheme}://{address}")
}

/// Returns the first thing that a person can do, and the path of its page.
fn first_page(settings: &HttpSettings) -> (&'static str, &'static str) {
    if settings.playground { ("ask it", "/") } else { ("check it", "/health") }
}

pub(crate) fn text(listener: &Listener, config: &Config, settings: &HttpSettings) -> String {
    let url = url(listener);
    let metrics_url = listener.admin_addr().map(|admin| format!("http://{}", reachable(admin)));
    let names: Vec<&str> = config.names().collect();
    let names = printable(&names.join(", ")).into_owned();
    let demo = matches!(&config.models[..], [ModelConfig { source: ModelSource::Demo, .. }]);
    lines(&url, metrics_url.as_ref().unwrap_or(&url), &names, demo, settings)
}

/// `metrics_url` is the URL of the operators' port, if there is one.
fn lines(url: &str, metrics_url: &str, models: &str, demo: bool, settings: &HttpSettings) -> String {
    let which = if demo { " (the embedded demo; --model DIR serves another)" } else { "" };
    let first = first_page(settings);
    let key = if settings.api_keys.is_empty() { "" } else { ", with an API key" };
    format!(
        "ntl-server {} serves {models}{which} on {}\n  {:<9} {url}{}{key}\n  {:<9} {url}/docs, metrics {metrics_url}/metrics\n",
        crate::VERSION,
        settings.device,
        first.0,
        first.1,
        "read API",
    )
}

/// An address that a browser on this machine can open.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

/// Prints to standard error if it is a terminal.
pub(crate) fn print(text: &str) {
    if std::io::stderr().is_terminal() {
        telemetry::print(text);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::{Args, Config};

    fn settings(flags: &[&str]) -> HttpSettings {
        let args = Args::try_parse_from([&["ntl-server"], flags].concat()).unwrap();
        Config::try_from(args).unwrap().http
    }

    #[test]
    fn three_lines_say_what_is_served_and_where() {
        let url = "http://127.0.0.1:8000";
        let text = lines(url, url, "t5", true, &settings(&["--device", "cpu"]));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("serves t5 (the embedded demo;") && lines[0].ends_with("on cpu"), "{text}");
        assert_eq!(lines[1], "  ask it    http://127.0.0.1:8000/");
        assert_eq!(lines[2], "  read API  http://127.0.0.1:8000/docs, metrics http://127.0.0.1:8000/metrics");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn keys_a_missing_playground_and_a_port_for_operators_are_mentioned() {
        let settings = settings(&["--no-playground", "--api-key", "secret"]);
        let text = lines("https://a", "http://a:9000", "x, y", false, &settings);
        assert!(
            text.contains("serves x, y on ") && text.contains("https://a/health, with an API key"),
            "{text}"
        );
        assert!(text.ends_with("https://a/docs, metrics http://a:9000/metrics\n"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }

    #[test]
    fn an_unspecified_address_is_one_that_a_browser_can_open() {
        for (address, url) in [
            ("0.0.0.0:80", "localhost:80"),
            ("[::]:80", "localhost:80"),
            ("[::1]:80", "[::1]:80"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()), url);
        }
    }
}
