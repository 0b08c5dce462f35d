//! The C functions that are symbols of libibverbs: the verb and the C arguments of each.

use std::ffi::{c_char, c_int, c_uint, c_void};

use verbs_abi::*;

use super::edge::{Grh, In, InConst, InOut, OrMinusOne, Out, control_verbs};
use super::{ah, cq, device, dm, domain, event, mr, qp, qp_ex, query, srq};

type HandleResult<T> = Result<*mut T, c_int>;
type VerbResult = Result<(), c_int>;

control_verbs! {
    pub(super) ibv_get_device_list => device::get_device_list, (count: Out<c_int>) -> HandleResult<*mut ibv_device>;
    pub(super) ibv_free_device_list => device::free_device_list, (list: *mut *mut ibv_device) -> ();
    pub(super) ibv_get_device_name => device::get_device_name, (device: *mut ibv_device) -> *const c_char;
    pub(super) ibv_get_device_guid => device::get_device_guid, (device: *mut ibv_device) -> u64;
    pub(super) ibv_get_device_index => query::get_device_index, (device: *mut ibv_device) -> c_int;
    pub(super) ibv_open_device => device::open_device, (device: *mut ibv_device) -> HandleResult<ibv_context>;
    pub(super) ibv_close_device => device::close_device, (context: *mut ibv_context) -> VerbResult;
    pub(super) ibv_import_device => device::import_device, (fd: c_int) -> HandleResult<ibv_context>;

    pub(super) ibv_query_device => query::query_device,
        (context: *mut ibv_context, attr: Out<ibv_device_attr>) -> VerbResult;
    pub(super) ibv_query_port => query::query_port,
        (context: *mut ibv_context, port_num: u8, attr: *mut ibv_port_attr) -> VerbResult;
    pub(super) ibv_query_gid => query::query_gid,
        (context: *mut ibv_context, port_num: u8, index: c_int, gid: Out<ibv_gid>) -> OrMinusOne;
    pub(super) _ibv_query_gid_ex => query::query_gid_ex,
        (context: *mut ibv_context, port_num: u32, index: u32, entry: Out<ibv_gid_entry>, flags: u32,
         entry_size: usize) -> VerbResult;
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

    pub(super) ibv_alloc_pd => domain::alloc_pd, (context: *mut ibv_context) -> HandleResult<ibv_pd>;
    pub(super) ibv_import_pd => domain::import_pd, (context: *mut ibv_context, handle: u32) -> HandleResult<ibv_pd>;
    pub(super) ibv_unimport_pd => domain::unimport_pd, (pd: *mut ibv_pd) -> ();
    pub(super) ibv_dealloc_pd => domain::dealloc_pd, (pd: *mut ibv_pd) -> VerbResult;

    pub(super) ibv_reg_mr => mr::reg_mr,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> HandleResult<ibv_mr>;
    pub(super) ibv_reg_mr_iova => mr::reg_mr_iova,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> HandleResult<ibv_mr>;
    pub(super) ibv_reg_mr_iova2 => mr::reg_mr_iova2,
        (pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> HandleResult<ibv_mr>;
    pub(super) ibv_reg_dmabuf_mr => mr::reg_dmabuf_mr,
        (pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> HandleResult<ibv_mr>;
    pub(super) ibv_rereg_mr => mr::rereg_mr,
        (mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
    pub(super) ibv_dereg_mr => mr::dereg_mr, (mr: *mut ibv_mr) -> VerbResult;
    pub(super) ibv_import_mr => mr::import_mr, (pd: *mut ibv_pd, handle: u32) -> HandleResult<ibv_mr>;
    pub(super) ibv_unimport_mr => mr::unimport_mr, (mr: *mut ibv_mr) -> ();

    pub(super) ibv_import_dm => dm::import_dm, (context: *mut ibv_context, handle: u32) -> HandleResult<ibv_dm>;
    pub(super) ibv_unimport_dm => dm::unimport_dm, (dm: *mut ibv_dm) -> ();

    pub(super) ibv_create_comp_channel => cq::create_comp_channel,
        (context: *mut ibv_context) -> HandleResult<ibv_comp_channel>;
    pub(super) ibv_destroy_comp_channel => cq::destroy_comp_channel, (channel: *mut ibv_comp_channel) -> VerbResult;
    pub(super) ibv_create_cq => cq::create_cq,
        (context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel,
         comp_vector: c_int) -> HandleResult<ibv_cq>;
    pub(super) ibv_resize_cq => cq::resize_cq, (cq: *mut ibv_cq, cqe: c_int) -> VerbResult;
    pub(super) ibv_destroy_cq => cq::destroy_cq, (cq: *mut ibv_cq) -> VerbResult;
    pub(super) ibv_get_cq_event => cq::get_cq_event,
        (channel: *mut ibv_comp_channel, cq: Out<*mut ibv_cq>, cq_context: Out<*mut c_void>) -> OrMinusOne;
    pub(super) ibv_ack_cq_events => cq::ack_cq_events, (cq: *mut ibv_cq, n: c_uint) -> ();

    pub(super) ibv_create_srq => srq::create_srq,
        (pd: *mut ibv_pd, init: InOut<ibv_srq_init_attr>) -> HandleResult<ibv_srq>;
    pub(super) ibv_modify_srq => srq::modify_srq,
        (srq: *mut ibv_srq, attr: In<ibv_srq_attr>, mask: c_int) -> VerbResult;
    pub(super) ibv_query_srq => srq::query_srq, (srq: *mut ibv_srq, attr: InOut<ibv_srq_attr>) -> VerbResult;
    pub(super) ibv_destroy_srq => srq::destroy_srq, (srq: *mut ibv_srq) -> VerbResult;

    pub(super) ibv_create_qp => qp::create_qp, (pd: *mut ibv_pd, init: InOut<ibv_qp_init_attr>) -> HandleResult<ibv_qp>;
    pub(super) ibv_query_qp => qp::query_qp,
        (qp: *mut ibv_qp, attr: Out<ibv_qp_attr>, mask: c_int, init: Out<ibv_qp_init_attr>) -> VerbResult;
    pub(super) ibv_modify_qp => qp::modify_qp, (qp: *mut ibv_qp, attr: In<ibv_qp_attr>, mask: c_int) -> VerbResult;
    pub(super) ibv_destroy_qp => qp::destroy_qp, (qp: *mut ibv_qp) -> VerbResult;
    pub(super) ibv_qp_to_qp_ex => qp_ex::qp_to_qp_ex, (qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    pub(super) ibv_query_qp_data_in_order => query::query_qp_data_in_order,
        (qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
    pub(super) ibv_query_ece => query::query_ece, (qp: *mut ibv_qp, ece: Out<ibv_ece>) -> VerbResult;
    pub(super) ibv_set_ece => query::set_ece, (qp: *mut ibv_qp, ece: In<ibv_ece>) -> VerbResult;
    pub(super) ibv_attach_mcast => ah::attach_mcast, (qp: *mut ibv_qp, gid: InConst<ibv_gid>, lid: u16) -> VerbResult;
    pub(super) ibv_detach_mcast => ah::detach_mcast, (qp: *mut ibv_qp, gid: InConst<ibv_gid>, lid: u16) -> VerbResult;

    pub(super) ibv_create_ah => ah::create_ah, (pd: *mut ibv_pd, attr: In<ibv_ah_attr>) -> HandleResult<ibv_ah>;
    pub(super) ibv_destroy_ah => ah::destroy_ah, (ah: *mut ibv_ah) -> VerbResult;
    pub(super) ibv_init_ah_from_wc => ah::init_ah_from_wc,
        (context: *mut ibv_context, port_num: u8, wc: In<ibv_wc>, grh: Grh, attr: Out<ibv_ah_attr>) -> OrMinusOne;
    pub(super) ibv_create_ah_from_wc => ah::create_ah_from_wc,
        (pd: *mut ibv_pd, wc: In<ibv_wc>, grh: Grh, port_num: u8) -> HandleResult<ibv_ah>;
}
