//! The operations of an endpoint that the program calls.

use std::sync::Arc;
use std::time::Duration;

use super::state::{
    Endpoint, EndpointPhase, EndpointState, EventDetail, make_reject_message, send_message,
};
use crate::addr::IdAddress;
use crate::cm_thread::TimerPurpose;
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::mad::{Listener, MessageConsumer};
use crate::ports::{IdBinding, UnreachedReason};
use crate::wire::{AcceptReply, CmMessage, Request, reason};
use verbs_abi::RDMA_CM_EVENT_UNREACHABLE;

/// Pause before a REQ is sent again to a listener whose queue is full, or that is expected soon.
const REQUEST_RETRY_PAUSE: Duration = Duration::from_millis(5);

impl Endpoint {
    /// Binds the endpoint to an address, and claims a port. Returns the address with the port.
    pub(crate) fn bind(&self, mut binding: IdBinding) -> Result<IdAddress> {
        let mut state = lock(&self.state);
        if state.phase != EndpointPhase::Idle {
            return Err(INVALID);
        }
        if let IdAddress::Ib(addr) = binding.addr {
            binding.addr = IdAddress::Ib(addr.with_selected_port_space(self.port_space)?);
        }
        let service = binding.addr.port_space_and_port(self.port_space);
        let (port_space, _) = service.ok_or(Errno(libc::EPROTONOSUPPORT))?;
        let claim = self.cm.port_folder.claim(port_space, binding)?;
        let addr = claim.binding.addr;
        state.port_claim = Some(claim);
        state.phase = EndpointPhase::Bound;
        Ok(addr)
    }

    /// Moves the endpoint from one of the phases `from` to the phase `to`.
    pub(crate) fn change_phase(&self, from: &[EndpointPhase], to: EndpointPhase) -> Result {
        let mut state = lock(&self.state);
        if !from.contains(&state.phase) {
            return Err(INVALID);
        }
        state.phase = to;
        Ok(())
    }

    pub(crate) fn listen(self: &Arc<Self>, backlog: usize) -> Result {
        let mut state = lock(&self.state);
        let EndpointState {
            phase: EndpointPhase::Bound,
            port_claim: Some(claim),
            ..
        } = &mut *state
        else {
            return Err(INVALID);
        };
        let socket = self.cm.port_folder.listen(claim)?;
        state.backlog = backlog;
        state.phase = EndpointPhase::Listening;
        self.cm.cm_thread.watch(&socket, self)?;
        state.socket = Some(socket);
        self.listen_for_mad_requests(&state);
        Ok(())
    }

    /// Registers the listener for requests by MADs.
    fn listen_for_mad_requests(self: &Arc<Self>, state: &EndpointState) {
        let Some(claim) = &state.port_claim else {
            return;
        };
        let IdAddress::Ip(addr) = claim.binding.addr else {
            return;
        };
        if !self.cm.accepts_packet_requests(addr.ip()) {
            return;
        }
        match self.cm.mad_connections_or_start() {
            Ok(hub) => {
                let listener: Arc<dyn Listener> = Arc::clone(self) as _;
                hub.listen(claim, Arc::downgrade(&listener));
            }
            // Requests from this host still reach the listener.
            Err(Errno(errno)) => tracing::warn!(
                "nobody on another host reaches the listener at {addr}, because the way by packets cannot be opened: \
                 errno {errno}"
            ),
        }
    }

    /// Requests a connection.
    pub(crate) fn connect(self: &Arc<Self>, request: Request) -> Result {
        let mut state = lock(&self.state);
        if state.phase != EndpointPhase::RouteResolved {
            return Err(INVALID);
        }
        state.phase = EndpointPhase::ReqSent;
        state.connection_params.local_qp = request.qp;
        state.connection_params.params = request.params;
        state.connection_params.path_mtu_code = request.path_mtu_code;
        if let IdAddress::Ip(dst) = request.dst
            && let Some(gid) = self.cm.gid_if_reached_by_packets(dst.ip())
        {
            return self.send_request_by_mads(&mut state, request, gid);
        }
        state.unsent_request = Some(request);
        self.start_response_timer(&mut state);
        self.send_request_or_retry(&mut state);
        Ok(())
    }

    fn send_request_by_mads(
        self: &Arc<Self>,
        state: &mut EndpointState,
        request: Request,
        gid: [u8; 16],
    ) -> Result {
        let consumer: Arc<dyn MessageConsumer> = Arc::clone(self) as _;
        let connection = self
            .cm
            .mad_connections_or_start()
            .and_then(|hub| hub.connect(request, gid, Arc::downgrade(&consumer)));
        if connection.is_err() {
            state.phase = EndpointPhase::RouteResolved;
        }
        state.connection = Some(connection?);
        Ok(())
    }

    /// Sends the REQ if the listener can be reached; else retries or fails.
    pub(super) fn send_request_or_retry(self: &Arc<Self>, state: &mut EndpointState) {
        let Some(request) = state.unsent_request.take() else {
            return;
        };
        match self.cm.port_folder.connect(self.port_space, request.dst) {
            Ok(socket) => {
                let sent = self.cm.cm_thread.watch(&socket, self);
                let sent = sent.and_then(|()| send_message(&socket, &CmMessage::Request(request)));
                state.socket = Some(socket);
                if let Err(Errno(errno)) = sent {
                    self.fail_and_report_event(state, RDMA_CM_EVENT_UNREACHABLE, -errno);
                }
            }
            Err(UnreachedReason::BacklogFull) => {
                state.unsent_request = Some(request);
                self.cm
                    .cm_thread
                    .set_alarm(REQUEST_RETRY_PAUSE, self, TimerPurpose::RetryRequest);
            }
            Err(UnreachedReason::NoListener)
                if self
                    .cm
                    .port_folder
                    .may_listen_soon(self.port_space, request.dst) =>
            {
                state.unsent_request = Some(request);
                self.cm
                    .cm_thread
                    .set_alarm(REQUEST_RETRY_PAUSE, self, TimerPurpose::RetryRequest);
            }
            Err(UnreachedReason::NoListener) => {
                self.on_rejected(state, reason::INVALID_SERVICE_ID, Vec::new());
            }
            Err(UnreachedReason::Failed(Errno(errno))) => {
                self.fail_and_report_event(state, RDMA_CM_EVENT_UNREACHABLE, -errno);
            }
        }
    }

    /// Accepts the request: sends a REP.
    pub(crate) fn accept(self: &Arc<Self>, reply: AcceptReply) -> Result {
        let mut state = lock(&self.state);
        if state.phase != EndpointPhase::ReqReceived {
            return Err(INVALID);
        }
        state.connection_params.local_qp = reply.qp;
        state.connection_params.params.responder_resources = reply.params.responder_resources;
        state.connection_params.params.initiator_depth = reply.params.initiator_depth;
        self.send_cm_message(&state, &CmMessage::Reply(reply))?;
        if self.is_datagram {
            state.phase = EndpointPhase::Established;
            self.drop_transport(&mut state);
        } else {
            state.phase = EndpointPhase::RepSent;
            self.start_response_timer(&mut state);
        }
        Ok(())
    }

    /// Rejects a request or a reply.
    pub(crate) fn reject(self: &Arc<Self>, reason: u16, private_data: Vec<u8>) -> Result {
        let mut state = lock(&self.state);
        if !matches!(
            state.phase,
            EndpointPhase::ReqReceived | EndpointPhase::RepReceived
        ) {
            return Err(INVALID);
        }
        let message = CmMessage::Reject {
            reason,
            private_data,
        };
        let sent = self.send_cm_message(&state, &message);
        state.phase = EndpointPhase::Failed;
        self.drop_transport(&mut state);
        sent
    }

    /// Sends the RTU after a REP.
    pub(crate) fn establish(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        if state.phase != EndpointPhase::RepReceived {
            return Err(INVALID);
        }
        self.send_cm_message(&state, &CmMessage::ReadyToUse)?;
        state.phase = EndpointPhase::Established;
        state.response_timer_generation += 1;
        Ok(())
    }

    /// Records that the connection is in use before the RTU has arrived (`rdma_notify(3)`).
    pub(crate) fn establish_before_rtu(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        match state.phase {
            EndpointPhase::RepSent => {
                if let Some(connection) = &state.connection {
                    connection.record_peer_ready();
                }
                self.on_established(&mut state);
                Ok(())
            }
            EndpointPhase::Established => Err(Errno(libc::EISCONN)),
            _ => Err(INVALID),
        }
    }

    /// Disconnects the endpoint; returns true if an event will follow.
    pub(crate) fn disconnect(self: &Arc<Self>) -> bool {
        let mut state = lock(&self.state);
        if !matches!(
            state.phase,
            EndpointPhase::Established | EndpointPhase::RepSent | EndpointPhase::RepReceived
        ) || self.is_datagram
        {
            return state.phase == EndpointPhase::DreqSent;
        }
        // By packets, a REP that the program does not accept is rejected: a DREQ needs an established connection (IBTA vol.
        // 1, 12.9.6). A REJ has no answer.
        let rejects = state.phase == EndpointPhase::RepReceived && state.connection.is_some();
        let message = if rejects {
            make_reject_message(reason::CONSUMER_DEFINED)
        } else {
            CmMessage::Disconnect
        };
        let sent = self.send_cm_message(&state, &message);
        state.phase = EndpointPhase::DreqSent;
        if rejects || sent.is_err() {
            self.on_disconnected(&mut state);
        } else {
            self.start_response_timer(&mut state);
        }
        true
    }

    /// Ends the endpoint for `rdma_destroy_id`: the peer is told, and the program gets no further event.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let farewell = match state.phase {
            EndpointPhase::ReqSent => Some(make_reject_message(reason::TIMEOUT)),
            EndpointPhase::SocketAccepted
            | EndpointPhase::ReqReceived
            | EndpointPhase::RepSent
            | EndpointPhase::RepReceived => Some(make_reject_message(reason::CONSUMER_DEFINED)),
            EndpointPhase::Established if !self.is_datagram => Some(CmMessage::Disconnect),
            _ => None,
        };
        if let Some(message) = farewell {
            // An error is ignored: the peer may be gone already.
            let _ = self.send_cm_message(&state, &message);
        }
        if let (EndpointPhase::Listening, Some(claim)) = (state.phase, &state.port_claim) {
            self.cm.port_folder.record_listener_closing(claim);
            if let Some(hub) = self.cm.mad_connections_if_started() {
                hub.stop_listening(claim);
            }
        }
        state.phase = EndpointPhase::Closed;
        state.unsent_request = None;
        self.drop_transport(&mut state);
        if let Some(claim) = state.port_claim.take() {
            self.cm.port_folder.release(&claim);
        }
        let channel = Arc::clone(&state.channel);
        drop(state);
        for event in channel.remove_events(|event| Arc::ptr_eq(&event.endpoint, self)) {
            // The program will not see these requests, so they are rejected.
            if let EventDetail::Request { new, .. } = event.detail {
                new.close();
            }
        }
    }
}
