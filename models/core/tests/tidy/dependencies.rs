//! Every dependency that a manifest declares is used.
//!
//! A package uses a dependency if a path in its sources begins with the dependency's name, such as `serde_json::Value`. For a
//! normal dependency the path has to be in `src`, for a development dependency it may be in tests, benches or examples, too, and for a
//! build dependency in `build.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;

use super::{collect, metadata, root};

#[test]
fn packages_use_their_dependencies() {
    let metadata = metadata();
    let unused: Vec<String> = metadata["packages"].as_array().unwrap().iter().flat_map(unused).collect();
    assert!(unused.is_empty(), "unused dependencies: {unused:#?}");
}

#[test]
fn workspace_dependencies_are_used_by_a_package() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let used: BTreeSet<&str> = packages
        .flat_map(|package| package["dependencies"].as_array().unwrap())
        .map(|dependency| dependency["name"].as_str().unwrap())
        .collect();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, section) = manifest.split_once("[workspace.dependencies]\n").unwrap();
    let section = section.split("\n[").next().unwrap();
    let declared: Vec<&str> = section.lines().filter_map(|line| Some(line.split_once(" = ")?.0)).collect();
    assert!(declared.len() > 30, "the workspace's dependencies were not found");
    let unused: Vec<&&str> = declared.iter().filter(|name| !used.contains(**name)).collect();
    assert!(unused.is_empty(), "no package uses these of [workspace.dependencies]: {unused:?}");
}

#[test]
fn only_paths_of_code_count_as_uses() {
    let source =
        "// regex::Regex\n/// [`regex::Regex`]\nuse a::b;\nfn f(x: c::D) { \"e::f\"; g!(h::i(j, k::l)) }";
    let mut found = BTreeSet::new();
    path_roots(source.parse().unwrap(), &mut found);
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "c", "h", "k"]);
}

/// What a package declares and does not use, as `package: dependency`.
fn unused(package: &Value) -> Vec<String> {
    let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
    let roots_in = |parts: &[&str]| {
        let mut files = Vec::new();
        for part in parts.iter().map(|part| folder.join(part)) {
            if part.is_dir() {
                collect(&part, &mut files);
            } else if part.is_file() {
                files.push(part);
            }
        }
        let mut roots = BTreeSet::new();
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            path_roots(text.parse().unwrap(), &mut roots);
        }
        roots
    };
    let (in_src, anywhere) = (roots_in(&["src"]), roots_in(&["src", "tests", "benches", "examples"]));
    let in_build = roots_in(&["build.rs"]);
    let is_unused = |dependency: &&Value| {
        let name = dependency["rename"].as_str().unwrap_or(dependency["name"].as_str().unwrap());
        let sources = match dependency["kind"].as_str() {
            None => &in_src,
            Some("build") => &in_build,
            Some(_) => &anywhere,
        };
        !sources.contains(&name.replace('-', "_"))
    };
    let dependencies = package["dependencies"].as_array().unwrap().iter().filter(is_unused);
    dependencies.map(|dependency| format!("{}: {}", package["name"], dependency["name"])).collect()
}

/// Collects the first segments of all paths: `std` of `std::fs::read`.
fn path_roots(tokens: TokenStream, roots: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_path_separator = |pair: Option<&[TokenTree]>| {
        pair.is_some_and(|pair| {
            pair.iter().all(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':'))
        })
    };
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => path_roots(group.stream(), roots),
            TokenTree::Ident(name)
                if is_path_separator(tokens.get(index + 1..index + 3))
                    && !is_path_separator(
                        index.checked_sub(2).and_then(|start| tokens.get(start..index)),
                    ) =>
            {
                roots.insert(name.to_string());
            }
            _ => {}
        }
    }
}
