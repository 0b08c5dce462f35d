//! An endpoint's state, its events, and the transitions that the program and its peer both make.

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

/// Something that happened to an id.
pub struct Event {
    /// Of the id that it happened to; of the listener, for a request.
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) kind: rdma_cm_event_type,
    /// 0, a negative errno, or a reason for a refusal.
    pub(crate) status: c_int,
    pub(crate) detail: Detail,
}

/// What an [`Event`] brings.
pub(crate) enum Detail {
    Nothing,
    /// What the peer of a connection said.
    Connection {
        qpn: u32,
        params: Params,
        private_data: Vec<u8>,
    },
    /// How to reach a datagram service.
    Datagram {
        qp: QpAddress,
        private_data: Vec<u8>,
    },
    /// Somebody asks for a connection: its end here, for which there is no id yet, and what was asked.
    Request {
        new: Arc<Endpoint>,
        request: Box<Request>,
    },
    /// An event of the program itself: `rdma_write_cm_event`.
    Program(u64),
    /// A multicast group was joined.
    Joined(Arc<Membership>),
}

/// Status of a service look-up: IBTA vol. 1, 12.11.1.2.
const SIDR_UNSUPPORTED: c_int = 1;
const SIDR_REJECT: c_int = 2;

/// Where an endpoint is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// New.
    Idle,
    /// Has an address and a port.
    Bound,
    /// Knows its peer's address.
    AddrResolved,
    /// Knows the route to it.
    RouteResolved,
    /// Takes requests.
    Listening,
    /// A socket was accepted; its REQ is still to come.
    Accepted,
    /// Has sent a REQ.
    ReqSent,
    /// Has received a REQ.
    ReqReceived,
    /// Has received a REP; the program has to be ready now.
    RepReceived,
    /// Has sent a REP, and waits for the RTU.
    RepSent,
    /// Connected, or, for datagrams, answered.
    Established,
    /// Has sent a DREQ.
    DreqSent,
    /// Disconnected.
    TimeWait,
    /// Never came to be connected.
    Failed,
    /// Destroyed.
    Closed,
}

pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) channel: Arc<Channel<Event>>,
    pub(super) claim: Option<Claim>,
    pub(super) socket: Option<OwnedFd>,
    /// Instead of a socket, for a peer that is reached by packets.
    pub(super) connection: Option<Arc<Connection>>,
    pub(super) ends: Ends,
    /// The REQ, until it is sent.
    pub(super) request: Option<Request>,
    /// Counts the timers for responses: an alarm of an earlier one is void.
    pub(super) response_timer: u64,
    /// For a listener: how many requests may wait for the program, and how many do.
    pub(super) backlog: usize,
    pub(super) waiting: usize,
}

/// How many events of an id were reported to the program, and how many of them it has acknowledged.
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
    /// Datagrams: a look-up instead of a connection.
    pub(super) is_datagram: bool,
    /// For the end that was asked: who was asked. Keeps count of the listener's backlog.
    pub(super) listener: Weak<Endpoint>,
    pub(super) state: Mutex<State>,
    acks: Acknowledgements,
    /// Address of the id, once there is one. Only the program's threads go there.
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

    /// Number of the service that tells it apart.
    pub(super) fn token(&self) -> u64 {
        self.token
    }

    /// The address of the C object of this endpoint, 0 while there is none.
    pub(crate) fn id(&self) -> usize {
        self.id.load(Ordering::Acquire)
    }

    pub(crate) fn set_id(&self, id: usize) {
        self.id.store(id, Ordering::Release);
    }

    pub(crate) fn ends(&self) -> Ends {
        lock(&self.state).ends
    }

    // Events.

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

    /// Waits until the program has acknowledged every event of this endpoint.
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

    /// Reports an event that only concerns this end.
    pub(crate) fn report(
        self: &Arc<Self>,
        kind: rdma_cm_event_type,
        status: c_int,
        detail: Detail,
    ) {
        let state = lock(&self.state);
        self.push_event(&state, kind, status, detail);
    }

    /// Reports further events through another channel, also those that have not been taken out.
    pub(crate) fn migrate(self: &Arc<Self>, to: &Arc<Channel<Event>>) {
        let mut state = lock(&self.state);
        let from = std::mem::replace(&mut state.channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.take(|event| Arc::ptr_eq(&event.endpoint, self)) {
                to.push(event);
            }
        }
    }

    /// A request was handed to the program.
    pub(crate) fn request_taken(&self) {
        let mut state = lock(&self.state);
        state.waiting = state.waiting.saturating_sub(1);
    }

    // Transitions that both sides make.

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

    /// From now on the peer has [`Cm::answer_timeout`](crate::cm::Cm) to respond.
    pub(super) fn start_response_timer(self: &Arc<Self>, state: &mut State) {
        state.response_timer += 1;
        if state.connection.is_some() {
            // It minds the time itself.
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

    /// Ends what leads to the peer.
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
