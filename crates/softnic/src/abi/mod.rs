//! The C ABI: libibverbs' entry points over the software NIC.
//!
//! Each function checks the pointers that C may leave NULL, converts, calls, and converts back: errno as the
//! man page of the function says. Handles are the addresses of this crate's objects, whose first fields are
//! the structures that C sees. Nothing here unwinds: the functions called return errors.

mod cq_ex;
mod device;
mod device_ex;
mod dm;
mod domain;
mod fast;
mod flow;
mod import;
mod later;
mod live;
mod mr;
mod mw;
mod objects;
mod qp_ex;
mod srq_ops;
mod wq;
mod xrc;

pub(crate) use cq_ex::Polling;
pub(crate) use mw::bind_request;
pub(crate) use qp_ex::Builder;

use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::{LaterSymbols, Symbols};

use shm::shortage::errno_of;

/// The software NIC as a provider: the entry points of libibverbs, bound to this process's NIC.
#[must_use]
pub fn symbols() -> &'static Symbols {
    use device::*;
    use domain::{ibv_alloc_pd, ibv_dealloc_pd};
    use mr::*;
    use objects::*;
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

/// The software NIC's entry points that libibverbs got after version 1.1.
#[must_use]
pub fn later_symbols() -> &'static LaterSymbols {
    use dm::{ibv_import_dm, ibv_unimport_dm};
    use domain::{ibv_import_pd, ibv_unimport_pd};
    use import::ibv_import_device;
    use later::*;
    use mr::{ibv_import_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_unimport_mr};
    use qp_ex::ibv_qp_to_qp_ex;
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

/// Sets errno.
fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// A pointer to return: NULL with errno for an error.
fn or_null<T>(result: Result<*mut T, c_int>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// 0, or an errno.
fn or_errno(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// The object behind a handle, with a reference of its own; none if the handle is not live.
///
/// # Safety
/// Nobody destroys the object meanwhile; a `T` is behind an `Arc`.
unsafe fn share<T: 'static, A>(handle: *mut A) -> Option<Arc<T>> {
    if !live::is_live::<T, A>(handle) {
        return None;
    }
    // SAFETY: live, and so made by `live::hand_out`; contract of this function.
    unsafe {
        Arc::increment_strong_count(handle.cast::<T>());
        Some(Arc::from_raw(handle.cast::<T>()))
    }
}

/// Borrows the object behind a handle; none if the handle is not live.
///
/// # Safety
/// The object is not destroyed while the result is used.
unsafe fn borrow<'a, T: 'static, A>(handle: *mut A) -> Option<&'a T> {
    if !live::is_live::<T, A>(handle) {
        return None;
    }
    // SAFETY: live, and so the address of a `T`; contract of this function.
    unsafe { handle.cast::<T>().as_ref() }
}

/// Borrows the object behind a handle on the data path, where looking it up would cost too much.
///
/// # Safety
/// `handle` is NULL or live; as for [`borrow`].
#[inline(always)]
unsafe fn follow<'a, T: 'static, A>(handle: *mut A) -> Option<&'a T> {
    // SAFETY: contract of this function.
    unsafe { handle.cast::<T>().as_ref() }
}
