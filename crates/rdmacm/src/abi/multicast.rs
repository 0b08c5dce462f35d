//! Multicast functions of ids.

use std::ffi::c_void;
use std::sync::Arc;

use c_edge::{In, c_functions};
use verbs_abi::*;

use super::argument_types::{AddressArg, IdArg};
use crate::addr::{self, IdAddress};
use crate::cm_event::wait_for_outcome_if_synchronous;
use crate::endpoint::EventDetail;
use crate::errno::{Errno, INVALID, Result};
use crate::id::CmId;
use crate::multicast::GroupMembership;

c_functions! {
    /// Joins a group: `rdma_join_multicast(3)`. The outcome is an event.
    pub rdma_join_multicast => join_multicast, (id: IdArg<'_>, addr: AddressArg, context: *mut c_void) -> Result;

    /// Joins a group with extended attributes: `rdma_join_multicast_ex(3)`. The outcome is an event.
    pub rdma_join_multicast_ex => join_multicast_ex,
        (id: IdArg<'_>, mc_join_attr: In<'_, rdma_cm_join_mc_attr_ex>, context: *mut c_void) -> Result;

    /// Leaves a group: `rdma_leave_multicast(3)`.
    pub rdma_leave_multicast => leave_multicast, (id: IdArg<'_>, addr: AddressArg) -> Result;
}

fn join_multicast(id: IdArg<'_>, addr: AddressArg, context: *mut c_void) -> Result {
    join(id.get()?, addr.get()?, false, context)
}

fn join_multicast_ex(
    id: IdArg<'_>,
    attr: In<'_, rdma_cm_join_mc_attr_ex>,
    context: *mut c_void,
) -> Result {
    let id = id.get()?;
    let attr = attr.get()?;
    if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
        return Err(Errno(libc::ENOTSUP));
    }
    if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0
        || attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS == 0
        || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED
    {
        return Err(INVALID);
    }
    // SAFETY: NULL, or an address of the length of its family (`rdma_join_multicast_ex(3)`).
    let group = unsafe { addr::read_sockaddr(attr.addr) }.ok_or(INVALID)?;
    let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    join(id, group, send_only, context)
}

fn join(id: &CmId, addr: IdAddress, send_only: bool, context: *mut c_void) -> Result {
    if !id.is_bound_to_device() || !id.is_datagram() {
        return Err(INVALID);
    }
    let membership = Arc::new(GroupMembership::new(
        addr,
        context.expose_provenance(),
        send_only,
        id.device_port_of_local_address().link_layer,
    )?);
    id.lock_extra_fields()
        .memberships
        .push(Arc::clone(&membership));
    // No subnet manager is asked: every attached queue pair receives the messages to the group.
    id.endpoint.report_event(
        RDMA_CM_EVENT_MULTICAST_JOIN,
        0,
        EventDetail::JoinedGroup(membership),
    );
    wait_for_outcome_if_synchronous(id)
}

fn leave_multicast(id: IdArg<'_>, addr: AddressArg) -> Result {
    let id = id.get()?;
    let group = addr.get()?;
    let membership = {
        let memberships = &mut id.lock_extra_fields().memberships;
        let at = memberships.iter().position(|m| m.addr == group);
        memberships.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?)
    };
    // The queue pair is attached when the program takes the event.
    id.endpoint.remove_join_event(&membership);
    if !id.qp().is_null() && !membership.send_only {
        let gid = ibv_gid {
            raw: membership.mgid,
        };
        // SAFETY: the id's live queue pair. If the program had not taken the event, the queue pair is not attached, and
        // the call fails.
        unsafe {
            (id.device_port_of_local_address().verbs.ibv_detach_mcast)(
                id.qp(),
                &raw const gid,
                membership.mlid,
            )
        };
    }
    Ok(())
}
