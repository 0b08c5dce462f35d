//! The C functions that programs reach through their context: the verb and the C arguments of each.

use std::ffi::{c_int, c_uint};

use verbs_abi::*;

use super::edge::{In, InConst, InOut, control_verbs};
use super::{
    cq, cq_ex, data_path, dm, domain, fault_injection, flow, mr, mw, qp, query, srq, tag_matching,
    wq, xrc,
};
use crate::faults;

type HandleResult<T> = Result<*mut T, c_int>;
type VerbResult = Result<(), c_int>;

control_verbs! {
    query_device_ex => query::query_device_ex,
        (context: *mut ibv_context, input: InConst<ibv_query_device_ex_input>, attr: *mut ibv_device_attr_ex,
         attr_size: usize) -> VerbResult;
    query_rt_values => query::query_rt_values,
        (context: *mut ibv_context, values: InOut<ibv_values_ex>) -> VerbResult;
    query_port => query::query_port_ex,
        (context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr, len: usize) -> VerbResult;

    alloc_td => domain::alloc_td, (context: *mut ibv_context, init: In<ibv_td_init_attr>) -> HandleResult<ibv_td>;
    dealloc_td => domain::dealloc_td, (td: *mut ibv_td) -> VerbResult;
    alloc_parent_domain => domain::alloc_parent_domain,
        (context: *mut ibv_context, init: In<ibv_parent_domain_init_attr>) -> HandleResult<ibv_pd>;

    advise_mr => mr::advise_mr,
        (pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sges: *mut ibv_sge, num_sges: u32) -> VerbResult;
    alloc_null_mr => mr::alloc_null_mr, (pd: *mut ibv_pd) -> HandleResult<ibv_mr>;

    alloc_dm => dm::alloc_dm, (context: *mut ibv_context, attr: In<ibv_alloc_dm_attr>) -> HandleResult<ibv_dm>;
    free_dm => dm::free_dm, (dm: *mut ibv_dm) -> VerbResult;
    reg_dm_mr => dm::reg_dm_mr,
        (pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint) -> HandleResult<ibv_mr>;

    alloc_mw => mw::alloc_mw, (pd: *mut ibv_pd, mw_type: ibv_mw_type) -> HandleResult<ibv_mw>;
    dealloc_mw => mw::dealloc_mw, (mw: *mut ibv_mw) -> VerbResult;
    bind_mw => mw::bind_mw, (qp: *mut ibv_qp, mw: *mut ibv_mw, bind: In<ibv_mw_bind>) -> VerbResult;

    create_cq_ex => cq_ex::create_cq_ex,
        (context: *mut ibv_context, init: In<ibv_cq_init_attr_ex>) -> HandleResult<ibv_cq_ex>;
    modify_cq => cq::modify_cq, (cq: *mut ibv_cq, attr: In<ibv_modify_cq_attr>) -> VerbResult;

    create_srq_ex => srq::create_srq_ex,
        (context: *mut ibv_context, init: InOut<ibv_srq_init_attr_ex>) -> HandleResult<ibv_srq>;
    get_srq_num => srq::get_srq_num, (srq: *mut ibv_srq, number: InOut<u32>) -> VerbResult;
    post_srq_ops => tag_matching::post_srq_ops,
        (srq: *mut ibv_srq, wr: *mut ibv_ops_wr, bad_wr: InOut<*mut ibv_ops_wr>) -> VerbResult;
    open_xrcd => xrc::open_xrcd, (context: *mut ibv_context, init: In<ibv_xrcd_init_attr>) -> HandleResult<ibv_xrcd>;
    close_xrcd => xrc::close_xrcd, (xrcd: *mut ibv_xrcd) -> VerbResult;

    create_qp_ex => qp::create_qp_ex,
        (context: *mut ibv_context, init: InOut<ibv_qp_init_attr_ex>) -> HandleResult<ibv_qp>;
    open_qp => qp::open_qp, (context: *mut ibv_context, attr: In<ibv_qp_open_attr>) -> HandleResult<ibv_qp>;

    create_flow => flow::create_flow, (qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> HandleResult<ibv_flow>;
    destroy_flow => flow::destroy_flow, (flow: *mut ibv_flow) -> VerbResult;
    create_wq => wq::create_wq, (context: *mut ibv_context, init: In<ibv_wq_init_attr>) -> HandleResult<ibv_wq>;
    modify_wq => wq::modify_wq, (wq: *mut ibv_wq, attr: In<ibv_wq_attr>) -> VerbResult;
    destroy_wq => wq::destroy_wq, (wq: *mut ibv_wq) -> VerbResult;
    create_rwq_ind_table => wq::create_rwq_ind_table,
        (context: *mut ibv_context, init: In<ibv_rwq_ind_table_init_attr>) -> HandleResult<ibv_rwq_ind_table>;
    destroy_rwq_ind_table => wq::destroy_rwq_ind_table, (table: *mut ibv_rwq_ind_table) -> VerbResult;
}

/// Returns the functions that a program reaches through its context, behind those of `verbs.h`.
pub(super) fn verbs_ops() -> verbs_context {
    let mut abi = verbs_context::zeroed();
    abi.sz = size_of::<verbs_context>();
    abi.query_port = Some(query_port);
    abi.query_device_ex = Some(query_device_ex);
    abi.query_rt_values = Some(query_rt_values);
    abi.create_cq_ex = Some(create_cq_ex);
    abi.create_qp_ex = Some(create_qp_ex);
    abi.create_srq_ex = Some(create_srq_ex);
    abi.post_srq_ops = Some(post_srq_ops);
    abi.modify_cq = Some(modify_cq);
    abi.open_xrcd = Some(open_xrcd);
    abi.close_xrcd = Some(close_xrcd);
    abi.get_srq_num = Some(get_srq_num);
    abi.open_qp = Some(open_qp);
    abi.alloc_td = Some(alloc_td);
    abi.dealloc_td = Some(dealloc_td);
    abi.alloc_parent_domain = Some(alloc_parent_domain);
    abi.alloc_dm = Some(alloc_dm);
    abi.free_dm = Some(free_dm);
    abi.reg_dm_mr = Some(reg_dm_mr);
    abi.advise_mr = Some(advise_mr);
    abi.alloc_null_mr = Some(alloc_null_mr);
    abi.ibv_create_flow = Some(create_flow);
    abi.ibv_destroy_flow = Some(destroy_flow);
    abi.create_wq = Some(create_wq);
    abi.modify_wq = Some(modify_wq);
    abi.destroy_wq = Some(destroy_wq);
    abi.create_rwq_ind_table = Some(create_rwq_ind_table);
    abi.destroy_rwq_ind_table = Some(destroy_rwq_ind_table);
    let ops = &mut abi.context.ops;
    ops.poll_cq = Some(data_path::poll_cq);
    ops.req_notify_cq = Some(data_path::req_notify_cq);
    ops.post_send = Some(data_path::post_send);
    ops.post_recv = Some(data_path::post_recv);
    ops.post_srq_recv = Some(data_path::post_srq_recv);
    ops.alloc_mw = Some(alloc_mw);
    ops.bind_mw = Some(bind_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    if faults::has_plan() {
        fault_injection::install_faulty_ops(ops);
    }
    abi
}
