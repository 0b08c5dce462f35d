//! Checks that dependencies between crates point downwards.

use std::collections::BTreeMap;

/// Returns the dependencies that break the order of `layers`, of which the last is the lowest.
/// `needs` maps each crate to its dependencies, which must be in lower layers.
pub(super) fn faults(layers: &[Vec<String>], needs: &BTreeMap<&str, Vec<&str>>) -> Vec<String> {
    const LIST: &str = "workspace.metadata.layers in Cargo.toml";
    let mut faults = Vec::new();
    let mut place: BTreeMap<&str, usize> = BTreeMap::new();
    for (depth, layer) in layers.iter().enumerate() {
        for name in layer {
            if !needs.contains_key(name.as_str()) {
                faults.push(format!("{LIST}: there is no crate {name}"));
            } else if place.insert(name, depth).is_some() {
                faults.push(format!("{LIST}: {name} is in two layers"));
            }
        }
    }
    for (name, needed) in needs {
        let Some(from) = place.get(name) else {
            faults.push(format!("{LIST}: {name} is in no layer"));
            continue;
        };
        for other in needed {
            // A crate without a layer is reported elsewhere.
            if place.get(other).is_some_and(|to| to <= from) {
                faults.push(format!("{name} -> {other}: not in a lower layer"));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(layers: &[&[&str]], needs: &[(&'static str, &[&'static str])]) -> Vec<String> {
        let layers: Vec<Vec<String>> = layers
            .iter()
            .map(|layer| layer.iter().map(|&name| name.to_owned()).collect())
            .collect();
        let needs = needs.iter().map(|(name, all)| (*name, all.to_vec()));
        faults(&layers, &needs.collect())
    }

    #[test]
    fn dependencies_point_downwards() {
        let needs: &[(&str, &[&str])] = &[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])];
        assert!(faults_of(&[&["a"], &["b"], &["c"]], needs).is_empty());
        assert_eq!(
            faults_of(&[&["b"], &["a"], &["c"]], needs),
            ["a -> b: not in a lower layer"]
        );
        assert_eq!(
            faults_of(&[&["a"], &["b", "c"]], needs),
            ["b -> c: not in a lower layer"]
        );
    }

    #[test]
    fn every_crate_is_in_one_layer() {
        let needs: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &[])];
        let list = "workspace.metadata.layers in Cargo.toml";
        assert_eq!(
            faults_of(&[&["a", "x"]], needs),
            [
                format!("{list}: there is no crate x"),
                format!("{list}: b is in no layer")
            ]
        );
        assert_eq!(
            faults_of(&[&["a"], &["b"], &["b"]], needs),
            [format!("{list}: b is in two layers")]
        );
    }
}
