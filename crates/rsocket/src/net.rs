//! Stream sockets over RDMA with a safe interface, in the form of `std::net`.
//!
//! A program that uses it sets the NIC by `rdmacm::set_provider_finder` first.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rdmacm::errno::Result;

use crate::poll::rpoll;
use crate::socket_table::{RSocket, find};
use crate::stream_socket::StreamSocket;
use crate::wait::Deadline;

/// A stream socket by its descriptor, which is closed on drop.
struct Socket {
    fd: RawFd,
    stream_socket: Arc<StreamSocket>,
}

impl Socket {
    fn new(address: SocketAddr) -> Result<Self> {
        let domain = match address {
            SocketAddr::V4(_) => libc::AF_INET,
            SocketAddr::V6(_) => libc::AF_INET6,
        };
        Self::from_fd(RSocket::create(domain, libc::SOCK_STREAM, 0)?)
    }

    fn from_fd(fd: RawFd) -> Result<Self> {
        let socket = Arc::clone(find(fd)?.as_stream_socket()?);
        Ok(Self {
            fd,
            stream_socket: socket,
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Ignore the result: the socket is in the table until this call.
        let _ = RSocket::close(self.fd);
    }
}

/// Accepts connections.
pub struct Listener(Socket);

impl Listener {
    /// Listens at an address of this host.
    ///
    /// # Errors
    /// Returns an error if the address cannot be used, or no device exists.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        /// As many as Linux keeps by default (`somaxconn`).
        const BACKLOG: libc::c_int = 4096;
        let socket = Socket::new(address).map_err(to_io_error)?;
        socket
            .stream_socket
            .bind(address.into())
            .map_err(to_io_error)?;
        socket.stream_socket.listen(BACKLOG).map_err(to_io_error)?;
        Ok(Self(socket))
    }

    /// Returns the address at which the listener listens.
    ///
    /// # Errors
    /// Returns an error if the address is not an IP address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let own = self.0.stream_socket.own_or_peer_address(false);
        own.and_then(|own| own.ip_socket_addr())
            .map_err(to_io_error)
    }

    /// Sets whether [`accept`](Self::accept) fails with `WouldBlock` rather than wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.stream_socket.set_nonblocking(nonblocking);
    }

    /// Returns the next connection, which blocks.
    ///
    /// # Errors
    /// Returns an error if descriptors or memory are lacking; the listener remains usable.
    pub fn accept(&self) -> io::Result<Stream> {
        let (fd, _) = RSocket::Stream(Arc::clone(&self.0.stream_socket))
            .accept()
            .map_err(to_io_error)?;
        Ok(Stream(Socket::from_fd(fd).map_err(to_io_error)?))
    }
}

/// A connected stream socket. A drop waits up to 10 s until the peer has received all data.
pub struct Stream(Socket);

impl Stream {
    /// Connects to a listener.
    ///
    /// # Errors
    /// Returns an error if no process listens at the address, or no device exists.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(address).map_err(to_io_error)?;
        socket
            .stream_socket
            .connect(address.into())
            .map_err(to_io_error)?;
        Ok(Self(socket))
    }

    /// Sets whether reads and writes fail with `WouldBlock` rather than wait.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.stream_socket.set_nonblocking(nonblocking);
    }

    /// Ends this side's data. Waits up to 10 s until the peer has received all data.
    ///
    /// # Errors
    /// Returns an error if the connection has failed.
    pub fn shutdown_write(&self) -> io::Result<()> {
        self.0
            .stream_socket
            .shutdown(libc::SHUT_WR)
            .map_err(to_io_error)
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.stream_socket.recv(into, 0).map_err(to_io_error)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.stream_socket.send(bytes, 0).map_err(to_io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket, and the event for which [`poll`] waits.
pub struct SocketAndAwaitedEvent(libc::pollfd);

impl SocketAndAwaitedEvent {
    /// Waits until a connection can be accepted.
    pub fn incoming_connection(listener: &Listener) -> Self {
        Self::with_events(&listener.0, libc::POLLIN)
    }

    /// Waits until bytes or the end of the data can be read.
    pub fn readable(stream: &Stream) -> Self {
        Self::with_events(&stream.0, libc::POLLIN)
    }

    /// Waits as [`readable`](Self::readable), or until bytes can be written.
    pub fn readable_or_writable(stream: &Stream) -> Self {
        Self::with_events(&stream.0, libc::POLLIN | libc::POLLOUT)
    }

    fn with_events(socket: &Socket, events: libc::c_short) -> Self {
        Self(libc::pollfd {
            fd: socket.fd,
            events,
            revents: 0,
        })
    }
}

/// Sleeps until an event occurs or `timeout` has passed: `rpoll`. Returns the number of sockets with events.
///
/// # Errors
/// Returns an error if the system's `poll(2)` does, for example because of a signal.
pub fn poll(
    wanted: impl IntoIterator<Item = SocketAndAwaitedEvent>,
    timeout: Option<Duration>,
) -> io::Result<usize> {
    let mut fds: Vec<libc::pollfd> = wanted.into_iter().map(|wanted| wanted.0).collect();
    let deadline = timeout.map_or(Deadline::NEVER, Deadline::after);
    rpoll(&mut fds, deadline.to_poll_timeout_ms()).map_err(to_io_error)
}

fn to_io_error(e: rdmacm::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(e.0)
}
