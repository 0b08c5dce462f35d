//! Probes of the peers' addresses: whether any process there has the UDP port of RoCEv2.
//!
//! The kernel of a host answers a datagram to a closed port by an ICMP message, which a connected socket reports as an
//! error. A process that is stopped keeps its port, and a network that loses packets loses the message, so silence proves
//! nothing. An answer concerns the connections that were established when the probe was sent: the port may be open again.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use super::connection::ConnectionPortGids;

/// The probes, one for each pair of addresses.
#[derive(Debug, Default)]
pub(super) struct PortProbes {
    probes: HashMap<ConnectionPortGids, PortProbe>,
}

#[derive(Debug)]
struct PortProbe {
    socket: UdpSocket,
    /// The connections that were established when the last probe was sent.
    connections: HashSet<u32>,
}

impl PortProbes {
    /// Sends a probe for the established connections between two addresses. Returns those for which an earlier probe has
    /// found the peer's port closed.
    pub(super) fn probe_and_take_lost(
        &mut self,
        gids: ConnectionPortGids,
        established: HashSet<u32>,
    ) -> HashSet<u32> {
        let Some(probe) = self.probes.get_mut(&gids) else {
            // Without a descriptor or a route, nothing is known.
            if let Ok(socket) = open_probe_socket(gids) {
                let _ = socket.send(&[]);
                let connections = established;
                self.probes.insert(
                    gids,
                    PortProbe {
                        socket,
                        connections,
                    },
                );
            }
            return HashSet::new();
        };
        let mut is_closed = is_refused(probe.socket.take_error().ok().flatten());
        // The software NIC ignores an empty datagram. A call that reports the answer to the last one sends none.
        if is_refused(probe.socket.send(&[]).err()) {
            is_closed = true;
            let _ = probe.socket.send(&[]);
        }
        let asked = std::mem::replace(&mut probe.connections, established);
        if is_closed { asked } else { HashSet::new() }
    }

    /// Closes the sockets of addresses that are not among `used`.
    pub(super) fn retain(&mut self, used: impl Fn(&ConnectionPortGids) -> bool) {
        self.probes.retain(|gids, _| used(gids));
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
        let mut ask = |host, ids: &[u32]| {
            assert!(Instant::now() < end, "no answer");
            probes.probe_and_take_lost(gids(host), ids.iter().copied().collect())
        };
        while ask(3, &[7, 8]) != HashSet::from([7, 8]) {
            assert_eq!(ask(2, &[5]), HashSet::new());
        }
        drop(holder);
        while ask(2, &[5]) != HashSet::from([5]) {}
        // A connection that was made after the last probe is not lost.
        assert!(!ask(2, &[6]).contains(&6));
        probes.retain(|used| *used == gids(3));
        assert_eq!(probes.probes.len(), 1);
    }
}
