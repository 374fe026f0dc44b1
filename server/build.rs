//! Compiles the source revision into the server: `NTL_COMMIT` if it is set, otherwise the commit of the git
//! checkout. Outside a checkout or without git, there is no revision and the build continues.

use std::path::Path;
use std::process::Command;

#[path = "../models/build.rs"]
mod shared_fixtures;

fn main() -> Result<(), String> {
    commit();
    shared_fixtures::main()
}

fn commit() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=NTL_COMMIT");
    if std::env::var("NTL_COMMIT").is_ok_and(|commit| !commit.is_empty()) {
        return;
    }
    // The log of HEAD grows with every commit and checkout. Cargo would run this script in each build for a
    // missing file.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists());
        if let Some(path) = path {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    // In an unpacked archive inside another project's checkout this file is not tracked.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo:rustc-env=NTL_COMMIT={commit}");
    }
}

/// Returns the output of a git command if it succeeds. Like Cargo, git starts from the directory of the
/// package.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
