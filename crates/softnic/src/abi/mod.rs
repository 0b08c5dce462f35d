//! The C ABI: libibverbs' entry points over the software NIC.
//!
//! Each verb is a safe function in the file of its object. It checks the arguments that C may leave NULL, converts
//! them, calls the object, and reports failures as the man page does. [`entry_points`] and [`ops`] make the C functions
//! of the verbs, by the rules of [`edge`]. Handles are the addresses of this crate's objects, whose first fields are
//! the structures that C sees. [`live`](crate::live_handles) has the table of handles. Only the data path
//! ([`data_path`], [`cq_ex`], [`qp_ex`]) trusts a handle without a look-up. Nothing here unwinds: the called functions
//! return errors.

mod ah;
mod context;
mod cq;
#[allow(unsafe_code)]
mod cq_ex;
#[allow(unsafe_code)]
mod data_path;
mod device;
mod dm;
mod domain;
#[allow(unsafe_code)]
mod edge;
mod entry_points;
mod event;
#[allow(unsafe_code)]
mod fault_injection;
mod flow;
#[allow(unsafe_code)]
pub(crate) mod gsi;
mod mr;
mod mw;
#[allow(unsafe_code)]
pub mod newest;
mod ops;
mod qp;
#[allow(unsafe_code)]
mod qp_ex;
mod query;
mod require_unused;
mod srq;
mod tag_matching;
mod wq;
mod xrc;

use verbs_abi::{LaterSymbols, Symbols};

/// Returns the software NIC as a provider: the entry points of libibverbs, bound to this process's NIC.
#[must_use]
pub fn symbols() -> &'static Symbols {
    use entry_points::*;
    static SYMBOLS: Symbols = Symbols {
        ibv_get_device_list,
        ibv_free_device_list,
        ibv_get_device_name,
        ibv_get_device_guid,
        ibv_open_device,
        ibv_close_device,
        ibv_get_async_event,
        ibv_ack_async_event,
        ibv_query_device,
        ibv_query_port,
        ibv_query_gid,
        ibv_query_pkey,
        ibv_alloc_pd,
        ibv_dealloc_pd,
        ibv_reg_mr,
        ibv_rereg_mr,
        ibv_dereg_mr,
        ibv_create_comp_channel,
        ibv_destroy_comp_channel,
        ibv_create_cq,
        ibv_resize_cq,
        ibv_destroy_cq,
        ibv_get_cq_event,
        ibv_ack_cq_events,
        ibv_create_srq,
        ibv_modify_srq,
        ibv_query_srq,
        ibv_destroy_srq,
        ibv_create_qp,
        ibv_query_qp,
        ibv_modify_qp,
        ibv_destroy_qp,
        ibv_create_ah,
        ibv_destroy_ah,
        ibv_attach_mcast,
        ibv_detach_mcast,
        ibv_init_ah_from_wc,
        ibv_create_ah_from_wc,
        ibv_fork_init,
        ibv_wc_status_str,
        ibv_event_type_str,
        ibv_node_type_str,
        ibv_port_state_str,
    };
    &SYMBOLS
}

/// Returns the software NIC's entry points that libibverbs got after version 1.1.
#[must_use]
pub fn later_symbols() -> &'static LaterSymbols {
    use entry_points::*;
    static SYMBOLS: LaterSymbols = LaterSymbols {
        ibv_get_pkey_index,
        ibv_qp_to_qp_ex,
        ibv_reg_mr_iova,
        ibv_reg_mr_iova2,
        ibv_reg_dmabuf_mr,
        ibv_get_device_index,
        ibv_import_device,
        ibv_import_pd,
        ibv_unimport_pd,
        ibv_import_mr,
        ibv_unimport_mr,
        ibv_import_dm,
        ibv_unimport_dm,
        ibv_query_ece,
        ibv_set_ece,
        _ibv_query_gid_ex,
        _ibv_query_gid_table,
        ibv_is_fork_initialized,
        ibv_query_qp_data_in_order,
        ibv_query_gid_type,
    };
    &SYMBOLS
}
