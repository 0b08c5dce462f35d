//! Events of ids as C structures, and the actions of the library that they cause.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use verbs_abi::*;

use crate::addr::IdAddress;
use crate::channel::EventChannel;
use crate::device_port::check_returned_errno;
use crate::endpoint::{Endpoint, EndpointEvent, EventDetail};
use crate::errno::{Errno, INVALID, Result};
use crate::id::{ChannelHandle, CmId};
use crate::multicast::GroupMembership;
use crate::wire::{NegotiatedParams, QpAddress, Request};

/// Lengths of the private data that a program gets with an event. As from the kernel, this is the capacity of the
/// message, padded with zeros ("may be larger than that requested", `rdma_get_cm_event(3)`). The lengths are those of
/// IBTA vol. 1, 12.6 and 12.11. In a request between IP addresses, the addresses occupy the first 36 bytes (annex A11).
mod private_data_len {
    pub(super) const IP_ADDRESSING: usize = 36;
    pub(super) const REQ: usize = 92;
    pub(super) const REP: usize = 196;
    pub(super) const REJ: usize = 148;
    pub(super) const SIDR_REQ: usize = 216;
    pub(super) const SIDR_REP: usize = 136;
}

/// Checks that `len` bytes of private data fit into the message of an event.
pub(crate) fn check_private_data_len(kind: rdma_cm_event_type, id: &CmId, len: usize) -> Result {
    if len <= max_private_data_len(kind, id) {
        Ok(())
    } else {
        Err(INVALID)
    }
}

fn max_private_data_len(kind: rdma_cm_event_type, id: &CmId) -> usize {
    let addressing = match id.source() {
        Some(IdAddress::Ib(_)) => 0,
        _ => private_data_len::IP_ADDRESSING,
    };
    match (kind, id.is_datagram()) {
        (RDMA_CM_EVENT_CONNECT_REQUEST, false) => private_data_len::REQ - addressing,
        (RDMA_CM_EVENT_CONNECT_REQUEST, true) => private_data_len::SIDR_REQ - addressing,
        (RDMA_CM_EVENT_CONNECT_RESPONSE, _) => private_data_len::REP,
        (RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_UNREACHABLE, true) => private_data_len::SIDR_REP,
        (RDMA_CM_EVENT_REJECTED, _) => private_data_len::REJ,
        _ => 0,
    }
}

/// An event; the program's handle points to its first field.
#[repr(C)]
struct CmEvent {
    abi: rdma_cm_event,
    endpoint: Arc<Endpoint>,
    private_data: [u8; 256],
}

/// Returns the id of an endpoint; `None` if it has none.
fn id_of_endpoint(endpoint: &Endpoint) -> Option<&CmId> {
    // SAFETY: an endpoint names the id that was made for it. The id is freed only after its last event was reported:
    // `id_lifecycle::destroy_id` closes the endpoint and waits until its events have been acknowledged.
    unsafe { CmId::borrow(ptr::with_exposed_provenance_mut(endpoint.cm_id_address())) }.ok()
}

/// Returns the next event for the program. Waits for it unless the channel's descriptor has `O_NONBLOCK`.
///
/// # Errors
/// `EAGAIN` if the channel is empty and the descriptor does not block, `EINTR` after a signal whose
/// handler has no `SA_RESTART`.
pub fn take_next_event(channel: &EventChannel<EndpointEvent>) -> Result<*mut rdma_cm_event> {
    loop {
        let event = channel.next(|event| {
            // The queue is still locked here, so no thread can destroy the id in between.
            event.endpoint.count_reported_event();
            make_id_for_request_event(event);
        })?;
        let endpoint = Arc::clone(&event.endpoint);
        match id_of_endpoint(&endpoint).and_then(|id| act_on_and_convert_event(id, event)) {
            Some(event) => return Ok(Box::into_raw(event).cast()),
            None => endpoint.count_acknowledged_event(),
        }
    }
}

/// Makes the id of a requested connection, so that later events find it.
fn make_id_for_request_event(event: &EndpointEvent) {
    if let EventDetail::Request { new, .. } = &event.detail
        && let Some(listener) = id_of_endpoint(&event.endpoint)
    {
        let (channel, context) = (listener.channel_handle(), listener.context());
        // SAFETY: a live listener's channel is live.
        unsafe { CmId::create(Arc::clone(new), channel, false, context, listener.qp_type()) };
    }
}

/// Performs the library's action for the event, and makes the C event. `None` if the program must not see the event.
fn act_on_and_convert_event(id: &CmId, event: EndpointEvent) -> Option<Box<CmEvent>> {
    let mut abi = rdma_cm_event::zeroed();
    abi.id = id.abi_ptr();
    abi.event = event.kind;
    abi.status = event.status;
    let mut made = Box::new(CmEvent {
        abi,
        endpoint: event.endpoint,
        private_data: [0; 256],
    });
    match event.detail {
        EventDetail::None => {}
        EventDetail::Connection {
            qpn,
            params,
            private_data,
        } => made.set_connection(id, qpn, params, &private_data),
        EventDetail::Datagram { qp, private_data } => made.set_datagram(id, &qp, &private_data),
        EventDetail::Request { new, request } => {
            let new_id = id_of_endpoint(&new)?;
            if let Err(Errno(errno)) = set_up_requested_id(id, new_id, &request) {
                tracing::warn!("a connection request is lost: errno {errno}");
                new.close();
                // SAFETY: the program has not seen the id yet.
                unsafe { CmId::free(new_id.abi_ptr()) };
                return None;
            }
            made.abi.listen_id = id.abi_ptr();
            made.abi.id = new_id.abi_ptr();
            let ends = new.connection_params();
            if id.is_datagram() {
                made.set_datagram(new_id, &QpAddress::default(), &request.private_data);
            } else {
                made.set_connection(
                    new_id,
                    ends.remote_qp.qpn,
                    ends.params,
                    &request.private_data,
                );
            }
        }
        EventDetail::WrittenByProgram(arg) => {
            let param = (&raw mut made.abi.param).cast::<u64>();
            // SAFETY: the union of a live event, which is larger than `u64` and as aligned. Newer headers declare a
            // member `arg` in it.
            unsafe { param.write(arg) };
        }
        EventDetail::JoinedGroup(membership) => made.attach_and_set_joined_group(id, &membership),
    }
    match made.abi.event {
        RDMA_CM_EVENT_CONNECT_RESPONSE if !id.qp().is_null() => {
            match connect_qp_and_establish(id) {
                Ok(()) => made.abi.event = RDMA_CM_EVENT_ESTABLISHED,
                Err(Errno(errno)) => {
                    made.abi.event = RDMA_CM_EVENT_CONNECT_ERROR;
                    made.abi.status = -errno;
                    id.lock_extra_fields().qp_connect_failed = true;
                }
            }
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_DISCONNECTED
            if id.lock_extra_fields().qp_connect_failed =>
        {
            return None;
        }
        // The work requests that were posted are flushed.
        RDMA_CM_EVENT_REJECTED => {
            let _ = id.move_qp_to_error_state();
        }
        _ => {}
    }
    Some(made)
}

/// Moves the local queue pair to RTS and sends an RTU to the peer.
fn connect_qp_and_establish(id: &CmId) -> Result {
    let ready = id
        .connect_qp(&id.endpoint.connection_params())
        .and_then(|()| id.endpoint.establish());
    if ready.is_err() {
        let _ = id.move_qp_to_error_state();
    }
    ready
}

/// Sets addresses, device and parameters of the id of a requested connection.
fn set_up_requested_id(listener: &CmId, new: &CmId, request: &Request) -> Result {
    listener.endpoint.decrement_pending_requests();
    new.set_source(match request.dst {
        IdAddress::Ib(addr) => IdAddress::Ib(addr.as_request_destination()),
        addr @ IdAddress::Ip(_) => addr,
    });
    new.set_destination(match request.src {
        IdAddress::Ib(addr) => IdAddress::Ib(addr.as_request_source()),
        addr @ IdAddress::Ip(_) => addr,
    });
    new.bind_to_device();
    new.set_path_record();
    {
        let params = new.endpoint.connection_params().params;
        let mut extra = new.lock_extra_fields();
        extra.initiator_depth = params.initiator_depth;
        extra.responder_resources = params.responder_resources;
    }
    if listener.lock_extra_fields().is_synchronous {
        let handle = ChannelHandle::create()?;
        // SAFETY: the id was just made, so no other thread uses it.
        unsafe { new.migrate(handle) }?;
        new.lock_extra_fields().is_synchronous = true;
    }
    Ok(())
}

impl CmEvent {
    /// Copies private data into the event, padded to the capacity of its message.
    fn set_private_data(&mut self, id: &CmId, data: &[u8]) -> (*const c_void, u8) {
        let room = max_private_data_len(self.abi.event, id);
        let len = data.len().min(room);
        if let (Some(to), Some(from)) = (self.private_data.get_mut(..len), data.get(..len)) {
            to.copy_from_slice(from);
        }
        if room == 0 {
            (ptr::null(), 0)
        } else {
            (
                self.private_data.as_ptr().cast(),
                u8::try_from(room).unwrap_or(0),
            )
        }
    }

    fn set_connection(
        &mut self,
        id: &CmId,
        qpn: u32,
        params: NegotiatedParams,
        private_data: &[u8],
    ) {
        let (private_data, private_data_len) = self.set_private_data(id, private_data);
        self.abi.param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            flow_control: params.flow_control,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            srq: params.srq,
            qp_num: qpn,
        };
    }

    fn set_datagram(&mut self, id: &CmId, qp: &QpAddress, private_data: &[u8]) {
        let (private_data, private_data_len) = self.set_private_data(id, private_data);
        let mut ud = rdma_ud_param::zeroed();
        ud.private_data = private_data;
        ud.private_data_len = private_data_len;
        if self.abi.event == RDMA_CM_EVENT_ESTABLISHED
            && let Some(from) = id.source()
        {
            ud.ah_attr = id.device_port_of_local_address().address_vector(from, qp);
            ud.qp_num = qp.qpn;
            ud.qkey = qp.qkey;
        }
        self.abi.param.ud = ud;
    }

    /// Attaches the queue pair to a joined group, and fills in the address of the group for the program.
    fn attach_and_set_joined_group(&mut self, id: &CmId, membership: &GroupMembership) {
        let mut ud = rdma_ud_param::zeroed();
        ud.private_data = ptr::with_exposed_provenance(membership.context);
        if let Some(from) = id.source() {
            let group = QpAddress {
                lid: membership.mlid,
                gid: membership.mgid,
                ..QpAddress::default()
            };
            ud.ah_attr = id
                .device_port_of_local_address()
                .address_vector(from, &group);
            // The GRH is needed on either link layer, since a GID identifies the group.
            ud.ah_attr.is_global = 1;
            ud.qp_num = 0x00ff_ffff;
            ud.qkey = RDMA_UDP_QKEY;
        }
        self.abi.param.ud = ud;
        if !id.qp().is_null() && !membership.send_only {
            let gid = ibv_gid {
                raw: membership.mgid,
            };
            // SAFETY: the id's live queue pair.
            let attached = check_returned_errno(unsafe {
                (id.device_port_of_local_address().verbs.ibv_attach_mcast)(
                    id.qp(),
                    &raw const gid,
                    membership.mlid,
                )
            });
            if let Err(Errno(errno)) = attached {
                self.abi.event = RDMA_CM_EVENT_MULTICAST_ERROR;
                self.abi.status = -errno;
            }
        }
    }
}

/// For a synchronous id, waits for the outcome of a call; other ids get the outcome as an event.
pub(crate) fn wait_for_outcome_if_synchronous(id: &CmId) -> Result {
    if !id.lock_extra_fields().is_synchronous {
        return Ok(());
    }
    acknowledge_last_event(id);
    let event = take_next_event(&*id.channel()?)?;
    id.set_event(event);
    // SAFETY: the event was just made, and the id keeps it.
    let event = unsafe { *event };
    match event.status {
        0 => Ok(()),
        _ if event.event == RDMA_CM_EVENT_REJECTED => Err(Errno(libc::ECONNREFUSED)),
        status => Err(Errno(status.abs())),
    }
}

/// Acknowledges the last event of a synchronous id.
pub(crate) fn acknowledge_last_event(id: &CmId) {
    let event = id.event();
    if !event.is_null() {
        id.set_event(ptr::null_mut());
        // SAFETY: the event came from `take_next_event`. The id kept it and has just given it up.
        unsafe { acknowledge_event(event) };
    }
}

/// Returns the next request of a synchronous listener, and the id made for it: `rdma_get_request`. If the next event is
/// not a request, the listener keeps it.
pub(crate) fn wait_for_next_request(listener: &CmId) -> Result<(*mut rdma_cm_event, &CmId)> {
    acknowledge_last_event(listener);
    let event = take_next_event(&*listener.channel()?)?;
    // SAFETY: the event was just made.
    let about = unsafe { *event };
    if about.status != 0 || about.event != RDMA_CM_EVENT_CONNECT_REQUEST {
        listener.set_event(event);
        let status = about.status.abs();
        return Err(if status == 0 { INVALID } else { Errno(status) });
    }
    // SAFETY: a request event contains the id that was made for it, which the program has not seen yet.
    Ok((event, unsafe { CmId::borrow(about.id) }?))
}

/// Frees an event, which counts as its acknowledgement: `rdma_ack_cm_event(3)`.
///
/// # Safety
/// `event` came from [`take_next_event`], and is acknowledged only once.
pub unsafe fn acknowledge_event(event: *mut rdma_cm_event) {
    // SAFETY: contract of this function; the handle points to the first field.
    let event = unsafe { Box::from_raw(event.cast::<CmEvent>()) };
    event.endpoint.count_acknowledged_event();
}
