//! The reactions of an endpoint to messages and timers, called by the connection manager thread.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SocketFlags, accept_with, recv};
use verbs_abi::*;

use super::state::{Endpoint, EndpointPhase, EndpointState, EventDetail, make_reject_message};
use crate::cm_thread::{SocketAndTimerHandler, TimerPurpose};
use crate::errno::Errno;
use crate::lock::lock;
use crate::mad::{Connection, Listener, MessageConsumer};
use crate::wire::{AcceptReply, CmMessage, MAX_MESSAGE_BYTES, NegotiatedParams, Request, reason};

/// Pause before a listener retries `accept(2)` after a lack of descriptors.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

impl SocketAndTimerHandler for Endpoint {
    fn token(&self) -> u64 {
        Endpoint::token(self)
    }

    fn on_readable(self: Arc<Self>) {
        let mut state = lock(&self.state);
        if state.phase == EndpointPhase::Listening {
            self.accept_sockets(&state);
            return;
        }
        loop {
            let Some(socket) = &state.socket else { return };
            let mut bytes = [0; MAX_MESSAGE_BYTES];
            match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return self.handle_end_of_stream(&mut state),
                Ok((n, _)) => match CmMessage::decode(bytes.get(..n).unwrap_or_default()) {
                    Ok(message) => self.on_message(&mut state, message),
                    Err(_) => return self.handle_end_of_stream(&mut state),
                },
                Err(rustix::io::Errno::AGAIN) => return,
                // The peer has closed its end with unread data; its messages can still be read.
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
                Err(_) => return self.handle_end_of_stream(&mut state),
            }
        }
    }

    fn on_alarm(self: Arc<Self>, alarm: TimerPurpose) {
        let mut state = lock(&self.state);
        match alarm {
            TimerPurpose::RetryRequest if state.phase == EndpointPhase::ReqSent => {
                self.send_request_or_retry(&mut state)
            }
            TimerPurpose::RetryAccept if state.phase == EndpointPhase::Listening => {
                if let Some(listener) = &state.socket {
                    self.cm
                        .cm_thread
                        .set_reading_paused(listener, self.token(), false);
                }
            }
            TimerPurpose::ResponseTimeout(timer) if state.response_timer_generation == timer => {
                self.handle_timeout(&mut state);
            }
            TimerPurpose::TimeWaitExit if state.phase == EndpointPhase::TimeWait => {
                self.push_event(&state, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, EventDetail::None);
            }
            _ => {}
        }
    }
}

impl MessageConsumer for Endpoint {
    fn on_peer_message(self: Arc<Self>, message: CmMessage) {
        let mut state = lock(&self.state);
        // Messages for an endpoint that has already disconnected are ignored.
        if state.connection.is_some() {
            self.on_message(&mut state, message);
        }
    }

    fn on_timeout(self: Arc<Self>) {
        let mut state = lock(&self.state);
        if state.connection.is_some() {
            self.handle_timeout(&mut state);
        }
    }
}

impl Listener for Endpoint {
    fn on_request(self: Arc<Self>, connection: Arc<Connection>, request: Request) {
        let channel = Arc::clone(&lock(&self.state).channel);
        let new = Self::new_in_phase(
            self.cm,
            self.port_space,
            self.is_datagram,
            channel,
            EndpointPhase::SocketAccepted,
            Arc::downgrade(&self),
        );
        let consumer: Arc<dyn MessageConsumer> = Arc::clone(&new) as _;
        connection.set_consumer(Arc::downgrade(&consumer));
        let mut state = lock(&new.state);
        state.connection = Some(connection);
        new.on_message(&mut state, CmMessage::Request(request));
    }
}

impl Endpoint {
    /// Reacts to a peer that has not answered in time.
    fn handle_timeout(self: &Arc<Self>, state: &mut EndpointState) {
        match state.phase {
            EndpointPhase::ReqSent | EndpointPhase::RepSent => {
                let _ = self.send_cm_message(state, &make_reject_message(reason::TIMEOUT));
                state.unsent_request = None;
                self.fail_and_report_event(state, RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            }
            EndpointPhase::DreqSent => self.on_disconnected(state),
            _ => {}
        }
    }

    fn accept_sockets(self: &Arc<Self>, state: &EndpointState) {
        let Some(listener) = &state.socket else {
            return;
        };
        // Accepts all sockets at once: each wake-up of the thread takes time.
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(e) if Errno::from(e).is_resource_shortage() => {
                    // The socket stays readable, so it is muted until the retry.
                    self.cm
                        .cm_thread
                        .set_reading_paused(listener, self.token(), true);
                    let cm_thread = self.cm.cm_thread;
                    cm_thread.set_alarm(ACCEPT_RETRY_PAUSE, self, TimerPurpose::RetryAccept);
                    return;
                }
                Err(_) => return,
            };
            let new = Self::new_in_phase(
                self.cm,
                self.port_space,
                self.is_datagram,
                Arc::clone(&state.channel),
                EndpointPhase::SocketAccepted,
                Arc::downgrade(self),
            );
            let mut new_state = lock(&new.state);
            if self.cm.cm_thread.watch(&socket, &new).is_ok() {
                new_state.socket = Some(socket);
            }
        }
    }

    fn on_message(self: &Arc<Self>, state: &mut EndpointState, message: CmMessage) {
        match (state.phase, message) {
            (EndpointPhase::SocketAccepted, CmMessage::Request(request)) => {
                self.on_request(state, request)
            }
            (EndpointPhase::ReqSent, CmMessage::Reply(reply)) => self.on_reply(state, reply),
            (
                EndpointPhase::ReqSent
                | EndpointPhase::ReqReceived
                | EndpointPhase::RepSent
                | EndpointPhase::RepReceived,
                CmMessage::Reject {
                    reason,
                    private_data,
                },
            ) => self.on_rejected(state, reason, private_data),
            // By packets: the peer has not received the RTU.
            (EndpointPhase::Established, CmMessage::Reject { .. }) if !self.is_datagram => {
                self.on_disconnected(state);
            }
            (EndpointPhase::RepSent, CmMessage::ReadyToUse) => self.on_established(state),
            (
                EndpointPhase::RepSent | EndpointPhase::RepReceived | EndpointPhase::Established,
                CmMessage::Disconnect,
            ) => {
                // The connection manager thread answers, so that the peer does not wait for the program.
                let _ = self.send_cm_message(state, &CmMessage::DisconnectReply);
                self.on_disconnected(state);
            }
            (EndpointPhase::DreqSent, CmMessage::Disconnect | CmMessage::DisconnectReply) => {
                self.on_disconnected(state)
            }
            (
                EndpointPhase::DreqSent
                | EndpointPhase::TimeWait
                | EndpointPhase::Failed
                | EndpointPhase::Established,
                _,
            ) => {}
            // A correct peer does not send such a message in this phase.
            (_, _) => self.handle_end_of_stream(state),
        }
    }

    /// Processes a request, and reports it to the listener's program.
    fn on_request(self: &Arc<Self>, state: &mut EndpointState, request: Request) {
        let Some(listener) = self.listener.upgrade() else {
            return self.reject_request(state);
        };
        state.phase = EndpointPhase::ReqReceived;
        state.connection_params.remote_qp = request.qp;
        state.connection_params.remote_ece = request.ece;
        state.connection_params.path_mtu_code = request.path_mtu_code;
        // The requester's responder resources limit the requests of this end, and vice versa.
        state.connection_params.params = NegotiatedParams {
            responder_resources: request.params.initiator_depth,
            initiator_depth: request.params.responder_resources,
            ..request.params
        };
        let mut listening = lock(&listener.state);
        let claimed = listening.port_claim.as_ref().map(|claim| claim.port_space);
        if listening.phase != EndpointPhase::Listening
            || listening.pending_request_count >= listening.backlog
            || claimed != Some(request.port_space)
            // A port space may have services of both types, at different ports.
            || (request.qp_type == IBV_QPT_UD) != self.is_datagram
        {
            drop(listening);
            return self.reject_request(state);
        }
        listening.pending_request_count += 1;
        state.channel = Arc::clone(&listening.channel);
        let detail = EventDetail::Request {
            new: Arc::clone(self),
            request: Box::new(request),
        };
        listener.push_event(&listening, RDMA_CM_EVENT_CONNECT_REQUEST, 0, detail);
    }

    fn reject_request(&self, state: &mut EndpointState) {
        let _ = self.send_cm_message(state, &make_reject_message(reason::CONSUMER_DEFINED));
        state.phase = EndpointPhase::Failed;
        self.drop_transport(state);
    }

    fn on_reply(self: &Arc<Self>, state: &mut EndpointState, reply: AcceptReply) {
        state.response_timer_generation += 1;
        state.connection_params.remote_qp = reply.qp;
        state.connection_params.remote_ece = reply.ece;
        if self.is_datagram {
            state.phase = EndpointPhase::Established;
            self.drop_transport(state);
            let detail = EventDetail::Datagram {
                qp: reply.qp,
                private_data: reply.private_data,
            };
            return self.push_event(state, RDMA_CM_EVENT_ESTABLISHED, 0, detail);
        }
        state.phase = EndpointPhase::RepReceived;
        let params = NegotiatedParams {
            responder_resources: reply.params.initiator_depth,
            initiator_depth: reply.params.responder_resources,
            // This end's own value: "The maximum number of times that a data transfer operation should be retried"
            // (rdma_connect(3)).
            retry_count: state.connection_params.params.retry_count,
            ..reply.params
        };
        state.connection_params.params = params;
        let detail = EventDetail::Connection {
            qpn: reply.qp.qpn,
            params,
            private_data: reply.private_data,
        };
        self.push_event(state, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, detail);
    }

    /// Reacts to a peer that has closed its socket, or has sent an invalid message.
    fn handle_end_of_stream(self: &Arc<Self>, state: &mut EndpointState) {
        match state.phase {
            EndpointPhase::ReqSent | EndpointPhase::RepSent | EndpointPhase::RepReceived => {
                self.on_rejected(state, reason::CONSUMER_DEFINED, Vec::new());
            }
            // A requester that has closed its socket has given up.
            EndpointPhase::ReqReceived => self.on_rejected(state, reason::TIMEOUT, Vec::new()),
            EndpointPhase::Established | EndpointPhase::DreqSent if !self.is_datagram => {
                self.on_disconnected(state)
            }
            _ => self.drop_transport(state),
        }
    }
}
