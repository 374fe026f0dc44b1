//! The API keys: read from flags and a file, compared with the keys of requests, and read again at a SIGHUP.
//!
//! Clones share one set of keys. A set without keys disables authentication and stays empty: a file must have
//! at least one key.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};
use ntl_common::regular_file::{SMALL_BYTES_MAX, read_text};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::quota::{Quota, QuotaError};

/// Maximum length of a key's name.
const NAME_CHARS_MAX: usize = 32;

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    #[error("--api-key: a key must not be empty or contain spaces")]
    UnusableKey,
    #[error(
        "--api-key-file: line {line} of `{file}` must be `KEY`, `NAME KEY` or `NAME KEY LIMIT=VALUE ...`; a name has \
         at most 32 of the characters A-Z a-z 0-9 - _ ."
    )]
    UnusableLine { file: PathBuf, line: usize },
    #[error("--api-key-file: line {line} of `{file}`: {problem}")]
    UnusableQuota { file: PathBuf, line: usize, problem: QuotaError },
    #[error("--api-key-file: cannot read API keys from `{file}`")]
    Unreadable {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A file without a key would open the server to everyone.
    #[error("--api-key-file: there is no API key in `{0}`")]
    NoKey(PathBuf),
}

/// The accepted API keys. `Debug` shows only how many there are; what a client sends is compared with
/// `ApiKeys::matched`.
#[derive(Clone, Default)]
pub struct ApiKeys(Arc<Shared>);

#[derive(Default)]
struct Shared {
    flags: Vec<String>,
    file: Option<PathBuf>,
    keys: RwLock<Arc<[ClientKey]>>,
}

/// An API key. Two keys are the same client if their secrets are equal.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ClientKey {
    /// The name in logs: from the file, or `#` and the number of the key, counted from 1.
    pub(crate) name: String,
    secret: String,
    /// Its limits in the file.
    pub(crate) quota: Quota,
}

impl ClientKey {
    /// A number that depends on the secret only.
    pub(crate) fn id(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// Returns whether one of the keys is the same client.
    fn is_client_of(&self, keys: &[Self]) -> bool {
        keys.iter().any(|key| key.secret == self.secret)
    }
}

impl Hash for ClientKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.secret.hash(state);
    }
}

impl ApiKeys {
    /// Reads the keys of `--api-key` and of `--api-key-file`.
    pub fn read(flags: Vec<String>, file: Option<PathBuf>) -> Result<Self, KeyError> {
        let keys = RwLock::new(keys(&flags, file.as_ref())?);
        Ok(Self(Arc::new(Shared { flags, file, keys })))
    }

    pub(crate) fn has_file(&self) -> bool {
        self.0.file.is_some()
    }

    /// Reads the file again, if there is one, and logs the result. If it cannot be used, the present keys
    /// stay. Requests that are at work are not checked again.
    pub fn reload(&self) {
        let Shared { flags, file: Some(file), keys: current } = &*self.0 else { return };
        match keys(flags, Some(file)) {
            Ok(keys) => {
                let before = self.present();
                // The log must not report keys that requests do not have yet.
                *current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&keys);
                let Changes { added, removed, changed } = Changes::between(&before, &keys);
                if added.is_empty() && removed.is_empty() && changed.is_empty() {
                    tracing::info!(keys = keys.len(), "the API keys have not changed");
                } else {
                    let [added, removed, changed] = [added, removed, changed].map(|names| names.join(","));
                    tracing::info!(
                        keys = keys.len(),
                        added,
                        removed,
                        changed,
                        "the API keys were read again"
                    );
                }
            }
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::error!(error, "the API keys were not read again; the present ones stay");
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.present().is_empty()
    }

    /// Returns the key of a request. Compares with every key in constant time, so that response times do not
    /// reveal a prefix of a key.
    pub(crate) fn matched(&self, headers: &HeaderMap) -> Option<ClientKey> {
        let secret = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()))?;
        let keys = self.present();
        let mut has_match = Choice::from(0);
        let mut match_index = 0;
        for (index, key) in (0_u32..).zip(&*keys) {
            let is_match = secret.ct_eq(key.secret.as_bytes());
            match_index.conditional_assign(&index, is_match);
            has_match |= is_match;
        }
        if bool::from(has_match) { keys.get(match_index as usize).cloned() } else { None }
    }

    fn present(&self) -> Arc<[ClientKey]> {
        Arc::clone(&self.0.keys.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PartialEq for ApiKeys {
    fn eq(&self, other: &Self) -> bool {
        self.0.flags == other.0.flags && self.0.file == other.0.file
    }
}

impl Eq for ApiKeys {}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.present().len())
    }
}

/// The names of the keys that a reload changes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes<'a> {
    added: Vec<&'a str>,
    removed: Vec<&'a str>,
    /// The keys with other limits or another name.
    changed: Vec<&'a str>,
}

impl<'a> Changes<'a> {
    fn between(before: &'a [ClientKey], after: &'a [ClientKey]) -> Self {
        let mut changes = Self::default();
        for key in after {
            if !key.is_client_of(before) {
                changes.added.push(&key.name);
            } else if !before.contains(key) {
                changes.changed.push(&key.name);
            }
        }
        for key in before {
            if !key.is_client_of(after) {
                changes.removed.push(&key.name);
            }
        }
        changes
    }
}

/// Returns the text after the scheme `Bearer`, which may be in upper or lower case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// Returns the keys of the flags and of the file.
fn keys(flags: &[String], file: Option<&PathBuf>) -> Result<Arc<[ClientKey]>, KeyError> {
    if flags.iter().any(|key| key.is_empty() || key.contains(char::is_whitespace)) {
        return Err(KeyError::UnusableKey);
    }
    let mut keys = Vec::new();
    for secret in flags {
        keys.push(KeyLine { name: None, secret, quota: Quota::default() });
    }
    let text;
    if let Some(file) = file {
        text = read_text(file, SMALL_BYTES_MAX)
            .map_err(|source| KeyError::Unreadable { file: file.clone(), source })?;
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let key = key_line(text).map_err(|problem| KeyError::UnusableQuota {
                file: file.clone(),
                line,
                problem,
            })?;
            keys.push(key.ok_or_else(|| KeyError::UnusableLine { file: file.clone(), line })?);
        }
        if keys.len() == flags.len() {
            return Err(KeyError::NoKey(file.clone()));
        }
    }
    let mut numbered = Vec::with_capacity(keys.len());
    for (number, KeyLine { name, secret, quota }) in (1_usize..).zip(keys) {
        let name = name.map_or_else(|| format!("#{number}"), str::to_owned);
        numbered.push(ClientKey { name, secret: secret.to_owned(), quota });
    }
    Ok(numbered.into())
}

struct KeyLine<'a> {
    name: Option<&'a str>,
    secret: &'a str,
    quota: Quota,
}

/// Reads `KEY`, `NAME KEY` or `NAME KEY LIMIT=VALUE ...`; `None` for another line. The error of a line must
/// not show it, since it may be a key.
fn key_line(text: &str) -> Result<Option<KeyLine<'_>>, QuotaError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.iter().take(2).try_for_each(|word| Quota::check_no_setting(word))?;
    let (name, secret, settings) = match &words[..] {
        [secret] => (None, *secret, &[][..]),
        [name, secret, settings @ ..] => (Some(*name), *secret, settings),
        [] => return Ok(None),
    };
    if !settings.iter().all(|setting| setting.contains('=')) || !name.is_none_or(is_name) {
        return Ok(None);
    }
    Ok(Some(KeyLine { name, secret, quota: Quota::parse(settings)? }))
}

fn is_name(text: &str) -> bool {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_plain && text.len() <= NAME_CHARS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of a flag and of a file with this text.
    fn read(folder: &tempfile::TempDir, text: &str) -> Result<ApiKeys, KeyError> {
        let file = folder.path().join("keys");
        std::fs::write(&file, text).unwrap();
        ApiKeys::read(vec!["first".to_owned()], Some(file))
    }

    fn name(keys: &ApiKeys, secret: &str) -> Option<String> {
        let header = (header::AUTHORIZATION, format!("Bearer {secret}").parse().unwrap());
        keys.matched(&HeaderMap::from_iter([header])).map(|key| key.name)
    }

    #[test]
    fn keys_come_from_flags_and_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(format!("{:?}", read(&folder, "# ours\n\nsecond\n third \n").unwrap()), "3 keys");
        let long = "x".repeat(33);
        for wrong in ["three words here\n", "né key\n", &format!("{long} key\n")] {
            let error = read(&folder, &format!("# ours\n{wrong}")).unwrap_err();
            assert!(matches!(error, KeyError::UnusableLine { line: 2, .. }), "{error}");
            assert!(!error.to_string().contains("key\n") && !error.to_string().contains("words"), "{error}");
        }
        assert!(matches!(read(&folder, "# none\n"), Err(KeyError::NoKey(_))));
        assert!(matches!(ApiKeys::read(vec!["a b".to_owned()], None), Err(KeyError::UnusableKey)));
        let gone = ApiKeys::read(vec![], Some("/no/such/file".into())).unwrap_err();
        assert_eq!(gone.to_string(), "--api-key-file: cannot read API keys from `/no/such/file`");
    }

    #[test]
    fn only_a_whole_key_opens() {
        let keys = ApiKeys::read(vec!["one".to_owned(), "two".to_owned()], None).unwrap();
        for (value, admitted) in [
            ("Bearer one", true),
            ("bearer two", true),
            ("Bearer  two ", true),
            ("Bearer on", false),
            ("Bearer onee", false),
            ("Bearer ONE", false),
            ("Bearer ", false),
            ("Bearer", false),
            ("one", false),
            ("Basic one", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(keys.matched(&headers).is_some(), admitted, "{value:?}");
        }
        assert!(keys.matched(&HeaderMap::new()).is_none());
    }

    #[test]
    fn a_key_with_a_name_may_have_limits_and_a_wrong_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let keys = read(&folder, "ann a tokens-per-day=5 requests-per-minute=none\nbob b\n").unwrap();
        let present = keys.present();
        let [first, ann, bob] = &*present else { panic!("{keys:?}") };
        assert_eq!((first.quota, bob.quota), (Quota::default(), Quota::default()));
        let want = Quota::parse(&["tokens-per-day=5", "requests-per-minute=none"]).unwrap();
        assert_eq!((ann.quota, ann.name.as_str()), (want, "ann"));
        for (wrong, message) in [
            (
                "ann SECRET tokens-per-dya=5",
                "none of `requests-per-minute`, `requests-per-day`, `tokens-per-minute`, `tokens-per-day`, `upstream-budget`; did you mean `tokens-per-day`?",
            ),
            ("ann SECRET SECRET2=5", "none of `requests-per-minute`"),
            (
                "ann SECRET tokens-per-day=0",
                "`tokens-per-day` must be `none` or an integer from 1 to 1000000000000",
            ),
            ("ann SECRET tokens-per-day=1e6", "`tokens-per-day` must be"),
            ("ann SECRET tokens-per-day=1000000000001", "`tokens-per-day` must be"),
            ("ann SECRET requests-per-day=1 requests-per-day=2", "`requests-per-day` occurs twice"),
            ("SECRET tokens-per-day=5", "`tokens-per-day` needs a name and a key before it"),
            ("tokens-per-day=5 SECRET", "`tokens-per-day` needs a name and a key before it"),
        ] {
            let error = read(&folder, &format!("# ours\n{wrong}\n")).unwrap_err().to_string();
            assert!(error.starts_with("--api-key-file: line 2 of `"), "{error}");
            assert!(error.contains(message) && !error.contains("SECRET") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_key_has_the_name_of_its_line_or_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let keys = read(&folder, "grafana abc=\nsecond\n").unwrap();
        for (key, want) in
            [("first", Some("#1")), ("abc=", Some("grafana")), ("second", Some("#3")), ("grafana", None)]
        {
            assert_eq!(name(&keys, key).as_deref(), want, "{key}");
        }
    }

    #[test]
    fn reloading_replaces_the_keys_of_the_file_unless_it_cannot_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let keys = read(&folder, "old\n").unwrap();
        let file = folder.path().join("keys");
        for (text, has_old, has_new) in [
            ("old\nnew\n", true, true),
            ("# none\n", true, true),
            ("a b c\n", true, true),
            ("new\n", false, true),
        ] {
            std::fs::write(&file, text).unwrap();
            keys.clone().reload();
            assert_eq!(
                (name(&keys, "old").is_some(), name(&keys, "new").is_some()),
                (has_old, has_new),
                "{text}"
            );
            assert!(name(&keys, "first").is_some());
        }
        let without_file = ApiKeys::default();
        without_file.reload();
        assert!(without_file.is_empty());
    }

    #[test]
    fn added_removed_and_changed_keys_have_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let [before, after] =
            ["ann a\nbob b\ndan d requests-per-day=1\n", "bob b\ncarol c\ndan d requests-per-day=2\ne\n"]
                .map(|text| read(&folder, text).unwrap().present());
        let (added, removed, changed) = (vec!["carol", "#5"], vec!["ann"], vec!["dan"]);
        assert_eq!(Changes::between(&before, &after), Changes { added, removed, changed });
        assert_eq!(Changes::between(&after, &after), Changes::default());
    }

    #[test]
    fn keys_are_never_shown() {
        let keys = ApiKeys::read(vec!["secret".to_owned(), "other".to_owned()], None).unwrap();
        assert_eq!(format!("{keys:?}"), "2 keys");
    }
}
