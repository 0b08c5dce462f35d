//! Endpoints: ids that one call makes and prepares.

use c_edge::{In, InOut, Out, c_functions};
use verbs_abi::*;

use super::argument_types::{ChannelArg, OwnedId};
use super::ids::return_id;
use crate::addr;
use crate::cm_event::wait_for_outcome_if_synchronous;
use crate::errno::{INVALID, Result};
use crate::id::CmId;
use crate::resolve::{bind, resolve_addr, resolve_route};

c_functions! {
    /// Makes a synchronous id and its queue pair from a result of `rdma_getaddrinfo`: `rdma_create_ep(3)`.
    pub rdma_create_ep => create_ep,
        (id: Out<'_, *mut rdma_cm_id>, res: In<'_, rdma_addrinfo>, pd: *mut ibv_pd,
         qp_init_attr: InOut<'_, ibv_qp_init_attr>) -> Result;

    /// Destroys an id with its queue pair and shared receive queue: `rdma_destroy_ep(3)`.
    pub rdma_destroy_ep => OwnedId::destroy_with_queues, (id: OwnedId) -> ();
}

fn create_ep(
    id: Out<'_, *mut rdma_cm_id>,
    res: In<'_, rdma_addrinfo>,
    pd: *mut ibv_pd,
    attr: InOut<'_, ibv_qp_init_attr>,
) -> Result {
    let res = res.get()?;
    let port_space = rdma_port_space::try_from(res.ai_port_space).map_err(|_| INVALID)?;
    let qp_type = ibv_qp_type::try_from(res.ai_qp_type).map_err(|_| INVALID)?;
    let new = ChannelArg::NULL.new_id(std::ptr::null_mut(), port_space, qp_type)?;
    let attr = attr.optional();
    let prepared = new.id().and_then(|id| {
        // SAFETY: the result came from `rdma_getaddrinfo`, so its addresses have the lengths of their families. The
        // objects that the attributes name are live (`rdma_create_ep(3)`).
        unsafe {
            if res.ai_flags & RAI_PASSIVE != 0 {
                set_up_passive_id(id, res, pd, attr.as_deref())
            } else {
                set_up_active_id(id, res, pd, attr)
            }
        }
    });
    if let Err(e) = prepared {
        new.destroy_with_queues();
        return Err(e);
    }
    return_id(id, new)
}

/// # Safety
/// As for `rdma_create_ep`.
unsafe fn set_up_passive_id(
    id: &CmId,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&ibv_qp_init_attr>,
) -> Result {
    // SAFETY: contract of this function.
    let src = unsafe { addr::read_sockaddr(res.ai_src_addr) };
    bind(id, src.ok_or(INVALID)?)?;
    if !pd.is_null() {
        id.set_pd(pd);
    }
    if let Some(attr) = attr {
        let mut attr = *attr;
        attr.qp_type = id.qp_type();
        id.lock_extra_fields().qp_init_attr_for_requests = Some(attr);
    }
    Ok(())
}

/// # Safety
/// As for `rdma_create_ep`.
unsafe fn set_up_active_id(
    id: &CmId,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result {
    // SAFETY: contract of this function.
    let (src, dst) = unsafe {
        (
            addr::read_sockaddr(res.ai_src_addr),
            addr::read_sockaddr(res.ai_dst_addr),
        )
    };
    resolve_addr(id, src, dst.ok_or(INVALID)?)?;
    wait_for_outcome_if_synchronous(id)?;
    resolve_route(id)?;
    wait_for_outcome_if_synchronous(id)?;
    if let Some(attr) = attr {
        attr.qp_type = id.qp_type();
        // SAFETY: contract of this function.
        unsafe { super::qps::make_qp(id, pd, attr) }?;
    }
    if !res.ai_connect.is_null() {
        // SAFETY: the private data has the length that the result states.
        let data =
            unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.lock_extra_fields().addrinfo_connect_data = data.to_vec();
    }
    Ok(())
}
