//! Binding of ids, and resolution of peers and routes.

use std::ffi::c_int;

use c_edge::c_functions;

use super::argument_types::{AddressArg, IdArg};
use crate::addr::IdAddress;
use crate::cm_event::wait_for_outcome_if_synchronous;
use crate::errno::Result;
use crate::id::CmId;
use crate::resolve;

c_functions! {
    /// Binds an id to an address: `rdma_bind_addr(3)`.
    pub rdma_bind_addr => bind_addr, (id: IdArg<'_>, addr: AddressArg) -> Result;

    /// Resolves the peer's address: `rdma_resolve_addr(3)`. The outcome is an event.
    pub rdma_resolve_addr => resolve_addr,
        (id: IdArg<'_>, src_addr: AddressArg, dst_addr: AddressArg, timeout_ms: c_int) -> Result;

    /// Resolves the route: `rdma_resolve_route(3)`. The outcome is an event.
    pub rdma_resolve_route => resolve_route, (id: IdArg<'_>, timeout_ms: c_int) -> Result;

    /// Returns the port of the local address, big-endian: `rdma_get_src_port(3)`. For `AF_IB`, these are the lower 16
    /// bits of the service id.
    pub rdma_get_src_port => src_port_big_endian, (id: IdArg<'_>) -> u16;

    /// Returns the port of the peer's address, big-endian: `rdma_get_dst_port(3)`. For `AF_IB`, these are the lower 16
    /// bits of the service id.
    pub rdma_get_dst_port => dst_port_big_endian, (id: IdArg<'_>) -> u16;
}

fn bind_addr(id: IdArg<'_>, addr: AddressArg) -> Result {
    resolve::bind(id.get()?, addr.get()?)
}

fn resolve_addr(id: IdArg<'_>, src: AddressArg, dst: AddressArg, _timeout_ms: c_int) -> Result {
    let id = id.get()?;
    let dst = dst.get()?;
    resolve::resolve_addr(id, src.optional()?, dst)?;
    wait_for_outcome_if_synchronous(id)
}

fn resolve_route(id: IdArg<'_>, _timeout_ms: c_int) -> Result {
    let id = id.get()?;
    resolve::resolve_route(id)?;
    wait_for_outcome_if_synchronous(id)
}

fn src_port_big_endian(id: IdArg<'_>) -> u16 {
    big_endian_port(id.get().ok().and_then(CmId::source))
}

fn dst_port_big_endian(id: IdArg<'_>) -> u16 {
    big_endian_port(id.get().ok().and_then(CmId::destination))
}

/// Returns the port of an address, big-endian; 0 if `addr` is `None`.
fn big_endian_port(addr: Option<IdAddress>) -> u16 {
    addr.map_or(0, |addr| addr.reported_port().to_be())
}
