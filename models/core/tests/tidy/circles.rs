//! Checks that the modules of a package have no circular dependencies.
//!
//! The rule holds at every level of the module tree: siblings, each together with all of its descendants, use
//! one another in one direction only. A module and its own children may use each other. Test modules
//! (`#[cfg(test)]`, also with the feature `testing`) are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// Path of a module or of a name in it, from the root of its package: `["numbers", "grammar"]`.
type ModulePath = Vec<String>;

/// One use of another path.
struct Reference {
    /// The module that contains the use.
    from: ModulePath,
    /// The absolute path that is used. Its last parts may be items instead of modules.
    to: ModulePath,
}

/// The modules of one package, and the paths that they use.
#[derive(Default)]
struct ModuleTree {
    modules: BTreeSet<ModulePath>,
    references: Vec<Reference>,
    /// Names that modules import or re-export, by their own paths: `use load::LoadOptions` in the root makes
    /// `["LoadOptions"]` an alias of `["load", "LoadOptions"]`.
    aliases: BTreeMap<ModulePath, ModulePath>,
}

impl ModuleTree {
    /// Reads the sources that belong to a root file such as `src/lib.rs`.
    fn read(root: &Path) -> Self {
        let mut tree = Self::default();
        let folder = root.parent().unwrap();
        tree.read_file(root, folder, Vec::new());
        tree
    }

    /// Reads one file. Its child modules are in the directory `children`.
    fn read_file(&mut self, file: &Path, children: &Path, module: ModulePath) {
        let text = std::fs::read_to_string(file).unwrap();
        let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display())).unwrap();
        self.read_items(&parsed.items, children, module);
    }

    fn read_items(&mut self, items: &[Item], children: &Path, module: ModulePath) {
        self.modules.insert(module.clone());
        for item in items {
            if let Item::Mod(declared) = item {
                if is_test(&declared.attrs) {
                    continue;
                }
                let name = declared.ident.to_string();
                let below = children.join(&name);
                let child = [module.as_slice(), &[name]].concat();
                match &declared.content {
                    Some((_, items)) => self.read_items(items, &below, child),
                    None => self.read_file(&file_of(&below), &below, child),
                }
            } else {
                References { tree: self, module: &module }.visit_item(item);
            }
        }
    }

    /// Follows re-exports, then returns the deepest module that a path names.
    fn module_of(&self, path: &[String]) -> ModulePath {
        let mut path = path.to_vec();
        // Chains of re-exports are short. The limit stops at names that are imported in a circle.
        for _ in 0..8 {
            let alias = (1..=path.len()).rev().find_map(|length| {
                let target = self.aliases.get(&path[..length])?;
                (!self.modules.contains(&path[..length])).then(|| [target, &path[length..]].concat())
            });
            match alias {
                Some(target) if target != path => path = target,
                _ => break,
            }
        }
        while !self.modules.contains(&path) {
            path.pop();
        }
        path
    }

    /// Returns, for every module, which of its children use which of their siblings, with one example each. A
    /// child includes all its descendants.
    fn sibling_edges(&self) -> BTreeMap<ModulePath, BTreeMap<String, BTreeMap<String, String>>> {
        let mut levels: BTreeMap<ModulePath, BTreeMap<String, BTreeMap<String, String>>> = BTreeMap::new();
        for Reference { from, to } in &self.references {
            let target = self.module_of(to);
            let common = from.iter().zip(&target).take_while(|(left, right)| left == right).count();
            if let (Some(left), Some(right)) = (from.get(common), target.get(common)) {
                let edges = levels.entry(from[..common].to_vec()).or_default();
                let example = format!("{} uses {}", from.join("::"), to.join("::"));
                edges.entry(left.clone()).or_default().entry(right.clone()).or_insert(example);
            }
        }
        levels
    }
}

/// Collects the paths that items use.
struct References<'a> {
    tree: &'a mut ModuleTree,
    module: &'a ModulePath,
}

impl References<'_> {
    /// Returns the absolute path of `path` in this module, or `None` if `path` is empty.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let mut base = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                base.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            _ => {}
        }
        Some([base.as_slice(), rest].concat())
    }

    fn refer(&mut self, path: &[String]) {
        if let Some(to) = self.absolute(path) {
            self.tree.references.push(Reference { from: self.module.clone(), to });
        }
    }

    /// Collects the paths and aliases of a `use` tree.
    fn import(&mut self, prefix: &[String], tree: &UseTree) {
        let with = |name: String| [prefix, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.import(&with(path.ident.to_string()), &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(prefix, tree)),
            UseTree::Glob(_) => self.refer(prefix),
            UseTree::Name(name) if name.ident == "self" => self.bring_in(prefix, prefix.last().cloned()),
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.bring_in(&with(name.clone()), Some(name));
            }
            UseTree::Rename(rename) => {
                self.bring_in(&with(rename.ident.to_string()), Some(rename.rename.to_string()));
            }
        }
    }

    fn bring_in(&mut self, path: &[String], name: Option<String>) {
        self.refer(path);
        if let (Some(name), Some(to)) = (name, self.absolute(path)) {
            let place = [self.module.as_slice(), &[name]].concat();
            if place != to {
                self.tree.aliases.insert(place, to);
            }
        }
    }
}

impl<'ast> Visit<'ast> for References<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.import(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if parts.len() > 1 || path.segments.first().is_some_and(|first| first.ident == "crate") {
            self.refer(&parts);
        }
        visit::visit_path(self, path);
    }
}

/// Conditions under which only tests are compiled.
const TEST_CONDITIONS: [&str; 2] = ["test", r#"any (test , feature = "testing")"#];

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = |meta: &syn::MetaList| meta.tokens.to_string();
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .map(condition)
                .is_ok_and(|text| TEST_CONDITIONS.contains(&text.as_str()))
    })
}

/// Returns the file of a child module: `name.rs`, or `name/mod.rs`.
fn file_of(below: &Path) -> PathBuf {
    let file = below.with_extension("rs");
    if file.is_file() { file } else { below.join("mod.rs") }
}

/// Returns a circle among the keys of `edges`, as the names along it, if there is one.
fn circle(edges: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    fn search(
        name: &String,
        edges: &BTreeMap<String, BTreeMap<String, String>>,
        way: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = way.iter().position(|before| before == name) {
            return Some(way[start..].to_vec());
        }
        if done.contains(name) {
            return None;
        }
        way.push(name.clone());
        let found = edges
            .get(name)
            .into_iter()
            .flat_map(BTreeMap::keys)
            .find_map(|next| search(next, edges, way, done));
        way.pop();
        done.insert(name.clone());
        found
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|name| search(name, edges, &mut Vec::new(), &mut done))
}

/// Returns which top-level modules of the package with this root file use which others, with one example for
/// each use.
pub(crate) fn edges(root: &Path) -> BTreeMap<String, BTreeMap<String, String>> {
    ModuleTree::read(root).sibling_edges().remove(&Vec::new()).unwrap_or_default()
}

/// Returns the circles in the package with this root file: at most one per parent module, with an example for
/// each edge.
pub(crate) fn circles(root: &Path) -> Vec<String> {
    let tree = ModuleTree::read(root);
    assert!(!tree.modules.is_empty(), "{} has no modules", root.display());
    let levels = tree.sibling_edges();
    levels
        .iter()
        .filter_map(|(parent, edges)| {
            let way = circle(edges)?;
            let next = way.iter().cycle().skip(1);
            let arrows: Vec<String> =
                way.iter().zip(next).map(|(from, to)| format!("    {}", edges[from][to])).collect();
            let place = if parent.is_empty() { "the package".to_owned() } else { parent.join("::") };
            Some(format!("a circle of {} modules in {place}:\n{}", way.len(), arrows.join("\n")))
        })
        .collect()
}

#[test]
fn a_circle_is_found_with_an_example_for_each_edge() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        file
    };
    let root = write("lib.rs", "mod a; mod b; mod c; pub use b::inner::Deep;");
    write("a.rs", "use crate::{c, Deep}; #[cfg(test)] mod tests {}");
    write("b/mod.rs", "pub mod inner; pub struct Parent;");
    write("b/inner.rs", "use super::Parent; pub struct Deep; #[cfg(test)] use crate::a::Item;");
    write("c.rs", "fn f() -> crate::b::inner::Deep { super::b::inner::Deep }");
    assert_eq!(circles(&root), Vec::<String>::new(), "a module and its children are no circle");

    write("b/inner.rs", "pub struct Deep; fn f(_: super::super::a::Item) {}");
    let found = circles(&root);
    assert_eq!(found, ["a circle of 2 modules in the package:\n    a uses Deep\n    b::inner uses a::Item"]);
}
