//! The exported functions, and the labels in assembly that export them.

use rdmacm::abi::*;

// The traced functions replace the functions of the same names in `rdmacm::abi` and `rsocket::abi`.
use crate::traced::{
    raccept, rbind, rclose, rconnect, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_connect,
    rdma_create_ep, rdma_create_event_channel, rdma_create_id, rdma_create_qp, rdma_create_qp_ex,
    rdma_destroy_ep, rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp, rdma_disconnect,
    rdma_establish, rdma_get_cm_event, rdma_get_request, rdma_getaddrinfo, rdma_join_multicast,
    rdma_join_multicast_ex, rdma_leave_multicast, rdma_listen, rdma_migrate_id, rdma_notify,
    rdma_query_addrinfo, rdma_reject, rdma_resolve_addr, rdma_resolve_addrinfo, rdma_resolve_route,
    rdma_write_cm_event, repoll_create, repoll_ctl, repoll_wait, rfcntl, rgetpeername,
    rgetsockname, rgetsockopt, riomap, riounmap, riowrite, rlisten, rpoll, rread, rreadv, rrecv,
    rrecvfrom, rrecvmsg, rselect, rsend, rsendmsg, rsendto, rsetsockopt, rshutdown, rsocket,
    rwrite, rwritev,
};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Runs `at_load` when the library is loaded. `at_load` only records how to find the verbs, and does not
/// search for them yet.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    rdmacm::set_provider_finder(crate::verbs::find_provider);
}
