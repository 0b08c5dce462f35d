//! Ids: their life, their connections.

use std::ffi::{c_int, c_void};
use std::ptr;

use verbs_abi::*;

use super::returned::{or_minus_one, set_errno, with_id};
use crate::addr::Addr;
use crate::cm::Cm;
use crate::cm_event::{acknowledge_last, check_room, complete, next_request};
use crate::connect::{accept, bytes, connect, destroy, listen, new_id};
use crate::errno::{Errno, INVALID, Result};
use crate::id::{ChannelHandle, CmId};
use crate::resolve::bind;
use crate::wire::reason;

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

/// Releases an id: `rdma_destroy_id(3)`. Waits until the id's events have been acknowledged.
pub unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(unsafe { destroy(id) })
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
            if event_follows || !id.channel()?.is_empty() {
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
            set_errno(errno);
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
