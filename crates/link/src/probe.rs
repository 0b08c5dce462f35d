//! The features that an endpoint would get, without opening one. They tell whether packets can be sent.

use std::os::fd::AsFd;

use rustix::net::sockopt;

use crate::config::{Config, LocalAddress};
use crate::error::LinkError;
use crate::group::Group;
use crate::socket::{Mode, PortState, Socket, port_state};
use crate::sys::options::set_int;

/// The features that an endpoint would get at an address.
#[derive(Debug)]
pub struct Probe {
    /// The address.
    pub address: LocalAddress,
    /// Who has the port.
    pub port: PortState,
    /// Features of sockets there; `None` where the kernel gives none.
    pub socket: Option<SocketFeatures>,
}

/// Features that the kernel gives a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFeatures {
    /// Bytes of the receive buffer, of those that were asked for.
    pub receive_buffer_bytes: usize,
    /// It segments what is sent (`UDP_SEGMENT`, GSO).
    pub segments: bool,
    /// It puts together what is received (`UDP_GRO`).
    pub coalesces: bool,
}

/// Looks at each address of `config`.
///
/// While it looks, the port of an address that nobody has is taken: for microseconds, and other processes of the same
/// fabric wait for it.
///
/// # Errors
/// The fabric's folder cannot be used.
pub fn probe(config: &Config) -> Result<Vec<Probe>, LinkError> {
    let group = match &config.fabric {
        Some(fabric) => Some(Group::new(fabric, config.port)?),
        None => None,
    };
    let of_address = |address: &LocalAddress| {
        let port = match &group {
            Some(group) => group.port_state(*address, config),
            None => port_state(*address, config),
        };
        Probe {
            address: *address,
            port,
            socket: features(*address, config),
        }
    };
    Ok(config.addresses.iter().map(of_address).collect())
}

/// Features of a socket at `address`, at any port.
fn features(address: LocalAddress, config: &Config) -> Option<SocketFeatures> {
    let any_port = Config {
        port: 0,
        ..config.clone()
    };
    let socket = Socket::open(address, &any_port, Mode::Alone).ok()?;
    let fd = socket.as_fd();
    // The kernel doubles what is asked for, for its own needs: socket(7).
    let receive_buffer_bytes = sockopt::socket_recv_buffer_size(fd).ok()? / 2;
    let supports = |name, value| set_int(fd, libc::SOL_UDP, name, value).is_ok();
    Some(SocketFeatures {
        receive_buffer_bytes,
        segments: supports(libc::UDP_SEGMENT, 1024),
        coalesces: supports(libc::UDP_GRO, 1),
    })
}
