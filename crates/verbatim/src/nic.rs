//! The chosen NIC: the open device, and its configuration for the libraries.

use anyhow::Result;
use kv::NicConfig;
use verbs::Context;

use crate::args::{NicArgs, PortArgs};

/// An open device and the configuration that identifies it to a library.
pub(crate) struct OpenNic {
    pub(crate) config: NicConfig,
    pub(crate) context: Context,
}

impl OpenNic {
    /// Opens the device and checks the port, so that a wrong name or number is refused before any
    /// work starts.
    pub(crate) fn open(nic: &NicArgs, port: &PortArgs) -> Result<OpenNic> {
        nic.apply_by_reexec()?;
        let provider = verbs::Provider::by_name(nic.provider.name())?;
        let device = provider.device(nic.device.as_deref())?;
        let config = NicConfig {
            provider: nic.provider.name().to_owned(),
            device: Some(device.name().to_owned()),
            port_num: port.port_num,
            gid_index: port.gid_index,
        };
        let context = device.open()?;
        config.port_and_gid(&context, None)?;
        Ok(OpenNic { config, context })
    }
}
