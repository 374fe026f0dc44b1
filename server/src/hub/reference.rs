//! Repositories of the Hugging Face hub in flags: `hf:ORG/NAME[@REVISION][/FILE.gguf]`.
//!
//! Invariant: the parts of a parsed reference are plain names, so that they cannot lead out of the cache or
//! to another route of the hub.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

const PREFIX: &str = "hf:";
const DEFAULT_REVISION: &str = "main";
const GGUF: &str = ".gguf";

/// Maximum length of a part, in bytes.
const PART_BYTES_MAX: usize = 200;

/// A repository of models, at a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubReference {
    pub(super) organisation: String,
    /// The name without the organisation.
    pub(super) name: String,
    /// A branch, a tag or a commit.
    revision: Option<String>,
    /// Path of a single GGUF file in the repository.
    pub(super) file: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    #[error("`{0}`: write it like hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME/FILE.gguf")]
    Form(String),
    #[error("`{0}`: a single file is only for --model; write it like hf:ORG/NAME")]
    File(String),
}

impl HubReference {
    /// Returns whether a text is meant to be one.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    pub(super) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(DEFAULT_REVISION)
    }

    /// The name of a model that no flag names: the name of the repository or of the file.
    pub(crate) fn model_name(&self) -> &str {
        match &self.file {
            Some(file) => file.rsplit('/').next().unwrap_or(file).trim_end_matches(GGUF),
            None => &self.name,
        }
    }
}

impl FromStr for HubReference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        Self::parse(text).ok_or_else(|| InvalidReference::Form(text.to_owned()))
    }
}

impl HubReference {
    fn parse(text: &str) -> Option<Self> {
        let (organisation, rest) = text.strip_prefix(PREFIX)?.split_once('/')?;
        // The file follows the revision, or the name if there is no revision.
        let (rest, revised) = match rest.split_once('@') {
            Some((name, revised)) => (name, Some(revised)),
            None => (rest, None),
        };
        let (name, revision, file) = match (revised, rest.split_once('/')) {
            (None, None) => (rest, None, None),
            (None, Some((name, file))) => (name, None, Some(file)),
            (Some(revised), None) => match revised.split_once('/') {
                Some((revision, file)) if file.ends_with(GGUF) => (rest, Some(revision), Some(file)),
                // Some revisions have slashes, such as refs/pr/1.
                _ => (rest, Some(revised), None),
            },
            (Some(_), Some(_)) => return None,
        };
        let is_repository = is_word(organisation) && is_word(name);
        let is_gguf = file.is_none_or(|file| file.ends_with(GGUF) && is_inner_path(file));
        if !is_repository || !is_gguf || !revision.is_none_or(is_revision) {
            return None;
        }
        Some(Self {
            organisation: organisation.to_owned(),
            name: name.to_owned(),
            revision: revision.map(str::to_owned),
            file: file.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.organisation, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.file {
            Some(file) => write!(f, "/{file}"),
            None => Ok(()),
        }
    }
}

/// A directory on this machine, or a repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    Path(PathBuf),
    Hub(HubReference),
}

impl FromStr for Location {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        if !HubReference::is_meant_by(text) {
            return Ok(Self::Path(text.into()));
        }
        let reference: HubReference = text.parse()?;
        match reference.file {
            Some(_) => Err(InvalidReference::File(text.to_owned())),
            None => Ok(Self::Hub(reference)),
        }
    }
}

/// Returns whether a text can be the name of an organisation or of a repository.
fn is_word(text: &str) -> bool {
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_safe = !text.contains("..") && !text.contains("--") && !text.starts_with(['.', '-']);
    !text.is_empty() && text.len() <= PART_BYTES_MAX && is_plain && is_safe
}

fn is_revision(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c)) && is_inner_path(text)
}

/// Returns whether a path stays below the directory that it begins at.
pub(super) fn is_inner_path(path: &str) -> bool {
    let are_names = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    let is_plain = !path.contains(|c: char| c == '\\' || c.is_control());
    path.len() <= PART_BYTES_MAX && is_plain && are_names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_has_a_repository_a_revision_and_a_file() {
        for (text, organisation, name, revision, file, model) in [
            ("hf:Qwen/Qwen3-0.6B", "Qwen", "Qwen3-0.6B", "main", None, "Qwen3-0.6B"),
            ("hf:a/b@v1.0", "a", "b", "v1.0", None, "b"),
            ("hf:a/b@refs/pr/1", "a", "b", "refs/pr/1", None, "b"),
            ("hf:a/b/m.Q4_K_M.gguf", "a", "b", "main", Some("m.Q4_K_M.gguf"), "m.Q4_K_M"),
            ("hf:a/b@v1/sub/m.gguf", "a", "b", "v1", Some("sub/m.gguf"), "m"),
        ] {
            let found: HubReference = text.parse().unwrap();
            let parts = (found.organisation.as_str(), found.name.as_str(), found.revision());
            assert_eq!((parts, found.file.as_deref()), ((organisation, name, revision), file), "{text}");
            assert_eq!((found.model_name(), found.to_string().as_str()), (model, text));
        }
    }

    #[test]
    fn parts_that_could_lead_elsewhere_are_rejected() {
        let long = format!("hf:a/{}", "b".repeat(201));
        for text in [
            "hf:",
            "hf:a",
            "hf:a/",
            "hf:/b",
            "hf:a/..",
            "hf:../b",
            "hf:a/b@",
            "hf:a/b@../c",
            "hf:a/b@/c",
            "hf:a/b/c",
            "hf:a/b/../m.gguf",
            "hf:a/b//m.gguf",
            "hf:a/b/..\\m.gguf",
            "hf:a/b?x",
            "hf:a/b c",
            "hf:a--b/c",
            "hf:-a/b",
            "hf:a/b@v#1",
            "hf:a/b/c@d/m.gguf",
            "a/b",
            &long,
        ] {
            assert_eq!(text.parse::<HubReference>(), Err(InvalidReference::Form(text.to_owned())));
        }
    }

    #[test]
    fn a_directory_is_a_path_and_a_single_file_is_not_a_directory() {
        assert_eq!("a/b".parse(), Ok(Location::Path("a/b".into())));
        assert!(matches!("hf:a/b".parse(), Ok(Location::Hub(_))));
        assert_eq!(
            "hf:a/m.gguf/m.gguf".parse::<Location>().unwrap_err().to_string(),
            "`hf:a/m.gguf/m.gguf`: a single file is only for --model; write it like hf:ORG/NAME"
        );
    }
}
