//! The C functions: which verb each of them is, and what C passes to it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use verbs_abi::*;

use super::edge::{Grh, In, InConst, InOut, OrMinusOne, Out, c_functions};
use super::{
    ah, cq, cq_ex, device, dm, domain, event, fast, flow, import, mr, mw, qp, qp_ex, query, srq,
    tags, wq, xrc,
};

type Made<T> = Result<*mut T, c_int>;
type Done = Result<(), c_int>;

c_functions! {
    pub(super) ibv_get_device_list => device::get_device_list, (count: Out<c_int>) -> Made<*mut ibv_device>;
    pub(super) ibv_free_device_list => device::free_device_list, (list: *mut *mut ibv_device) -> ();
    pub(super) ibv_get_device_name => device::get_device_name, (device: *mut ibv_device) -> *const c_char;
    pub(super) ibv_get_device_guid => device::get_device_guid, (device: *mut ibv_device) -> u64;
    pub(super) ibv_get_device_index => query::get_device_index, (device: *mut ibv_device) -> c_int;
    pub(super) ibv_open_device => device::open_device, (device: *mut ibv_device) -> Made<ibv_context>;
    pub(super) ibv_close_device => device::close_device, (context: *mut ibv_context) -> Done;
    pub(super) ibv_import_device => import::import_device, (fd: c_int) -> Made<ibv_context>;

    pub(super) ibv_query_device => query::query_device,
        (context: *mut ibv_context, attr: Out<ibv_device_attr>) -> Done;
    query_device_ex => query::query_device_ex,
        (context: *mut ibv_context, input: InConst<ibv_query_device_ex_input>, attr: *mut ibv_device_attr_ex,
         attr_size: usize) -> Done;
    query_rt_values => query::query_rt_values,
        (context: *mut ibv_context, values: InOut<ibv_values_ex>) -> Done;
    pub(super) ibv_query_port => query::query_port,
        (context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> Done;
    query_port => query::query_port_ex,
        (context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr, len: usize) -> Done;
    pub(super) ibv_query_gid => query::query_gid,
        (context: *mut ibv_context, port_num: u8, index: c_int, gid: Out<ibv_gid>) -> OrMinusOne;
    pub(super) _ibv_query_gid_ex => query::query_gid_ex,
        (context: *mut ibv_context, port_num: u32, index: u32, entry: Out<ibv_gid_entry>, flags: u32,
         entry_size: usize) -> Done;
    pub(super) _ibv_query_gid_table => query::query_gid_table,
        (context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32,
         entry_size: usize) -> isize;
    pub(super) ibv_query_gid_type => query::query_gid_type,
        (context: *mut ibv_context, port_num: u8, index: c_uint, gid_type: Out<u32>) -> OrMinusOne;
    pub(super) ibv_query_pkey => query::query_pkey,
        (context: *mut ibv_context, port_num: u8, index: c_int, pkey: Out<u16>) -> OrMinusOne;
    pub(super) ibv_get_pkey_index => query::get_pkey_index,
        (context: *mut ibv_context, port_num: u8, pkey: u16) -> OrMinusOne;
    pub(super) ibv_fork_init => query::fork_init, () -> c_int;
    pub(super) ibv_is_fork_initialized => query::is_fork_initialized, () -> ibv_fork_status;
    pub(super) ibv_wc_status_str => query::wc_status_str, (status: ibv_wc_status) -> *const c_char;
    pub(super) ibv_event_type_str => query::event_type_str, (event: ibv_event_type) -> *const c_char;
    pub(super) ibv_node_type_str => query::node_type_str, (node_type: ibv_node_type) -> *const c_char;
    pub(super) ibv_port_state_str => query::port_state_str, (state: ibv_port_state) -> *const c_char;

    pub(super) ibv_get_async_event => event::get_async_event,
        (context: *mut ibv_context, event: Out<ibv_async_event>) -> OrMinusOne;
    pub(super) ibv_ack_async_event => event::ack_async_event, (event: In<ibv_async_event>) -> ();

    pub(super) ibv_alloc_pd => domain::alloc_pd, (context: *mut ibv_context) -> Made<ibv_pd>;
    pub(super) ibv_import_pd => domain::import_pd, (context: *mut ibv_context, handle: u32) -> Made<ibv_pd>;
    pub(super) ibv_unimport_pd => domain::unimport_pd, (pd: *mut ibv_pd) -> ();
    pub(super) ibv_dealloc_pd => domain::dealloc_pd, (pd: *mut ibv_pd) -> Done;
    alloc_td => domain::alloc_td, (context: *mut ibv_context, init: In<ibv_td_init_attr>) -> Made<ibv_td>;
    dealloc_td => domain::dealloc_td, (td: *mut ibv_td) -> Done;
    alloc_parent_domain => domain::alloc_parent_domain,
        (context: *mut ibv_context, init: In<ibv_parent_domain_init_attr>) -> Made<ibv_pd>;

    pub(super) ibv_reg_mr => mr::reg_mr,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> Made<ibv_mr>;
    pub(super) ibv_reg_mr_iova => mr::reg_mr_iova,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> Made<ibv_mr>;
    pub(super) ibv_reg_mr_iova2 => mr::reg_mr_iova2,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> Made<ibv_mr>;
    pub(super) ibv_reg_dmabuf_mr => mr::reg_dmabuf_mr,
        (pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> Made<ibv_mr>;
    pub(super) ibv_rereg_mr => mr::rereg_mr,
        (mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
    pub(super) ibv_dereg_mr => mr::dereg_mr, (mr: *mut ibv_mr) -> Done;
    pub(super) ibv_import_mr => mr::import_mr, (pd: *mut ibv_pd, handle: u32) -> Made<ibv_mr>;
    pub(super) ibv_unimport_mr => mr::unimport_mr, (mr: *mut ibv_mr) -> ();
    advise_mr => mr::advise_mr,
        (pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sges: *mut ibv_sge, num_sges: u32) -> Done;
    alloc_null_mr => mr::alloc_null_mr, (pd: *mut ibv_pd) -> Made<ibv_mr>;

    alloc_dm => dm::alloc_dm, (context: *mut ibv_context, attr: In<ibv_alloc_dm_attr>) -> Made<ibv_dm>;
    free_dm => dm::free_dm, (dm: *mut ibv_dm) -> Done;
    reg_dm_mr => dm::reg_dm_mr,
        (pd: *mut ibv_pd, dm: *mut ibv_dm, offset: u64, length: usize, access: c_uint) -> Made<ibv_mr>;
    pub(super) memcpy_to_dm => dm::memcpy_to_dm,
        (dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> Done;
    pub(super) memcpy_from_dm => dm::memcpy_from_dm,
        (to: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> Done;
    pub(super) ibv_import_dm => dm::import_dm, (context: *mut ibv_context, handle: u32) -> Made<ibv_dm>;
    pub(super) ibv_unimport_dm => dm::unimport_dm, (dm: *mut ibv_dm) -> ();

    alloc_mw => mw::alloc_mw, (pd: *mut ibv_pd, mw_type: ibv_mw_type) -> Made<ibv_mw>;
    dealloc_mw => mw::dealloc_mw, (mw: *mut ibv_mw) -> Done;
    bind_mw => mw::bind_mw, (qp: *mut ibv_qp, mw: *mut ibv_mw, bind: In<ibv_mw_bind>) -> Done;

    pub(super) ibv_create_comp_channel => cq::create_comp_channel,
        (context: *mut ibv_context) -> Made<ibv_comp_channel>;
    pub(super) ibv_destroy_comp_channel => cq::destroy_comp_channel, (channel: *mut ibv_comp_channel) -> Done;
    pub(super) ibv_create_cq => cq::create_cq,
        (context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
         comp_vector: c_int) -> Made<ibv_cq>;
    create_cq_ex => cq_ex::create_cq_ex,
        (context: *mut ibv_context, init: In<ibv_cq_init_attr_ex>) -> Made<ibv_cq_ex>;
    pub(super) ibv_resize_cq => cq::resize_cq, (cq: *mut ibv_cq, cqe: c_int) -> Done;
    modify_cq => cq::modify_cq, (cq: *mut ibv_cq, attr: In<ibv_modify_cq_attr>) -> Done;
    pub(super) ibv_destroy_cq => cq::destroy_cq, (cq: *mut ibv_cq) -> Done;
    pub(super) ibv_get_cq_event => cq::get_cq_event,
        (channel: *mut ibv_comp_channel, cq: Out<*mut ibv_cq>, cq_context: Out<*mut c_void>) -> OrMinusOne;
    pub(super) ibv_ack_cq_events => cq::ack_cq_events, (cq: *mut ibv_cq, n: c_uint) -> ();

    pub(super) ibv_create_srq => srq::create_srq,
        (pd: *mut ibv_pd, init: InOut<ibv_srq_init_attr>) -> Made<ibv_srq>;
    create_srq_ex => srq::create_srq_ex,
        (context: *mut ibv_context, init: InOut<ibv_srq_init_attr_ex>) -> Made<ibv_srq>;
    pub(super) ibv_modify_srq => srq::modify_srq,
        (srq: *mut ibv_srq, attr: In<ibv_srq_attr>, mask: c_int) -> Done;
    pub(super) ibv_query_srq => srq::query_srq, (srq: *mut ibv_srq, attr: InOut<ibv_srq_attr>) -> Done;
    get_srq_num => srq::get_srq_num, (srq: *mut ibv_srq, number: InOut<u32>) -> Done;
    pub(super) ibv_destroy_srq => srq::destroy_srq, (srq: *mut ibv_srq) -> Done;
    post_srq_ops => tags::post_srq_ops,
        (srq: *mut ibv_srq, wr: *mut ibv_ops_wr, bad_wr: InOut<*mut ibv_ops_wr>) -> Done;
    open_xrcd => xrc::open_xrcd, (context: *mut ibv_context, init: In<ibv_xrcd_init_attr>) -> Made<ibv_xrcd>;
    close_xrcd => xrc::close_xrcd, (xrcd: *mut ibv_xrcd) -> Done;

    pub(super) ibv_create_qp => qp::create_qp, (pd: *mut ibv_pd, init: InOut<ibv_qp_init_attr>) -> Made<ibv_qp>;
    create_qp_ex => qp::create_qp_ex,
        (context: *mut ibv_context, init: InOut<ibv_qp_init_attr_ex>) -> Made<ibv_qp>;
    open_qp => qp::open_qp, (context: *mut ibv_context, attr: In<ibv_qp_open_attr>) -> Made<ibv_qp>;
    pub(super) ibv_query_qp => qp::query_qp,
        (qp: *mut ibv_qp, attr: Out<ibv_qp_attr>, mask: c_int, init: Out<ibv_qp_init_attr>) -> Done;
    pub(super) ibv_modify_qp => qp::modify_qp, (qp: *mut ibv_qp, attr: In<ibv_qp_attr>, mask: c_int) -> Done;
    pub(super) ibv_destroy_qp => qp::destroy_qp, (qp: *mut ibv_qp) -> Done;
    pub(super) ibv_qp_to_qp_ex => qp_ex::qp_to_qp_ex, (qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(super) ibv_query_qp_data_in_order => query::query_qp_data_in_order,
        (qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
    pub(super) ibv_query_ece => query::query_ece, (qp: *mut ibv_qp, ece: Out<ibv_ece>) -> Done;
    pub(super) ibv_set_ece => query::set_ece, (qp: *mut ibv_qp, ece: In<ibv_ece>) -> Done;
    pub(super) ibv_attach_mcast => ah::attach_mcast, (qp: *mut ibv_qp, gid: InConst<ibv_gid>, lid: u16) -> Done;
    pub(super) ibv_detach_mcast => ah::detach_mcast, (qp: *mut ibv_qp, gid: InConst<ibv_gid>, lid: u16) -> Done;

    pub(super) ibv_create_ah => ah::create_ah, (pd: *mut ibv_pd, attr: In<ibv_ah_attr>) -> Made<ibv_ah>;
    pub(super) ibv_destroy_ah => ah::destroy_ah, (ah: *mut ibv_ah) -> Done;
    pub(super) ibv_init_ah_from_wc => ah::init_ah_from_wc,
        (context: *mut ibv_context, port_num: u8, wc: In<ibv_wc>, grh: Grh, attr: Out<ibv_ah_attr>) -> OrMinusOne;
    pub(super) ibv_create_ah_from_wc => ah::create_ah_from_wc,
        (pd: *mut ibv_pd, wc: In<ibv_wc>, grh: Grh, port_num: u8) -> Made<ibv_ah>;

    create_flow => flow::create_flow, (qp: *mut ibv_qp, attr: *mut ibv_flow_attr) -> Made<ibv_flow>;
    destroy_flow => flow::destroy_flow, (flow: *mut ibv_flow) -> Done;
    create_wq => wq::create_wq, (context: *mut ibv_context, init: In<ibv_wq_init_attr>) -> Made<ibv_wq>;
    modify_wq => wq::modify_wq, (wq: *mut ibv_wq, attr: In<ibv_wq_attr>) -> Done;
    destroy_wq => wq::destroy_wq, (wq: *mut ibv_wq) -> Done;
    create_rwq_ind_table => wq::create_rwq_ind_table,
        (context: *mut ibv_context, init: In<ibv_rwq_ind_table_init_attr>) -> Made<ibv_rwq_ind_table>;
    destroy_rwq_ind_table => wq::destroy_rwq_ind_table, (table: *mut ibv_rwq_ind_table) -> Done;
}

/// What a program reaches through its context: the functions behind those of `verbs.h`.
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
    ops.poll_cq = Some(fast::poll_cq);
    ops.req_notify_cq = Some(fast::req_notify_cq);
    ops.post_send = Some(fast::post_send);
    ops.post_recv = Some(fast::post_recv);
    ops.post_srq_recv = Some(fast::post_srq_recv);
    ops.alloc_mw = Some(alloc_mw);
    ops.bind_mw = Some(bind_mw);
    ops.dealloc_mw = Some(dealloc_mw);
    abi
}
