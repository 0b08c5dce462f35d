//! The built-in profiles.

use std::sync::LazyLock;

use super::Profile;

/// A commented profile to copy and fill in for another NIC.
pub const TEMPLATE: &str = include_str!("../../profiles/template.toml");

const TEXTS: [(&str, &str); 4] = [
    ("cx", include_str!("../../profiles/cx.toml")),
    ("cx3", include_str!("../../profiles/cx3.toml")),
    ("cib", include_str!("../../profiles/cib.toml")),
    ("bf2", include_str!("../../profiles/bf2.toml")),
];

static PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let parse = |(name, text): (&str, &str)| match Profile::parse(text) {
        Ok(profile) => profile,
        // The texts are part of this program, and a test parses each of them.
        Err(err) => unreachable!("the profile {name} that is built in is wrong: {err}"),
    };
    TEXTS.map(parse).into()
});

/// Returns the built-in profiles, oldest NIC first: `cx`, `cx3`, `cib`, `bf2`.
pub fn builtins() -> &'static [Profile] {
    &PROFILES
}

/// Returns the built-in profile of this name.
pub fn builtin(name: &str) -> Option<&'static Profile> {
    builtins().iter().find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_good_and_named_like_its_file() {
        for (name, text) in TEXTS {
            match Profile::parse(text) {
                Ok(profile) => assert_eq!(profile.name, name),
                Err(err) => panic!("{name}: {err}"),
            }
            assert!(builtin(name).is_some());
        }
        assert!(builtin("cx9").is_none());
    }

    #[test]
    fn the_template_is_a_profile() {
        if let Err(err) = Profile::parse(TEMPLATE) {
            panic!("{err}");
        }
        // The comparison includes optional keys.
        let keys = |line: &str| {
            let key = line.strip_prefix("# ");
            key.is_some_and(|key| {
                key.contains(" = { value =") || ["[dpu]", "[turbo]"].contains(&key)
            })
        };
        let lines = TEMPLATE.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if keys(line) => rest,
            _ => line,
        });
        let all = lines.collect::<Vec<_>>().join("\n");
        match Profile::parse(&all) {
            Ok(profile) => assert!(profile.as_seen_from_dpu().is_some()),
            Err(err) => panic!("{err}"),
        }
    }
}
