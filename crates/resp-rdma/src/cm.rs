//! A connection identifier of `rdma_cm` with its own event channel: a safe interface over its raw
//! handles.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use rdmacm::addr::IdAddress;
use rdmacm::errno::{Errno, Result};
use rdmacm::id::{ChannelHandle, CmId};
use rdmacm::{DEFAULT_ANSWER_TIMEOUT, EndpointEvent, EventChannel, Provider};
use rdmacm::{cm_event, id_lifecycle, resolve};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs::{PreparedQp, QueuePair, Rc, VerbError};
use verbs_abi::*;

/// The number of retries of an unacknowledged WRITE: 7, the maximum. Valkey's server uses 5.
const RETRY_COUNT: u8 = 7;
/// The RNR retry count 7: wait without limit for a receive of a slow peer, so that no message is
/// lost. The count is for the other side's queue pair. Valkey's server uses 0, and so drops clients
/// that overrun it; this server lets them wait.
const RNR_RETRY_UNLIMITED: u8 = 7;
/// The RNR timer code, for 0.01 ms: the time that a peer waits after finding no receive.
const MIN_RNR_TIMER_CODE: u8 = 1;
/// Outstanding READs and atomics. The protocol uses none; the value is that of Valkey's server.
const READ_ATOMIC_DEPTH: u8 = 1;

/// Registers the verbs provider with connection management; effective once a process.
pub(crate) fn register_provider() {
    rdmacm::set_provider_finder(|| {
        Ok(Provider {
            verbs: verbs::raw::symbols(&verbs::Provider::softnic()),
            fabric_dir: softnic::fabric_dir().map_err(|_| Errno::from(EINVAL).0)?,
            gsi: Some(softnic::gsi_functions()),
            answer_timeout: DEFAULT_ANSWER_TIMEOUT,
        })
    });
}

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// The kind of a connection management event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CmEventKind {
    AddressOrRouteResolved,
    ConnectRequest,
    ConnectResponse,
    Established,
    Refused,
    Unreachable,
    /// The peer has disconnected, or the path to the peer failed.
    Disconnected,
    Other,
}

/// A non-blocking event channel.
pub(crate) struct CmChannel {
    handle: *mut rdma_event_channel,
    channel: Arc<EventChannel<EndpointEvent>>,
}

// SAFETY: `rdmacm` locks its state of a channel. The handle is destroyed only with this value.
unsafe impl Send for CmChannel {}
// SAFETY: as above.
unsafe impl Sync for CmChannel {}

/// A connection identifier with its channel.
pub(crate) struct OwnedCmId {
    handle: *mut rdma_cm_id,
    channel: Arc<CmChannel>,
}

// SAFETY: ids may be used from any thread, since `rdmacm` locks its state of an id; this id is used
// only by the owner of the value.
unsafe impl Send for OwnedCmId {}

impl CmChannel {
    pub(crate) fn new() -> Result<Self> {
        let handle = ChannelHandle::create()?;
        // SAFETY: the handle was just made; its descriptor is open as long as the channel.
        unsafe {
            let fd = BorrowedFd::borrow_raw((*handle).fd);
            let made = fcntl_getfl(fd)
                .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
                .map_err(Errno::from)
                .and_then(|()| ChannelHandle::channel(handle));
            if made.is_err() {
                ChannelHandle::destroy(handle);
            }
            Ok(Self {
                handle,
                channel: made?,
            })
        }
    }

    /// Returns the descriptor that is readable while events are pending.
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.raw_fd()
    }

    /// Takes all events of established ids, and passes their kinds and the addresses of their ids to `act`, before
    /// the id can be destroyed.
    pub(crate) fn take_events(&self, mut act: impl FnMut(CmEventKind, usize)) {
        while let Some(event) = self.take_event() {
            // SAFETY: the event is live until it is acknowledged here.
            unsafe {
                act(CmEventKind::of((*event).event), (*event).id.addr());
                cm_event::acknowledge_event(event);
            }
        }
    }

    /// Takes the next event, which must be acknowledged; `None` without a pending event.
    fn take_event(&self) -> Option<*mut rdma_cm_event> {
        if self.channel.is_empty() {
            return None;
        }
        cm_event::take_next_event(&self.channel).ok()
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: each id on the channel holds a reference to this value, so none is left.
        unsafe { ChannelHandle::destroy(self.handle) };
    }
}

impl CmEventKind {
    fn of(event: rdma_cm_event_type) -> Self {
        match event {
            RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED => {
                Self::AddressOrRouteResolved
            }
            RDMA_CM_EVENT_CONNECT_REQUEST => Self::ConnectRequest,
            RDMA_CM_EVENT_CONNECT_RESPONSE => Self::ConnectResponse,
            RDMA_CM_EVENT_ESTABLISHED => Self::Established,
            RDMA_CM_EVENT_REJECTED => Self::Refused,
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_CONNECT_ERROR => Self::Unreachable,
            RDMA_CM_EVENT_DISCONNECTED
            | RDMA_CM_EVENT_TIMEWAIT_EXIT
            | RDMA_CM_EVENT_ADDR_CHANGE
            | RDMA_CM_EVENT_DEVICE_REMOVAL => Self::Disconnected,
            _ => Self::Other,
        }
    }
}

impl OwnedCmId {
    /// Creates an unbound id.
    pub(crate) fn new() -> Result<Self> {
        register_provider();
        rdmacm::default_device_port()?;
        let channel = Arc::new(CmChannel::new()?);
        // SAFETY: a live channel.
        let id = unsafe {
            id_lifecycle::new_id(channel.handle, ptr::null_mut(), RDMA_PS_TCP, IBV_QPT_RC)
        };
        Ok(Self {
            handle: id?,
            channel,
        })
    }

    /// Moves the id to another channel, with its pending events.
    pub(crate) fn migrate(&mut self, channel: Arc<CmChannel>) -> Result {
        // SAFETY: the channel is live, and no call waits for an event of this id, which the caller has.
        unsafe { self.id()?.migrate(channel.handle) }?;
        self.channel = channel;
        Ok(())
    }

    /// Returns the address of the id, which its events have.
    pub(crate) fn address(&self) -> usize {
        self.handle.addr()
    }

    fn id(&self) -> Result<&CmId> {
        // SAFETY: the id lives until this value is dropped.
        unsafe { CmId::borrow(self.handle) }
    }

    /// Listens at an address; port 0 takes a free one.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result {
        let id = self.id()?;
        // As Valkey does: a listener at IPv6's wildcard address accepts no IPv4.
        id.set_bind_options(false, address.is_ipv6());
        resolve::bind(id, address.into())?;
        id_lifecycle::listen(id, 0)
    }

    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.id().ok()?.source()?.ip_socket_addr().ok()
    }

    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        self.id().ok()?.destination()?.ip_socket_addr().ok()
    }

    pub(crate) fn resolve_addr(&self, to: SocketAddr) -> Result {
        resolve::resolve_addr(self.id()?, None, IdAddress::from(to))
    }

    pub(crate) fn resolve_route(&self) -> Result {
        resolve::resolve_route(self.id()?)
    }

    /// Requests a connection for the queue pair with this number.
    pub(crate) fn connect(&self, qpn: u32) -> Result {
        let param = conn_param(qpn);
        // SAFETY: the parameters are valid, and have no private data.
        unsafe { id_lifecycle::connect(self.id()?, &raw const param) }
    }

    /// Accepts a connection for the queue pair with this number.
    pub(crate) fn accept(&self, qpn: u32) -> Result {
        let param = conn_param(qpn);
        // SAFETY: as above.
        unsafe { id_lifecycle::accept(self.id()?, &raw const param) }
    }

    /// Tells the peer that this end is ready.
    pub(crate) fn establish(&self) -> Result {
        self.id()?.establish()
    }

    pub(crate) fn disconnect(&self) {
        if let Ok(id) = self.id() {
            id.disconnect();
        }
    }

    /// Takes a queue pair to RTR and RTS with the attributes of the connection.
    pub(crate) fn connect_qp(
        &self,
        qp: PreparedQp<Rc>,
    ) -> std::result::Result<QueuePair<Rc>, VerbError> {
        let attrs = |state| -> Result<(ibv_qp_attr, i32)> { self.id()?.qp_attr(state) };
        let step = |state| {
            attrs(state).map_err(|errno| VerbError::Other {
                verb: "rdma_init_qp_attr",
                source: std::io::Error::from_raw_os_error(errno.0),
            })
        };
        let (mut rtr, rtr_mask) = step(IBV_QPS_RTR)?;
        rtr.min_rnr_timer = MIN_RNR_TIMER_CODE;
        let (mut rts, rts_mask) = step(IBV_QPS_RTS)?;
        // Ignore the RNR retry count from the peer: this end waits for the peer's receives.
        rts.rnr_retry = RNR_RETRY_UNLIMITED;
        Ok(verbs::raw::connect(
            qp,
            &mut [(rtr, rtr_mask), (rts, rts_mask)],
        )?)
    }

    /// Returns the next event, with the new id of a connection request; `None` without a pending
    /// event. The channel must be of this id alone.
    pub(crate) fn next(&self) -> Option<(CmEventKind, Option<Self>)> {
        let event = self.channel.take_event()?;
        // SAFETY: the event is live until it is acknowledged here.
        let (news, handle) = unsafe {
            let about = (CmEventKind::of((*event).event), (*event).id);
            cm_event::acknowledge_event(event);
            about
        };
        if news != CmEventKind::ConnectRequest {
            return Some((news, None));
        }
        // SAFETY: the id of a request, which no other code knows.
        let requested = unsafe { self.adopt_request_or_reject(handle) };
        Some((news, requested))
    }

    /// Moves the id of a request from this listener's channel to its own. Rejects the request and returns `None` if the
    /// system has no descriptor left.
    ///
    /// # Safety
    /// No other code uses the id.
    unsafe fn adopt_request_or_reject(&self, handle: *mut rdma_cm_id) -> Option<Self> {
        let mut requested = Self {
            handle,
            channel: Arc::clone(&self.channel),
        };
        let moved = CmChannel::new().and_then(|own| requested.migrate(Arc::new(own)));
        moved
            .inspect_err(|Errno(errno)| tracing::warn!("a connection is refused: errno {errno}"))
            .ok()?;
        Some(requested)
    }

    pub(crate) fn borrowed_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which this value has.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// Returns the descriptor that is readable while events are pending.
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.fd()
    }
}

impl Drop for OwnedCmId {
    fn drop(&mut self) {
        // SAFETY: this value owns the id; its events were acknowledged when they were taken. The channel is live.
        let _ = unsafe { id_lifecycle::destroy_id(self.handle) };
    }
}

/// Returns the parameters of a connection. The protocol has no private data.
fn conn_param(qpn: u32) -> rdma_conn_param {
    let mut param = rdma_conn_param::zeroed();
    param.responder_resources = READ_ATOMIC_DEPTH;
    param.initiator_depth = READ_ATOMIC_DEPTH;
    param.retry_count = RETRY_COUNT;
    param.rnr_retry_count = RNR_RETRY_UNLIMITED;
    param.qp_num = qpn;
    param
}
