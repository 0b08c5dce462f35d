//! Event channels and events.

use std::ffi::{CStr, c_char, c_int};
use std::time::Duration;

use c_edge::{Out, c_functions};
use verbs_abi::*;

use super::argument_types::{ChannelArg, EventArg, IdArg};
use crate::cm::Cm;
use crate::cm_event::take_next_event;
use crate::endpoint::EventDetail;
use crate::errno::{Errno, INVALID, Result};
use crate::id::ChannelHandle;

/// Time that `rdma_get_cm_event` waits before it fails for a destroyed channel. Programs destroy a channel on which
/// another thread waits, and then exit. That thread must not return, and neither must a thread that calls slightly
/// later.
const DESTROYED_CHANNEL_WAIT: Duration = Duration::from_millis(500);

c_functions! {
    /// Makes an event channel: `rdma_create_event_channel(3)`. NULL with errno on failure.
    pub rdma_create_event_channel => create_event_channel, () -> Result<*mut rdma_event_channel>;

    /// Destroys an event channel: `rdma_destroy_event_channel(3)`.
    pub rdma_destroy_event_channel => ChannelArg::destroy, (channel: ChannelArg) -> ();

    /// Returns the next event: `rdma_get_cm_event(3)`.
    pub rdma_get_cm_event => get_cm_event, (channel: ChannelArg, event: Out<'_, *mut rdma_cm_event>) -> Result;

    /// Posts an event of the program to the channel of an id: `rdma_write_cm_event(3)`.
    pub rdma_write_cm_event => write_cm_event,
        (id: IdArg<'_>, event: rdma_cm_event_type, status: c_int, arg: u64) -> Result;

    /// Frees an event: `rdma_ack_cm_event(3)`.
    pub rdma_ack_cm_event => EventArg::acknowledge, (event: EventArg) -> Result;

    /// Returns the name of an event type: `rdma_event_str(3)`.
    pub rdma_event_str => event_name, (event: rdma_cm_event_type) -> *const c_char;
}

fn create_event_channel() -> Result<*mut rdma_event_channel> {
    // "Event channels … return NULL if an error occurred": this includes the lack of a device.
    Cm::get_or_create()?;
    ChannelHandle::create()
}

fn get_cm_event(channel: ChannelArg, event: Out<'_, *mut rdma_cm_event>) -> Result {
    let channel = channel.channel();
    if channel.as_ref().err() == Some(&Errno(libc::EBADF)) {
        // A thread that had called just before the destruction would wait, as rping's thread does while its process
        // ends.
        std::thread::sleep(DESTROYED_CHANNEL_WAIT);
    }
    let channel = channel?;
    let place = event.get()?;
    place.write(take_next_event(&channel)?);
    Ok(())
}

fn write_cm_event(id: IdArg<'_>, event: rdma_cm_event_type, status: c_int, arg: u64) -> Result {
    let id = id.get()?;
    // "This should be set to RDMA_CM_EVENT_USER."
    if event != RDMA_CM_EVENT_USER {
        return Err(INVALID);
    }
    id.endpoint
        .report_event(event, status, EventDetail::WrittenByProgram(arg));
    Ok(())
}

fn event_name(event: rdma_cm_event_type) -> *const c_char {
    event_str(event).as_ptr()
}

fn event_str(event: rdma_cm_event_type) -> &'static CStr {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        _ => c"UNKNOWN EVENT",
    }
}
