//! The hashes by which the hub names the contents of files: SHA-256 of large files, and the id of git's
//! object (SHA-1 with a header) of all others.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// A hash, in lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ContentHash {
    Sha256(String),
    GitObject(String),
}

impl ContentHash {
    /// Reads an `ETag`. Returns `None` if it is not such a hash.
    pub(super) fn of_etag(etag: &str) -> Option<Self> {
        let hash = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        match hash.len() {
            _ if !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => None,
            64 => Some(Self::Sha256(hash)),
            40 => Some(Self::GitObject(hash)),
            _ => None,
        }
    }

    /// Computes the hash of a file in the form of this one.
    pub(super) fn of_file(&self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        match self {
            Self::Sha256(_) => {
                let mut hasher = Sha256::new();
                io::copy(&mut file, &mut hasher)?;
                Ok(format!("{:x}", hasher.finalize()))
            }
            Self::GitObject(_) => {
                let mut hasher = Sha1::new_with_prefix(format!("blob {}\0", file.metadata()?.len()));
                io::copy(&mut file, &mut hasher)?;
                Ok(format!("{:x}", hasher.finalize()))
            }
        }
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Sha256(hash) | Self::GitObject(hash) => hash,
        }
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_hashes_of_git_and_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        std::fs::write(&path, "hello\n").unwrap();
        // `git hash-object` and `sha256sum` print these.
        for hash in [
            "ce013625030ba8dba906f756967f9e9ca394464a",
            "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
        ] {
            let parsed = ContentHash::of_etag(&format!("\"{hash}\"")).unwrap();
            assert_eq!(parsed.of_file(&path).unwrap(), hash);
            assert_eq!(ContentHash::of_etag(&format!("W/\"{}\"", hash.to_uppercase())), Some(parsed));
        }
        for wrong in ["", "\"../../../etc/passwd\"", "\"0123\"", &"g".repeat(40)] {
            assert_eq!(ContentHash::of_etag(wrong), None);
        }
    }
}
