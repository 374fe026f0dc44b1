//! Base URLs of servers.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// An http(s) URL that ends in `/v1`, whether or not it was typed so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(String);

impl BaseUrl {
    /// The URL of a route below `/v1`. `route` has no leading slash.
    pub fn join(&self, route: &str) -> String {
        format!("{}/{route}", self.0)
    }

    /// Returns the URL of a route that is not under `/v1`.
    pub fn beside(&self, route: &str) -> String {
        format!("{}/{route}", self.0.strip_suffix("/v1").unwrap_or(&self.0))
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let url = Url::parse(text.trim())
            .map_err(|error| format!("{error}; expected something like http://127.0.0.1:8000"))?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err("expected something like http://127.0.0.1:8000".to_owned());
        }
        let base = url.as_str().trim_end_matches('/');
        Ok(Self(if base.ends_with("/v1") { base.to_owned() } else { format!("{base}/v1") }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_base_ends_in_v1() {
        for text in ["http://h:8000", "http://h:8000/", "http://h:8000/v1", " http://h:8000/v1/ "] {
            assert_eq!(
                text.parse::<BaseUrl>().unwrap().join("models"),
                "http://h:8000/v1/models",
                "{text:?}"
            );
        }
        let base: BaseUrl = "https://h/api".parse().unwrap();
        assert_eq!(
            (&*base.to_string(), &*base.beside("tokenize")),
            ("https://h/api/v1", "https://h/api/tokenize")
        );
    }

    #[test]
    fn what_is_no_base_url_is_refused() {
        for text in ["", "localhost:8000", "ftp://h", "http://h?x=1", "http://h#top"] {
            assert!(text.parse::<BaseUrl>().is_err(), "{text:?}");
        }
    }
}
