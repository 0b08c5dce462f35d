//! The NIC of a server or client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use serde::{Deserialize, Serialize};
use verbs::{Context, LinkLayer, PortAndGidIndex, PortState, Provider};

/// Selection of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicConfig {
    /// Provider: `softnic` or `system`.
    pub provider: String,
    /// Device name; `None` selects the provider's first device.
    pub device: Option<String>,
    /// Port number, counted from 1.
    pub port_num: u8,
    /// Index in the GID table; `None` selects the device's default.
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

    /// Returns the port, and the GID index to use on it: the configured one, else that of `address`, by which peers know
    /// this host, else the device's default.
    ///
    /// # Errors
    /// When the port or the selected GID index is unusable, with the reason.
    pub fn port_and_gid(
        &self,
        context: &Context,
        address: Option<IpAddr>,
    ) -> Result<PortAndGidIndex, OpenError> {
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
            let of_address = match address {
                Some(ip) => context.gid_index_of_address(port_num, ip)?,
                None => None,
            };
            let gid_index = match of_address {
                Some(index) => index,
                None => context.default_gid_index(port_num)?,
            };
            return Ok(PortAndGidIndex {
                port_num,
                gid_index,
            });
        };
        // Reading an entry beyond the end of the table fails.
        let gid = context.gid(port_num, gid_index.into()).unwrap_or_default();
        if gid.is_zero() {
            return no(format!(
                "GID index {gid_index} of port {port_num} of {name} is empty: `verbatim devices` lists those \
                 that are set"
            ));
        }
        Ok(PortAndGidIndex {
            port_num,
            gid_index,
        })
    }
}

/// Returns the address of a server that listens at `listen` (`HOST:PORT`); `None` if that is any address of the host.
pub(crate) fn listen_ip(listen: &str) -> Option<IpAddr> {
    let ip = listen.to_socket_addrs().ok()?.next()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// Returns the address of this host from which packets go to `server` (`HOST:PORT`). Sends none.
pub(crate) fn source_ip_towards(server: &str) -> Option<IpAddr> {
    let server = server.to_socket_addrs().ok()?.next()?;
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0)).ok()?;
    probe.connect(server).ok()?;
    Some(probe.local_addr().ok()?.ip())
}

/// Error of a NIC that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The provider or device does not exist.
    #[error(transparent)]
    Provider(#[from] verbs::ProviderError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The port cannot be used as configured.
    #[error("{0}")]
    Port(String),
}

verbs::from_verb_errors!(OpenError);
