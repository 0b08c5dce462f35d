//! The sockets of a process, by descriptor.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use verbs_abi::AF_IB;

use crate::datagram::DatagramSocket;
use crate::stream_socket::StreamSocket;
use crate::wait::WaitingThread;
use rdmacm::addr::IdAddress;
use rdmacm::errno::{Errno, Result};

/// A socket.
#[derive(Clone)]
pub(crate) enum RSocket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

use RSocket::{Datagram, Stream};

/// The sockets, indexed by descriptor: every call does this look-up.
static SOCKETS: RwLock<Vec<Option<RSocket>>> = RwLock::new(Vec::new());

fn table_index(fd: RawFd) -> Result<usize> {
    usize::try_from(fd).map_err(|_| Errno(libc::EBADF))
}

/// Returns the socket with the descriptor `fd`.
///
/// # Errors
/// `EBADF` if no such socket exists.
pub(crate) fn find(fd: RawFd) -> Result<RSocket> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    let found = sockets.get(table_index(fd)?).and_then(Clone::clone);
    found.ok_or(Errno(libc::EBADF))
}

fn insert(socket: RSocket, fd: RawFd) -> RawFd {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    // A descriptor is never negative.
    let at = table_index(fd).unwrap_or(0);
    if sockets.len() <= at {
        sockets.resize(at + 1, None);
    }
    if let Some(place) = sockets.get_mut(at) {
        *place = Some(socket);
    }
    fd
}

impl RSocket {
    /// Implements `socket(2)`: returns the descriptor of a new socket.
    pub(crate) fn create(domain: c_int, kind: c_int, protocol: c_int) -> Result<RawFd> {
        let nonblocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        if !matches!(domain, libc::AF_INET | libc::AF_INET6 | AF_IB) {
            return Err(Errno(libc::ENOTSUP));
        }
        match (kind, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                let (socket, fd) = StreamSocket::new(domain, nonblocking)?;
                Ok(insert(Stream(socket), fd))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                let (socket, fd) = DatagramSocket::new(domain, nonblocking)?;
                Ok(insert(Datagram(socket), fd))
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    }

    /// Implements `close(2)`, after delivery of all sent data.
    pub(crate) fn close(fd: RawFd) -> Result {
        let socket = {
            let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
            let found = sockets.get_mut(table_index(fd)?).and_then(Option::take);
            found.ok_or(Errno(libc::EBADF))?
        };
        match socket {
            Stream(s) => s.close(),
            Datagram(s) => s.close(),
        }
        Ok(())
    }

    /// Returns the stream socket.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a datagram socket, as from system calls that need a stream.
    pub(crate) fn as_stream_socket(&self) -> Result<&Arc<StreamSocket>> {
        match self {
            Stream(s) => Ok(s),
            Datagram(_) => Err(Errno(libc::EOPNOTSUPP)),
        }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        matches!(self, Datagram(_))
    }

    pub(crate) fn bind(&self, addr: IdAddress) -> Result {
        match self {
            Stream(s) => s.bind(addr),
            Datagram(s) => s.bind(addr.ip_socket_addr()?),
        }
    }

    /// Returns the next connection and the peer's address.
    pub(crate) fn accept(&self) -> Result<(RawFd, IdAddress)> {
        let (socket, fd, peer) = self.as_stream_socket()?.accept()?;
        Ok((insert(Stream(socket), fd), peer))
    }

    pub(crate) fn connect(&self, addr: IdAddress) -> Result {
        match self {
            Stream(s) => s.connect(addr),
            Datagram(s) => s.connect(addr.ip_socket_addr()?),
        }
    }

    /// Returns the own address, or the peer's if `peer` is true.
    pub(crate) fn own_or_peer_address(&self, peer: bool) -> Result<IdAddress> {
        match self {
            Stream(s) => s.own_or_peer_address(peer),
            Datagram(s) => s.own_or_peer_address(peer).map(IdAddress::Ip),
        }
    }

    /// Implements `sendto(2)`.
    ///
    /// # Errors
    /// `EISCONN` if a stream is given an address.
    pub(crate) fn send_to(
        &self,
        bytes: &[u8],
        flags: c_int,
        to: Option<IdAddress>,
    ) -> Result<usize> {
        match self {
            Stream(_) if to.is_some() => Err(Errno(libc::EISCONN)),
            Stream(s) => s.send(bytes, flags),
            Datagram(s) => s.send(bytes, flags, to.map(IdAddress::ip_socket_addr).transpose()?),
        }
    }

    /// Implements `recvfrom(2)`.
    pub(crate) fn recv_from(&self, bytes: &mut [u8], flags: c_int) -> Result<(usize, IdAddress)> {
        match self {
            Stream(s) => Ok((s.recv(bytes, flags)?, s.own_or_peer_address(true)?)),
            Datagram(s) => s
                .recv(bytes, flags)
                .map(|(len, from)| (len, IdAddress::Ip(from))),
        }
    }

    /// Implements `recv(2)`.
    pub(crate) fn recv(&self, bytes: &mut [u8], flags: c_int) -> Result<usize> {
        match self {
            Stream(s) => s.recv(bytes, flags),
            Datagram(s) => s.recv(bytes, flags).map(|(len, _)| len),
        }
    }

    /// Implements `shutdown(2)`.
    pub(crate) fn shutdown(&self, how: c_int) -> Result {
        match self {
            Stream(s) => s.shutdown(how),
            Datagram(s) => s.check_connected_for_shutdown(),
        }
    }

    /// Implements `F_SETFL` of `rfcntl`.
    pub(crate) fn set_status_flags(&self, flags: c_int) {
        let nonblocking = flags & libc::O_NONBLOCK != 0;
        match self {
            Stream(s) => s.set_nonblocking(nonblocking),
            Datagram(s) => s.set_nonblocking(nonblocking),
        }
    }

    /// Implements `F_GETFL` of `rfcntl`.
    pub(crate) fn status_flags(&self) -> c_int {
        let nonblocking = match self {
            Stream(s) => s.is_nonblocking(),
            Datagram(s) => s.is_nonblocking(),
        };
        libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
    }

    /// Implements `setsockopt(2)` for options whose value is an `int`.
    pub(crate) fn set_option(&self, level: c_int, name: c_int, value: c_int) -> Result {
        match self {
            Stream(s) => s.set_option(level, name, value),
            Datagram(s) => s.set_option(level, name, value),
        }
    }

    /// Implements `getsockopt(2)` for options whose value is an `int`.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Result<c_int> {
        match self {
            Stream(s) => s.option(level, name),
            Datagram(s) => s.option(level, name),
        }
    }

    /// Returns the pending events among `events`. With a waiter and no pending event, adds the descriptors that
    /// announce one to `fds`.
    pub(crate) fn poll_events(
        &self,
        events: libc::c_short,
        waiter: Option<&Arc<WaitingThread>>,
        fds: &mut Vec<libc::pollfd>,
    ) -> libc::c_short {
        match self {
            Stream(s) => s.poll_events(events, waiter, fds),
            Datagram(s) => s.poll_events(events, waiter, fds),
        }
    }
}
