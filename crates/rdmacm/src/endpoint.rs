//! One end of a connection, or a listener: what an id is when no C is looking.
//!
//! The states and their transitions are those of `linux:drivers/infiniband/core/cma.c` and `cm.c` as far as a
//! program can see them. The program's threads call what `rdma_*` functions ask for; the service's thread calls
//! [`Endpoint::on_readable`] and [`Endpoint::on_alarm`]. What happens is told to the program through the
//! endpoint's channel.
//!
//! A peer that dies closes its socket, and so does one that destroys its id: the end of the stream is an event
//! in every state that has a peer.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};
use verbs_abi::*;

use crate::addr::Addr;
use crate::channel::{Channel, Detail, Event};
use crate::cm::Cm;
use crate::errno::{Errno, INVALID, Result};
use crate::lock;
use crate::ports::{Binding, Claim, Unreached};
use crate::service::Alarm;
use crate::wire::{MAX_MESSAGE, Message, Params, QpAddress, Reply, Request};

/// Reasons for a refusal, of IBTA vol. 1, 12.6.7.2.
pub(crate) mod reason {
    /// The requester gave up waiting (4, Timeout).
    pub(crate) const TIMEOUT: u16 = 4;
    /// Nobody listens (8, Invalid Service ID).
    pub(crate) const INVALID_SERVICE_ID: u16 = 8;
    /// The program said so (28, Consumer Reject).
    pub(crate) const CONSUMER_DEFINED: u16 = 28;
    /// The program does not like the extended connection parameters (35, Vendor Option Not Supported).
    pub(crate) const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
}

/// Status of a service look-up: IBTA vol. 1, 12.11.1.2.
const SIDR_UNSUPPORTED: c_int = 1;
const SIDR_REJECT: c_int = 2;

/// The pause before a listener that takes no more, or is about to come back, is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// The pause before a listener for whose requests there was no descriptor looks again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long connections stay in TIMEWAIT: the order of what Linux derives from the default packet lifetime of
/// RoCE (`CMA_IBOE_PACKET_LIFETIME`, 4.096 µs × 2^18, twice).
const TIMEWAIT: Duration = Duration::from_millis(2148);

/// Where an endpoint is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// New.
    Idle,
    /// Has an address and a port.
    Bound,
    /// Knows its peer's address.
    AddrResolved,
    /// Knows the way.
    RouteResolved,
    /// Takes requests.
    Listening,
    /// A socket was accepted; the request is still to come.
    Arriving,
    /// Has asked for a connection.
    Asking,
    /// Was asked for a connection.
    Asked,
    /// Has been granted it; the program has to be ready now.
    Granted,
    /// Has granted it, and waits for the peer to be ready.
    Granting,
    /// Connected, or, for datagrams, answered.
    Established,
    /// Has said that the connection ends.
    Ending,
    /// Was connected.
    Over,
    /// Never came to be connected.
    Failed,
    /// Destroyed.
    Closed,
}

/// What the two ends need to know of each other to connect their queue pairs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ends {
    pub(crate) local: QpAddress,
    pub(crate) remote: QpAddress,
    /// As this end means them. The retry counts are those of its own sends.
    pub(crate) params: Params,
    /// What the peer offered: vendor and options of `struct ibv_ece`.
    pub(crate) remote_ece: (u32, u32),
}

struct State {
    phase: Phase,
    channel: Arc<Channel>,
    claim: Option<Claim>,
    socket: Option<OwnedFd>,
    ends: Ends,
    /// What is asked for, until it was sent.
    request: Option<Request>,
    /// When the peer should have answered, as a count of questions: an alarm for an earlier one is void.
    question: u64,
    /// For a listener: requests that the program may leave lying about, and how many there are.
    backlog: usize,
    waiting: usize,
}

/// How many events of an id were reported to the program, and how many of them it has acknowledged.
#[derive(Default)]
struct Acknowledgements {
    outstanding: Mutex<u64>,
    none: Condvar,
}

/// One end of a connection, or a listener.
pub(crate) struct Endpoint {
    pub(crate) token: u64,
    pub(crate) cm: &'static Cm,
    /// Port space, `RDMA_PS_*`.
    pub(crate) port_space: u32,
    /// Datagrams: a look-up instead of a connection.
    is_datagram: bool,
    /// For the end that was asked: who was asked. Keeps count of the listener's backlog.
    listener: Weak<Endpoint>,
    state: Mutex<State>,
    acks: Acknowledgements,
    /// Address of the id, once there is one. Only the program's threads go there.
    id: AtomicUsize,
}

impl Endpoint {
    pub(crate) fn new(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<Channel>,
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

    fn with(
        cm: &'static Cm,
        port_space: u32,
        is_datagram: bool,
        channel: Arc<Channel>,
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
                ends,
                request: None,
                question: 0,
                backlog: 0,
                waiting: 0,
            }),
            acks: Acknowledgements::default(),
            id: AtomicUsize::new(0),
        })
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

    fn tell(
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
        self.tell(&state, kind, status, detail);
    }

    /// Reports further events through another channel, also those that have not been taken out.
    pub(crate) fn migrate(self: &Arc<Self>, to: &Arc<Channel>) {
        let mut state = lock(&self.state);
        let from = std::mem::replace(&mut state.channel, Arc::clone(to));
        if !Arc::ptr_eq(&from, to) {
            for event in from.take(self) {
                to.push(event);
            }
        }
    }

    /// A request was handed to the program.
    pub(crate) fn request_taken(&self) {
        let mut state = lock(&self.state);
        state.waiting = state.waiting.saturating_sub(1);
    }

    // What the program asks for.

    /// Takes a port. The result is the address, with the port.
    pub(crate) fn bind(&self, mut binding: Binding) -> Result<Addr> {
        let mut state = lock(&self.state);
        if state.phase != Phase::Idle {
            return Err(INVALID);
        }
        if let Addr::Ib(addr) = binding.addr {
            binding.addr = Addr::Ib(addr.select_service(self.port_space)?);
        }
        let service = binding.addr.service(self.port_space);
        let (port_space, _) = service.ok_or(Errno(libc::EPROTONOSUPPORT))?;
        let claim = self.cm.ports.claim(port_space, binding)?;
        let addr = claim.binding.addr;
        state.claim = Some(claim);
        state.phase = Phase::Bound;
        Ok(addr)
    }

    /// Moves on from one of the phases `from`.
    pub(crate) fn advance(&self, from: &[Phase], to: Phase) -> Result {
        let mut state = lock(&self.state);
        if !from.contains(&state.phase) {
            return Err(INVALID);
        }
        state.phase = to;
        Ok(())
    }

    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result {
        let mut state = lock(&self.state);
        let State {
            phase: Phase::Bound,
            claim: Some(claim),
            ..
        } = &mut *state
        else {
            return Err(INVALID);
        };
        let socket = self.cm.ports.listen(claim)?;
        state.backlog = backlog;
        state.phase = Phase::Listening;
        self.cm.service.watch(&socket, self)?;
        state.socket = Some(socket);
        Ok(())
    }

    /// Asks for a connection.
    pub(crate) fn connect(self: &Arc<Self>, request: Request) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::RouteResolved {
            return Err(INVALID);
        }
        state.phase = Phase::Asking;
        state.ends.local = request.qp;
        state.ends.params = request.params;
        state.request = Some(request);
        self.expect_answer(&mut state);
        self.ask(&mut state);
        Ok(())
    }

    /// Tries to reach the listener.
    fn ask(self: &Arc<Self>, state: &mut State) {
        let Some(request) = state.request.take() else {
            return;
        };
        match self.cm.ports.connect(self.port_space, request.dst) {
            Ok(socket) => {
                let sent = self.cm.service.watch(&socket, self);
                let sent = sent.and_then(|()| send_message(&socket, &Message::Request(request)));
                state.socket = Some(socket);
                if let Err(Errno(errno)) = sent {
                    self.fail(state, RDMA_CM_EVENT_UNREACHABLE, -errno);
                }
            }
            Err(Unreached::Busy) => {
                state.request = Some(request);
                self.cm.service.after(ASK_AGAIN, self, Alarm::AskAgain);
            }
            Err(Unreached::Refused) if self.cm.ports.opens_soon(self.port_space, request.dst) => {
                state.request = Some(request);
                self.cm.service.after(ASK_AGAIN, self, Alarm::AskAgain);
            }
            Err(Unreached::Refused) => {
                self.refused(state, reason::INVALID_SERVICE_ID, Vec::new());
            }
            Err(Unreached::Failed(Errno(errno))) => {
                self.fail(state, RDMA_CM_EVENT_UNREACHABLE, -errno);
            }
        }
    }

    /// Grants what was asked for.
    pub(crate) fn accept(self: &Arc<Self>, reply: Reply) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::Asked {
            return Err(INVALID);
        }
        state.ends.local = reply.qp;
        state.ends.params.responder_resources = reply.params.responder_resources;
        state.ends.params.initiator_depth = reply.params.initiator_depth;
        self.send(&state, &Message::Reply(reply))?;
        if self.is_datagram {
            state.phase = Phase::Established;
            self.drop_socket(&mut state);
        } else {
            state.phase = Phase::Granting;
            self.expect_answer(&mut state);
        }
        Ok(())
    }

    /// Refuses what was asked for, or what was granted.
    pub(crate) fn reject(self: &Arc<Self>, reason: u16, private_data: Vec<u8>) -> Result {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::Asked | Phase::Granted) {
            return Err(INVALID);
        }
        let message = Message::Reject {
            reason,
            private_data,
        };
        let sent = self.send(&state, &message);
        state.phase = Phase::Failed;
        self.drop_socket(&mut state);
        sent
    }

    /// Says that this end is ready as well.
    pub(crate) fn establish(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::Granted {
            return Err(INVALID);
        }
        self.send(&state, &Message::ReadyToUse)?;
        state.phase = Phase::Established;
        state.question += 1;
        Ok(())
    }

    /// The program knows that the connection is in use, before the peer said so (`rdma_notify(3)`).
    pub(crate) fn notify(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::Granting => {
                self.established(&mut state);
                Ok(())
            }
            Phase::Established => Err(Errno(libc::EISCONN)),
            _ => Err(INVALID),
        }
    }

    /// Ends the connection; the result says whether there was one, so that an event will follow.
    pub(crate) fn disconnect(self: &Arc<Self>) -> bool {
        let mut state = lock(&self.state);
        if !matches!(
            state.phase,
            Phase::Established | Phase::Granting | Phase::Granted
        ) || self.is_datagram
        {
            return state.phase == Phase::Ending;
        }
        let sent = self.send(&state, &Message::Disconnect);
        state.phase = Phase::Ending;
        if sent.is_err() {
            self.over(&mut state);
        } else {
            self.expect_answer(&mut state);
        }
        true
    }

    /// Ends everything, as `rdma_destroy_id` does: the peer hears of it, the program does not.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let farewell = match state.phase {
            Phase::Asking => Some(reject_with(reason::TIMEOUT)),
            Phase::Arriving | Phase::Asked | Phase::Granting | Phase::Granted => {
                Some(reject_with(reason::CONSUMER_DEFINED))
            }
            Phase::Established if !self.is_datagram => Some(Message::Disconnect),
            _ => None,
        };
        if let Some(message) = farewell {
            // A peer that is gone needs no farewell.
            let _ = self.send(&state, &message);
        }
        if let (Phase::Listening, Some(claim)) = (state.phase, &state.claim) {
            self.cm.ports.closing(claim);
        }
        state.phase = Phase::Closed;
        state.request = None;
        self.drop_socket(&mut state);
        if let Some(claim) = state.claim.take() {
            self.cm.ports.release(&claim);
        }
        let channel = Arc::clone(&state.channel);
        drop(state);
        for event in channel.take(self) {
            // Requests that the program did not get to see.
            if let Detail::Request { new, .. } = event.detail {
                new.close();
            }
        }
    }

    // What the service's thread sees.

    /// There is something to read.
    pub(crate) fn on_readable(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if state.phase == Phase::Listening {
            self.accept_sockets(&state);
            return;
        }
        loop {
            let Some(socket) = &state.socket else { return };
            let mut bytes = [0; MAX_MESSAGE];
            match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return self.hung_up(&mut state),
                Ok((n, _)) => match Message::decode(bytes.get(..n).unwrap_or_default()) {
                    Ok(message) => self.on_message(&mut state, message),
                    Err(_) => return self.hung_up(&mut state),
                },
                Err(rustix::io::Errno::AGAIN) => return,
                // The peer closed its end without having read everything; what it sent is still to be read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(_) => return self.hung_up(&mut state),
            }
        }
    }

    fn accept_sockets(self: &Arc<Self>, state: &State) {
        let Some(listener) = &state.socket else {
            return;
        };
        // All of them: asking for one at a time would cost a wait each.
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(e) if Errno::from(e).is_shortage() => {
                    // It stays readable: not to be told so again and again meanwhile.
                    self.cm.service.mute(listener, self, true);
                    let service = self.cm.service;
                    service.after(ACCEPT_AGAIN, self, Alarm::AcceptAgain);
                    return;
                }
                Err(_) => return,
            };
            let new = Self::with(
                self.cm,
                self.port_space,
                self.is_datagram,
                Arc::clone(&state.channel),
                Phase::Arriving,
                Arc::downgrade(self),
            );
            let mut new_state = lock(&new.state);
            if self.cm.service.watch(&socket, &new).is_ok() {
                new_state.socket = Some(socket);
            }
        }
    }

    fn on_message(self: &Arc<Self>, state: &mut State, message: Message) {
        match (state.phase, message) {
            (Phase::Arriving, Message::Request(request)) => self.arrived(state, request),
            (Phase::Asking, Message::Reply(reply)) => self.granted(state, reply),
            (
                Phase::Asking | Phase::Asked | Phase::Granting | Phase::Granted,
                Message::Reject {
                    reason,
                    private_data,
                },
            ) => self.refused(state, reason, private_data),
            (Phase::Granting, Message::ReadyToUse) => self.established(state),
            (Phase::Granting | Phase::Granted | Phase::Established, Message::Disconnect) => {
                // Said by the service, so that the peer does not depend on this program.
                let _ = self.send(state, &Message::Disconnected);
                self.over(state);
            }
            (Phase::Ending, Message::Disconnect | Message::Disconnected) => self.over(state),
            (Phase::Ending | Phase::Over | Phase::Failed | Phase::Established, _) => {}
            // No peer of ours says this here.
            (_, _) => self.hung_up(state),
        }
    }

    /// A request has come: the listener's program is told.
    fn arrived(self: &Arc<Self>, state: &mut State, request: Request) {
        let Some(listener) = self.listener.upgrade() else {
            return self.turn_away(state);
        };
        state.phase = Phase::Asked;
        state.ends.remote = request.qp;
        state.ends.remote_ece = request.ece;
        // What the requester can answer is what this end may ask for, and the other way round.
        state.ends.params = Params {
            responder_resources: request.params.initiator_depth,
            initiator_depth: request.params.responder_resources,
            ..request.params
        };
        let mut listening = lock(&listener.state);
        let claimed = listening.claim.as_ref().map(|claim| claim.port_space);
        if listening.phase != Phase::Listening
            || listening.waiting >= listening.backlog
            || claimed != Some(request.port_space)
            // A port space may have services of either kind, behind different ports.
            || (request.qp_type == IBV_QPT_UD) != self.is_datagram
        {
            drop(listening);
            return self.turn_away(state);
        }
        listening.waiting += 1;
        state.channel = Arc::clone(&listening.channel);
        let detail = Detail::Request {
            new: Arc::clone(self),
            request: Box::new(request),
        };
        listener.tell(&listening, RDMA_CM_EVENT_CONNECT_REQUEST, 0, detail);
    }

    fn turn_away(&self, state: &mut State) {
        let _ = self.send(state, &reject_with(reason::CONSUMER_DEFINED));
        state.phase = Phase::Failed;
        self.drop_socket(state);
    }

    fn granted(self: &Arc<Self>, state: &mut State, reply: Reply) {
        state.question += 1;
        state.ends.remote = reply.qp;
        state.ends.remote_ece = reply.ece;
        if self.is_datagram {
            state.phase = Phase::Established;
            self.drop_socket(state);
            let detail = Detail::Datagram {
                qp: reply.qp,
                private_data: reply.private_data,
            };
            return self.tell(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
        }
        state.phase = Phase::Granted;
        let params = Params {
            responder_resources: reply.params.initiator_depth,
            initiator_depth: reply.params.responder_resources,
            // Own: "The maximum number of times that a data transfer operation should be retried" (rdma_connect(3)).
            retry_count: state.ends.params.retry_count,
            ..reply.params
        };
        state.ends.params = params;
        let detail = Detail::Connection {
            qpn: reply.qp.qpn,
            params,
            private_data: reply.private_data,
        };
        self.tell(state, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, detail);
    }

    fn refused(self: &Arc<Self>, state: &mut State, reason: u16, private_data: Vec<u8>) {
        state.phase = Phase::Failed;
        state.question += 1;
        self.drop_socket(state);
        if self.is_datagram {
            let status = match reason {
                reason::INVALID_SERVICE_ID => SIDR_UNSUPPORTED,
                _ => SIDR_REJECT,
            };
            let detail = Detail::Datagram {
                qp: QpAddress::default(),
                private_data,
            };
            return self.tell(state, RDMA_CM_EVENT_UNREACHABLE, status, detail);
        }
        let detail = Detail::Connection {
            qpn: 0,
            params: Params::default(),
            private_data,
        };
        self.tell(state, RDMA_CM_EVENT_REJECTED, c_int::from(reason), detail);
    }

    fn fail(self: &Arc<Self>, state: &mut State, kind: rdma_cm_event_type, status: c_int) {
        state.phase = Phase::Failed;
        state.question += 1;
        self.drop_socket(state);
        self.tell(state, kind, status, Detail::Nothing);
    }

    fn established(self: &Arc<Self>, state: &mut State) {
        state.phase = Phase::Established;
        state.question += 1;
        let detail = Detail::Connection {
            qpn: state.ends.remote.qpn,
            params: Params::default(),
            private_data: Vec::new(),
        };
        self.tell(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
    }

    fn over(self: &Arc<Self>, state: &mut State) {
        state.phase = Phase::Over;
        state.question += 1;
        self.drop_socket(state);
        self.tell(state, RDMA_CM_EVENT_DISCONNECTED, 0, Detail::Nothing);
        self.cm.service.after(TIMEWAIT, self, Alarm::TimewaitOver);
    }

    /// The peer is gone, or talks nonsense, which comes to the same.
    fn hung_up(self: &Arc<Self>, state: &mut State) {
        match state.phase {
            Phase::Asking | Phase::Granting | Phase::Granted => {
                self.refused(state, reason::CONSUMER_DEFINED, Vec::new());
            }
            // A requester that is not there any more has given up.
            Phase::Asked => self.refused(state, reason::TIMEOUT, Vec::new()),
            Phase::Established | Phase::Ending if !self.is_datagram => self.over(state),
            _ => self.drop_socket(state),
        }
    }

    /// A timer has run out.
    pub(crate) fn on_alarm(self: &Arc<Self>, alarm: Alarm) {
        let mut state = lock(&self.state);
        match alarm {
            Alarm::AskAgain if state.phase == Phase::Asking => self.ask(&mut state),
            Alarm::AcceptAgain if state.phase == Phase::Listening => {
                if let Some(listener) = &state.socket {
                    self.cm.service.mute(listener, self, false);
                }
            }
            Alarm::AnswerOverdue(question) if state.question == question => match state.phase {
                Phase::Asking => {
                    let _ = self.send(&state, &reject_with(reason::TIMEOUT));
                    state.request = None;
                    self.fail(&mut state, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
                }
                Phase::Granting => {
                    let _ = self.send(&state, &reject_with(reason::TIMEOUT));
                    self.fail(&mut state, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
                }
                Phase::Ending => self.over(&mut state),
                _ => {}
            },
            Alarm::TimewaitOver if state.phase == Phase::Over => {
                self.tell(&state, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Detail::Nothing);
            }
            _ => {}
        }
    }

    /// From now on the peer has the time of an answer.
    fn expect_answer(self: &Arc<Self>, state: &mut State) {
        state.question += 1;
        let alarm = Alarm::AnswerOverdue(state.question);
        self.cm.service.after(self.cm.answer_timeout, self, alarm);
    }

    fn send(&self, state: &State, message: &Message) -> Result {
        let socket = state.socket.as_ref().ok_or(INVALID)?;
        send_message(socket, message)
    }

    fn drop_socket(&self, state: &mut State) {
        if let Some(socket) = state.socket.take() {
            self.cm.service.unwatch(&socket, self);
        }
    }
}

fn reject_with(reason: u16) -> Message {
    Message::Reject {
        reason,
        private_data: Vec::new(),
    }
}

fn send_message(socket: &OwnedFd, message: &Message) -> Result {
    let bytes = message.encode();
    send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
