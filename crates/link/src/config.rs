//! Configuration of an endpoint.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

/// Configuration of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses of this host, as in the GID table.
    pub addresses: Vec<LocalAddress>,
    /// UDP source and destination port: [`roce::UDP_PORT`], except in tests.
    pub udp_port: u16,
    /// Bytes of the buffers of each socket. Without CAP_NET_ADMIN the kernel limits them to `net.core.rmem_max`.
    pub buffer_bytes: usize,
    /// The fabric that shares the addresses; `None` if they are not shared.
    pub fabric_membership: Option<FabricMembership>,
}

/// The processes of one user that share addresses.
#[derive(Clone, Debug)]
pub struct FabricMembership {
    /// Folder of the fabric, which no other user may write.
    pub folder: PathBuf,
    /// The slot of this process, 1 to 1023: the upper 10 bits of its QPNs.
    pub slot: u16,
}

/// Default of [`Config::buffer_bytes`]: 8 MiB.
pub const DEFAULT_BUFFER_BYTES: usize = 8 << 20;

impl Config {
    /// Makes a configuration with the port of RoCEv2 at `addresses`, not shared, with buffers of 8 MiB.
    #[must_use]
    pub fn new(addresses: Vec<LocalAddress>) -> Config {
        Config {
            addresses,
            udp_port: roce::UDP_PORT,
            buffer_bytes: DEFAULT_BUFFER_BYTES,
            fabric_membership: None,
        }
    }
}

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// IP address.
    pub ip: IpAddr,
    /// Index of the interface, which only link-local addresses of IPv6 need; 0 if none is given.
    pub if_index: u32,
}

impl From<IpAddr> for LocalAddress {
    fn from(ip: IpAddr) -> LocalAddress {
        LocalAddress { ip, if_index: 0 }
    }
}

impl LocalAddress {
    /// Returns the socket address of `ip`; a link-local address is on the link of this one.
    pub(crate) fn socket_address_on_same_link(self, ip: IpAddr, port: u16) -> SocketAddr {
        match ip {
            IpAddr::V4(ip) => (ip, port).into(),
            IpAddr::V6(ip) => {
                let link_local = ip.is_unicast_link_local();
                let scope = if link_local { self.if_index } else { 0 };
                SocketAddrV6::new(ip, port, 0, scope).into()
            }
        }
    }
}
