//! An id of `rdma_cm`, with an event channel of its own: what is not memory-safe of connection management ends here.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;

use rdmacm::addr::Addr;
use rdmacm::errno::{Errno, Result};
use rdmacm::id::{ChannelHandle, CmId};
use rdmacm::{Channel, DEFAULT_ANSWER_TIMEOUT, Event, Provider};
use rdmacm::{cm_event, connect, resolve};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use verbs::{PreparedQp, QueuePair, Rc, VerbError};
use verbs_abi::*;

/// How often a WRITE is tried again that a peer does not acknowledge: 7, the most. Valkey's server says 5.
const RETRY_COUNT: u8 = 7;
/// A peer without a receive is waited for as long as it takes: it is slow, and no message is lost. The number is for the
/// other side's queue pair. Valkey's server says 0 there, so a client that overruns it loses its connection; here it waits.
const RNR_RETRY_FOR_EVER: u8 = 7;
/// How long a peer waits that found no receive, coded: 0.01 ms.
const MIN_RNR_TIMER: u8 = 1;
/// READs and atomics outstanding, of which the protocol has none: as Valkey's server accepts.
const DEPTH: u8 = 1;

/// Says where connection management finds the verbs. Once a process.
pub(crate) fn provide() {
    rdmacm::provide(|| {
        Ok(Provider {
            verbs: verbs::raw::symbols(&verbs::Provider::softnic()),
            fabric_dir: softnic::fabric_dir().map_err(|_| Errno::from(EINVAL).0)?,
            gsi: Some(softnic::gsi()),
            answer_timeout: DEFAULT_ANSWER_TIMEOUT,
        })
    });
}

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    Resolved,
    Request,
    Response,
    Established,
    Refused,
    Unreachable,
    /// The peer has gone, or the path to it.
    Over,
    Other,
}

/// An id with its channel.
pub(crate) struct Id {
    handle: *mut rdma_cm_id,
    channel_handle: *mut rdma_event_channel,
    channel: Arc<Channel<Event>>,
}

// SAFETY: ids may be used from any thread (`rdmacm` locks what it keeps of one); this one is used by whoever has the value.
unsafe impl Send for Id {}

/// A channel that does not block.
fn own_channel() -> Result<(*mut rdma_event_channel, Arc<Channel<Event>>)> {
    let handle = ChannelHandle::create()?;
    // SAFETY: just made; its descriptor is open as long as the channel.
    unsafe {
        let fd = BorrowedFd::borrow_raw((*handle).fd);
        let made = fcntl_getfl(fd)
            .and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK))
            .map_err(Errno::from)
            .and_then(|()| ChannelHandle::channel(handle));
        if made.is_err() {
            ChannelHandle::destroy(handle);
        }
        Ok((handle, made?))
    }
}

impl Id {
    /// An id that is not bound.
    pub(crate) fn new() -> Result<Self> {
        provide();
        rdmacm::device()?;
        let (channel_handle, channel) = own_channel()?;
        // SAFETY: a live channel.
        let id =
            unsafe { connect::new_id(channel_handle, ptr::null_mut(), RDMA_PS_TCP, IBV_QPT_RC) };
        match id {
            Ok(handle) => Ok(Self {
                handle,
                channel_handle,
                channel,
            }),
            Err(e) => {
                // SAFETY: made above, and nobody else's.
                unsafe { ChannelHandle::destroy(channel_handle) };
                Err(e)
            }
        }
    }

    fn id(&self) -> Result<&CmId> {
        // SAFETY: the id lives until this value is dropped.
        unsafe { CmId::borrow(self.handle) }
    }

    /// Listens at an address; port 0 takes a free one.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result {
        let id = self.id()?;
        // As Valkey: IPv6's wildcard is not IPv4's.
        id.set_bind_options(false, address.is_ipv6());
        resolve::bind(id, address.into())?;
        connect::listen(id, 0)
    }

    pub(crate) fn source(&self) -> Option<SocketAddr> {
        self.id().ok()?.source()?.ip().ok()
    }

    pub(crate) fn destination(&self) -> Option<SocketAddr> {
        self.id().ok()?.destination()?.ip().ok()
    }

    pub(crate) fn resolve_addr(&self, to: SocketAddr) -> Result {
        resolve::resolve_addr(self.id()?, None, Addr::from(to))
    }

    pub(crate) fn resolve_route(&self) -> Result {
        resolve::resolve_route(self.id()?)
    }

    /// Asks for a connection of the queue pair with this number.
    pub(crate) fn connect(&self, qpn: u32) -> Result {
        let param = param(qpn);
        // SAFETY: the parameters are valid, and have no private data.
        unsafe { connect::connect(self.id()?, &raw const param) }
    }

    /// Grants a connection to the queue pair with this number.
    pub(crate) fn accept(&self, qpn: u32) -> Result {
        let param = param(qpn);
        // SAFETY: as above.
        unsafe { connect::accept(self.id()?, &raw const param) }
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

    /// Connects a queue pair as the connection says.
    pub(crate) fn connect_qp(
        &self,
        qp: PreparedQp<Rc>,
    ) -> std::result::Result<QueuePair<Rc>, VerbError> {
        let attrs = |state| -> Result<(ibv_qp_attr, i32)> { self.id()?.qp_attr(state) };
        let step = |state| {
            attrs(state).map_err(|errno| VerbError {
                verb: "rdma_init_qp_attr",
                source: std::io::Error::from_raw_os_error(errno.0),
            })
        };
        let (mut rtr, rtr_mask) = step(IBV_QPS_RTR)?;
        rtr.min_rnr_timer = MIN_RNR_TIMER;
        let (mut rts, rts_mask) = step(IBV_QPS_RTS)?;
        // Whatever the peer says of its receives: this end waits for them.
        rts.rnr_retry = RNR_RETRY_FOR_EVER;
        verbs::raw::connect(qp, &mut [(rtr, rtr_mask), (rts, rts_mask)])
    }

    /// The next event, and the id of a request. `None` where there is none.
    pub(crate) fn next(&self) -> Option<(News, Option<Self>)> {
        if self.channel.is_empty() {
            return None;
        }
        let event = cm_event::next_event(&self.channel).ok()?;
        // SAFETY: live until it is acknowledged here.
        let (kind, handle) = unsafe {
            let about = ((*event).event, (*event).id);
            cm_event::acknowledge(event);
            about
        };
        let news = match kind {
            RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED => News::Resolved,
            RDMA_CM_EVENT_CONNECT_REQUEST => News::Request,
            RDMA_CM_EVENT_CONNECT_RESPONSE => News::Response,
            RDMA_CM_EVENT_ESTABLISHED => News::Established,
            RDMA_CM_EVENT_REJECTED => News::Refused,
            RDMA_CM_EVENT_ADDR_ERROR
            | RDMA_CM_EVENT_ROUTE_ERROR
            | RDMA_CM_EVENT_UNREACHABLE
            | RDMA_CM_EVENT_CONNECT_ERROR => News::Unreachable,
            RDMA_CM_EVENT_DISCONNECTED
            | RDMA_CM_EVENT_TIMEWAIT_EXIT
            | RDMA_CM_EVENT_ADDR_CHANGE
            | RDMA_CM_EVENT_DEVICE_REMOVAL => News::Over,
            _ => News::Other,
        };
        if news != News::Request {
            return Some((news, None));
        }
        // SAFETY: the id of a request, which nobody else knows.
        let requested = unsafe { Self::of_request(handle) };
        Some((news, requested))
    }

    /// A requested id, moved to a channel of its own. `None` where the system has no descriptor for one: the request is
    /// refused.
    ///
    /// # Safety
    /// Nobody else uses the id.
    unsafe fn of_request(handle: *mut rdma_cm_id) -> Option<Self> {
        // SAFETY: contract of this function; the channel was just made.
        unsafe {
            let moved = own_channel().and_then(|(channel_handle, channel)| {
                let moved = CmId::borrow(handle).and_then(|id| id.migrate(channel_handle));
                if moved.is_err() {
                    ChannelHandle::destroy(channel_handle);
                }
                moved.map(|()| (channel_handle, channel))
            });
            match moved {
                Ok((channel_handle, channel)) => Some(Self {
                    handle,
                    channel_handle,
                    channel,
                }),
                Err(Errno(errno)) => {
                    tracing::warn!("a connection is refused: errno {errno}");
                    let _ = connect::destroy(handle);
                    None
                }
            }
        }
    }

    pub(crate) fn borrowed_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which this value has.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }

    /// The descriptor that is readable while there are events.
    pub(crate) fn fd(&self) -> RawFd {
        self.channel.raw_fd()
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id and its channel are this value's own; its events were acknowledged when they were taken.
        unsafe {
            let _ = connect::destroy(self.handle);
            ChannelHandle::destroy(self.channel_handle);
        }
    }
}

/// The parameters of a connection. The protocol has no private data.
fn param(qpn: u32) -> rdma_conn_param {
    let mut param = rdma_conn_param::zeroed();
    param.responder_resources = DEPTH;
    param.initiator_depth = DEPTH;
    param.retry_count = RETRY_COUNT;
    param.rnr_retry_count = RNR_RETRY_FOR_EVER;
    param.qp_num = qpn;
    param
}
