//! Three lines for a person at a terminal: what is served, and where to look. Programs read the log instead.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;

use crate::config::{ModelConfig, ModelSource};
use crate::listen::Listener;
use crate::settings::HttpSettings;

pub(crate) fn text(listener: &Listener, models: &[ModelConfig], settings: &HttpSettings) -> String {
    let address = listener.local_addr().map(reachable).unwrap_or_default();
    let scheme = if listener.is_tls() { "https" } else { "http" };
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let demo = matches!(models, [ModelConfig { source: ModelSource::Demo, .. }]);
    lines(&format!("{scheme}://{address}"), &names.join(", "), demo, settings)
}

fn lines(url: &str, models: &str, demo: bool, settings: &HttpSettings) -> String {
    let which = if demo { " (the embedded demo; --model DIR serves another)" } else { "" };
    let first = if settings.playground { ("ask it", "/") } else { ("check it", "/health") };
    let key = if settings.api_keys.is_empty() { "" } else { ", with an API key" };
    format!(
        "ntl-server {} serves {models}{which} on {}\n  {:<9} {url}{}{key}\n  {:<9} {url}/docs, metrics {url}/metrics\n",
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

/// Prints to standard error where that is a terminal.
pub(crate) fn print(text: &str) {
    let mut terminal = std::io::stderr().lock();
    if terminal.is_terminal() {
        // A closed terminal reads nothing.
        let _ = terminal.write_all(text.as_bytes());
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
        let text = lines("http://127.0.0.1:8000", "t5", true, &settings(&["--device", "cpu"]));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("serves t5 (the embedded demo;") && lines[0].ends_with("on cpu"), "{text}");
        assert_eq!(lines[1], "  ask it    http://127.0.0.1:8000/");
        assert_eq!(lines[2], "  read API  http://127.0.0.1:8000/docs, metrics http://127.0.0.1:8000/metrics");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn keys_and_a_missing_playground_are_mentioned() {
        let text = lines("https://a", "x, y", false, &settings(&["--no-playground", "--api-key", "secret"]));
        assert!(
            text.contains("serves x, y on ") && text.contains("https://a/health, with an API key"),
            "{text}"
        );
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
