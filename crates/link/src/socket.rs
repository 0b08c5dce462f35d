//! The UDP socket of one address.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use liveness::descriptors_replaced_in_children::{
    replace_by_dev_null_in_children, stop_replacing_in_children,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::config::{Config, LocalAddress};
use crate::counters::Counters;
use crate::error::LinkError;
use crate::sys::options::set_int_socket_option;

/// The sharing of an address and port by a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortSharing {
    /// No other socket can have this address and port.
    Exclusive,
    /// The socket is the first of a group. It is bound exclusively, which fails if another socket exists, and then made
    /// sharable.
    FirstOfGroup,
    /// The socket joins the existing sockets of a group.
    JoinGroup,
}

/// A UDP socket that is bound to one address, so that its packets have this source or destination. It is unconnected,
/// with DF set, so the kernel writes 0 as the IPv4 identification, which the ICRC covers.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) address: LocalAddress,
    udp_port: u16,
    fd: OwnedFd,
    /// True if the kernel has refused segmentation on this socket.
    pub(crate) is_segmentation_refused: AtomicBool,
    pub(crate) counters: Counters,
}

/// The owner of the port of an address.
#[derive(Debug)]
pub enum UdpPortState {
    /// The port is free.
    Free,
    /// This number of processes of the fabric own the port, and others can join.
    SharedByProcesses(usize),
    /// The port belongs to another owner, or cannot be used for another reason.
    Unavailable(LinkError),
}

/// Returns the owner of the port of an address that no process of the fabric uses.
pub(crate) fn probe_udp_port(address: LocalAddress, config: &Config) -> UdpPortState {
    match BoundSocket::open(address, config, PortSharing::Exclusive) {
        Ok(_) => UdpPortState::Free,
        Err(error) => UdpPortState::Unavailable(error),
    }
}

fn family_of(ip: IpAddr) -> AddressFamily {
    match ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        stop_replacing_in_children(&self.fd);
    }
}

impl BoundSocket {
    /// Opens the socket of `address`.
    pub(crate) fn open(
        address: LocalAddress,
        config: &Config,
        mode: PortSharing,
    ) -> Result<BoundSocket, LinkError> {
        let port = config.udp_port;
        let failed = |what| {
            move |source| LinkError::SocketCallFailed {
                what,
                address: address.ip,
                port,
                source,
            }
        };
        let family = family_of(address.ip);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|e| failed("open a socket")(e.into()))?;
        set_socket_options(fd.as_fd(), address.ip, config.buffer_bytes)
            .map_err(failed("set the options"))?;
        let share = || set_int_socket_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1);
        if mode == PortSharing::JoinGroup {
            share().map_err(failed("share the port"))?;
        }
        match bind(&fd, &address.socket_address_on_same_link(address.ip, port)) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                return Err(LinkError::PortInUse {
                    address: address.ip,
                    port,
                });
            }
            Err(Errno::ADDRNOTAVAIL) => {
                return Err(LinkError::NoSuchAddress {
                    address: address.ip,
                });
            }
            Err(e) => return Err(failed("bind")(e.into())),
        }
        if mode == PortSharing::FirstOfGroup {
            share().map_err(failed("share the port"))?;
        }
        // A child that inherits the socket would keep its place in the group when this process ends, and packets of
        // other processes would go there.
        replace_by_dev_null_in_children(&fd).map_err(failed("keep children from having it"))?;
        Ok(BoundSocket {
            address,
            udp_port: port,
            fd,
            is_segmentation_refused: AtomicBool::new(false),
            counters: Counters::default(),
        })
    }

    /// Returns the size of the largest unfragmented IP packet from this address to `destination`, as far as the host
    /// knows.
    pub(crate) fn mtu_towards(&self, destination: IpAddr) -> Result<u32, Errno> {
        let family = family_of(self.address.ip);
        let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        bind(
            &probe,
            &self.address.socket_address_on_same_link(self.address.ip, 0),
        )?;
        // No packet is sent.
        connect(&probe, &self.socket_address_on_same_link(destination))?;
        if destination.is_ipv4() {
            sockopt::ip_mtu(&probe)
        } else {
            sockopt::ipv6_mtu(&probe)
        }
    }

    /// Returns the hop limit (IPv4: time to live) of packets that set none.
    pub(crate) fn default_hop_limit(&self) -> u8 {
        /// Linux's default for both families (`IPDEFTTL`, `IPV6_DEFAULT_HOPLIMIT`).
        const USUAL_HOP_LIMIT: u8 = 64;
        let limit = if self.address.ip.is_ipv4() {
            sockopt::ip_ttl(&self.fd)
                .ok()
                .and_then(|ttl| u8::try_from(ttl).ok())
        } else {
            sockopt::ipv6_unicast_hops(&self.fd).ok()
        };
        limit.unwrap_or(USUAL_HOP_LIMIT)
    }

    /// Returns the socket address of `ip`; a link-local address is on the link of this socket.
    pub(crate) fn socket_address_on_same_link(&self, ip: IpAddr) -> SocketAddr {
        self.address.socket_address_on_same_link(ip, self.udp_port)
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn set_socket_options(socket: BorrowedFd<'_>, ip: IpAddr, buffer_bytes: usize) -> io::Result<()> {
    match ip {
        IpAddr::V4(_) => {
            let set = |name, value| set_int_socket_option(socket, libc::IPPROTO_IP, name, value);
            set(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(libc::IP_RECVTOS, 1)?;
            set(libc::IP_RECVTTL, 1)?;
        }
        IpAddr::V6(_) => {
            let set = |name, value| set_int_socket_option(socket, libc::IPPROTO_IPV6, name, value);
            set(libc::IPV6_V6ONLY, 1)?;
            set(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            set(libc::IPV6_RECVTCLASS, 1)?;
            set(libc::IPV6_RECVHOPLIMIT, 1)?;
            // Soft-RoCE sends no UDP checksum over IPv6 either; the ICRC protects the packet.
            set_int_socket_option(socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
    }
    // Kernels before 5.0 have no UDP GRO, and receive packets one by one.
    let _ = set_int_socket_option(socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    let bytes = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    // With CAP_NET_ADMIN the buffer may exceed net.core.rmem_max.
    set_int_socket_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes)
        .or_else(|_| set_int_socket_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes))?;
    set_int_socket_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
        .or_else(|_| set_int_socket_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes))
}
