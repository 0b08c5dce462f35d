//! Connections over RDMA, by Valkey's transport in the crate `resp-rdma`.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use resp_rdma::Connector;

use crate::connection::{Connection, ListenAddress, Listener};

/// A listener for connections over RDMA.
#[derive(Debug)]
pub struct RdmaListener(resp_rdma::Listener);

impl RdmaListener {
    /// Listens at an address. The port may be in use for TCP as well; port 0 takes a free port. The accepted connections
    /// share descriptors.
    ///
    /// # Errors
    /// The errors of `rdma_bind_addr(3)`, or the system has no descriptor left.
    pub fn listen(
        connector: &Connector,
        at: SocketAddr,
    ) -> Result<Box<dyn Listener>, resp_rdma::SetupError> {
        let connector = connector.with_shared_descriptors()?;
        Ok(Box::new(Self(connector.listen(at)?)))
    }
}

impl Listener for RdmaListener {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(RdmaConnection(self.0.accept()?)))
    }

    fn address(&self) -> ListenAddress {
        let none = SocketAddr::from(([0; 4], 0));
        ListenAddress::Rdma(self.0.local_addr().unwrap_or(none))
    }

    fn register_shared_descriptors(&mut self, r: &Registry, token: Token) -> io::Result<()> {
        register_shared_descriptors(self.0.connector(), r, token)
    }

    fn take_ready(&mut self, ready: &mut dyn FnMut(Token)) {
        self.0.connector().take_ready(|key| ready(Token(key)));
    }
}

/// Registers the descriptors that a connector's connections share, if there are any.
pub(crate) fn register_shared_descriptors(
    connector: &Connector,
    registry: &Registry,
    token: Token,
) -> io::Result<()> {
    let fds = connector.shared_fds().into_iter().flatten();
    let register = |fd: RawFd| SourceFd(&fd).register(registry, token, Interest::READABLE);
    fds.into_iter().try_for_each(register)
}

impl Source for RdmaListener {
    fn register(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.0.fd()).register(r, token, interests)
    }

    fn reregister(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        SourceFd(&self.0.fd()).reregister(r, token, interests)
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        SourceFd(&self.0.fd()).deregister(r)
    }
}

/// A connection over RDMA.
#[derive(Debug)]
pub(crate) struct RdmaConnection(pub(crate) resp_rdma::Connection);

impl RdmaConnection {
    fn for_each_event_fd(&self, act: impl Fn(SourceFd<'_>) -> io::Result<()>) -> io::Result<()> {
        self.0
            .fds()
            .iter()
            .try_for_each(|fd: &RawFd| act(SourceFd(fd)))
    }
}

impl Connection for RdmaConnection {
    fn supports_polling(&self) -> bool {
        true
    }

    #[inline]
    fn poll(&mut self) -> bool {
        self.0.poll()
    }

    fn arm_unless_ready(&mut self) -> bool {
        self.0.arm_unless_arrived()
    }

    fn keep_alive_interval(&self) -> Option<Duration> {
        Some(resp_rdma::Connection::KEEP_ALIVE_INTERVAL)
    }

    fn send_keep_alive(&mut self) -> io::Result<()> {
        self.0.send_keep_alive()
    }
}

impl Read for RdmaConnection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for RdmaConnection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Both descriptors become readable when something arrives. New room at the peer is also announced by a message, so
/// writable events are never requested. Shared descriptors are registered by their owner, and report the token.
impl Source for RdmaConnection {
    fn register(&mut self, r: &Registry, token: Token, _: Interest) -> io::Result<()> {
        self.0.set_key(token.0);
        if self.0.shares_descriptors() {
            return Ok(());
        }
        self.for_each_event_fd(|mut fd| fd.register(r, token, Interest::READABLE))
    }

    fn reregister(&mut self, _: &Registry, _: Token, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        if self.0.shares_descriptors() {
            return Ok(());
        }
        self.for_each_event_fd(|mut fd| fd.deregister(r))
    }
}
