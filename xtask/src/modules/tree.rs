//! The modules of a crate: the definitions, imports and names of each.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::{Attribute, Item, ItemMod, Meta};

use super::cfg::is_for_tests;
use super::names::{self, Names};

/// The modules of one target of a package, the root module first.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
    /// The files that contain the modules.
    pub(super) files: Vec<PathBuf>,
    /// The file of each macro, by the macro's name. A macro can be called anywhere after its
    /// definition in the text.
    pub(super) macros: HashMap<String, usize>,
}

/// A module, in its own file or inline.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) parent: Option<usize>,
    /// Index into [`Tree::files`].
    pub(super) file: usize,
    /// The definitions of each name, which may be a module, a type and a function at once.
    pub(super) definitions: HashMap<String, Vec<Definition>>,
    /// Glob imports (`path::*`).
    pub(super) globs: Vec<Glob>,
    /// Imports other than re-exports.
    pub(super) imports: Vec<Vec<String>>,
    /// Every path in the code.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// Macros that are called by a single name.
    pub(super) called_macros: BTreeSet<String>,
}

/// The definition of a name in a module.
#[derive(Debug)]
pub(super) enum Definition {
    /// An item defined in the file with this index.
    Item(usize),
    /// A child module.
    Module(usize),
    /// An item or a module imported from this path.
    Import(Vec<String>),
}

/// `use path::*`.
#[derive(Debug)]
pub(super) struct Glob {
    pub(super) path: Vec<String>,
    pub(super) reexport: bool,
}

impl Tree {
    /// Parses the target whose root is the file `root`, with all files of its modules. Test items
    /// are left out.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or is not valid Rust.
    pub(super) fn parse(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        let below = root.parent().unwrap_or(Path::new("")).to_path_buf();
        tree.read(None, root, &below)?;
        Ok(tree)
    }

    /// Reads the module in the file `path`; the files of its child modules are in the folder
    /// `below`.
    fn read(&mut self, parent: Option<usize>, path: &Path, below: &Path) -> Result<usize> {
        let syntax = parse_file(path)?;
        let file = self.files.len();
        self.files.push(path.to_path_buf());
        let module = self.new_module(parent, file);
        if !is_for_tests(&syntax.attrs) {
            self.fill(module, &syntax.items, below)?;
        }
        Ok(module)
    }

    fn new_module(&mut self, parent: Option<usize>, file: usize) -> usize {
        self.modules.push(Module {
            parent,
            file,
            definitions: HashMap::new(),
            globs: Vec::new(),
            imports: Vec::new(),
            paths: BTreeSet::new(),
            called_macros: BTreeSet::new(),
        });
        self.modules.len() - 1
    }

    fn fill(&mut self, module: usize, items: &[Item], below: &Path) -> Result<()> {
        let mut names = Names::default();
        for item in items {
            if is_for_tests(names::attributes(item)) {
                continue;
            }
            match item {
                Item::Mod(child) => self.child(module, child, below)?,
                _ => names.item(item),
            }
            self.define(module, item);
        }
        let found = &mut self.modules[module];
        for import in names.imports {
            if let Some(name) = import.name {
                let definitions = found.definitions.entry(name).or_default();
                // An import within a function does not hide a definition of its module.
                if import.is_module_level || definitions.is_empty() {
                    definitions.push(Definition::Import(import.path.clone()));
                }
                if !import.reexport {
                    found.imports.push(import.path);
                }
            } else {
                found.globs.push(Glob {
                    path: import.path,
                    reexport: import.reexport,
                });
            }
        }
        found.paths.extend(names.paths);
        found.called_macros.extend(names.called_macros);
        Ok(())
    }

    fn child(&mut self, parent: usize, child: &ItemMod, below: &Path) -> Result<()> {
        let name = names::name_without_raw_prefix(&child.ident);
        let inner = below.join(&name);
        let module = if let Some((_, items)) = &child.content {
            let module = self.new_module(Some(parent), self.modules[parent].file);
            self.fill(module, items, &inner)?;
            module
        } else {
            let here = &self.files[self.modules[parent].file];
            let (path, below) = match path_attribute(&child.attrs) {
                Some(path) => {
                    let path = here.parent().unwrap_or(Path::new("")).join(path);
                    let below = path.parent().unwrap_or(Path::new("")).to_path_buf();
                    (path, below)
                }
                None => {
                    let flat = below.join(format!("{name}.rs"));
                    let path = if flat.is_file() {
                        flat
                    } else {
                        inner.join("mod.rs")
                    };
                    (path, inner)
                }
            };
            self.read(Some(parent), &path, &below)?
        };
        let definitions = self.modules[parent].definitions.entry(name).or_default();
        definitions.push(Definition::Module(module));
        Ok(())
    }

    fn define(&mut self, module: usize, item: &Item) {
        let file = self.modules[module].file;
        let Some(name) = names::defined_name(item) else {
            return;
        };
        if let Item::Macro(defined) = item {
            self.macros.insert(name.clone(), file);
            let exported = |a: &Attribute| a.path().is_ident("macro_export");
            if defined.attrs.iter().any(exported) {
                let root = self.modules[0].definitions.entry(name).or_default();
                root.push(Definition::Item(file));
                return;
            }
        }
        let definitions = self.modules[module].definitions.entry(name).or_default();
        definitions.push(Definition::Item(file));
    }
}

/// Parses the file at `path`.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not valid Rust.
pub(super) fn parse_file(path: &Path) -> Result<syn::File> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    syn::parse_file(&text).with_context(|| format!("cannot parse {shown}"))
}

/// Returns the value of `#[path = "…"]`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|a| a.path().is_ident("path"))?;
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}
