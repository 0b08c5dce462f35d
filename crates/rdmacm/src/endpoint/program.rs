//! What the program asks of an endpoint.

use std::sync::Arc;
use std::time::Duration;

use super::state::{Detail, Endpoint, Phase, State, reject_with, send_message};
use crate::addr::Addr;
use crate::errno::{Errno, INVALID, Result};
use crate::lock::lock;
use crate::mad::{Consumer, Listener};
use crate::ports::{Binding, Unreached};
use crate::service::Alarm;
use crate::wire::{Message, Reply, Request, reason};
use verbs_abi::RDMA_CM_EVENT_UNREACHABLE;

/// The pause before a REQ is sent again to a listener that takes no more, or is about to come back.
const RETRY_REQUEST: Duration = Duration::from_millis(5);

impl Endpoint {
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
        self.listen_for_mads(&state);
        Ok(())
    }

    /// Requests that come by packets come here as well.
    fn listen_for_mads(self: &Arc<Self>, state: &State) {
        let Some(claim) = &state.claim else { return };
        let Addr::Ip(addr) = claim.binding.addr else {
            return;
        };
        if !self.cm.may_be_asked_by_packets(addr.ip()) {
            return;
        }
        match self.cm.hub() {
            Ok(hub) => {
                let listener: Arc<dyn Listener> = Arc::clone(self) as _;
                hub.listen(claim, Arc::downgrade(&listener));
            }
            // Those of this host still reach it.
            Err(Errno(errno)) => tracing::warn!(
                "nobody on another host reaches the listener at {addr}, because the way by packets cannot be opened: \
                 errno {errno}"
            ),
        }
    }

    /// Requests a connection.
    pub(crate) fn connect(self: &Arc<Self>, request: Request) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::RouteResolved {
            return Err(INVALID);
        }
        state.phase = Phase::ReqSent;
        state.ends.local = request.qp;
        state.ends.params = request.params;
        state.ends.path_mtu = request.path_mtu;
        if let Addr::Ip(dst) = request.dst
            && let Some(gid) = self.cm.gid_by_packets(dst.ip())
        {
            return self.request_by_mads(&mut state, request, gid);
        }
        state.request = Some(request);
        self.start_response_timer(&mut state);
        self.send_request(&mut state);
        Ok(())
    }

    fn request_by_mads(
        self: &Arc<Self>,
        state: &mut State,
        request: Request,
        gid: [u8; 16],
    ) -> Result {
        let consumer: Arc<dyn Consumer> = Arc::clone(self) as _;
        let connection = self
            .cm
            .hub()
            .and_then(|hub| hub.connect(request, gid, Arc::downgrade(&consumer)));
        if connection.is_err() {
            state.phase = Phase::RouteResolved;
        }
        state.connection = Some(connection?);
        Ok(())
    }

    /// Sends the REQ, if the listener can be reached.
    pub(super) fn send_request(self: &Arc<Self>, state: &mut State) {
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
                self.cm
                    .service
                    .after(RETRY_REQUEST, self, Alarm::RetryRequest);
            }
            Err(Unreached::Refused) if self.cm.ports.opens_soon(self.port_space, request.dst) => {
                state.request = Some(request);
                self.cm
                    .service
                    .after(RETRY_REQUEST, self, Alarm::RetryRequest);
            }
            Err(Unreached::Refused) => {
                self.rejected(state, reason::INVALID_SERVICE_ID, Vec::new());
            }
            Err(Unreached::Failed(Errno(errno))) => {
                self.fail(state, RDMA_CM_EVENT_UNREACHABLE, -errno);
            }
        }
    }

    /// Accepts the request: sends a REP.
    pub(crate) fn accept(self: &Arc<Self>, reply: Reply) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::ReqReceived {
            return Err(INVALID);
        }
        state.ends.local = reply.qp;
        state.ends.params.responder_resources = reply.params.responder_resources;
        state.ends.params.initiator_depth = reply.params.initiator_depth;
        self.send(&state, &Message::Reply(reply))?;
        if self.is_datagram {
            state.phase = Phase::Established;
            self.drop_carrier(&mut state);
        } else {
            state.phase = Phase::RepSent;
            self.start_response_timer(&mut state);
        }
        Ok(())
    }

    /// Rejects a request or a reply.
    pub(crate) fn reject(self: &Arc<Self>, reason: u16, private_data: Vec<u8>) -> Result {
        let mut state = lock(&self.state);
        if !matches!(state.phase, Phase::ReqReceived | Phase::RepReceived) {
            return Err(INVALID);
        }
        let message = Message::Reject {
            reason,
            private_data,
        };
        let sent = self.send(&state, &message);
        state.phase = Phase::Failed;
        self.drop_carrier(&mut state);
        sent
    }

    /// Says that this end is ready as well.
    pub(crate) fn establish(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        if state.phase != Phase::RepReceived {
            return Err(INVALID);
        }
        self.send(&state, &Message::ReadyToUse)?;
        state.phase = Phase::Established;
        state.response_timer += 1;
        Ok(())
    }

    /// The program knows that the connection is in use, before the peer said so (`rdma_notify(3)`).
    pub(crate) fn notify(self: &Arc<Self>) -> Result {
        let mut state = lock(&self.state);
        match state.phase {
            Phase::RepSent => {
                if let Some(connection) = &state.connection {
                    connection.notice_established();
                }
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
            Phase::Established | Phase::RepSent | Phase::RepReceived
        ) || self.is_datagram
        {
            return state.phase == Phase::DreqSent;
        }
        let sent = self.send(&state, &Message::Disconnect);
        state.phase = Phase::DreqSent;
        if sent.is_err() {
            self.disconnected(&mut state);
        } else {
            self.start_response_timer(&mut state);
        }
        true
    }

    /// Ends everything, as `rdma_destroy_id` does: the peer hears of it, the program does not.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        let farewell = match state.phase {
            Phase::ReqSent => Some(reject_with(reason::TIMEOUT)),
            Phase::Accepted | Phase::ReqReceived | Phase::RepSent | Phase::RepReceived => {
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
            if let Some(hub) = self.cm.started_hub() {
                hub.unlisten(claim);
            }
        }
        state.phase = Phase::Closed;
        state.request = None;
        self.drop_carrier(&mut state);
        if let Some(claim) = state.claim.take() {
            self.cm.ports.release(&claim);
        }
        let channel = Arc::clone(&state.channel);
        drop(state);
        for event in channel.take(|event| Arc::ptr_eq(&event.endpoint, self)) {
            // Requests that the program did not get to see.
            if let Detail::Request { new, .. } = event.detail {
                new.close();
            }
        }
    }
}
