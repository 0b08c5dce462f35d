//! Connection setup: the connecting and the listening side.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{Context, ProtectionDomain};

use crate::cm::{CmEventKind, OwnedCmId};
use crate::connected_qp::{
    Config, ConnectedQp, RECV_BUFFER_BYTES_RANGE, UnconnectedQp, create_nonblocking_channel,
};
use crate::connection::Connection;
use crate::error::SetupError;
use crate::memory::MemoryPool;
use crate::shared_channels::SharedChannels;

/// A maker of connections and listeners on a device. Clones share their memory, and their descriptors if
/// [those are shared](Self::with_shared_descriptors).
#[derive(Clone)]
pub struct Connector {
    pd: ProtectionDomain,
    config: Config,
    memory: MemoryPool,
    shared: Option<Arc<SharedChannels>>,
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
        Ok(Self {
            memory: config.memory_pool(&pd),
            pd,
            config,
            shared: None,
        })
    }

    /// Returns a connector on the same device whose connections share two [descriptors](Self::shared_fds), for programs
    /// with many connections. Such a connection takes one descriptor of its own, and is woken by
    /// [`take_ready`](Self::take_ready).
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn with_shared_descriptors(&self) -> Result<Self, SetupError> {
        Ok(Self {
            shared: Some(Arc::new(SharedChannels::new(&self.pd)?)),
            ..self.clone()
        })
    }

    /// Returns the descriptors that the connections share: those of the completion channel and of the event channel.
    /// `None` if each connection has its own.
    pub fn shared_fds(&self) -> Option<[RawFd; 2]> {
        self.shared.as_ref().map(|shared| shared.fds())
    }

    /// Takes all events of the shared descriptors, and passes the [keys](Connection::set_key) of their connections to
    /// `ready`, which must not drop a connection. Call it when a shared descriptor is readable.
    pub fn take_ready(&self, ready: impl FnMut(usize)) {
        if let Some(shared) = &self.shared {
            shared.take_ready(ready);
        }
    }

    /// Creates a queue pair with its memory.
    fn prepare_qp(&self) -> Result<UnconnectedQp, SetupError> {
        let channel = match &self.shared {
            Some(shared) => shared.completion_channel().clone(),
            None => create_nonblocking_channel(&self.pd)?,
        };
        UnconnectedQp::new(&self.pd, &self.config, &self.memory, channel)
    }

    /// Makes a connection. If descriptors are shared, the id moves to the shared event channel.
    fn new_connection(
        &self,
        mut id: OwnedCmId,
        queue: ConnectedQp,
        established: bool,
    ) -> Result<Connection, SetupError> {
        let membership = match &self.shared {
            None => None,
            Some(shared) => {
                let joined = Arc::clone(shared).join(queue.cq_id(), id.address());
                id.migrate(Arc::clone(shared.cm_channel()))
                    .map_err(SetupError::from_cm_error_in_step("rdma_migrate_id"))?;
                Some(joined)
            }
        };
        Ok(Connection::new(id, queue, membership, established))
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
        let prepared = self.prepare_qp()?;
        id.connect(prepared.qpn())
            .map_err(SetupError::from_cm_error_in_step("rdma_connect"))?;
        expect(CmEventKind::ConnectResponse)?;
        let queue = prepared.connect(|qp| Ok(id.connect_qp(qp)?))?;
        id.establish()
            .map_err(SetupError::from_cm_error_in_step("rdma_establish"))?;
        self.new_connection(id, queue, true)
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
        let prepared = self.connector.prepare_qp()?;
        let qpn = prepared.qpn();
        let queue = prepared.connect(|qp| Ok(id.connect_qp(qp)?))?;
        id.accept(qpn)
            .map_err(SetupError::from_cm_error_in_step("rdma_accept"))?;
        self.connector.new_connection(id, queue, false)
    }

    /// Returns the address at which the listener listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.id.source()
    }

    /// Returns the connector of the accepted connections.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Returns the descriptor that is readable while connections are pending.
    pub fn fd(&self) -> RawFd {
        self.id.fd()
    }
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("config", &self.config)
            .field("memory", &self.memory)
            .field("shares_descriptors", &self.shared.is_some())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Listener({:?})", self.local_addr())
    }
}
