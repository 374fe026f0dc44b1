//! The address of an engine.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// The http(s) URL that an engine's routes begin with, without `/v1`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BaseUrl {
    url: String,
    /// Host and port: what errors and metrics show. The path may hold a secret.
    name: String,
    /// Without the slash at its end.
    path: String,
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

    /// The part of the URL that nothing shows. Empty if there is none.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Numbers URLs that have the same host and port, so that errors and metrics distinguish them.
    pub(crate) fn distinguish(urls: &mut [Self]) {
        for index in 1..urls.len() {
            let (earlier, rest) = urls.split_at_mut(index);
            let url = &mut rest[0];
            let host = url.name.as_str();
            let same = earlier.iter().filter(|other| other.name.split('#').next() == Some(host)).count();
            if same > 0 {
                url.name = format!("{}#{}", url.name, same + 1);
            }
        }
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BaseUrl({self})")
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
        let address = base.split_once("://").map_or(base, |(_, address)| address);
        let path = address.find('/').map_or("", |at| &address[at..]);
        let name = &address[..address.len() - path.len()];
        Ok(Self { url: base.to_owned(), name: name.to_owned(), path: path.to_owned() })
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
            ("https://h/api/tokenize", "h")
        );
        let base: BaseUrl = "http://[::1]:80/a/b/v1/".parse().unwrap();
        assert_eq!((base.to_string().as_str(), base.path()), ("[::1]", "/a/b"));
    }

    #[test]
    fn a_path_is_shown_nowhere_and_equal_hosts_are_numbered() {
        let urls = ["http://h:1/SECRET-a", "http://g", "http://h:1/SECRET-b/v1", "http://h:1"];
        let mut urls = urls.map(|url| url.parse::<BaseUrl>().unwrap());
        BaseUrl::distinguish(&mut urls);
        assert_eq!(urls.each_ref().map(ToString::to_string), ["h:1", "g", "h:1#2", "h:1#3"]);
        assert!(!format!("{urls:?}").contains("SECRET"), "{urls:?}");
        assert_eq!(urls[2].join("/health"), "http://h:1/SECRET-b/health");
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
