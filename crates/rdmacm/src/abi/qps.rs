//! Queue pairs and shared receive queues of ids.

use std::ffi::c_int;

use c_edge::{InOut, Out, c_functions};
use verbs_abi::*;

use super::argument_types::IdArg;
use crate::errno::{INVALID, Result};
use crate::id::CmId;

c_functions! {
    /// Makes the queue pair of an id: `rdma_create_qp(3)`.
    pub rdma_create_qp => create_qp,
        (id: IdArg<'_>, pd: *mut ibv_pd, qp_init_attr: InOut<'_, ibv_qp_init_attr>) -> Result;

    /// Makes the queue pair of an id, with extended attributes: `rdma_create_qp_ex`.
    pub rdma_create_qp_ex => create_qp_ex, (id: IdArg<'_>, qp_init_attr: InOut<'_, ibv_qp_init_attr_ex>) -> Result;

    /// Destroys the queue pair of an id: `rdma_destroy_qp(3)`.
    pub rdma_destroy_qp => destroy_qp, (id: IdArg<'_>) -> ();

    /// Makes the shared receive queue of an id: `rdma_create_srq(3)`.
    pub rdma_create_srq => create_srq, (id: IdArg<'_>, pd: *mut ibv_pd, attr: InOut<'_, ibv_srq_init_attr>) -> Result;

    /// Makes the shared receive queue of an id, with extended attributes: `rdma_create_srq_ex`.
    pub rdma_create_srq_ex => create_srq_ex, (id: IdArg<'_>, attr: InOut<'_, ibv_srq_init_attr_ex>) -> Result;

    /// Destroys the shared receive queue of an id: `rdma_destroy_srq(3)`.
    pub rdma_destroy_srq => destroy_srq, (id: IdArg<'_>) -> ();

    /// Returns the attributes for moving a queue pair to `qp_attr->qp_state`: `rdma_init_qp_attr(3)`.
    pub rdma_init_qp_attr => init_qp_attr,
        (id: IdArg<'_>, qp_attr: InOut<'_, ibv_qp_attr>, qp_attr_mask: Out<'_, c_int>) -> Result;
}

fn create_qp(id: IdArg<'_>, pd: *mut ibv_pd, attr: InOut<'_, ibv_qp_init_attr>) -> Result {
    let id = id.get()?;
    // SAFETY: the objects that the program's attributes name are live (`rdma_create_qp(3)`).
    unsafe { make_qp(id, pd, attr.get()?) }
}

/// Makes the queue pair of an id, and updates `attr` to its actual attributes.
///
/// # Safety
/// `pd` is NULL or live; the objects that `attr` names are live.
pub(super) unsafe fn make_qp(id: &CmId, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result {
    let mut extended = ibv_qp_init_attr_ex::zeroed();
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
    // SAFETY: contract of this function.
    let made = unsafe { id.create_qp(&mut extended) };
    attr.qp_context = extended.qp_context;
    attr.send_cq = extended.send_cq;
    attr.recv_cq = extended.recv_cq;
    attr.srq = extended.srq;
    attr.cap = extended.cap;
    attr.qp_type = extended.qp_type;
    attr.sq_sig_all = extended.sq_sig_all;
    made
}

fn create_qp_ex(id: IdArg<'_>, attr: InOut<'_, ibv_qp_init_attr_ex>) -> Result {
    let id = id.get()?;
    // SAFETY: as in `create_qp`.
    unsafe { id.create_qp(attr.get()?) }
}

fn destroy_qp(id: IdArg<'_>) {
    if let Ok(id) = id.get() {
        id.destroy_qp();
    }
}

fn create_srq(id: IdArg<'_>, pd: *mut ibv_pd, attr: InOut<'_, ibv_srq_init_attr>) -> Result {
    let id = id.get()?;
    let attr = attr.get()?;
    let mut extended = ibv_srq_init_attr_ex::zeroed();
    extended.srq_context = attr.srq_context;
    extended.attr = attr.attr;
    extended.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    extended.srq_type = if id.qp_type() == IBV_QPT_XRC_RECV {
        IBV_SRQT_XRC
    } else {
        IBV_SRQT_BASIC
    };
    extended.pd = pd;
    // SAFETY: as in `create_qp`.
    let made = unsafe { id.create_srq(&mut extended) };
    attr.srq_context = extended.srq_context;
    attr.attr = extended.attr;
    made
}

fn create_srq_ex(id: IdArg<'_>, attr: InOut<'_, ibv_srq_init_attr_ex>) -> Result {
    let id = id.get()?;
    // SAFETY: as in `create_qp`.
    unsafe { id.create_srq(attr.get()?) }
}

fn destroy_srq(id: IdArg<'_>) {
    if let Ok(id) = id.get() {
        id.destroy_srq();
    }
}

fn init_qp_attr(id: IdArg<'_>, attr: InOut<'_, ibv_qp_attr>, mask: Out<'_, c_int>) -> Result {
    let id = id.get()?;
    let (attr, mask) = (attr.get()?, mask.get()?);
    if !id.is_bound_to_device() {
        return Err(INVALID);
    }
    let set;
    (*attr, set) = id.qp_attr(attr.qp_state)?;
    mask.write(set);
    Ok(())
}
