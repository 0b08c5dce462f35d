//! Finds functions and files that exceed the size limits.

use std::path::{Path, PathBuf};

use serde::Serialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, FnArg, Item, Signature};

use super::cfg::is_for_tests;
use super::names;

/// The maximum number of lines of a function, so that a function fits a screen.
const FUNCTION_LINES: usize = 60;
/// The maximum number of parameters of a function, without its receiver.
const PARAMETERS: usize = 6;
/// The maximum number of lines of a file.
const FILE_LINES: usize = 600;

/// A function or file whose size exceeds its limit.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct OversizedItem {
    pub(super) file: PathBuf,
    /// The function; `None` for a whole file.
    pub(super) function: Option<String>,
    pub(super) what: &'static str,
    pub(super) count: usize,
    pub(super) limit: usize,
}

/// Returns the functions in `syntax`, the content of the file `path`, that are too long, and the
/// file if it is too long. Test functions are not checked.
pub(super) fn too_large(path: &Path, syntax: &syn::File) -> Vec<OversizedItem> {
    let mut sizes = OversizeCollector {
        path,
        found: Vec::new(),
    };
    sizes.add(None, "lines", lines(syntax), FILE_LINES);
    sizes.visit_file(syntax);
    sizes.found
}

fn lines(syntax: &syn::File) -> usize {
    let items = syntax.items.iter().map(|item| item.span().end().line);
    items.max().unwrap_or(0)
}

struct OversizeCollector<'a> {
    path: &'a Path,
    found: Vec<OversizedItem>,
}

impl OversizeCollector<'_> {
    fn add(&mut self, function: Option<String>, what: &'static str, count: usize, limit: usize) {
        if count > limit {
            self.found.push(OversizedItem {
                file: self.path.to_path_buf(),
                function,
                what,
                count,
                limit,
            });
        }
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, end: usize) -> bool {
        if is_for_tests(attributes) {
            return false;
        }
        let name = || Some(names::name_without_raw_prefix(&signature.ident));
        let begin = signature.span().start().line;
        self.add(name(), "lines", end - begin + 1, FUNCTION_LINES);
        // C's interface determines the parameters of `extern` functions.
        if signature.abi.is_none() {
            let typed = signature.inputs.iter();
            let typed = typed.filter(|input| matches!(input, FnArg::Typed(_)));
            self.add(name(), "parameters", typed.count(), PARAMETERS);
        }
        true
    }
}

impl<'ast> Visit<'ast> for OversizeCollector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(names::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(&item.attrs, &item.sig, item.block.span().end().line) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(&item.attrs, &item.sig, item.block.span().end().line) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if self.function(&item.attrs, &item.sig, item.span().end().line) {
            visit::visit_trait_item_fn(self, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(Option<String>, &'static str, usize)> {
        let syntax = syn::parse_file(text).unwrap();
        let found = too_large(Path::new("f.rs"), &syntax);
        let found = found.into_iter();
        found.map(|s| (s.function, s.what, s.count)).collect()
    }

    fn body(lines: usize) -> String {
        "let _ = 0;\n".repeat(lines)
    }

    #[test]
    fn functions_that_do_not_fit_a_screen_are_found() {
        let fits = format!("#[inline]\nfn f() {{\n{}}}", body(58));
        assert_eq!(of(&fits), []);
        let long = format!("impl X {{ fn f() {{\n{}}} }}", body(59));
        assert_eq!(of(&long), [(Some("f".to_owned()), "lines", 61)]);
        let test = format!("#[cfg(test)]\nmod t {{ fn f() {{\n{}}} }}", body(90));
        assert_eq!(of(&test), []);
    }

    #[test]
    fn parameters_are_counted_without_the_receiver() {
        let seven = "a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8";
        let f = || Some("f".to_owned());
        assert_eq!(of(&format!("fn f({seven}) {{}}")), [(f(), "parameters", 7)]);
        let six = seven.strip_suffix(", g: u8").unwrap();
        assert_eq!(of(&format!("trait T {{ fn f(&self, {six}); }}")), []);
        assert_eq!(of(&format!("extern \"C\" fn f({seven}) {{}}")), []);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(of(&"fn f() {}\n".repeat(600)), []);
        assert_eq!(of(&"fn f() {}\n".repeat(601)), [(None, "lines", 601)]);
    }
}
