//! Adapters without cost numbers: the identity and capabilities that their drivers report.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use super::error::ProfileError;
use super::{Identity, LinkLayer, Sourced};

/// An adapter as its driver presents it to programs, without the numbers of a [`Profile`](super::Profile).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdapterWithoutCosts {
    /// Short name, as on a command line: lower-case letters and digits.
    pub name: String,
    /// The adapter in one line.
    pub title: String,
    /// Other facts for readers, such as which limits are not published.
    pub about: String,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// Name, vendor, part, board and firmware of the device.
    pub identity: Identity,
    /// Queue pairs, features and limits of the device, by the field names of `softnic::DeviceCapabilities`. A capability
    /// without a name here is not limited.
    pub capabilities: BTreeMap<String, Sourced<CapabilityValue>>,
}

/// The value of a capability.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum CapabilityValue {
    /// A numeric limit.
    Number(u32),
    /// One value of several named values.
    Word(String),
    /// A set of named values.
    Words(Vec<String>),
}

/// The value alone; the members of a set are separated by commas.
impl fmt::Display for CapabilityValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Word(word) => f.write_str(word),
            Self::Words(words) => f.write_str(&words.join(",")),
        }
    }
}

impl AdapterWithoutCosts {
    /// Reads an adapter's description.
    ///
    /// # Errors
    /// The text is not TOML or not an adapter's description; with the place.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        toml::from_str(text).map_err(|e| ProfileError::Malformed(e.to_string()))
    }
}

const ADAPTER_TOML_TEXTS: [&str; 12] = [
    include_str!("../../adapters/connectx4lx.toml"),
    include_str!("../../adapters/connectx5.toml"),
    include_str!("../../adapters/connectx6.toml"),
    include_str!("../../adapters/connectx6dx.toml"),
    include_str!("../../adapters/connectx7.toml"),
    include_str!("../../adapters/bluefield2.toml"),
    include_str!("../../adapters/bluefield3.toml"),
    include_str!("../../adapters/e810.toml"),
    include_str!("../../adapters/efa.toml"),
    include_str!("../../adapters/bnxt.toml"),
    include_str!("../../adapters/rxe.toml"),
    include_str!("../../adapters/siw.toml"),
];

static ADAPTERS_WITHOUT_COST_PROFILE: LazyLock<Vec<AdapterWithoutCosts>> = LazyLock::new(|| {
    let parse = |text| match AdapterWithoutCosts::parse(text) {
        Ok(adapter) => adapter,
        // The texts are part of this program, and a test parses each of them.
        Err(err) => unreachable!("an adapter that is built in is wrong: {err}"),
    };
    ADAPTER_TOML_TEXTS.map(parse).into()
});

/// Returns the built-in adapters, by maker.
pub fn adapters_without_cost_profile() -> &'static [AdapterWithoutCosts] {
    &ADAPTERS_WITHOUT_COST_PROFILE
}

/// Returns the built-in adapter of this name.
pub fn adapter_without_cost_profile(name: &str) -> Option<&'static AdapterWithoutCosts> {
    adapters_without_cost_profile()
        .iter()
        .find(|adapter| adapter.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::builtin_profile;

    #[test]
    fn built_in_adapters_are_read_and_have_names_of_their_own() {
        for (at, adapter) in adapters_without_cost_profile().iter().enumerate() {
            assert!(builtin_profile(&adapter.name).is_none(), "{}", adapter.name);
            let first = adapters_without_cost_profile()
                .iter()
                .position(|a| a.name == adapter.name);
            assert_eq!(first, Some(at));
            for needed in ["transport", "queue_pairs", "features"] {
                let there = adapter.capabilities.contains_key(needed);
                assert!(there, "{} without {needed}", adapter.name);
            }
        }
    }

    #[test]
    fn values_are_written_as_providers_read_them() {
        let irdma = adapter_without_cost_profile("e810").expect("built in");
        assert_eq!(irdma.capabilities["queue_pairs"].value.to_string(), "rc,ud");
        assert_eq!(irdma.capabilities["max_sge"].value.to_string(), "6");
    }

    #[test]
    fn texts_that_are_none_are_refused_with_the_place() {
        let text = include_str!("../../adapters/siw.toml").replace("source", "sauce");
        let why = AdapterWithoutCosts::parse(&text)
            .expect_err("no evidence")
            .to_string();
        assert!(why.contains("line 16, column 31"), "{why}");
    }
}
