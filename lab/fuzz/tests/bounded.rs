//! A fixed number of inputs for every target, and all inputs that once violated a guarantee.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::{Path, PathBuf};

use ntl_fuzz::run::{Amount, Reader, run};
use ntl_fuzz::{TARGETS, target};

/// Number of mutations of each target.
const INPUTS: usize = 1500;

const SEED: u64 = 1;

#[test]
fn no_input_violates_a_guarantee() {
    let mut broken = Vec::new();
    for target in TARGETS {
        match run(target, SEED, Amount::Inputs(INPUTS)) {
            Ok(figures) => {
                assert!(figures.accepted > 0 && figures.refused > 0, "{}: {figures:?}", target.name)
            }
            Err(finding) => broken.push(format!("{}: {}", target.name, finding.broken)),
        }
    }
    assert!(
        broken.is_empty(),
        "`just fuzz TARGET 1` writes the inputs that violate a guarantee: {broken:#?}"
    );
}

#[test]
fn no_past_finding_violates_a_guarantee_again() {
    let findings = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings");
    for folder in sorted(&findings) {
        let target = target(folder.file_name().unwrap().to_str().unwrap()).unwrap();
        let mut reader = Reader::start(target);
        for file in sorted(&folder) {
            let checked = reader.check(&std::fs::read(&file).unwrap());
            checked.unwrap_or_else(|finding| panic!("{}: {}", file.display(), finding.broken));
        }
    }
}

fn sorted(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        folder.read_dir().into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
