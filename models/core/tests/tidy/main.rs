//! Checks of the workspace itself: packages depend only on those that they may depend on, modules have no
//! circular dependencies, and every file begins with a description.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod circles;
mod widths;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// All dependencies between our packages, as drawn in `docs/ARCHITECTURE.md`.
const EDGES: [(&str, &[&str]); 16] = [
    ("ntl-core", &[]),
    ("ntl-cuda", &[]),
    ("ntl-engine", &["ntl-core"]),
    ("ntl-fake-cuda", &[]),
    ("ntl-kernels", &[]),
    ("ntl-models", &["ntl-core", "ntl-cuda", "ntl-kernels", "ntl-text"]),
    ("ntl-text", &["ntl-core"]),
    ("ntl-remote", &["ntl-common", "ntl-core", "ntl-engine", "ntl-text"]),
    ("ntl-mistralrs", &["ntl-core", "ntl-models", "ntl-text"]),
    ("ntl-api", &[]),
    ("ntl-common", &["ntl-core"]),
    (
        "ntl-server",
        &[
            "ntl-api",
            "ntl-common",
            "ntl-core",
            "ntl-engine",
            "ntl-mistralrs",
            "ntl-models",
            "ntl-remote",
            "ntl-text",
        ],
    ),
    ("ntl-paper", &["ntl-api", "ntl-core"]),
    ("ntl-eval", &["ntl-api", "ntl-common", "ntl-core", "ntl-paper"]),
    ("ntl-bench", &["ntl-core", "ntl-engine", "ntl-models", "ntl-text"]),
    (
        "ntl-fuzz",
        &[
            "ntl-core",
            "ntl-engine",
            "ntl-eval",
            "ntl-models",
            "ntl-paper",
            "ntl-remote",
            "ntl-server",
            "ntl-text",
        ],
    ),
];

/// Dependencies that only some packages may have.
const CONFINED: [(&str, &[&str]); 6] = [
    ("candle-core", &["ntl-bench", "ntl-cuda", "ntl-fuzz", "ntl-mistralrs", "ntl-models"]),
    ("candle-nn", &["ntl-models"]),
    ("pulp", &["ntl-kernels"]),
    ("mistralrs", &["ntl-mistralrs"]),
    ("tokenizers", &["ntl-text"]),
    ("axum", &["ntl-fuzz", "ntl-server"]),
];

/// Modules of ntl-eval, and the only modules that may use them. The others do not depend on the command line.
const USERS_IN_EVAL: [(&str, &[&str]); 3] =
    [("cli", &["app"]), ("console", &["app", "compare", "session"]), ("session", &["app", "compare"])];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns cargo's metadata of the workspace.
fn metadata() -> serde_json::Value {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    serde_json::from_slice(&cargo.stdout).unwrap()
}

/// Returns the normal dependencies of each package of the workspace.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let metadata = metadata();
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages
        .map(|package| {
            let all = package["dependencies"].as_array().unwrap().iter();
            (name(package), all.filter(|dependency| dependency["kind"].is_null()).map(name).collect())
        })
        .collect()
}

#[test]
fn packages_depend_on_each_other_only_as_drawn() {
    let found = dependencies();
    let ours: BTreeSet<&str> = EDGES.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), ours, "packages of the workspace");
    for (name, allowed) in EDGES {
        let edges: Vec<&str> =
            found[name].iter().map(String::as_str).filter(|dependency| ours.contains(dependency)).collect();
        assert_eq!(edges, allowed, "dependencies of {name}");
    }
    for (dependency, allowed) in CONFINED {
        for (name, dependencies) in &found {
            let allowed = allowed.contains(&name.as_str());
            assert!(allowed || !dependencies.contains(dependency), "{name} must not depend on {dependency}");
        }
    }
}

/// The fake driver's functions would replace the real driver's in a program that is linked with it.
#[test]
fn the_product_does_not_depend_on_the_laboratory() {
    let laboratory = root().join("lab");
    let metadata = metadata();
    let mut names = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        if Path::new(package["manifest_path"].as_str().unwrap()).starts_with(&laboratory) {
            names.insert(package["name"].as_str().unwrap());
        }
    }
    assert!(!names.is_empty(), "the packages of the laboratory were not found");
    for package in metadata["packages"].as_array().unwrap() {
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency = dependency["name"].as_str().unwrap();
            assert!(!names.contains(dependency), "{} depends on {dependency}", package["name"]);
        }
    }
    for member in metadata["workspace_default_members"].as_array().unwrap() {
        assert!(!member.as_str().unwrap().contains("/lab/"), "{member} is a default member");
    }
}

#[test]
fn modules_form_no_circles() {
    let mut found = Vec::new();
    let packages = packages();
    assert!(packages.len() >= EDGES.len(), "the packages were not found");
    for package in packages {
        let name = package.strip_prefix(root()).unwrap().display().to_string();
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| package.join(file));
        let circles = roots.iter().filter(|file| file.is_file()).flat_map(|file| circles::circles(file));
        found.extend(circles.map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_evaluation_does_not_use_its_command_line() {
    let edges = circles::edges(&root().join("eval/src/lib.rs"));
    for (module, allowed) in USERS_IN_EVAL {
        let users = edges.iter().filter(|(_, used)| used.contains_key(module));
        let users: Vec<&str> = users.map(|(user, _)| user.as_str()).collect();
        assert_eq!(users, allowed, "modules that use {module}");
    }
}

/// Returns the directories of all packages.
fn packages() -> Vec<PathBuf> {
    let metadata = metadata();
    let manifests = metadata["packages"].as_array().unwrap().iter();
    let folder = |package: &serde_json::Value| {
        Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
    };
    manifests.map(folder).collect()
}

/// The directories with sources and pages.
const SOURCES: [&str; 7] = ["models", "server", "eval", "benchmarks", "python", "docs", "lab"];

#[test]
fn source_files_begin_with_a_description() {
    let files = files_with("rs");
    assert!(files.len() > 30, "the sources were not found");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//! "), "{} does not begin with a description", file.display());
    }
}

#[test]
fn comments_and_pages_wrap_at_110_columns() {
    let root = root();
    let mut files = files_with("rs");
    files.extend(files_with("md"));
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"] {
        files.push(root.join(page));
    }
    // Their tables and findings are written by programs.
    files.retain(|file| !file.starts_with(root.join("lab/results")));
    let wide: Vec<String> = files.iter().flat_map(|file| widths::wide_lines(&root, file)).collect();
    assert!(wide.is_empty(), "lines beyond 110 columns:\n{}", wide.join("\n"));
}

/// Returns the files with this extension below the directories with sources and pages.
fn files_with(extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for directory in SOURCES {
        collect(&root().join(directory), extension, &mut files);
    }
    files
}

fn collect(directory: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
}
