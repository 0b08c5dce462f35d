//! Recognises items that exist only in test builds.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Returns true if an item with these attributes exists only in test builds.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|a| a.path().is_ident("cfg"));
    let mut parsed = conditions.filter_map(|a| a.parse_args::<Meta>().ok());
    attributes.iter().any(|a| a.path().is_ident("test"))
        || parsed.any(|condition| holds_outside_tests(&condition) == Some(false))
}

/// Returns whether a `#[cfg]` condition holds outside test builds; `None` if that depends on the
/// machine.
fn holds_outside_tests(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else {
        let tests = ["test", "loom", "fuzzing"];
        let test = tests.iter().any(|name| condition.path().is_ident(name));
        return test.then_some(false);
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts: Vec<Option<bool>> = parts.ok()?.iter().map(holds_outside_tests).collect();
    if list.path.is_ident("not") {
        return parts.first().copied().flatten().map(|part| !part);
    }
    // One part with this value decides the result; otherwise all parts must be known.
    let decides = list.path.is_ident("any");
    if parts.contains(&Some(decides)) {
        Some(decides)
    } else if parts.contains(&None) {
        None
    } else {
        Some(!decides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn for_tests(attribute: &str) -> bool {
        let item: syn::ItemFn = syn::parse_str(&format!("{attribute} fn f() {{}}")).unwrap();
        is_for_tests(&item.attrs)
    }

    #[test]
    fn only_what_no_product_has_is_for_tests() {
        for attribute in [
            "#[test]",
            "#[cfg(test)]",
            "#[cfg(loom)]",
            "#[cfg(any(test, fuzzing))]",
            "#[cfg(all(test, not(loom)))]",
            "#[cfg(all(unix, test))]",
        ] {
            assert!(for_tests(attribute), "{attribute}");
        }
        for attribute in [
            "",
            "#[inline]",
            "#[cfg(not(test))]",
            "#[cfg(not(loom))]",
            "#[cfg(unix)]",
            "#[cfg(any(test, feature = \"x\"))]",
            "#[cfg(all())]",
        ] {
            assert!(!for_tests(attribute), "{attribute}");
        }
    }
}
