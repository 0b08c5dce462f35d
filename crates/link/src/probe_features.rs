//! The features that an endpoint would have, found without opening one.

use std::os::fd::AsFd;

use rustix::net::sockopt;

use crate::config::{Config, LocalAddress};
use crate::error::LinkError;
use crate::socket::{BoundSocket, PortSharing, UdpPortState, probe_udp_port};
use crate::socket_groups::SocketGroups;
use crate::sys::options::set_int_socket_option;

/// The features that an endpoint would have at an address.
#[derive(Debug)]
pub struct AddressFeatures {
    /// The address.
    pub address: LocalAddress,
    /// Owner of the port.
    pub udp_port_state: UdpPortState,
    /// Features of sockets at the address; `None` if the kernel makes no socket there.
    pub socket_features: Option<SocketFeatures>,
}

/// The features of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFeatures {
    /// Bytes of the receive buffer that the kernel grants, of those requested.
    pub receive_buffer_bytes: usize,
    /// True if the kernel segments sent packets (`UDP_SEGMENT`, GSO).
    pub has_gso: bool,
    /// True if the kernel coalesces received packets (`UDP_GRO`).
    pub has_gro: bool,
}

/// Probes each address of `config`.
///
/// The probe binds a free port for some microseconds; other processes of the same fabric wait for the lock in the
/// meantime.
///
/// # Errors
/// The fabric's folder cannot be used.
pub fn probe_addresses(config: &Config) -> Result<Vec<AddressFeatures>, LinkError> {
    let group = match &config.fabric_membership {
        Some(fabric) => Some(SocketGroups::new(fabric, config.udp_port)?),
        None => None,
    };
    let of_address = |address: &LocalAddress| {
        let port = match &group {
            Some(group) => group.udp_port_state(*address, config),
            None => probe_udp_port(*address, config),
        };
        AddressFeatures {
            address: *address,
            udp_port_state: port,
            socket_features: probe_socket(*address, config),
        }
    };
    Ok(config.addresses.iter().map(of_address).collect())
}

/// Returns the features of a socket at `address`, with any port.
fn probe_socket(address: LocalAddress, config: &Config) -> Option<SocketFeatures> {
    let any_port = Config {
        udp_port: 0,
        ..config.clone()
    };
    let socket = BoundSocket::open(address, &any_port, PortSharing::Exclusive).ok()?;
    let fd = socket.as_fd();
    // The kernel doubles the requested size for its own needs: socket(7).
    let receive_buffer_bytes = sockopt::socket_recv_buffer_size(fd).ok()? / 2;
    let supports = |name, value| set_int_socket_option(fd, libc::SOL_UDP, name, value).is_ok();
    Some(SocketFeatures {
        receive_buffer_bytes,
        has_gso: supports(libc::UDP_SEGMENT, 1024),
        has_gro: supports(libc::UDP_GRO, 1),
    })
}
