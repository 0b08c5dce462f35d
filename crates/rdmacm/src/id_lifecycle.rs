//! Creation and destruction of ids, and of their connections.

use std::ffi::{c_int, c_void};

use verbs_abi::*;

use crate::addr::{self, IdAddress};
use crate::cm::Cm;
use crate::cm_event::{acknowledge_last_event, check_private_data_len};
use crate::endpoint::Endpoint;
use crate::errno::{INVALID, Result};
use crate::id::{ChannelHandle, CmId};
use crate::wire::{AcceptReply, NegotiatedParams, Request};

/// Default number of requests that a listener queues: that of `linux:drivers/infiniband/core/ucma.c`.
const DEFAULT_BACKLOG: usize = 1024;

/// Makes an id; it is synchronous if `channel` is NULL.
///
/// # Errors
/// `EINVAL` for an unknown port space, `ENODEV` if no device exists.
///
/// # Safety
/// `channel` is NULL or live.
pub unsafe fn new_id(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id> {
    if !matches!(ps, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB) {
        return Err(INVALID);
    }
    let cm = Cm::get_or_create()?;
    let sync = channel.is_null();
    let handle = if sync {
        ChannelHandle::create()?
    } else {
        channel
    };
    // SAFETY: contract of this function.
    unsafe {
        let channel = ChannelHandle::channel(handle)?;
        let endpoint = Endpoint::new(cm, ps, qp_type == IBV_QPT_UD, channel);
        Ok(CmId::create(endpoint, handle, sync, context, qp_type))
    }
}

/// Destroys an id: `rdma_destroy_id(3)`. Waits until its events have been acknowledged.
///
/// # Errors
/// `EINVAL` for NULL.
///
/// # Safety
/// `handle` is NULL or an id that is not used afterwards.
pub unsafe fn destroy_id(handle: *mut rdma_cm_id) -> Result {
    // SAFETY: contract of this function.
    let id = unsafe { CmId::borrow(handle) }?;
    id.endpoint.close();
    acknowledge_last_event(id);
    id.endpoint.wait_for_acknowledgements();
    // SAFETY: the id is not used afterwards, and a synchronous id has its own channel.
    unsafe {
        if id.lock_extra_fields().is_synchronous {
            ChannelHandle::destroy((*id.abi_ptr()).channel);
        }
        CmId::free(handle);
    }
    Ok(())
}

/// The parameters of a connection, with the program's values.
struct CallerConnParam {
    private_data: Vec<u8>,
    params: NegotiatedParams,
    local_qpn: u32,
}

/// Reads the parameters of a connection.
///
/// # Safety
/// `param` is NULL or valid.
unsafe fn read_conn_param(
    param: *const rdma_conn_param,
    kind: rdma_cm_event_type,
    id: &CmId,
) -> Result<CallerConnParam> {
    let qp = id.qp();
    // SAFETY: contract of this function.
    let (param, private_data) = unsafe {
        match param.as_ref() {
            Some(p) => (*p, copy_private_data(p.private_data, p.private_data_len)),
            None => {
                let mut default = rdma_conn_param::zeroed();
                default.initiator_depth = RDMA_MAX_INIT_DEPTH;
                default.responder_resources = RDMA_MAX_RESP_RES;
                default.retry_count = 7;
                default.rnr_retry_count = 7;
                (default, Vec::new())
            }
        }
    };
    // SAFETY: the id's live queue pair, if it has one.
    let (qpn, srq) = unsafe {
        match qp.as_ref() {
            Some(qp) => (qp.qp_num, u8::from(!qp.srq.is_null())),
            None => (param.qp_num, param.srq),
        }
    };
    let device = id.device_port_of_local_address();
    let is_datagram = id.is_datagram();
    let within = |asked: u8, max: u8, all: u8| asked == all || asked <= max;
    if !is_datagram
        && (!within(
            param.responder_resources,
            device.max_responder_resources,
            RDMA_MAX_RESP_RES,
        ) || !within(
            param.initiator_depth,
            device.max_initiator_depth,
            RDMA_MAX_INIT_DEPTH,
        ))
    {
        return Err(INVALID);
    }
    check_private_data_len(kind, id, private_data.len())?;
    Ok(CallerConnParam {
        private_data,
        params: NegotiatedParams {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq,
        },
        local_qpn: qpn,
    })
}

/// Copies private data.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes.
pub(crate) unsafe fn copy_private_data(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: contract of this function.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec()
}

/// Requests a connection, or the queue pair of a datagram service: `rdma_connect(3)`.
///
/// # Errors
/// `EINVAL` if the parameters or the state of the id do not allow it.
///
/// # Safety
/// `param` is NULL or valid.
pub unsafe fn connect(id: &CmId, param: *const rdma_conn_param) -> Result {
    // An id without a queue pair needs the number of the program's queue pair.
    if param.is_null() && id.qp().is_null() && !id.is_datagram() {
        return Err(INVALID);
    }
    let (Some(mut src), Some(mut dst)) = (id.source(), id.destination()) else {
        return Err(INVALID);
    };
    if !id.is_bound_to_device() {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    let mut given = unsafe { read_conn_param(param, RDMA_CM_EVENT_CONNECT_REQUEST, id) }?;
    let device = id.device_port_of_local_address();
    for end in [&mut src, &mut dst] {
        if let IdAddress::Ib(addr) = end {
            // The loopback address stands for the port itself, and messages name its GID.
            let of_port = id.endpoint.cm.device_port_for_address(IdAddress::Ib(*addr));
            addr.gid = of_port.gid(IdAddress::Ib(*addr));
        }
    }
    let (ece, private_data) = {
        let mut extra = id.lock_extra_fields();
        let mut private_data = extra.addrinfo_connect_data.clone();
        private_data.append(&mut given.private_data);
        check_private_data_len(RDMA_CM_EVENT_CONNECT_REQUEST, id, private_data.len())?;
        if given.params.initiator_depth == RDMA_MAX_INIT_DEPTH {
            given.params.initiator_depth = device.max_initiator_depth;
        }
        if given.params.responder_resources == RDMA_MAX_RESP_RES {
            given.params.responder_resources = device.max_responder_resources;
        }
        extra.initiator_depth = given.params.initiator_depth;
        extra.responder_resources = given.params.responder_resources;
        (extra.ece, private_data)
    };
    let psn = id.endpoint.connection_params().local_qp.first_psn_from_peer;
    let qp_type = id.qp_type();
    // A service id without a port space has no listener; a listener that receives it rejects the request.
    let port_space = dst
        .port_space_and_port(id.endpoint.port_space)
        .map_or(id.endpoint.port_space, |(port_space, _)| port_space);
    id.endpoint.connect(Request {
        port_space,
        qp_type,
        src,
        dst,
        qp: device.qp_address_of(src, given.local_qpn, psn),
        params: given.params,
        ece,
        path_mtu_code: path_mtu_code(id, dst),
        private_data,
    })?;
    id.lock_extra_fields().addrinfo_connect_data.clear();
    Ok(())
}

/// Returns the coded MTU of the path to `dst`: that of the port, or less if the IP packets to `dst` are smaller.
fn path_mtu_code(id: &CmId, dst: IdAddress) -> u8 {
    let of_port = id.device_port_of_local_address().active_mtu;
    let largest = match dst {
        IdAddress::Ip(dst) if id.endpoint.cm.gid_if_reached_by_packets(dst.ip()).is_some() => {
            addr::path_mtu_bytes_to(dst).unwrap_or(u32::MAX)
        }
        _ => u32::MAX,
    };
    let fits = (roce::path_mtu_within(largest) / 128).ilog2();
    u8::try_from(fits.min(of_port)).unwrap_or(0)
}

/// Listens for requests: `rdma_listen(3)`.
///
/// # Errors
/// `EINVAL` if the id is not bound, or is in use.
pub fn listen(id: &CmId, backlog: c_int) -> Result {
    let backlog = match usize::try_from(backlog) {
        Ok(n @ 1..=DEFAULT_BACKLOG) => n,
        _ => DEFAULT_BACKLOG,
    };
    id.endpoint.listen(backlog)
}

/// Accepts a connection: `rdma_accept(3)`.
///
/// # Errors
/// `EINVAL` if the parameters or the state of the id do not allow it; otherwise the error of connecting the queue pair.
///
/// # Safety
/// `param` is NULL or valid.
pub unsafe fn accept(id: &CmId, param: *const rdma_conn_param) -> Result {
    if param.is_null() && id.qp().is_null() {
        return Err(INVALID);
    }
    let kind = if id.is_datagram() {
        RDMA_CM_EVENT_ESTABLISHED
    } else {
        RDMA_CM_EVENT_CONNECT_RESPONSE
    };
    // SAFETY: contract of this function.
    let mut given = unsafe { read_conn_param(param, kind, id) }?;
    let device = id.device_port_of_local_address();
    let src = id.source().ok_or(INVALID)?;
    let ece = {
        let mut extra = id.lock_extra_fields();
        if given.params.initiator_depth == RDMA_MAX_INIT_DEPTH {
            given.params.initiator_depth = extra.initiator_depth.min(device.max_initiator_depth);
        }
        if given.params.responder_resources == RDMA_MAX_RESP_RES {
            given.params.responder_resources = extra
                .responder_resources
                .min(device.max_responder_resources);
        }
        extra.initiator_depth = given.params.initiator_depth;
        extra.responder_resources = given.params.responder_resources;
        extra.ece
    };
    let mut ends = id.endpoint.connection_params();
    ends.params.initiator_depth = given.params.initiator_depth;
    ends.params.responder_resources = given.params.responder_resources;
    if !id.is_datagram() {
        id.connect_qp(&ends)?;
    }
    let accepted = id.endpoint.accept(AcceptReply {
        qp: device.qp_address_of(src, given.local_qpn, ends.local_qp.first_psn_from_peer),
        params: given.params,
        ece,
        private_data: given.private_data,
    });
    if accepted.is_err() && !id.is_datagram() {
        let _ = id.move_qp_to_error_state();
    }
    accepted
}

/// Destroys an id with its queue pair and shared receive queue: `rdma_destroy_ep(3)`.
///
/// # Safety
/// As for [`destroy_id`].
pub unsafe fn destroy_with_queues(handle: *mut rdma_cm_id) {
    // SAFETY: contract of this function.
    unsafe {
        if let Ok(id) = CmId::borrow(handle) {
            id.destroy_qp();
            id.destroy_srq();
            let _ = destroy_id(handle);
        }
    }
}
