//! The state and events of an endpoint, and the transitions that both the program and the peer cause.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};

use rustix::net::{SendFlags, send};
use verbs_abi::*;

use crate::channel::EventChannel;
use crate::cm::{Cm, TIMEWAIT_DURATION};
use crate::cm_thread::TimerPurpose;
use crate::connection_params::ConnectionParams;
use crate::errno::{INVALID, Result};
use crate::lock::lock;
use crate::mad::Connection;
use crate::multicast::GroupMembership;
use crate::ports::PortClaim;
use crate::wire::{CmMessage, NegotiatedParams, QpAddress, Request, reason};

/// An event of an id.
pub struct EndpointEvent {
    /// Endpoint of the id; for a request, endpoint of the listener.
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) kind: rdma_cm_event_type,
    /// Status: 0, a negative errno, or the reason of a rejection.
    pub(crate) status: c_int,
    pub(crate) detail: EventDetail,
}

/// The data of an [`EndpointEvent`].
pub(crate) enum EventDetail {
    None,
    /// Data from the peer of a connection.
    Connection {
        qpn: u32,
        params: NegotiatedParams,
        private_data: Vec<u8>,
    },
    /// The address of a datagram service's queue pair.
    Datagram {
        qp: QpAddress,
        private_data: Vec<u8>,
    },
    /// A request for a connection: the new endpoint, which has no id yet, and the request.
    Request {
        new: Arc<Endpoint>,
        request: Box<Request>,
    },
    /// An event that the program has posted itself: `rdma_write_cm_event`.
    WrittenByProgram(u64),
    /// A multicast group that was joined.
    JoinedGroup(Arc<GroupMembership>),
}

/// Statuses of a SIDR_REP: IBTA vol. 1, 12.11.1.2.
const SIDR_UNSUPPORTED: c_int = 1;
const SIDR_REJECT: c_int = 2;

/// The phase of an endpoint's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointPhase {
    /// New, not bound.
    Idle,
    /// Bound to an address and a port.
    Bound,
    /// The peer's address is resolved.
    AddrResolved,
    /// The route to the peer is resolved.
    RouteResolved,
    /// Listening for requests.
    Listening,
    /// A socket was accepted, but its REQ has not arrived.
    SocketAccepted,
    /// A REQ was sent.
    ReqSent,
    /// A REQ was received.
    ReqReceived,
    /// A REP was received; the program must send the RTU.
    RepReceived,
    /// A REP was sent; the RTU has not arrived.
    RepSent,
    /// Connected or, for datagrams, answered.
    Established,
    /// A DREQ was sent.
    DreqSent,
    /// Disconnected.
    TimeWait,
    /// The connection could not be established.
    Failed,
    /// Destroyed.
    Closed,
}

pub(super) struct EndpointState {
    pub(super) phase: EndpointPhase,
    pub(super) channel: Arc<EventChannel<EndpointEvent>>,
    pub(super) port_claim: Option<PortClaim>,
    pub(super) socket: Option<OwnedFd>,
    /// The connection by MADs, instead of a socket, if packets lead to the peer.
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) connection_params: ConnectionParams,
    /// The REQ that is still to be sent.
    pub(super) unsent_request: Option<Request>,
    /// Number of the current response timer; alarms of earlier timers are void.
    pub(super) response_timer_generation: u64,
    /// For a listener: limit of requests that wait for the program; `pending_request_count`: their current number.
    pub(super) backlog: usize,
    pub(super) pending_request_count: usize,
}

/// The count of events that were reported to the program and not acknowledged.
#[derive(Default)]
struct UnacknowledgedEvents {
    outstanding: Mutex<u64>,
    all_acknowledged: Condvar,
}

/// One end of a connection, or a listener.
pub(crate) struct Endpoint {
    token: u64,
    pub(crate) cm: &'static Cm,
    /// Port space, `RDMA_PS_*`.
    pub(crate) port_space: u32,
    /// True for datagrams: a look-up of a service instead of a connection.
    pub(super) is_datagram: bool,
    /// The listener that received the request, for a requested endpoint; its backlog is updated.
    pub(super) listener: Weak<Endpoint>,
    pub(super) state: Mutex<EndpointState>,
    unacknowledged_events: UnacknowledgedEvents,
    /// Address of the id, or 0. Only threads of the program dereference it.
    cm_id_address: AtomicUsize,
}

impl Endpoint {
    pub(crate) fn new(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<EventChannel<EndpointEvent>>,
    ) -> Arc<Self> {
        Self::new_in_phase(
            cm,
            port_space,
            is_datagram,
            channel,
            EndpointPhase::Idle,
            Weak::new(),
        )
    }

    pub(super) fn new_in_phase(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<EventChannel<EndpointEvent>>,
        phase: EndpointPhase,
        listener: Weak<Endpoint>,
    ) -> Arc<Self> {
        let mut ends = ConnectionParams::default();
        ends.local_qp.first_psn_from_peer = getrandom::u32().unwrap_or(0) & 0x00ff_ffff;
        Arc::new(Self {
            token: cm.cm_thread.new_token(),
            cm,
            port_space,
            is_datagram,
            listener,
            state: Mutex::new(EndpointState {
                phase,
                channel,
                port_claim: None,
                socket: None,
                connection: None,
                connection_params: ends,
                unsent_request: None,
                response_timer_generation: 0,
                backlog: 0,
                pending_request_count: 0,
            }),
            unacknowledged_events: UnacknowledgedEvents::default(),
            cm_id_address: AtomicUsize::new(0),
        })
    }

    /// Returns the token that identifies the endpoint in the connection manager thread.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the address of this endpoint's C object; 0 if it has none.
    pub(crate) fn cm_id_address(&self) -> usize {
        self.cm_id_address.load(Ordering::Acquire)
    }

    pub(crate) fn set_cm_id_address(&self, id: usize) {
        self.cm_id_address.store(id, Ordering::Release);
    }

    pub(crate) fn connection_params(&self) -> ConnectionParams {
        lock(&self.state).connection_params
    }

    // Acknowledgement of events.

    pub(crate) fn count_reported_event(&self) {
        *lock(&self.unacknowledged_events.outstanding) += 1;
    }

    pub(crate) fn count_acknowledged_event(&self) {
        let mut outstanding = lock(&self.unacknowledged_events.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.unacknowledged_events.all_acknowledged.notify_all();
        }
    }

    /// Waits until the program has acknowledged all events of this endpoint.
    pub(crate) fn wait_for_acknowledgements(&self) {
        let mut outstanding = lock(&self.unacknowledged_events.outstanding);
        while *outstanding > 0 {
            outstanding = self
                .unacknowledged_events
                .all_acknowledged
                .wait(outstanding)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub(super) fn push_event(
        self: &Arc<Self>,
        state: &EndpointState,
        kind: rdma_cm_event_type,
        status: c_int,
        detail: EventDetail,
    ) {
        state.channel.push(EndpointEvent {
            endpoint: Arc::clone(self),
            kind,
            status,
            detail,
        });
    }

    /// Reports an event without a change of phase.
    pub(crate) fn report_event(
        self: &Arc<Self>,
        kind: rdma_cm_event_type,
        status: c_int,
        detail: EventDetail,
    ) {
        let state = lock(&self.state);
        self.push_event(&state, kind, status, detail);
    }

    /// Moves the endpoint to another channel, including its queued events and the endpoints of queued requests.
    pub(crate) fn migrate(self: &Arc<Self>, to: &Arc<EventChannel<EndpointEvent>>) {
        let mut requests = Vec::new();
        {
            let mut state = lock(&self.state);
            let from = std::mem::replace(&mut state.channel, Arc::clone(to));
            if Arc::ptr_eq(&from, to) {
                return;
            }
            for event in from.remove_events(|event| Arc::ptr_eq(&event.endpoint, self)) {
                match event.detail {
                    EventDetail::Request { .. } => requests.push(event),
                    _ => to.push(event),
                }
            }
        }
        // A requested endpoint locks its listener, so the listener is not locked here. The program gets the request
        // last: from then on it may move the requested endpoint itself.
        for event in requests {
            if let EventDetail::Request { new, .. } = &event.detail {
                new.migrate(to);
            }
            to.push(event);
        }
    }

    /// Removes the queued event of a membership that has ended, as `ucma_cleanup_mc_events` of
    /// `linux:drivers/infiniband/core/ucma.c`.
    pub(crate) fn remove_join_event(&self, of: &Arc<GroupMembership>) {
        let state = lock(&self.state);
        state.channel.remove_events(
            |event| matches!(&event.detail, EventDetail::JoinedGroup(joined) if Arc::ptr_eq(joined, of)),
        );
    }

    /// Records that the program has taken a request from the queue.
    pub(crate) fn decrement_pending_requests(&self) {
        let mut state = lock(&self.state);
        state.pending_request_count = state.pending_request_count.saturating_sub(1);
    }

    // Transitions that both program and peer cause.

    pub(super) fn fail_and_report_event(
        self: &Arc<Self>,
        state: &mut EndpointState,
        kind: rdma_cm_event_type,
        status: c_int,
    ) {
        state.phase = EndpointPhase::Failed;
        state.response_timer_generation += 1;
        self.drop_transport(state);
        self.push_event(state, kind, status, EventDetail::None);
    }

    pub(super) fn on_rejected(
        self: &Arc<Self>,
        state: &mut EndpointState,
        reason: u16,
        private_data: Vec<u8>,
    ) {
        state.phase = EndpointPhase::Failed;
        state.response_timer_generation += 1;
        self.drop_transport(state);
        if self.is_datagram {
            let status = match reason {
                reason::INVALID_SERVICE_ID => SIDR_UNSUPPORTED,
                _ => SIDR_REJECT,
            };
            let detail = EventDetail::Datagram {
                qp: QpAddress::default(),
                private_data,
            };
            return self.push_event(state, RDMA_CM_EVENT_UNREACHABLE, status, detail);
        }
        let detail = EventDetail::Connection {
            qpn: 0,
            params: NegotiatedParams::default(),
            private_data,
        };
        self.push_event(state, RDMA_CM_EVENT_REJECTED, c_int::from(reason), detail);
    }

    pub(super) fn on_established(self: &Arc<Self>, state: &mut EndpointState) {
        state.phase = EndpointPhase::Established;
        state.response_timer_generation += 1;
        let detail = EventDetail::Connection {
            qpn: state.connection_params.remote_qp.qpn,
            params: NegotiatedParams::default(),
            private_data: Vec::new(),
        };
        self.push_event(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
    }

    pub(super) fn on_disconnected(self: &Arc<Self>, state: &mut EndpointState) {
        state.phase = EndpointPhase::TimeWait;
        state.response_timer_generation += 1;
        self.drop_transport(state);
        self.push_event(state, RDMA_CM_EVENT_DISCONNECTED, 0, EventDetail::None);
        self.cm
            .cm_thread
            .set_alarm(TIMEWAIT_DURATION, self, TimerPurpose::TimeWaitExit);
    }

    /// Starts the timer for the peer's response: [`Cm::answer_timeout`](crate::cm::Cm).
    pub(super) fn start_response_timer(self: &Arc<Self>, state: &mut EndpointState) {
        state.response_timer_generation += 1;
        if state.connection.is_some() {
            // A connection by MADs has its own timer.
            return;
        }
        let alarm = TimerPurpose::ResponseTimeout(state.response_timer_generation);
        self.cm
            .cm_thread
            .set_alarm(self.cm.answer_timeout, self, alarm);
    }

    pub(super) fn send_cm_message(&self, state: &EndpointState, message: &CmMessage) -> Result {
        if let Some(connection) = &state.connection {
            return connection.send(message);
        }
        let socket = state.socket.as_ref().ok_or(INVALID)?;
        send_message(socket, message)
    }

    /// Drops the socket or the connection by MADs that leads to the peer.
    pub(super) fn drop_transport(&self, state: &mut EndpointState) {
        if let Some(connection) = state.connection.take() {
            connection.remove_consumer();
        }
        if let Some(socket) = state.socket.take() {
            self.cm.cm_thread.unwatch(&socket, self.token);
        }
    }
}

pub(super) fn make_reject_message(reason: u16) -> CmMessage {
    CmMessage::Reject {
        reason,
        private_data: Vec::new(),
    }
}

pub(super) fn send_message(socket: &OwnedFd, message: &CmMessage) -> Result {
    let bytes = message.encode();
    send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
