//! The profiles with which published numbers are compared: the built-in ones, or copies with one number changed.

use nicmodel::profile::{Profile, builtin_profiles};

/// Profiles of all NICs of the publications.
#[derive(Clone, Debug)]
pub(super) struct PublicationNicProfiles(Vec<Profile>);

impl Default for PublicationNicProfiles {
    fn default() -> Self {
        Self(builtin_profiles().to_vec())
    }
}

impl PublicationNicProfiles {
    /// Returns the profile with the given name; every NIC of the publications has a profile.
    pub(super) fn profile_by_name(&self, name: &str) -> &Profile {
        let found = self.0.iter().find(|profile| profile.name == name);
        found.expect("built in")
    }

    /// Returns all profiles, oldest NIC first.
    pub(super) fn all(&self) -> &[Profile] {
        &self.0
    }

    /// Returns a hash (FNV-1a, 64 bits) of all numbers of the profiles. Results of long analyses contain this
    /// hash to identify their profiles.
    pub(super) fn fingerprint(&self) -> String {
        let numbers = self.0.iter().flat_map(|profile| {
            let of = move |number: nicmodel::profile::ProfileNumber| {
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

    /// Returns the profiles with another value for a number of one profile; `None` if that profile has no such
    /// number.
    pub(super) fn with_changed_number(&self, nic: &str, key: &str, value: f64) -> Option<Self> {
        let mut changed = self.clone();
        let profile = changed.0.iter_mut().find(|profile| profile.name == nic)?;
        *profile = profile.with_number(key, value)?;
        Some(changed)
    }
}
