//! The environment variables of Hugging Face's libraries: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE`,
//! `HF_HOME` and `HF_HUB_CACHE`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ntl_common::regular_file::read_text;
use reqwest::Url;
use reqwest::header::HeaderValue;

use super::error::HubError;

const ENDPOINT: &str = "https://huggingface.co";

/// Pause before the second attempt of a request; later ones are longer.
const PAUSE: Duration = Duration::from_secs(1);

const TOKEN_BYTES_MAX: u64 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HubSettings {
    pub(super) endpoint: Url,
    /// Value of `Authorization`, which `Debug` does not show.
    pub(super) authorization: Option<HeaderValue>,
    /// Whether only the cache is used.
    pub(super) is_offline: bool,
    /// The directory of `models--ORG--NAME`.
    pub(super) cache: PathBuf,
    pub(super) pause: Duration,
}

impl HubSettings {
    pub(super) fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, HubError> {
        let home = if let Some(home) = path(variable("HF_HOME")) {
            Some(home)
        } else if let Some(cache) = path(variable("XDG_CACHE_HOME")) {
            Some(cache.join("huggingface"))
        } else {
            path(variable("HOME")).map(|home| home.join(".cache/huggingface"))
        };
        let cache = path(variable("HF_HUB_CACHE")).or_else(|| Some(home.as_deref()?.join("hub")));
        let no_cache = "set it to the directory for downloads; HOME is not set either";
        Ok(Self {
            endpoint: endpoint(variable("HF_ENDPOINT"))?,
            authorization: authorization(variable("HF_TOKEN"), home.as_deref())?,
            is_offline: variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)),
            cache: cache.ok_or_else(|| wrong("HF_HOME", no_cache))?,
            pause: PAUSE,
        })
    }
}

/// A variable without a value is the same as none.
fn path(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn wrong(variable: &'static str, problem: &'static str) -> HubError {
    HubError::Variable { variable, problem }
}

/// The values that Hugging Face's libraries take for true.
fn is_true(value: &OsStr) -> bool {
    value.to_str().is_some_and(|value| ["1", "on", "yes", "true"].contains(&&*value.to_ascii_lowercase()))
}

fn endpoint(value: Option<OsString>) -> Result<Url, HubError> {
    let value = value.filter(|value| !value.is_empty()).unwrap_or_else(|| ENDPOINT.into());
    match value.to_str().and_then(|value| value.parse().ok()) {
        Some(url) if is_endpoint(&url) => Ok(url),
        _ => Err(wrong("HF_ENDPOINT", "must be an address such as https://huggingface.co")),
    }
}

fn is_endpoint(url: &Url) -> bool {
    let has_password = !url.username().is_empty() || url.password().is_some();
    matches!(url.scheme(), "http" | "https") && !has_password && url.query().is_none()
}

/// Returns the header with the token of `HF_TOKEN`, or of the file that `hf auth login` writes.
fn authorization(value: Option<OsString>, home: Option<&Path>) -> Result<Option<HeaderValue>, HubError> {
    const UNUSABLE: &str = "contains characters that a header cannot contain";
    let token = match (value, home) {
        (Some(value), _) => value.into_string().map_err(|_| wrong("HF_TOKEN", UNUSABLE))?,
        (None, Some(home)) => read_text(&home.join("token"), TOKEN_BYTES_MAX).unwrap_or_default(),
        (None, None) => String::new(),
    };
    let token = token.trim();
    if token.is_empty() {
        return Ok(None);
    }
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_| wrong("HF_TOKEN", UNUSABLE))?;
    header.set_sensitive(true);
    Ok(Some(header))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<HubSettings, String> {
        let variable = |name: &str| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| OsString::from(*value))
        };
        HubSettings::from_variables(&variable).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_have_the_meaning_of_hugging_face() {
        for (variables, cache) in [
            (&[("HOME", "/h")][..], "/h/.cache/huggingface/hub"),
            (&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HOME", "/h"), ("HF_HOME", "/f")], "/f/hub"),
            (&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f")], "/c"),
        ] {
            let found = settings(variables).unwrap();
            assert_eq!(found.cache, Path::new(cache));
            assert_eq!((found.endpoint.as_str(), found.is_offline), ("https://huggingface.co/", false));
        }
        for (value, is_offline) in [("1", true), ("Yes", true), ("0", false), ("", false)] {
            assert_eq!(
                settings(&[("HOME", "/h"), ("HF_HUB_OFFLINE", value)]).unwrap().is_offline,
                is_offline
            );
        }
        for (variables, want) in [
            (&[][..], "HF_HOME: set it"),
            (&[("HOME", "/h"), ("HF_ENDPOINT", "hub")], "HF_ENDPOINT: must be"),
            (&[("HOME", "/h"), ("HF_ENDPOINT", "https://me:secret@hub")], "HF_ENDPOINT: must be"),
            (&[("HOME", "/h"), ("HF_TOKEN", "secret\n1")], "HF_TOKEN: contains"),
        ] {
            let error = settings(variables).unwrap_err();
            assert!(error.starts_with(want) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_token_comes_from_the_variable_or_the_file_and_is_not_shown() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().to_str().unwrap();
        assert_eq!(settings(&[("HF_HOME", folder)]).unwrap().authorization, None);
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        let found = settings(&[("HF_HOME", folder)]).unwrap();
        assert_eq!(found.authorization.as_ref().unwrap(), "Bearer hf_file");
        assert!(!format!("{found:?}").contains("hf_file"));
        let found = settings(&[("HF_HOME", folder), ("HF_TOKEN", "hf_variable")]).unwrap();
        assert_eq!(found.authorization.unwrap(), "Bearer hf_variable");
        assert_eq!(settings(&[("HF_HOME", folder), ("HF_TOKEN", "")]).unwrap().authorization, None);
    }
}
