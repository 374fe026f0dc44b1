//! Dependencies come from crates.io with a checksum, under licences that `deny.toml` allows, in one version each but for those that
//! it lists.
//!
//! `cargo deny` checks the same; these tests need no program and no network, so that they always run.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::root;

fn read(file: &str) -> toml::Table {
    std::fs::read_to_string(root().join(file)).unwrap().parse().unwrap()
}

/// What the programs are built from: name, version and licence of each package, for this platform.
fn packages_of_the_programs() -> BTreeSet<[String; 3]> {
    let flags =
        ["tree", "--locked", "--offline", "--prefix=none", "--edges=normal,build", "--format={p}|{l}"];
    let cargo = Command::new(env!("CARGO"))
        .args(flags)
        .args(["--package=ntl-server", "--package=ntl-eval"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let lines = String::from_utf8(cargo.stdout).unwrap();
    let package = |line: &str| {
        let (package, licence) = line.strip_suffix(" (*)").unwrap_or(line).split_once('|').unwrap();
        let mut words = package.split(' ').map(str::to_owned);
        [words.next().unwrap(), words.next().unwrap(), licence.to_owned()]
    };
    let packages = lines.lines().filter(|line| !line.is_empty()).map(package);
    packages.filter(|[name, ..]| !name.starts_with("ntl-")).collect()
}

/// Whether licences may be used under an expression such as `(MIT OR Apache-2.0) AND Unicode-3.0`, whose `OR` may be a slash.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let mut rest = expression.replace('/', " OR ");
    // An expression in parentheses is judged first and stands as true or false.
    while let Some(close) = rest.find(')') {
        let open = rest[..close].rfind('(').unwrap();
        let inner = is_allowed(&rest[open + 1..close], allowed);
        rest.replace_range(open..=close, if inner { "true" } else { "false" });
    }
    let licence = |licence: &str| licence == "true" || allowed.contains(licence);
    rest.split(" OR ").any(|all| all.split(" AND ").all(|name| licence(name.trim())))
}

#[test]
fn every_package_comes_from_crates_io_with_a_checksum() {
    let lock = read("Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    assert!(packages.len() > 300, "the packages were not found");
    for package in packages {
        let text = |field: &str| package.get(field).map(|value| value.as_str().unwrap());
        let name = text("name").unwrap();
        match text("source") {
            None => assert!(name.starts_with("ntl-"), "{name} has no source"),
            Some(source) => {
                assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{name}");
                assert!(text("checksum").is_some_and(|sum| sum.len() == 64), "{name} has no checksum");
            }
        }
    }
}

#[test]
fn the_programs_consist_of_packages_under_allowed_licences() {
    let deny = read("deny.toml");
    let allowed = deny["licenses"]["allow"].as_array().unwrap();
    let allowed: BTreeSet<&str> = allowed.iter().map(|licence| licence.as_str().unwrap()).collect();
    let packages = packages_of_the_programs();
    assert!(packages.len() > 200, "the packages were not found");
    let refused: Vec<_> = packages.iter().filter(|[.., licence]| !is_allowed(licence, &allowed)).collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn only_listed_packages_are_there_in_two_versions() {
    let deny = read("deny.toml");
    let skipped = deny["bans"]["skip"].as_array().unwrap();
    let skipped: BTreeSet<&str> = skipped.iter().map(|package| package.as_str().unwrap()).collect();
    let packages = packages_of_the_programs();
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for [name, version, _] in &packages {
        versions.entry(name).or_default().insert(version);
    }
    let twice: BTreeSet<&str> =
        versions.into_iter().filter(|(_, versions)| versions.len() > 1).map(|(name, _)| name).collect();
    assert_eq!(twice, skipped);
}

#[test]
fn expressions_of_licences_are_read() {
    let allowed = BTreeSet::from(["MIT", "ISC"]);
    for (expression, want) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("(GPL-3.0 OR (MIT AND X)) AND ISC", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), want, "{expression}");
    }
}
