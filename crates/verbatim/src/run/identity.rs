//! Identity, capabilities and link layer that the device reports, for a named NIC.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nicmodel::profile::{self, AdapterWithoutCosts, Profile};
use softnic::{DeviceCapabilities, Identity, MAX_PORTS};

use crate::args::LinkLayer;

/// The properties that the device reports to programs.
#[derive(Clone, Debug)]
pub(super) struct PresentedIdentity {
    pub(super) identity: Identity,
    /// Capabilities that the device reports; `None` for the capabilities of the software NIC.
    pub(super) capabilities: Option<DeviceCapabilities>,
    pub(super) link_layer: LinkLayer,
    /// Number of ports of a device, if known.
    pub(super) port_count: Option<u8>,
}

/// Returns the device of a profile or an adapter's description, which is built in or in a file.
pub(super) fn of_nic(nic: &str) -> Result<PresentedIdentity> {
    if let Some(adapter) = profile::adapter_without_cost_profile(nic) {
        return of_adapter(adapter);
    }
    if let Some(profile) = profile::builtin_profile(nic) {
        return of_profile(profile);
    }
    if !Path::new(nic).is_file() {
        let profiles = profile::builtin_profiles().iter().map(|p| p.name.as_str());
        let names: Vec<_> = profiles
            .chain(
                profile::adapters_without_cost_profile()
                    .iter()
                    .map(|a| a.name.as_str()),
            )
            .collect();
        bail!(
            "there is no NIC {nic:?}; choose among {}, or name a file with a profile \
             (verbatim model --template prints one to fill in)",
            names.join(", ")
        )
    }
    let text = std::fs::read_to_string(nic).with_context(|| format!("cannot read {nic}"))?;
    if let Ok(adapter) = AdapterWithoutCosts::parse(&text) {
        return of_adapter(&adapter);
    }
    let profile = Profile::parse(&text).with_context(|| format!("{nic} is no profile of a NIC"))?;
    of_profile(&profile)
}

fn of_profile(profile: &Profile) -> Result<PresentedIdentity> {
    let Some(says) = &profile.identity else {
        let name = &profile.name;
        bail!("the profile {name} does not say what the NIC calls itself: add [identity]");
    };
    Ok(PresentedIdentity {
        identity: identity(says)?,
        capabilities: None,
        link_layer: link_layer(profile.link_layer),
        port_count: port_count(says),
    })
}

fn of_adapter(adapter: &AdapterWithoutCosts) -> Result<PresentedIdentity> {
    let members = adapter.capabilities.iter();
    let members: Vec<_> = members
        .map(|(name, value)| format!("{name}={}", value.value))
        .collect();
    let capabilities = members.join(";").parse();
    Ok(PresentedIdentity {
        identity: identity(&adapter.identity)?,
        capabilities: Some(capabilities.with_context(|| format!("the adapter {}", adapter.name))?),
        link_layer: link_layer(adapter.link_layer),
        port_count: port_count(&adapter.identity),
    })
}

fn identity(says: &profile::Identity) -> Result<Identity> {
    let mut identity = Identity::new(&says.device.value, says.vendor_id.value, says.part_id.value)?;
    if let Some(board_id) = &says.board_id {
        identity = identity.with_board(&board_id.value)?;
    }
    if let Some(firmware) = &says.firmware {
        identity = identity.with_firmware(&firmware.value)?;
    }
    Ok(identity)
}

fn port_count(says: &profile::Identity) -> Option<u8> {
    let ports = says.ports.as_ref()?.value;
    Some(u8::try_from(ports).unwrap_or(MAX_PORTS).clamp(1, MAX_PORTS))
}

fn link_layer(port: profile::LinkLayer) -> LinkLayer {
    match port {
        profile::LinkLayer::Infiniband => LinkLayer::Ib,
        profile::LinkLayer::Roce => LinkLayer::Roce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_and_adapter_has_one() {
        for profile in profile::builtin_profiles() {
            let presented = of_nic(&profile.name).expect(&profile.name);
            assert_eq!(presented.identity.vendor_id(), 0x02c9);
            assert_eq!(presented.capabilities, None);
        }
        for adapter in profile::adapters_without_cost_profile() {
            let presented = of_nic(&adapter.name).expect(&adapter.name);
            assert_ne!(presented.capabilities, Some(DeviceCapabilities::default()));
        }
    }
}
