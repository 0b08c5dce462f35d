//! The C ABI: libibverbs' entry points for the simulation of the calling thread.
//!
//! A handle is the C structure, followed by the identity of its simulation and object. Calls from a thread without that
//! simulation fail with `EINVAL`; destroying frees the handle in any case. No function unwinds.

#![allow(unsafe_code)]

mod code_texts;
mod data_path;
mod device;
mod handle;
mod objects;

use verbs_abi::Symbols;

/// Returns the simulated NICs as a provider: each machine of the calling thread's cluster is a device.
#[must_use]
pub fn provider_symbols() -> Symbols {
    use code_texts::*;
    use device::*;
    use objects::*;
    Symbols {
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
    }
}
