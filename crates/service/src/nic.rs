//! Which NIC a server or client uses.

use serde::{Deserialize, Serialize};
use verbs::{Context, LinkLayer, PortGid, PortState, Provider};

/// Which NIC to use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicConfig {
    /// The provider: `softnic` or `system`.
    pub provider: String,
    /// The device; the provider's first if `None`.
    pub device: Option<String>,
    /// The port, from 1.
    pub port_num: u8,
    /// The entry of the GID table; the device's default if `None`.
    pub gid_index: Option<u8>,
}

impl Default for NicConfig {
    fn default() -> Self {
        Self {
            provider: "softnic".to_owned(),
            device: None,
            port_num: 1,
            gid_index: None,
        }
    }
}

impl NicConfig {
    /// Opens the device.
    pub fn open(&self) -> Result<Context, OpenError> {
        let provider = Provider::by_name(&self.provider)?;
        Ok(provider.device(self.device.as_deref())?.open()?)
    }

    /// The port and the GID to use on it.
    ///
    /// # Errors
    /// Says what is wrong with the port, or with the entry that was chosen.
    pub fn port(&self, context: &Context) -> Result<PortGid, OpenError> {
        let (name, port_num) = (context.device_name(), self.port_num);
        let no = |text: String| Err(OpenError::Port(text));
        let ports = context.query_device()?.phys_port_cnt;
        if port_num == 0 || port_num > ports {
            return no(format!(
                "{name} has no port {port_num}: its ports are 1 to {ports}"
            ));
        }
        let port = context.query_port(port_num)?;
        if !matches!(port.state, PortState::Active | PortState::ActiveDefer) {
            let how = match port.link_layer {
                LinkLayer::Ethernet => "set its network interface up",
                _ => "it needs a cable and a subnet manager",
            };
            return no(format!(
                "port {port_num} of {name} is {}: {how}",
                port.state
            ));
        }
        let Some(gid_index) = self.gid_index else {
            let gid_index = context.default_gid_index(port_num)?;
            return Ok(PortGid {
                port_num,
                gid_index,
            });
        };
        // An entry past the end cannot even be read.
        let gid = context.gid(port_num, gid_index.into()).unwrap_or_default();
        if gid.is_zero() {
            return no(format!(
                "GID index {gid_index} of port {port_num} of {name} is empty: `verbatim devices` lists those \
                 that are set"
            ));
        }
        Ok(PortGid {
            port_num,
            gid_index,
        })
    }
}

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such provider.
    #[error(transparent)]
    Provider(#[from] verbs::ProviderError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The port cannot be used as configured.
    #[error("{0}")]
    Port(String),
}
