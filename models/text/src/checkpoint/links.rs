//! Links in a checkpoint directory may only lead into that directory, with one exception.
//!
//! A downloaded directory must not make the server read other files of the machine. The exception is the
//! cache of the Hugging Face hub: `models--NAME/snapshots/REVISION/FILE` is a link to
//! `models--NAME/blobs/HASH`.

use std::path::{Path, PathBuf};

/// Returns whether a link in the directory `root` may lead to `target`. All links in both paths must be
/// resolved.
pub(super) fn may_lead_to(root: &Path, target: &Path) -> bool {
    target.starts_with(root) || blobs(root).is_some_and(|blobs| target.parent() == Some(&*blobs))
}

/// Returns the directory of blobs if `root` is a snapshot in a hub cache.
fn blobs(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent().filter(|folder| folder.ends_with("snapshots"))?;
    Some(snapshots.parent()?.join("blobs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_may_lead_into_the_directory_or_to_the_blobs_of_the_same_model() {
        for (root, target, want) in [
            ("/c", "/c/config.json", true),
            ("/c", "/c/inner/config.json", true),
            ("/c", "/cc/config.json", false),
            ("/c", "/etc/passwd", false),
            ("/hub/models--a/snapshots/1f", "/hub/models--a/blobs/9c", true),
            ("/hub/models--a/snapshots/1f", "/hub/models--a/blobs/deeper/9c", false),
            ("/hub/models--a/snapshots/1f", "/hub/models--b/blobs/9c", false),
            ("/hub/models--a/snapshots/1f", "/hub/models--a/snapshots/2e/config.json", false),
            ("/hub/models--a/other/1f", "/hub/models--a/blobs/9c", false),
            ("/", "/etc/passwd", true),
        ] {
            assert_eq!(may_lead_to(Path::new(root), Path::new(target)), want, "{root} to {target}");
        }
    }
}
