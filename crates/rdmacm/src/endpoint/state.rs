//! The state and events of an endpoint, and the transitions that both the program and the peer cause.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};

use rustix::net::{SendFlags, send};
use verbs_abi::*;

use crate::channel::Channel;
use crate::cm::{Cm, TIMEWAIT};
use crate::ends::Ends;
use crate::errno::{INVALID, Result};
use crate::lock::lock;
use crate::mad::Connection;
use crate::multicast::Membership;
use crate::ports::Claim;
use crate::service::Alarm;
use crate::wire::{Message, Params, QpAddress, Request, reason};

/// An event of an id.
pub struct Event {
    /// Endpoint of the id; for a request, endpoint of the listener.
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) kind: rdma_cm_event_type,
    /// Status: 0, a negative errno, or the reason of a rejection.
    pub(crate) status: c_int,
    pub(crate) detail: Detail,
}

/// The data of an [`Event`].
pub(crate) enum Detail {
    Nothing,
    /// Data from the peer of a connection.
    Connection {
        qpn: u32,
        params: Params,
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
    Program(u64),
    /// A multicast group that was joined.
    Joined(Arc<Membership>),
}

/// Statuses of a SIDR_REP: IBTA vol. 1, 12.11.1.2.
const SIDR_UNSUPPORTED: c_int = 1;
const SIDR_REJECT: c_int = 2;

/// The phase of an endpoint's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
    Accepted,
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

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) channel: Arc<Channel<Event>>,
    pub(super) claim: Option<Claim>,
    pub(super) socket: Option<OwnedFd>,
    /// The connection by MADs, instead of a socket, if packets lead to the peer.
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) ends: Ends,
    /// The REQ that is still to be sent.
    pub(super) request: Option<Request>,
    /// Number of the current response timer; alarms of earlier timers are void.
    pub(super) response_timer: u64,
    /// For a listener: limit of requests that wait for the program; `waiting`: their current number.
    pub(super) backlog: usize,
    pub(super) waiting: usize,
}

/// The count of events that were reported to the program and not acknowledged.
#[derive(Default)]
struct Acknowledgements {
    outstanding: Mutex<u64>,
    none: Condvar,
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
    pub(super) state: Mutex<State>,
    acks: Acknowledgements,
    /// Address of the id, or 0. Only threads of the program dereference it.
    id: AtomicUsize,
}

impl Endpoint {
    pub(crate) fn new(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<Channel<Event>>,
    ) -> Arc<Self> {
        Self::with(
            cm,
            port_space,
            is_datagram,
            channel,
            Phase::Idle,
            Weak::new(),
        )
    }

    pub(super) fn with(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<Channel<Event>>,
        phase: Phase,
        listener: Weak<Endpoint>,
    ) -> Arc<Self> {
        let mut ends = Ends::default();
        ends.local.psn = getrandom::u32().unwrap_or(0) & 0x00ff_ffff;
        Arc::new(Self {
            token: cm.service.new_token(),
            cm,
            port_space,
            is_datagram,
            listener,
            state: Mutex::new(State {
                phase,
                channel,
                claim: None,
                socket: None,
                connection: None,
                ends,
                request: None,
                response_timer: 0,
                backlog: 0,
                waiting: 0,
            }),
            acks: Acknowledgements::default(),
            id: AtomicUsize::new(0),
        })
    }

    /// Returns the token that identifies the endpoint in the service thread.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// Returns the address of this endpoint's C object; 0 if it has none.
    pub(crate) fn id(&self) -> usize {
        self.id.load(Ordering::Acquire)
    }

    pub(crate) fn set_id(&self, id: usize) {
        self.id.store(id, Ordering::Release);
    }

    pub(crate) fn ends(&self) -> Ends {
        lock(&self.state).ends
    }

    // Acknowledgement of events.

    pub(crate) fn reported(&self) {
        *lock(&self.acks.outstanding) += 1;
    }

    pub(crate) fn acknowledged(&self) {
        let mut outstanding = lock(&self.acks.outstanding);
        *outstanding = outstanding.saturating_sub(1);
        if *outstanding == 0 {
            self.acks.none.notify_all();
        }
    }

    /// Waits until the program has acknowledged all events of this endpoint.
    pub(crate) fn wait_for_acknowledgements(&self) {
        let mut outstanding = lock(&self.acks.outstanding);
        while *outstanding > 0 {
            outstanding = self
                .acks
                .none
                .wait(outstanding)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    pub(super) fn push_event(
        self: &Arc<Self>,
        state: &State,
        kind: rdma_cm_event_type,
        status: c_int,
        detail: Detail,
    ) {
        state.channel.push(Event {
            endpoint: Arc::clone(self),
            kind,
            status,
            detail,
        });
    }

    /// Reports an event without a change of phase.
    pub(crate) fn report(
        self: &Arc<Self>,
        kind: rdma_cm_event_type,
        status: c_int,
        detail: Detail,
    ) {
        let state = lock(&self.state);
        self.push_event(&state, kind, status, detail);
    }

    /// Moves the endpoint to another channel, including its queued events.
    pub(crate) fn migrate(self: &Arc<Self>, to: &Arc<Channel<Event>>) {
        let mut state = lock(&self.state);
        let from = std::mem::replace(&mut state.channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.take(|event| Arc::ptr_eq(&event.endpoint, self)) {
                to.push(event);
            }
        }
    }

    /// Records that the program has taken a request from the queue.
    pub(crate) fn request_taken(&self) {
        let mut state = lock(&self.state);
        state.waiting = state.waiting.saturating_sub(1);
    }

    // Transitions that both program and peer cause.

    pub(super) fn fail(
        self: &Arc<Self>,
        state: &mut State,
        kind: rdma_cm_event_type,
        status: c_int,
    ) {
        state.phase = Phase::Failed;
        state.response_timer += 1;
        self.drop_carrier(state);
        self.push_event(state, kind, status, Detail::Nothing);
    }

    pub(super) fn rejected(
        self: &Arc<Self>,
        state: &mut State,
        reason: u16,
        private_data: Vec<u8>,
    ) {
        state.phase = Phase::Failed;
        state.response_timer += 1;
        self.drop_carrier(state);
        if self.is_datagram {
            let status = match reason {
                reason::INVALID_SERVICE_ID => SIDR_UNSUPPORTED,
                _ => SIDR_REJECT,
            };
            let detail = Detail::Datagram {
                qp: QpAddress::default(),
                private_data,
            };
            return self.push_event(state, RDMA_CM_EVENT_UNREACHABLE, status, detail);
        }
        let detail = Detail::Connection {
            qpn: 0,
            params: Params::default(),
            private_data,
        };
        self.push_event(state, RDMA_CM_EVENT_REJECTED, c_int::from(reason), detail);
    }

    pub(super) fn established(self: &Arc<Self>, state: &mut State) {
        state.phase = Phase::Established;
        state.response_timer += 1;
        let detail = Detail::Connection {
            qpn: state.ends.remote.qpn,
            params: Params::default(),
            private_data: Vec::new(),
        };
        self.push_event(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
    }

    pub(super) fn disconnected(self: &Arc<Self>, state: &mut State) {
        state.phase = Phase::TimeWait;
        state.response_timer += 1;
        self.drop_carrier(state);
        self.push_event(state, RDMA_CM_EVENT_DISCONNECTED, 0, Detail::Nothing);
        self.cm.service.after(TIMEWAIT, self, Alarm::TimeWaitExit);
    }

    /// Starts the timer for the peer's response: [`Cm::answer_timeout`](crate::cm::Cm).
    pub(super) fn start_response_timer(self: &Arc<Self>, state: &mut State) {
        state.response_timer += 1;
        if state.connection.is_some() {
            // A connection by MADs has its own timer.
            return;
        }
        let alarm = Alarm::ResponseTimeout(state.response_timer);
        self.cm.service.after(self.cm.answer_timeout, self, alarm);
    }

    pub(super) fn send(&self, state: &State, message: &Message) -> Result {
        if let Some(connection) = &state.connection {
            return connection.send(message);
        }
        let socket = state.socket.as_ref().ok_or(INVALID)?;
        send_message(socket, message)
    }

    /// Drops the socket or the connection by MADs that leads to the peer.
    pub(super) fn drop_carrier(&self, state: &mut State) {
        if let Some(connection) = state.connection.take() {
            connection.release();
        }
        if let Some(socket) = state.socket.take() {
            self.cm.service.unwatch(&socket, self.token);
        }
    }
}

pub(super) fn reject_with(reason: u16) -> Message {
    Message::Reject {
        reason,
        private_data: Vec::new(),
    }
}

pub(super) fn send_message(socket: &OwnedFd, message: &Message) -> Result {
    let bytes = message.encode();
    send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
