//! Determines the imports between the files of a crate.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use super::tree::{Definition, Module, Tree};

/// The imported names of each pair of an importing and a defining file.
pub(super) type Imports = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

/// Returns the imports between the files of `tree`. A re-export is not an import. A name that is
/// imported through a re-export counts as imported from the file that defines it.
pub(super) fn between_files(tree: &Tree) -> Imports {
    let mut imports = Imports::new();
    let resolver = Resolver {
        tree,
        known: RefCell::default(),
    };
    for (index, module) in tree.modules.iter().enumerate() {
        let mut add = |file: usize, name: String| {
            if file != module.file {
                let ends = (tree.files[module.file].clone(), tree.files[file].clone());
                imports.entry(ends).or_default().insert(name);
            }
        };
        for path in module.imports.iter().chain(&module.paths) {
            if let Some(ResolvedPath::Item { file, name }) = resolver.resolve_path(index, path) {
                add(file, name);
            }
        }
        for glob in module.globs.iter().filter(|glob| !glob.reexport) {
            match resolver.resolve_path(index, &glob.path) {
                Some(ResolvedPath::Module(module)) => {
                    add(tree.modules[module].file, "*".to_owned())
                }
                Some(ResolvedPath::Item { file, name }) => add(file, format!("{name}::*")),
                None => {}
            }
        }
        for name in &module.called_macros {
            let defined = module.definitions.contains_key(name);
            if let (false, Some(file)) = (defined, tree.macros.get(name)) {
                add(*file, format!("{name}!"));
            }
        }
    }
    imports
}

/// The definition to which a path resolves.
#[derive(Debug, Clone)]
enum ResolvedPath {
    Item { file: usize, name: String },
    Module(usize),
}

struct Resolver<'a> {
    tree: &'a Tree,
    /// Definitions of names that were looked up. While a name is being looked up, it has no
    /// definition here, so that circular imports terminate.
    known: RefCell<HashMap<(usize, String, bool), Option<ResolvedPath>>>,
}

impl Resolver<'_> {
    fn module(&self, index: usize) -> &Module {
        &self.tree.modules[index]
    }

    /// Resolves `path` from the module `from`; `None` if it leads out of the crate.
    fn resolve_path(&self, from: usize, path: &[String]) -> Option<ResolvedPath> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.resolve_in_module(0, rest),
            "self" => self.resolve_in_module(from, rest),
            "super" => self.resolve_in_module(self.enclosing(from), rest),
            name => {
                let found = self.resolve_name_cached(from, name, !rest.is_empty())?;
                self.rest(found, rest)
            }
        }
    }

    /// Resolves `path` from `module`: looks up each name in the module to which the names before it
    /// lead.
    fn resolve_in_module(&self, module: usize, path: &[String]) -> Option<ResolvedPath> {
        let Some((first, rest)) = path.split_first() else {
            return Some(ResolvedPath::Module(module));
        };
        if first == "super" {
            return self.resolve_in_module(self.enclosing(module), rest);
        }
        match self.resolve_name_cached(module, first, !rest.is_empty()) {
            Some(found) => self.rest(found, rest),
            // The name is defined by a macro, or re-exported from another crate. It counts as an
            // item of this module.
            None => Some(ResolvedPath::Item {
                file: self.module(module).file,
                name: first.clone(),
            }),
        }
    }

    fn rest(&self, found: ResolvedPath, rest: &[String]) -> Option<ResolvedPath> {
        match found {
            ResolvedPath::Module(module) => self.resolve_in_module(module, rest),
            // The remaining names of the path are variants or associated items.
            item @ ResolvedPath::Item { .. } => Some(item),
        }
    }

    fn enclosing(&self, module: usize) -> usize {
        self.module(module).parent.unwrap_or(0)
    }

    /// Returns the definition of `name` in `module`. If `goes_on` is set, the path continues, and a
    /// module is preferred.
    fn resolve_name_cached(
        &self,
        module: usize,
        name: &str,
        goes_on: bool,
    ) -> Option<ResolvedPath> {
        let key = (module, name.to_owned(), goes_on);
        if let Some(known) = self.known.borrow().get(&key) {
            return known.clone();
        }
        self.known.borrow_mut().insert(key.clone(), None);
        let found = self.look_up(module, name, goes_on);
        self.known.borrow_mut().insert(key, found.clone());
        found
    }

    fn look_up(&self, module: usize, name: &str, goes_on: bool) -> Option<ResolvedPath> {
        let definitions = self.module(module).definitions.get(name);
        let mut candidates: Vec<ResolvedPath> = definitions
            .into_iter()
            .flatten()
            .filter_map(|definition| match definition {
                Definition::Item(file) => Some(ResolvedPath::Item {
                    file: *file,
                    name: name.to_owned(),
                }),
                Definition::Module(child) => Some(ResolvedPath::Module(*child)),
                Definition::Import(path) => self.resolve_path(module, path),
            })
            .collect();
        candidates.sort_by_key(|found| matches!(found, ResolvedPath::Module(_)) != goes_on);
        if definitions.is_some() {
            return candidates.into_iter().next();
        }
        let globs = self.module(module).globs.iter();
        globs
            .filter_map(|glob| self.resolve_path(module, &glob.path))
            .find_map(|found| match found {
                ResolvedPath::Module(other) if other != module => {
                    self.resolve_name_cached(other, name, goes_on)
                }
                _ => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::circles;
    use super::*;

    /// Parses a crate of the given files and texts; the first file is the crate's root.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut tree = Tree::parse(&folder.path().join(files[0].0)).unwrap();
        for file in &mut tree.files {
            *file = file.strip_prefix(folder.path()).unwrap().to_path_buf();
        }
        tree
    }

    /// Returns the imports between the files of a crate, as `from to: names`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let imports = between_files(&tree(files));
        let shown = imports.iter().map(|((from, to), names)| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            format!("{} {}: {}", from.display(), to.display(), names.join(" "))
        });
        shown.collect()
    }

    const B: (&str, &str) = ("b.rs", "pub struct B; pub enum E { V } pub fn f() {}");

    #[test]
    fn every_way_to_name_an_item_is_an_import() {
        for a in [
            "use crate::b::B;",
            "use super::b::B;",
            "use super::{b::{self, B}};",
            "use super::b; fn g(_: b::B) {}",
            "use super::b as c; fn g(_: c::B) {}",
            "fn g() -> crate::b::B { loop {} }",
            "fn g() { super::b::B; }",
            "fn g() { use super::b::B; }",
            "fn g() { vec![(1, super::b::B)]; }",
            "fn g() { println!(\"{}\", crate::b::B.x::<u8>()); }",
            "macro_rules! m { () => { $crate::b::B } }",
            "impl Iterator for crate::b::B {}",
            "#[derive(x(super::b::B))] struct A;",
            "#[serde(with = \"crate::b::B\")] struct A;",
            "mod inner { use super::super::b::B; }",
        ] {
            let found = imports(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), B]);
            assert_eq!(found, ["a.rs b.rs: B"], "{a}");
        }
    }

    #[test]
    fn variants_and_associated_items_are_named_by_their_type() {
        let a = "use super::b::E::V; fn g() { super::b::B::new(); }";
        let found = imports(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), B]);
        assert_eq!(found, ["a.rs b.rs: B E"]);
    }

    #[test]
    fn what_imports_nothing() {
        for a in [
            "use std::b::B;",
            "use ::b::B; fn g() { ::b::f(); }",
            "#[cfg(test)] mod tests { use crate::b::B; }",
            "#[cfg(all(test, unix))] use crate::b::B;",
            "#[test] fn t() { crate::b::f(); }",
            "impl X { #[cfg(test)] fn g() { crate::b::f(); } }",
            "pub(in super) struct B; fn g(b: B) { b.f(); }",
            "fn g(x: X) { let b = x; m!(x.b::f, 'b, $b::f); }",
            "/// See [`crate::b::B`].\nfn g() { \"crate::b::B\"; }",
        ] {
            let found = imports(&[("lib.rs", "mod a; mod b;"), ("a.rs", a), B]);
            assert!(found.is_empty(), "{a}: {found:?}");
        }
    }

    #[test]
    fn what_comes_by_a_reexport_is_of_the_file_that_defines_it() {
        let root = "mod a; mod b; mod c; pub use b::B; pub(crate) use c::*;";
        let c = ("c.rs", "pub use super::b::E as F;");
        let a = "use crate::{B, F}; fn g() { crate::c::F; }";
        let found = imports(&[("lib.rs", root), ("a.rs", a), B, c]);
        assert_eq!(found, ["a.rs b.rs: B E"]);
        // A re-export that the file itself uses is an import, too.
        let found = imports(&[("lib.rs", "mod b; pub use b::B; fn g(_: B) {}"), B]);
        assert_eq!(found, ["lib.rs b.rs: B"]);
        // A name from another crate or from a macro belongs to the file that the path names.
        let c = ("c.rs", "pub use loom::Atomic; make! { G }");
        let a = ("a.rs", "use crate::c::{Atomic, G};");
        let found = imports(&[("lib.rs", "mod a; mod c;"), a, c]);
        assert_eq!(found, ["a.rs c.rs: Atomic G"]);
    }

    #[test]
    fn imports_of_everything_are_followed() {
        let c = ("c.rs", "pub use super::b::*;");
        let a = ("a.rs", "use super::c::*; fn g() { f(); }");
        let found = imports(&[("lib.rs", "mod a; mod b; mod c;"), a, B, c]);
        assert_eq!(found, ["a.rs b.rs: f", "a.rs c.rs: *"]);
        // The look-up terminates for two modules with glob imports of each other.
        let a = ("a.rs", "pub use super::b::*; fn g() { nowhere(); }");
        let b = ("b.rs", "pub use super::a::*; use b;");
        assert!(imports(&[("lib.rs", "mod a; mod b;"), a, b]).is_empty());
    }

    #[test]
    fn macros_are_of_the_file_that_defines_them() {
        let root = "#[macro_use] mod b; mod a;";
        let b = ("b.rs", "macro_rules! m { () => {} }");
        let a = ("a.rs", "fn g() { m!(); }");
        assert_eq!(imports(&[("lib.rs", root), a, b]), ["a.rs b.rs: m!"]);
        let b = ("b.rs", "#[macro_export] macro_rules! m { () => {} }");
        let a = ("a.rs", "fn g() { crate::m!(); }");
        assert_eq!(imports(&[("lib.rs", root), a, b]), ["a.rs b.rs: m"]);
    }

    #[test]
    fn files_are_found_where_the_compiler_finds_them() {
        let found = imports(&[
            (
                "main.rs",
                "mod a; mod p { pub mod q; } #[path = \"x/y.rs\"] mod z;",
            ),
            ("a/mod.rs", "mod b;"),
            ("a/b.rs", "mod c;"),
            ("a/b/c.rs", "use crate::p::q::f; use crate::z::g;"),
            ("p/q.rs", "pub fn f() {}"),
            ("x/y.rs", "pub fn g() {}"),
        ]);
        assert_eq!(found, ["a/b/c.rs p/q.rs: f", "a/b/c.rs x/y.rs: g"]);
    }

    #[test]
    fn a_circle_is_all_files_that_reach_each_other() {
        let circles = |files: &[(&str, &str)]| {
            let found = circles::find_import_cycles(&between_files(&tree(files)));
            let shown = found.into_iter().map(|circle| {
                let files = circle.files.iter().map(|file| file.display().to_string());
                files.collect::<Vec<_>>().join(" ")
            });
            shown.collect::<Vec<_>>()
        };
        let root = ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;");
        let a = ("a.rs", "pub struct A; use crate::b::B;");
        let b = ("b.rs", "pub struct B; use crate::c::C;");
        let c = ("c.rs", "pub struct C; use crate::d::D;");
        let d = ("d.rs", "pub struct D;");
        assert!(circles(&[root, a, b, c, d]).is_empty());
        // The import passes through a re-export of the root, which is not part of the cycle.
        let c = ("c.rs", "pub struct C; use crate::A; use crate::d::D;");
        assert_eq!(circles(&[root, a, b, c, d]), ["a.rs b.rs c.rs"]);
        // A parent and its child import from each other.
        let root = ("lib.rs", "mod a; fn g() { a::f(); } const N: u8 = 0;");
        let a = ("a.rs", "pub fn f() { super::N; }");
        assert_eq!(circles(&[root, a]), ["a.rs lib.rs"]);
    }
}
