//! The address of an engine.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// The http(s) URL that an engine's routes begin with, without `/v1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    url: String,
    /// Host, port and path: what errors and metrics show.
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    #[error("{0}; write it like http://127.0.0.1:8000")]
    Syntax(String),
    #[error("write it like http://127.0.0.1:8000, without a query")]
    Form,
    #[error("the URL contains a user or a password; give the key with --upstream-api-key")]
    Credentials,
}

impl BaseUrl {
    /// The URL of a route, such as `/v1/models`.
    pub(crate) fn join(&self, route: &str) -> String {
        format!("{}{route}", self.url)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for BaseUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let url = Url::parse(text.trim()).map_err(|error| InvalidUrl::Syntax(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err(InvalidUrl::Form);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidUrl::Credentials);
        }
        let base = url.as_str().trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let name = base.split_once("://").map_or(base, |(_, name)| name);
        Ok(Self { url: base.to_owned(), name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_leads_to_the_same_routes() {
        for text in ["http://h:8000", "http://h:8000/", "http://h:8000/v1", " http://h:8000/v1/ "] {
            let base: BaseUrl = text.parse().unwrap();
            assert_eq!(base.join("/v1/models"), "http://h:8000/v1/models", "{text:?}");
            assert_eq!(base.to_string(), "h:8000");
        }
        let base: BaseUrl = "https://h/api".parse().unwrap();
        assert_eq!(
            (base.join("/tokenize").as_str(), base.to_string().as_str()),
            ("https://h/api/tokenize", "h/api")
        );
    }

    #[test]
    fn an_address_with_a_query_another_scheme_or_a_password_is_refused_without_repeating_it() {
        for text in ["", "localhost:8000", "ftp://h", "http://h?x=1", "http://h#top"] {
            assert!(text.parse::<BaseUrl>().is_err(), "{text:?}");
        }
        let error = "http://me:secret@h".parse::<BaseUrl>().unwrap_err();
        assert_eq!(error, InvalidUrl::Credentials);
        assert!(!error.to_string().contains("secret"));
    }
}
