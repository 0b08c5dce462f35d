//! The reactions of an endpoint to messages and timers, called by the service thread.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use verbs_abi::*;

use super::state::{Detail, Endpoint, Phase, State, reject_with};
use crate::errno::Errno;
use crate::lock::lock;
use crate::mad::{Connection, Consumer, Listener};
use crate::service::{Alarm, Watched};
use crate::wire::{MAX_MESSAGE, Message, Params, Reply, Request, reason};

/// Pause before a listener retries `accept(2)` after a lack of descriptors.
const RETRY_ACCEPT: Duration = Duration::from_millis(100);

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
                Ok((0, _)) => return self.end_of_stream(&mut state),
                Ok((n, _)) => match Message::decode(bytes.get(..n).unwrap_or_default()) {
                    Ok(message) => self.on_message(&mut state, message),
                    Err(_) => return self.end_of_stream(&mut state),
                },
                Err(rustix::io::Errno::AGAIN) => return,
                // The peer has closed its end with unread data; its messages can still be read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(_) => return self.end_of_stream(&mut state),
            }
        }
    }

    fn on_alarm(self: Arc<Self>, alarm: Alarm) {
        let mut state = lock(&self.state);
        match alarm {
            Alarm::RetryRequest if state.phase == Phase::ReqSent => self.send_request(&mut state),
            Alarm::RetryAccept if state.phase == Phase::Listening => {
                if let Some(listener) = &state.socket {
                    self.cm.service.mute(listener, self.token(), false);
                }
            }
            Alarm::ResponseTimeout(timer) if state.response_timer == timer => {
                self.unanswered(&mut state);
            }
            Alarm::TimeWaitExit if state.phase == Phase::TimeWait => {
                self.push_event(&state, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, Detail::Nothing);
            }
            _ => {}
        }
    }
}

impl Consumer for Endpoint {
    fn on_answer(self: Arc<Self>, message: Message) {
        let mut state = lock(&self.state);
        // Messages for an endpoint that has already disconnected are ignored.
        if state.connection.is_some() {
            self.on_message(&mut state, message);
        }
    }

    fn on_silence(self: Arc<Self>) {
        let mut state = lock(&self.state);
        if state.connection.is_some() {
            self.unanswered(&mut state);
        }
    }
}

impl Listener for Endpoint {
    fn on_request(self: Arc<Self>, connection: Arc<Connection>, request: Request) {
        let channel = Arc::clone(&lock(&self.state).channel);
        let new = Self::with(
            self.cm,
            self.port_space,
            self.is_datagram,
            channel,
            Phase::Accepted,
            Arc::downgrade(&self),
        );
        let consumer: Arc<dyn Consumer> = Arc::clone(&new) as _;
        connection.serve(Arc::downgrade(&consumer));
        let mut state = lock(&new.state);
        state.connection = Some(connection);
        new.on_message(&mut state, Message::Request(request));
    }
}

impl Endpoint {
    /// Reacts to a peer that has not answered in time.
    fn unanswered(self: &Arc<Self>, state: &mut State) {
        match state.phase {
            Phase::ReqSent | Phase::RepSent => {
                let _ = self.send(state, &reject_with(reason::TIMEOUT));
                state.request = None;
                self.fail(state, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            }
            Phase::DreqSent => self.disconnected(state),
            _ => {}
        }
    }

    fn accept_sockets(self: &Arc<Self>, state: &State) {
        let Some(listener) = &state.socket else {
            return;
        };
        // Accepts all sockets at once: each wake-up of the thread takes time.
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(e) if Errno::from(e).is_shortage() => {
                    // The socket stays readable, so it is muted until the retry.
                    self.cm.service.mute(listener, self.token(), true);
                    let service = self.cm.service;
                    service.after(RETRY_ACCEPT, self, Alarm::RetryAccept);
                    return;
                }
                Err(_) => return,
            };
            let new = Self::with(
                self.cm,
                self.port_space,
                self.is_datagram,
                Arc::clone(&state.channel),
                Phase::Accepted,
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
            (Phase::Accepted, Message::Request(request)) => self.on_request(state, request),
            (Phase::ReqSent, Message::Reply(reply)) => self.on_reply(state, reply),
            (
                Phase::ReqSent | Phase::ReqReceived | Phase::RepSent | Phase::RepReceived,
                Message::Reject {
                    reason,
                    private_data,
                },
            ) => self.rejected(state, reason, private_data),
            // By packets: the peer has not received the RTU.
            (Phase::Established, Message::Reject { .. }) if !self.is_datagram => {
                self.disconnected(state);
            }
            (Phase::RepSent, Message::ReadyToUse) => self.established(state),
            (Phase::RepSent | Phase::RepReceived | Phase::Established, Message::Disconnect) => {
                // The service thread answers, so that the peer does not wait for the program.
                let _ = self.send(state, &Message::Disconnected);
                self.disconnected(state);
            }
            (Phase::DreqSent, Message::Disconnect | Message::Disconnected) => {
                self.disconnected(state)
            }
            (Phase::DreqSent | Phase::TimeWait | Phase::Failed | Phase::Established, _) => {}
            // A correct peer does not send such a message in this phase.
            (_, _) => self.end_of_stream(state),
        }
    }

    /// Processes a request, and reports it to the listener's program.
    fn on_request(self: &Arc<Self>, state: &mut State, request: Request) {
        let Some(listener) = self.listener.upgrade() else {
            return self.reject_request(state);
        };
        state.phase = Phase::ReqReceived;
        state.ends.remote = request.qp;
        state.ends.remote_ece = request.ece;
        state.ends.path_mtu = request.path_mtu;
        // The requester's responder resources limit the requests of this end, and vice versa.
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
            // A port space may have services of both types, at different ports.
            || (request.qp_type == IBV_QPT_UD) != self.is_datagram
        {
            drop(listening);
            return self.reject_request(state);
        }
        listening.waiting += 1;
        state.channel = Arc::clone(&listening.channel);
        let detail = Detail::Request {
            new: Arc::clone(self),
            request: Box::new(request),
        };
        listener.push_event(&listening, RDMA_CM_EVENT_CONNECT_REQUEST, 0, detail);
    }

    fn reject_request(&self, state: &mut State) {
        let _ = self.send(state, &reject_with(reason::CONSUMER_DEFINED));
        state.phase = Phase::Failed;
        self.drop_carrier(state);
    }

    fn on_reply(self: &Arc<Self>, state: &mut State, reply: Reply) {
        state.response_timer += 1;
        state.ends.remote = reply.qp;
        state.ends.remote_ece = reply.ece;
        if self.is_datagram {
            state.phase = Phase::Established;
            self.drop_carrier(state);
            let detail = Detail::Datagram {
                qp: reply.qp,
                private_data: reply.private_data,
            };
            return self.push_event(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
        }
        state.phase = Phase::RepReceived;
        let params = Params {
            responder_resources: reply.params.initiator_depth,
            initiator_depth: reply.params.responder_resources,
            // This end's own value: "The maximum number of times that a data transfer operation should be retried"
            // (rdma_connect(3)).
            retry_count: state.ends.params.retry_count,
            ..reply.params
        };
        state.ends.params = params;
        let detail = Detail::Connection {
            qpn: reply.qp.qpn,
            params,
            private_data: reply.private_data,
        };
        self.push_event(state, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, detail);
    }

    /// Reacts to a peer that has closed its socket, or has sent an invalid message.
    fn end_of_stream(self: &Arc<Self>, state: &mut State) {
        match state.phase {
            Phase::ReqSent | Phase::RepSent | Phase::RepReceived => {
                self.rejected(state, reason::CONSUMER_DEFINED, Vec::new());
            }
            // A requester that has closed its socket has given up.
            Phase::ReqReceived => self.rejected(state, reason::TIMEOUT, Vec::new()),
            Phase::Established | Phase::DreqSent if !self.is_datagram => self.disconnected(state),
            _ => self.drop_carrier(state),
        }
    }
}
