//! Links in a checkpoint folder may only lead into that folder, with one exception.
//!
//! A downloaded folder must not make the server read other files of the machine. The exception is the cache of the Hugging
//! Face hub, where `models--NAME/snapshots/REVISION/FILE` is a link to `models--NAME/blobs/HASH`.

use std::path::{Path, PathBuf};

/// Whether a link in the folder `root` may lead to `target`; both paths have no links.
pub(super) fn may_lead_to(root: &Path, target: &Path) -> bool {
    target.starts_with(root) || blobs(root).is_some_and(|blobs| target.parent() == Some(&*blobs))
}

/// The folder of blobs, if `root` is a snapshot of a hub cache.
fn blobs(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent().filter(|folder| folder.ends_with("snapshots"))?;
    Some(snapshots.parent()?.join("blobs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_into_the_folder_or_to_the_blobs_of_the_same_model() {
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
