//! Probes of the peers' addresses: whether any process there has the UDP port of RoCEv2.
//!
//! The kernel of a host answers a datagram to a closed port by an ICMP message, which a connected socket reports as an
//! error. A process that is stopped keeps its port, and a network that loses packets loses the message. So an error
//! proves that no process has the port, and silence proves nothing.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use super::connection::ConnectionPortGids;

/// The sockets of the probes, one for each pair of addresses.
#[derive(Debug, Default)]
pub(super) struct PortProbes {
    sockets: HashMap<ConnectionPortGids, UdpSocket>,
}

impl PortProbes {
    /// Returns true if the peer's host has answered an earlier probe: its port is closed. Sends another probe
    /// otherwise.
    pub(super) fn is_peer_port_closed(&mut self, gids: ConnectionPortGids) -> bool {
        if let Some(socket) = self.sockets.get(&gids) {
            return is_refused(socket.take_error().ok().flatten())
                // The software NIC ignores an empty datagram.
                || is_refused(socket.send(&[]).err());
        }
        // Without a descriptor or a route, nothing is known.
        if let Ok(socket) = open_probe_socket(gids) {
            let _ = socket.send(&[]);
            self.sockets.insert(gids, socket);
        }
        false
    }

    /// Closes the sockets of addresses that are not among `used`.
    pub(super) fn retain(&mut self, used: impl Fn(&ConnectionPortGids) -> bool) {
        self.sockets.retain(|gids, _| used(gids));
    }
}

fn is_refused(error: Option<io::Error>) -> bool {
    error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

fn open_probe_socket(gids: ConnectionPortGids) -> io::Result<UdpSocket> {
    let ip = |gid: [u8; 16]| -> IpAddr { Ipv6Addr::from(gid).to_canonical() };
    let socket = UdpSocket::bind((ip(gids.local), 0))?;
    socket.set_nonblocking(true)?;
    socket.connect((ip(gids.remote), roce::UDP_PORT))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    use super::*;

    fn gid(ip: [u8; 4]) -> [u8; 16] {
        Ipv4Addr::from(ip).to_ipv6_mapped().octets()
    }

    #[test]
    fn a_closed_port_is_found_and_an_open_one_is_not() {
        let gids = |host: u8| ConnectionPortGids {
            local: gid([127, 24, 8, 1]),
            remote: gid([127, 24, 8, host]),
        };
        let holder = UdpSocket::bind((Ipv4Addr::new(127, 24, 8, 2), roce::UDP_PORT));
        let holder = holder.expect("the port of an address of this test");
        let mut probes = PortProbes::default();
        let end = Instant::now() + Duration::from_secs(30);
        while !probes.is_peer_port_closed(gids(3)) {
            assert!(Instant::now() < end, "no answer");
            assert!(!probes.is_peer_port_closed(gids(2)));
        }
        drop(holder);
        while !probes.is_peer_port_closed(gids(2)) {
            assert!(Instant::now() < end, "no answer");
        }
        probes.retain(|used| *used == gids(3));
        assert_eq!(probes.sockets.len(), 1);
    }
}
