//! What peers and timers do to an endpoint: the service's thread.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use verbs_abi::*;

use super::state::{Detail, Endpoint, Phase, State, reason, reject_with};
use crate::errno::Errno;
use crate::lock::lock;
use crate::service::{Alarm, Watched};
use crate::wire::{MAX_MESSAGE, Message, Params, Reply, Request};

/// The pause before a listener for whose requests there was no descriptor looks again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

impl Watched for Endpoint {
    fn token(&self) -> u64 {
        Endpoint::token(self)
    }

    fn on_readable(self: Arc<Self>) {
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

    fn on_alarm(self: Arc<Self>, alarm: Alarm) {
        let mut state = lock(&self.state);
        match alarm {
            Alarm::AskAgain if state.phase == Phase::Asking => self.ask(&mut state),
            Alarm::AcceptAgain if state.phase == Phase::Listening => {
                if let Some(listener) = &state.socket {
                    self.cm.service.mute(listener, self.token(), false);
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
}

impl Endpoint {
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
                    self.cm.service.mute(listener, self.token(), true);
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
}
