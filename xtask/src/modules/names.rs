//! Collects the names in the code of a module.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Stmt, UseTree, Visibility};

use super::cfg::is_for_tests;

/// The names in the code of a set of items.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) imports: Vec<Import>,
    /// Every path, including paths in arguments of macros and attributes.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// Macros that are called by a single name.
    pub(super) called_macros: BTreeSet<String>,
    /// The number of blocks around the visited code.
    depth: usize,
}

/// One name of a `use` declaration.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name that the import gives to the item; `None` for a glob import (`*`).
    pub(super) name: Option<String>,
    /// True if other modules may import the name from here.
    pub(super) reexport: bool,
    /// True if the declaration is outside of functions.
    pub(super) is_module_level: bool,
}

impl Names {
    /// Adds all names in the code of `item`.
    pub(super) fn item(&mut self, item: &Item) {
        self.visit_item(item);
    }

    fn import(&mut self, before: &mut Vec<String>, tree: &UseTree, reexport: bool) {
        let of_module = self.depth == 0;
        let mut add = |path: Vec<String>, name| {
            self.imports.push(Import {
                path,
                name,
                reexport,
                is_module_level: of_module,
            });
        };
        match tree {
            UseTree::Path(path) => {
                before.push(name_without_raw_prefix(&path.ident));
                self.import(before, &path.tree, reexport);
                before.pop();
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(before, tree, reexport);
                }
            }
            UseTree::Glob(_) => add(before.clone(), None),
            UseTree::Name(name) => {
                let (path, name) = with_last(before, &name.ident);
                add(path, name);
            }
            UseTree::Rename(rename) => {
                let (path, _) = with_last(before, &rename.ident);
                add(path, Some(name_without_raw_prefix(&rename.rename)));
            }
        }
    }

    fn attributes(&mut self, attribute: &Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), list.path.is_ident("serde"));
        }
    }

    /// Adds the paths in unparsed tokens; with `in_text` also those in string literals.
    fn tokens(&mut self, tokens: TokenStream, in_text: bool) {
        let mut path = TokenPath::default();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if !path.goes_on {
                        self.end(&mut path, false);
                    }
                    path.push(&ident);
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => path.colon(),
                TokenTree::Punct(punct) => {
                    self.end(&mut path, punct.as_char() == '!');
                    // The next name is a field, a macro variable or a lifetime.
                    path.begins_outside_modules = matches!(punct.as_char(), '.' | '$' | '\'');
                    path.is_variable = punct.as_char() == '$';
                }
                TokenTree::Group(group) => {
                    self.end(&mut path, false);
                    self.tokens(group.stream(), in_text);
                }
                TokenTree::Literal(literal) => {
                    self.end(&mut path, false);
                    let text = syn::parse_str::<syn::LitStr>(&literal.to_string());
                    let named = text.and_then(|text| text.parse::<syn::Path>());
                    if let (true, Ok(named)) = (in_text, named) {
                        self.visit_path(&named);
                    }
                }
            }
        }
        self.end(&mut path, false);
    }

    fn end(&mut self, path: &mut TokenPath, is_call: bool) {
        let path = std::mem::take(path);
        if path.begins_outside_modules || path.segments.is_empty() {
            return;
        }
        if is_call && let [name] = &path.segments[..] {
            self.called_macros.insert(name.clone());
        }
        self.paths.insert(path.segments);
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attributes = match item {
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            syn::ImplItem::Macro(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_for_tests(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Local(local) = statement
            && is_for_tests(&local.attrs)
        {
            return;
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            let reexport = !matches!(item.vis, Visibility::Inherited);
            self.import(&mut Vec::new(), &item.tree, reexport);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter();
            self.paths.insert(
                segments
                    .map(|s| name_without_raw_prefix(&s.ident))
                    .collect(),
            );
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.get_ident() {
            self.called_macros.insert(name_without_raw_prefix(name));
        }
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.attributes(attribute);
    }

    // A visibility such as `pub(in path)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// A path in tokens that is read up to the current token.
#[derive(Default)]
struct TokenPath {
    segments: Vec<String>,
    /// Number of colons after the last segment.
    colons: usize,
    /// True if the next name belongs to this path.
    goes_on: bool,
    /// True if the path begins with a name that no module defines.
    begins_outside_modules: bool,
    is_variable: bool,
}

impl TokenPath {
    fn push(&mut self, ident: &Ident) {
        let name = name_without_raw_prefix(ident);
        // `$crate` is the crate of the macro.
        if self.is_variable && name == "crate" {
            self.begins_outside_modules = false;
        }
        self.segments.push(name);
        (self.colons, self.goes_on) = (0, false);
    }

    fn colon(&mut self) {
        self.colons += 1;
        self.goes_on = self.colons == 2;
        // `::name` is in another crate.
        self.begins_outside_modules |= self.segments.is_empty() && self.goes_on;
    }
}

/// Returns the name of an identifier, without the prefix `r#` of a raw identifier.
pub(super) fn name_without_raw_prefix(ident: &Ident) -> String {
    ident.unraw().to_string()
}

/// Appends the last name to a path, and returns the imported name; `self` stands for the path
/// itself.
fn with_last(before: &[String], ident: &Ident) -> (Vec<String>, Option<String>) {
    let mut path = before.to_vec();
    if ident != "self" || path.is_empty() {
        path.push(name_without_raw_prefix(ident));
    }
    // For `use x as _`, the caller adds the name `_`, which no path can contain.
    let name = path.last().cloned();
    (path, name)
}

/// Returns the name that an item defines.
pub(super) fn defined_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name_without_raw_prefix(ident))
}

/// Returns the attributes of an item.
pub(super) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
