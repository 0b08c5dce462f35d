//! The profiles that the published numbers are compared with: those that are built in, or with one of their numbers changed.

use nicmodel::profile::{Profile, builtins};

/// Profiles of all NICs of the publications.
#[derive(Clone, Debug)]
pub(super) struct Nics(Vec<Profile>);

impl Default for Nics {
    fn default() -> Self {
        Self(builtins().to_vec())
    }
}

impl Nics {
    /// The profile of this name; every NIC of the publications has one.
    pub(super) fn nic(&self, name: &str) -> &Profile {
        let found = self.0.iter().find(|profile| profile.name == name);
        found.expect("built in")
    }

    /// All of them, oldest NIC first.
    pub(super) fn all(&self) -> &[Profile] {
        &self.0
    }

    /// A hash (FNV-1a, 64 bits) of all their numbers: results of long analyses say which profiles they are of.
    pub(super) fn fingerprint(&self) -> String {
        let numbers = self.0.iter().flat_map(|profile| {
            let of = move |number: nicmodel::profile::Number| {
                format!("{} {} {}\n", profile.name, number.key, number.value)
            };
            profile.numbers().into_iter().map(of)
        });
        let text: String = numbers.collect();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        format!("{hash:016x}")
    }

    /// The same with another value for a number of one profile; nothing if that has no such number.
    pub(super) fn with(&self, nic: &str, key: &str, value: f64) -> Option<Self> {
        let mut changed = self.clone();
        let profile = changed.0.iter_mut().find(|profile| profile.name == nic)?;
        *profile = profile.with(key, value)?;
        Some(changed)
    }
}
