//! Multicast groups.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libc::sockaddr;
use verbs_abi::*;

use super::returned::with_id;
use crate::addr::{self, Addr};
use crate::cm_event::complete;
use crate::endpoint::Detail;
use crate::errno::{Errno, INVALID, Result};
use crate::id::CmId;
use crate::multicast::Membership;

/// Joins a group: `rdma_join_multicast(3)`. Its outcome is an event.
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let group = addr::read(addr).ok_or(INVALID)?;
            join(id, group, false, context)
        })
    }
}

/// Joins a group in one of several ways: `rdma_join_multicast_ex(3)`. Its outcome is an event.
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let attr = mc_join_attr.as_ref().ok_or(INVALID)?;
            if attr.comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED {
                return Err(Errno(libc::ENOTSUP));
            }
            if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0
                || attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS == 0
                || attr.join_flags >= RDMA_MC_JOIN_FLAG_RESERVED
            {
                return Err(INVALID);
            }
            let group = addr::read(attr.addr).ok_or(INVALID)?;
            let send_only = attr.join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
            join(id, group, send_only, context)
        })
    }
}

fn join(id: &CmId, addr: Addr, send_only: bool, context: *mut c_void) -> Result {
    if !id.has_device() || !id.is_datagram() {
        return Err(INVALID);
    }
    let membership = Arc::new(Membership::new(
        addr,
        context.expose_provenance(),
        send_only,
        id.device().link_layer,
    )?);
    id.extra().memberships.push(Arc::clone(&membership));
    // There is nobody to be asked: whoever attaches a queue pair gets what is sent to the group.
    id.endpoint
        .report(RDMA_CM_EVENT_MULTICAST_JOIN, 0, Detail::Joined(membership));
    complete(id)
}

/// Leaves a group: `rdma_leave_multicast(3)`.
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: contract of this module.
    unsafe {
        with_id(id, |id| {
            let group = addr::read(addr).ok_or(INVALID)?;
            let membership = {
                let memberships = &mut id.extra().memberships;
                let at = memberships.iter().position(|m| m.addr == group);
                memberships.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?)
            };
            if !id.qp().is_null() && !membership.send_only {
                let gid = ibv_gid {
                    raw: membership.mgid,
                };
                // Where the event was not taken yet, the queue pair is not attached, and stays so.
                (id.device().verbs.ibv_detach_mcast)(id.qp(), &raw const gid, membership.mlid);
            }
            Ok(())
        })
    }
}
