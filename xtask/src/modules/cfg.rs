//! Which items are for tests alone.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether an item with these attributes exists in test builds only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|a| a.path().is_ident("cfg"));
    let mut parsed = conditions.filter_map(|a| a.parse_args::<Meta>().ok());
    attributes.iter().any(|a| a.path().is_ident("test"))
        || parsed.any(|condition| holds(&condition) == Some(false))
}

/// Whether a condition of `#[cfg]` holds in a build that is not for tests; none if that depends on the machine.
fn holds(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else {
        let tests = ["test", "loom", "fuzzing"];
        let test = tests.iter().any(|name| condition.path().is_ident(name));
        return test.then_some(false);
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts: Vec<Option<bool>> = parts.ok()?.iter().map(holds).collect();
    if list.path.is_ident("not") {
        return parts.first().copied().flatten().map(|part| !part);
    }
    // One part of this value decides; the other value needs all of them.
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
