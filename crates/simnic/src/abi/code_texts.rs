//! The entry points that need no device: the texts of codes, and `ibv_fork_init`.

use std::ffi::{c_char, c_int};

use verbs_abi::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, strings};

/// Succeeds: registered memory of a simulation is not pinned, so a fork breaks nothing.
pub(super) unsafe extern "C" fn ibv_fork_init() -> c_int {
    0
}

pub(super) unsafe extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    strings::wc_status_str(status).as_ptr()
}

pub(super) unsafe extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    strings::event_type_str(event).as_ptr()
}

pub(super) unsafe extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    strings::node_type_str(node_type).as_ptr()
}

pub(super) unsafe extern "C" fn ibv_port_state_str(state: ibv_port_state) -> *const c_char {
    strings::port_state_str(state).as_ptr()
}
