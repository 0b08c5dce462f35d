//! Configuration of an endpoint.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of this host: those of the GID table.
    pub addresses: Vec<LocalAddress>,
    /// The UDP port, on both sides: [`roce::UDP_PORT`] but in tests.
    pub port: u16,
    /// Bytes of each socket's buffers. Without CAP_NET_ADMIN the kernel gives at most `net.core.rmem_max`.
    pub buffer_bytes: usize,
    /// With whom the addresses are shared; `None`: with nobody.
    pub fabric: Option<Fabric>,
}

/// The processes of one user that share addresses.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Their folder, which nobody else may write.
    pub folder: PathBuf,
    /// The slot of this process, 1 to 1023: the upper 10 bits of its QPNs.
    pub slot: u16,
}

/// Bytes of a socket's buffers, unless something else is asked for: 8 MiB.
pub const DEFAULT_BUFFER_BYTES: usize = 8 << 20;

impl Config {
    /// The port of RoCEv2 at `addresses`, shared with nobody, with buffers of 8 MiB.
    #[must_use]
    pub fn new(addresses: Vec<LocalAddress>) -> Config {
        Config {
            addresses,
            port: roce::UDP_PORT,
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            fabric: None,
        }
    }
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// Index of its interface; only link-local addresses of IPv6 need it, and 0 is none.
    pub interface: u32,
}

impl From<IpAddr> for LocalAddress {
    fn from(ip: IpAddr) -> LocalAddress {
        LocalAddress { ip, interface: 0 }
    }
}

impl LocalAddress {
    /// The socket address of `ip`, which is on this address's link if it is link-local.
    pub(crate) fn socket_address(self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => {
                let link_local = ip.is_unicast_link_local();
                let scope = if link_local { self.interface } else { 0 };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        }
    }
}
