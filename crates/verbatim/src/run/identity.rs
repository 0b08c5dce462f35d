//! What the device is to say that it is, and its port.

use std::path::Path;

use anyhow::{Context, Result, bail};
use nicmodel::profile::{self, Profile};
use softnic::Identity;

use crate::args::LinkLayer;

/// The identity in a profile, which is named or in a file, and the link layer of its port.
pub(super) fn of_profile(profile: &str) -> Result<(Identity, LinkLayer)> {
    let read;
    let found = match profile::builtin(profile) {
        Some(builtin) => builtin,
        None if Path::new(profile).is_file() => {
            let text = std::fs::read_to_string(profile)
                .with_context(|| format!("cannot read {profile}"))?;
            read = Profile::parse(&text)
                .with_context(|| format!("{profile} is no profile of a NIC"))?;
            &read
        }
        None => {
            let names: Vec<_> = profile::builtins()
                .iter()
                .map(|p| p.name.as_str())
                .collect();
            bail!(
                "there is no NIC {profile:?}; choose among {}, or name a file with a profile \
                 (verbatim model --template prints one to fill in)",
                names.join(", ")
            )
        }
    };
    let Some(says) = &found.identity else {
        bail!("the profile {profile} does not say what the NIC calls itself: add [identity]");
    };
    let mut identity = Identity::new(&says.device.value, says.vendor_id.value, says.part_id.value)?;
    if let Some(board_id) = &says.board_id {
        identity = identity.with_board(&board_id.value)?;
    }
    if let Some(firmware) = &says.firmware {
        identity = identity.with_firmware(&firmware.value)?;
    }
    let link_layer = match found.link_layer {
        profile::LinkLayer::Infiniband => LinkLayer::Ib,
        profile::LinkLayer::Roce => LinkLayer::Roce,
    };
    Ok((identity, link_layer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_has_one() {
        for profile in profile::builtins() {
            let (identity, _) = of_profile(&profile.name).expect(&profile.name);
            assert_eq!(identity.vendor_id(), 0x02c9);
        }
    }
}
