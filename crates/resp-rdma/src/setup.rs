//! Connection setup: the connecting and the listening side.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Context, ProtectionDomain};

use crate::cm::{CmEventKind, OwnedCmId};
use crate::connected_qp::{Config, RECV_BUFFER_BYTES_RANGE, UnconnectedQp};
use crate::connection::Connection;
use crate::error::SetupError;

/// A maker of connections and listeners on a device.
#[derive(Debug, Clone)]
pub struct Connector {
    pd: ProtectionDomain,
    config: Config,
}

impl Connector {
    /// Makes a connector on an open device, which must be a software NIC.
    ///
    /// # Errors
    /// [`SetupError::NotSoftwareNic`], [`SetupError::ReceiveBufferOutOfRange`], or no protection domain can be
    /// allocated.
    pub fn new(context: &Context, config: Config) -> Result<Self, SetupError> {
        let provider = context.provider().name();
        if provider != verbs::Provider::softnic().name() {
            return Err(SetupError::NotSoftwareNic(provider.to_owned()));
        }
        if !RECV_BUFFER_BYTES_RANGE.contains(&config.receive_buffer_bytes) {
            return Err(SetupError::ReceiveBufferOutOfRange(
                config.receive_buffer_bytes,
            ));
        }
        let pd = context.alloc_pd()?;
        Ok(Self { pd, config })
    }

    /// Connects to a server, and waits at most `timeout` for its answer.
    ///
    /// # Errors
    /// The reason why the connection failed.
    pub fn connect(&self, to: SocketAddr, timeout: Duration) -> Result<Connection, SetupError> {
        let deadline = Instant::now().checked_add(timeout);
        let id = OwnedCmId::new().map_err(SetupError::from_cm_error_in_step("rdma_create_id"))?;
        let expect = |expected: CmEventKind| -> Result<(), SetupError> {
            match wait_for_cm_event(&id, deadline)? {
                Some(news) if news == expected => Ok(()),
                Some(CmEventKind::Refused | CmEventKind::Disconnected) => {
                    Err(SetupError::Refused(to))
                }
                Some(_) => Err(SetupError::Unreachable(to)),
                None => Err(SetupError::TimedOut(to)),
            }
        };
        id.resolve_addr(to)
            .map_err(SetupError::from_cm_error_in_step("rdma_resolve_addr"))?;
        expect(CmEventKind::AddressOrRouteResolved)?;
        id.resolve_route()
            .map_err(SetupError::from_cm_error_in_step("rdma_resolve_route"))?;
        expect(CmEventKind::AddressOrRouteResolved)?;
        let prepared = UnconnectedQp::new(&self.pd, &self.config)?;
        id.connect(prepared.qpn())
            .map_err(SetupError::from_cm_error_in_step("rdma_connect"))?;
        expect(CmEventKind::ConnectResponse)?;
        let queue = prepared.connect(|qp| Ok(id.connect_qp(qp)?))?;
        id.establish()
            .map_err(SetupError::from_cm_error_in_step("rdma_establish"))?;
        Ok(Connection::new(id, queue, true))
    }

    /// Listens at an address; port 0 chooses a free port. TCP may use the same port number.
    ///
    /// # Errors
    /// The errors of `rdma_bind_addr(3)`.
    pub fn listen(&self, at: SocketAddr) -> Result<Listener, SetupError> {
        let id = OwnedCmId::new().map_err(SetupError::from_cm_error_in_step("rdma_create_id"))?;
        id.listen(at)
            .map_err(SetupError::from_cm_error_in_step("rdma_bind_addr"))?;
        Ok(Listener {
            id,
            connector: self.clone(),
        })
    }
}

/// Waits for the next event; returns `None` at the deadline.
fn wait_for_cm_event(
    id: &OwnedCmId,
    deadline: Option<Instant>,
) -> Result<Option<CmEventKind>, SetupError> {
    loop {
        if let Some((news, _)) = id.next() {
            return Ok(Some(news));
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let fd = id.borrowed_fd();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => {
                return Err(SetupError::Cm {
                    step: "poll",
                    source: e.into(),
                });
            }
        }
    }
}

/// A listener, which accepts connections.
pub struct Listener {
    id: OwnedCmId,
    connector: Connector,
}

impl Listener {
    /// Accepts the next pending connection. The connection reports bytes once the peer is ready.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no connection is pending; other errors concern this
    /// connection or the system.
    pub fn accept(&mut self) -> io::Result<Connection> {
        loop {
            let Some((news, requested)) = self.id.next() else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            if news != CmEventKind::ConnectRequest {
                continue;
            }
            let id = requested.ok_or(io::ErrorKind::OutOfMemory)?;
            return Ok(self.accept_request(id)?);
        }
    }

    fn accept_request(&self, id: OwnedCmId) -> Result<Connection, SetupError> {
        let prepared = UnconnectedQp::new(&self.connector.pd, &self.connector.config)?;
        let qpn = prepared.qpn();
        let queue = prepared.connect(|qp| Ok(id.connect_qp(qp)?))?;
        id.accept(qpn)
            .map_err(SetupError::from_cm_error_in_step("rdma_accept"))?;
        Ok(Connection::new(id, queue, false))
    }

    /// Returns the address at which the listener listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.source()
    }

    /// Returns the descriptor that is readable while connections are pending.
    pub fn fd(&self) -> RawFd {
        self.id.fd()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({:?})", self.local_addr())
    }
}
