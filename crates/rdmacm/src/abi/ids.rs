//! Ids: their life, their connections.

use std::ffi::{c_int, c_void};
use std::ptr;

use verbs_abi::*;

use super::addresses::bind;
use super::events::{acknowledge_last, check_room, complete, next_request};
use super::{channel_of, or_minus_one, with_id};
use crate::addr::Addr;
use crate::cm::Cm;
use crate::endpoint::{Endpoint, reason};
use crate::errno::{Errno, INVALID, Result};
use crate::id::{ChannelHandle, CmId};
use crate::wire::{Params, Reply, Request};

/// Requests that a listener holds unless it says otherwise: the default of `linux:drivers/infiniband/core/ucma.c`.
const DEFAULT_BACKLOG: usize = 1024;

/// Makes an id: `rdma_create_id(3)`.
pub unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    let qp_type = match ps {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    // SAFETY: contract of this module.
    let made = unsafe { new_id(channel, context, ps, qp_type) };
    // SAFETY: a place for the result.
    or_minus_one(made.and_then(|new| unsafe { give(id, new) }))
}

/// # Safety
/// `to` is NULL or a place for an id.
pub(super) unsafe fn give(to: *mut *mut rdma_cm_id, id: *mut rdma_cm_id) -> Result {
    if to.is_null() {
        // SAFETY: nobody has seen it.
        unsafe { destroy(id) }?;
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    unsafe { *to = id };
    Ok(())
}

/// A new id; synchronous without a channel.
///
/// # Safety
/// `channel` is NULL or live.
pub(crate) unsafe fn new_id(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id> {
    if !matches!(ps, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IPOIB | RDMA_PS_IB) {
        return Err(INVALID);
    }
    let cm = Cm::get()?;
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

/// Releases an id: `rdma_destroy_id(3)`. Waits until the id's events have been acknowledged.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(unsafe { destroy(id) })
}

/// # Safety
/// As for `rdma_destroy_id`.
pub(crate) unsafe fn destroy(handle: *mut rdma_cm_id) -> Result {
    // SAFETY: contract of this function.
    let id = unsafe { CmId::borrow(handle) }?;
    id.endpoint.close();
    acknowledge_last(id);
    id.endpoint.wait_for_acknowledgements();
    // SAFETY: the id is not used any more, and a synchronous id's channel is its own.
    unsafe {
        if id.extra().sync {
            ChannelHandle::destroy((*id.abi()).channel);
        }
        CmId::free(handle);
    }
    Ok(())
}

/// Moves an id to another channel, or makes it synchronous: `rdma_migrate_id(3)`.
pub unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let was_sync = id.extra().sync;
            let sync = channel.is_null();
            if sync && was_sync {
                return Err(INVALID);
            }
            let handle = if sync {
                ChannelHandle::create()?
            } else {
                channel
            };
            let to = ChannelHandle::channel(handle)?;
            id.endpoint.migrate(&to);
            let old = std::mem::replace(&mut (*id.abi()).channel, handle);
            id.extra().sync = sync;
            if was_sync {
                acknowledge_last(id);
                ChannelHandle::destroy(old);
            } else {
                // "…or until all events … have been acknowledged": none is on the old channel afterwards.
                id.endpoint.wait_for_acknowledgements();
            }
            Ok(())
        })
    }
}

/// The parameters of a connection, as the program gave them.
struct Given {
    private_data: Vec<u8>,
    params: Params,
    qpn: u32,
}

/// # Safety
/// `param` is NULL or valid.
unsafe fn read_param(
    param: *const rdma_conn_param,
    kind: rdma_cm_event_type,
    id: &CmId,
) -> Result<Given> {
    let qp = id.qp();
    // SAFETY: contract of this function.
    let (param, private_data) = unsafe {
        match param.as_ref() {
            Some(p) => (*p, bytes(p.private_data, p.private_data_len)),
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
    // SAFETY: the id's live queue pair, if there is one.
    let (qpn, srq) = unsafe {
        match qp.as_ref() {
            Some(qp) => (qp.qp_num, u8::from(!qp.srq.is_null())),
            None => (param.qp_num, param.srq),
        }
    };
    let device = id.device();
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
    check_room(kind, id, private_data.len())?;
    Ok(Given {
        private_data,
        params: Params {
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq,
        },
        qpn,
    })
}

/// # Safety
/// `data` is NULL or valid for `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: contract of this function.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec()
}

/// Asks for a connection, or looks a datagram service up: `rdma_connect(3)`. Its outcome is an event.
pub unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            connect(id, conn_param)?;
            complete(id)
        })
    }
}

/// # Safety
/// `param` is NULL or valid.
pub(crate) unsafe fn connect(id: &CmId, param: *const rdma_conn_param) -> Result {
    // Without a queue pair of its own, an id must be told the number of one.
    if param.is_null() && id.qp().is_null() && !id.is_datagram() {
        return Err(INVALID);
    }
    let (Some(mut src), Some(mut dst)) = (id.source(), id.destination()) else {
        return Err(INVALID);
    };
    if !id.has_device() {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    let mut given = unsafe { read_param(param, RDMA_CM_EVENT_CONNECT_REQUEST, id) }?;
    let device = id.device();
    for end in [&mut src, &mut dst] {
        if let Addr::Ib(addr) = end {
            // The loopback address stands for the port itself, and messages name its GID.
            addr.gid = device.gid(Addr::Ib(*addr));
        }
    }
    let (ece, private_data) = {
        let mut extra = id.extra();
        let mut private_data = extra.connect_data.clone();
        private_data.append(&mut given.private_data);
        check_room(RDMA_CM_EVENT_CONNECT_REQUEST, id, private_data.len())?;
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
    let psn = id.endpoint.ends().local.psn;
    // SAFETY: a field of the live id.
    let qp_type = unsafe { (*id.abi()).qp_type };
    // A service id of no port space is nobody's; whoever is asked for it refuses.
    let port_space = dst
        .service(id.endpoint.port_space)
        .map_or(id.endpoint.port_space, |(port_space, _)| port_space);
    id.endpoint.connect(Request {
        port_space,
        qp_type,
        src,
        dst,
        qp: device.address_of(src, given.qpn, psn),
        params: given.params,
        ece,
        private_data,
    })?;
    id.extra().connect_data.clear();
    Ok(())
}

/// Listens for requests: `rdma_listen(3)`.
pub unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            if id.source().is_none() {
                bind(id, Addr::NONE)?;
            }
            listen(id, backlog)
        })
    }
}

/// Listens for requests.
pub(crate) fn listen(id: &CmId, backlog: c_int) -> Result {
    let backlog = match usize::try_from(backlog) {
        Ok(n @ 1..=DEFAULT_BACKLOG) => n,
        _ => DEFAULT_BACKLOG,
    };
    id.endpoint.listen(backlog)
}

/// Takes the next request of a synchronous listener: `rdma_get_request(3)`.
pub unsafe extern "C" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(listen, |listener| {
            if !listener.extra().sync || id.is_null() {
                return Err(INVALID);
            }
            let event = next_request(listener)?;
            let new = (*event).id;
            let attr = listener.extra().qp_init_attr;
            if let Some(mut attr) = attr {
                let new_id = CmId::borrow(new)?;
                let pd = (*listener.abi()).pd;
                if let Err(e) = super::qps::create_qp(new_id, pd, &mut attr) {
                    (*listener.abi()).event = event;
                    return Err(e);
                }
            }
            (*new).event = event;
            *id = new;
            Ok(())
        })
    }
}

/// Grants a connection: `rdma_accept(3)`.
pub unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            accept(id, conn_param)?;
            if id.is_datagram() {
                if id.extra().sync {
                    acknowledge_last(id);
                }
                return Ok(());
            }
            complete(id)
        })
    }
}

/// # Safety
/// `param` is NULL or valid.
pub(crate) unsafe fn accept(id: &CmId, param: *const rdma_conn_param) -> Result {
    if param.is_null() && id.qp().is_null() {
        return Err(INVALID);
    }
    let kind = if id.is_datagram() {
        RDMA_CM_EVENT_ESTABLISHED
    } else {
        RDMA_CM_EVENT_CONNECT_RESPONSE
    };
    // SAFETY: contract of this function.
    let mut given = unsafe { read_param(param, kind, id) }?;
    let device = id.device();
    let src = id.source().ok_or(INVALID)?;
    let ece = {
        let mut extra = id.extra();
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
    let mut ends = id.endpoint.ends();
    ends.params.initiator_depth = given.params.initiator_depth;
    ends.params.responder_resources = given.params.responder_resources;
    if !id.is_datagram() {
        id.connect_qp(&ends)?;
    }
    let accepted = id.endpoint.accept(Reply {
        qp: device.address_of(src, given.qpn, ends.local.psn),
        params: given.params,
        ece,
        private_data: given.private_data,
    });
    if accepted.is_err() && !id.is_datagram() {
        let _ = id.fail_qp();
    }
    accepted
}

/// Refuses a connection: `rdma_reject(3)`.
pub unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe { reject(id, private_data, private_data_len, reason::CONSUMER_DEFINED) }
}

/// Refuses a connection because of its extended parameters: `rdma_get_remote_ece(3)`.
pub unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        reject(
            id,
            private_data,
            private_data_len,
            reason::VENDOR_OPTION_NOT_SUPPORTED,
        )
    }
}

/// # Safety
/// `id` is NULL or live; `private_data` is NULL or valid for `len` bytes.
unsafe fn reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8, why: u16) -> c_int {
    // SAFETY: contract of this function.
    unsafe {
        with_id(id, |id| {
            let private_data = bytes(private_data, len);
            let kind = if id.is_datagram() {
                RDMA_CM_EVENT_UNREACHABLE
            } else {
                RDMA_CM_EVENT_REJECTED
            };
            check_room(kind, id, private_data.len())?;
            id.endpoint.reject(why, private_data)
        })
    }
}

/// Completes a connection whose queue pair the id does not have: `rdma_establish(3)`.
pub unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            if id.qp().is_null() {
                id.endpoint.establish()
            } else {
                Err(INVALID)
            }
        })
    }
}

/// Says that a queue pair is in use before its connection was established: `rdma_notify(3)`.
pub unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| match event {
            IBV_EVENT_COMM_EST => id.endpoint.notify(),
            _ => Err(INVALID),
        })
    }
}

/// Ends a connection: `rdma_disconnect(3)`.
pub unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            if !id.has_device() {
                return Err(INVALID);
            }
            id.fail_qp()?;
            let event_follows = id.endpoint.disconnect();
            if event_follows || !channel_of(id)?.is_empty() {
                return complete(id);
            }
            Ok(())
        })
    }
}

/// Lists the open devices: `rdma_get_devices(3)`. NULL with errno on failure.
pub unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let listed = Cm::get().and_then(|cm| {
        // SAFETY: two pointers: the device and the end.
        let list: *mut *mut ibv_context =
            unsafe { libc::calloc(2, size_of::<*mut ibv_context>()) }.cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: just allocated.
        unsafe { *list = cm.device.context };
        Ok(list)
    });
    let (list, count) = match listed {
        Ok(list) => (list, 1),
        Err(Errno(errno)) => {
            super::set_errno(errno);
            (ptr::null_mut(), 0)
        }
    };
    // SAFETY: NULL, or a place for the count.
    if let Some(num_devices) = unsafe { num_devices.as_mut() } {
        *num_devices = count;
    }
    list
}

/// Frees a list of devices, which stay open: `rdma_free_devices(3)`.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: a list of `rdma_get_devices`, freed once.
    unsafe { libc::free(list.cast()) };
}
