//! Creation, connection and destruction of ids.

use std::ffi::{c_int, c_void};

use c_edge::{Out, c_functions};
use verbs_abi::*;

use super::argument_types::{BytesArg, ChannelArg, ConnParam, IdArg, OwnedId};
use crate::addr::IdAddress;
use crate::cm::Cm;
use crate::cm_event::{
    acknowledge_last_event, check_private_data_len, wait_for_next_request,
    wait_for_outcome_if_synchronous,
};
use crate::errno::{Errno, INVALID, Result};
use crate::id_lifecycle::listen as listen_at;
use crate::resolve::bind;
use crate::wire::reason;

c_functions! {
    /// Makes an id: `rdma_create_id(3)`.
    pub rdma_create_id => create_id,
        (channel: ChannelArg, id: Out<'_, *mut rdma_cm_id>, context: *mut c_void, ps: rdma_port_space) -> Result;

    /// Destroys an id: `rdma_destroy_id(3)`. Waits until the id's events have been acknowledged.
    pub rdma_destroy_id => OwnedId::destroy, (id: OwnedId) -> Result;

    /// Moves an id to another channel, or makes it synchronous: `rdma_migrate_id(3)`.
    pub rdma_migrate_id => migrate_id, (id: IdArg<'_>, channel: ChannelArg) -> Result;

    /// Requests a connection, or the queue pair of a datagram service: `rdma_connect(3)`. The outcome is an event.
    pub rdma_connect => connect, (id: IdArg<'_>, conn_param: ConnParam) -> Result;

    /// Listens for requests: `rdma_listen(3)`.
    pub rdma_listen => listen, (id: IdArg<'_>, backlog: c_int) -> Result;

    /// Returns the next request of a synchronous listener: `rdma_get_request(3)`.
    pub rdma_get_request => get_request, (listen: IdArg<'_>, id: Out<'_, *mut rdma_cm_id>) -> Result;

    /// Accepts a connection: `rdma_accept(3)`.
    pub rdma_accept => accept, (id: IdArg<'_>, conn_param: ConnParam) -> Result;

    /// Rejects a connection: `rdma_reject(3)`.
    pub rdma_reject => reject, (id: IdArg<'_>, private_data: BytesArg, private_data_len: u8) -> Result;

    /// Rejects a connection because of the peer's ECE options: `rdma_get_remote_ece(3)`.
    pub rdma_reject_ece => reject_ece, (id: IdArg<'_>, private_data: BytesArg, private_data_len: u8) -> Result;

    /// Completes a connection whose queue pair does not belong to the id: `rdma_establish(3)`.
    pub rdma_establish => establish, (id: IdArg<'_>) -> Result;

    /// Reports that a queue pair is in use before its connection was established: `rdma_notify(3)`.
    pub rdma_notify => notify, (id: IdArg<'_>, event: ibv_event_type) -> Result;

    /// Disconnects an id: `rdma_disconnect(3)`.
    pub rdma_disconnect => disconnect, (id: IdArg<'_>) -> Result;

    /// Lists the open devices: `rdma_get_devices(3)`. NULL with errno on failure.
    pub rdma_get_devices => get_devices, (num_devices: Out<'_, c_int>) -> Result<*mut *mut ibv_context>;
}

fn create_id(
    channel: ChannelArg,
    id: Out<'_, *mut rdma_cm_id>,
    context: *mut c_void,
    ps: rdma_port_space,
) -> Result {
    let qp_type = match ps {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    };
    return_id(id, channel.new_id(context, ps, qp_type)?)
}

/// Hands a new id to the program.
pub(super) fn return_id(to: Out<'_, *mut rdma_cm_id>, id: OwnedId) -> Result {
    match to.get() {
        Ok(place) => {
            place.write(id.into_handle());
            Ok(())
        }
        Err(errno) => {
            id.destroy()?;
            Err(Errno(errno))
        }
    }
}

fn migrate_id(id: IdArg<'_>, channel: ChannelArg) -> Result {
    let id = id.get()?;
    let was_sync = id.lock_extra_fields().is_synchronous;
    let sync = channel.is_null();
    if sync && was_sync {
        return Err(INVALID);
    }
    let channel = if sync { ChannelArg::create()? } else { channel };
    let to = channel.channel()?;
    id.endpoint.migrate(&to);
    let old = channel.replace_channel_of(id);
    id.lock_extra_fields().is_synchronous = sync;
    if was_sync {
        acknowledge_last_event(id);
        old.destroy();
    } else {
        // "…or until all events … have been acknowledged": afterwards the old channel has no event of this id.
        id.endpoint.wait_for_acknowledgements();
    }
    Ok(())
}

fn connect(id: IdArg<'_>, conn_param: ConnParam) -> Result {
    let id = id.get()?;
    conn_param.connect_id(id)?;
    wait_for_outcome_if_synchronous(id)
}

fn listen(id: IdArg<'_>, backlog: c_int) -> Result {
    let id = id.get()?;
    if id.source().is_none() {
        bind(id, IdAddress::UNBOUND)?;
    }
    listen_at(id, backlog)
}

fn get_request(listener: IdArg<'_>, id: Out<'_, *mut rdma_cm_id>) -> Result {
    let listener = listener.get()?;
    if !listener.lock_extra_fields().is_synchronous {
        return Err(INVALID);
    }
    let place = id.get()?;
    let (event, new) = wait_for_next_request(listener)?;
    let attr = listener.lock_extra_fields().qp_init_attr_for_requests;
    if let Some(mut attr) = attr {
        // SAFETY: the objects that the attributes of `rdma_create_ep` name must live as long as the listener
        // (`rdma_create_ep(3)`).
        let made = unsafe { super::qps::make_qp(new, listener.pd(), &mut attr) };
        if let Err(e) = made {
            listener.set_event(event);
            return Err(e);
        }
    }
    new.set_event(event);
    place.write(new.abi_ptr());
    Ok(())
}

fn accept(id: IdArg<'_>, conn_param: ConnParam) -> Result {
    let id = id.get()?;
    conn_param.accept_on_id(id)?;
    if id.is_datagram() {
        if id.lock_extra_fields().is_synchronous {
            acknowledge_last_event(id);
        }
        return Ok(());
    }
    wait_for_outcome_if_synchronous(id)
}

fn reject(id: IdArg<'_>, private_data: BytesArg, len: u8) -> Result {
    reject_with_reason(id, &private_data.copy(len), reason::CONSUMER_DEFINED)
}

fn reject_ece(id: IdArg<'_>, private_data: BytesArg, len: u8) -> Result {
    reject_with_reason(
        id,
        &private_data.copy(len),
        reason::VENDOR_OPTION_NOT_SUPPORTED,
    )
}

fn reject_with_reason(id: IdArg<'_>, private_data: &[u8], why: u16) -> Result {
    let id = id.get()?;
    let kind = if id.is_datagram() {
        RDMA_CM_EVENT_UNREACHABLE
    } else {
        RDMA_CM_EVENT_REJECTED
    };
    check_private_data_len(kind, id, private_data.len())?;
    id.endpoint.reject(why, private_data.to_vec())
}

fn establish(id: IdArg<'_>) -> Result {
    let id = id.get()?;
    if id.qp().is_null() {
        id.endpoint.establish()
    } else {
        Err(INVALID)
    }
}

fn notify(id: IdArg<'_>, event: ibv_event_type) -> Result {
    let id = id.get()?;
    match event {
        IBV_EVENT_COMM_EST => id.endpoint.establish_before_rtu(),
        _ => Err(INVALID),
    }
}

fn disconnect(id: IdArg<'_>) -> Result {
    let id = id.get()?;
    if !id.is_bound_to_device() {
        return Err(INVALID);
    }
    id.move_qp_to_error_state()?;
    let event_follows = id.endpoint.disconnect();
    if event_follows || !id.channel()?.is_empty() {
        return wait_for_outcome_if_synchronous(id);
    }
    Ok(())
}

fn get_devices(num_devices: Out<'_, c_int>) -> Result<*mut *mut ibv_context> {
    let contexts = Cm::get_or_create().map(|cm| {
        let mut contexts: Vec<_> = cm
            .device_ports
            .iter()
            .map(|device| device.context)
            .collect();
        contexts.dedup();
        contexts
    });
    let count = contexts.as_ref().map_or(0, Vec::len);
    let listed = contexts.and_then(|contexts| allocate_device_list(&contexts));
    let count = if listed.is_ok() { count } else { 0 };
    num_devices.put(c_int::try_from(count).unwrap_or(c_int::MAX));
    listed
}

/// A list of devices, for [`rdma_free_devices`].
fn allocate_device_list(contexts: &[*mut ibv_context]) -> Result<*mut *mut ibv_context> {
    let places = contexts.len() + 1;
    // SAFETY: zeroed room for the devices and a NULL behind them, which is written where there is some.
    unsafe {
        let list: *mut *mut ibv_context =
            libc::calloc(places, size_of::<*mut ibv_context>()).cast();
        if list.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        list.copy_from_nonoverlapping(contexts.as_ptr(), contexts.len());
        Ok(list)
    }
}

/// Frees a list of devices, which stay open: `rdma_free_devices(3)`.
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list came from `rdma_get_devices` and is freed once.
    unsafe { libc::free(list.cast()) };
}
