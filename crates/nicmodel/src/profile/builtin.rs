//! The built-in profiles.

use std::sync::LazyLock;

use super::Profile;

/// A commented profile to copy and fill in for another NIC.
pub const PROFILE_TEMPLATE_TOML: &str = include_str!("../../profiles/template.toml");

const BUILTIN_PROFILE_TEXTS: [(&str, &str); 4] = [
    ("cx", include_str!("../../profiles/cx.toml")),
    ("cx3", include_str!("../../profiles/cx3.toml")),
    ("cib", include_str!("../../profiles/cib.toml")),
    ("bf2", include_str!("../../profiles/bf2.toml")),
];

static BUILTIN_PROFILES: LazyLock<Vec<Profile>> = LazyLock::new(|| {
    let parse = |(name, text): (&str, &str)| match Profile::parse(text) {
        Ok(profile) => profile,
        // The texts are part of this program, and a test parses each of them.
        Err(err) => unreachable!("the profile {name} that is built in is wrong: {err}"),
    };
    BUILTIN_PROFILE_TEXTS.map(parse).into()
});

/// Returns the built-in profiles, oldest NIC first: `cx`, `cx3`, `cib`, `bf2`.
pub fn builtin_profiles() -> &'static [Profile] {
    &BUILTIN_PROFILES
}

/// Returns the built-in profile of this name.
pub fn builtin_profile(name: &str) -> Option<&'static Profile> {
    builtin_profiles()
        .iter()
        .find(|profile| profile.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_good_and_named_like_its_file() {
        for (name, text) in BUILTIN_PROFILE_TEXTS {
            match Profile::parse(text) {
                Ok(profile) => assert_eq!(profile.name, name),
                Err(err) => panic!("{name}: {err}"),
            }
            assert!(builtin_profile(name).is_some());
        }
        assert!(builtin_profile("cx9").is_none());
    }

    #[test]
    fn the_template_is_a_profile() {
        if let Err(err) = Profile::parse(PROFILE_TEMPLATE_TOML) {
            panic!("{err}");
        }
        // The comparison includes optional keys.
        let keys = |line: &str| {
            let key = line.strip_prefix("# ");
            key.is_some_and(|key| {
                key.contains(" = { value =") || ["[dpu]", "[turbo]"].contains(&key)
            })
        };
        let lines = PROFILE_TEMPLATE_TOML
            .lines()
            .map(|line| match line.strip_prefix("# ") {
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
