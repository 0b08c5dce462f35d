//! Resolution of an id's own address, its peer's address, and the route between them.
//!
//! The states and errors are those of `linux:drivers/infiniband/core/cma.c`. IP addresses are resolved by the host's
//! network, addresses of `AF_IB` by the port's GIDs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use verbs_abi::*;

use crate::addr::{self, IdAddress};
use crate::endpoint::{EndpointPhase, EventDetail};
use crate::errno::{Errno, INVALID, Result};
use crate::ib_addr::IbAddr;
use crate::id::CmId;
use crate::ports::IdBinding;

/// Binds an id to an address: `rdma_bind_addr(3)`.
///
/// # Errors
/// As for `rdma_bind_addr(3)`: `EADDRINUSE`, `EADDRNOTAVAIL`, and others.
pub fn bind(id: &CmId, addr: IdAddress) -> Result {
    let specific = !addr.is_any();
    match addr {
        IdAddress::Ip(addr) if specific && !addr::is_local(addr.ip())? => {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        IdAddress::Ib(addr)
            if specific
                && !(id.device_port_of_local_address().is_infiniband()
                    && host_has_gid(id, &addr)) =>
        {
            return Err(Errno(libc::ENODEV));
        }
        _ => {}
    }
    let (afonly, reuse) = {
        let extra = id.lock_extra_fields();
        (extra.afonly, extra.reuse_address)
    };
    let bound = id.endpoint.bind(IdBinding {
        addr,
        afonly,
        reuse_address: reuse,
    })?;
    id.set_source(bound);
    if specific {
        id.bind_to_device();
    }
    Ok(())
}

/// Whether a port of this host has the GID.
fn host_has_gid(id: &CmId, addr: &IbAddr) -> bool {
    let mut devices = id.endpoint.cm.device_ports.iter();
    devices.any(|device| device.has_gid(&addr.gid))
}

/// Resolves the peer's address: `rdma_resolve_addr(3)`.
///
/// # Errors
/// `EINVAL` if the id already has a peer, or is bound to an address of another family. An unreachable address is
/// reported as an event.
pub fn resolve_addr(id: &CmId, src: Option<IdAddress>, dst: IdAddress) -> Result {
    match (dst, src) {
        (IdAddress::Ib(dst), _) => resolve_ib(id, src, dst),
        (IdAddress::Ip(dst), None) => resolve_ip(id, None, dst),
        (IdAddress::Ip(dst), Some(IdAddress::Ip(src))) => resolve_ip(id, Some(src), dst),
        (IdAddress::Ip(_), Some(IdAddress::Ib(_))) => Err(INVALID),
    }
}

fn loopback_of_family(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

/// Resolves an IP address; addresses of this host need no route.
fn resolve_ip(id: &CmId, src: Option<SocketAddr>, dst: SocketAddr) -> Result {
    let mut dst = dst;
    if dst.ip().is_unspecified() {
        // As for sockets, the unspecified address means this host.
        dst.set_ip(loopback_of_family(dst.ip()));
    }
    let src = src.filter(|a| !a.ip().is_unspecified() || a.port() != 0);
    let is_multicast = dst.ip().to_canonical().is_multicast();
    let is_here = is_multicast || addr::is_local(dst.ip())?;
    let by_packets = id.endpoint.cm.gid_if_reached_by_packets(dst.ip()).is_some();
    // The source is the requested address or, as usual when a host talks to itself, the destination address.
    let from = |asked: Option<SocketAddr>| {
        let asked = asked.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        match asked {
            Some(ip) => ip,
            None if is_multicast => loopback_of_family(dst.ip()),
            // A port with a single loopback address does not have the whole loopback network.
            None if by_packets && dst.ip().is_loopback() => id
                .device_port_of_local_address()
                .loopback_address()
                .unwrap_or(dst.ip()),
            None => dst.ip(),
        }
    };
    // The source is the requested address, or the one that the routing table selects.
    let towards = |asked: Option<SocketAddr>| {
        let asked = asked.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        asked
            .or_else(|| addr::source_address_to(dst).ok())
            .unwrap_or(loopback_of_family(dst.ip()))
    };
    match id.source() {
        None => {
            let ip = if is_here { from(src) } else { towards(src) };
            let port = src.map_or(0, |a| a.port());
            bind(id, SocketAddr::new(ip, port).into())?;
        }
        Some(IdAddress::Ib(_)) => return Err(INVALID),
        Some(IdAddress::Ip(bound)) if bound.ip().is_unspecified() => {
            let ip = if is_here { from(src) } else { towards(src) };
            id.set_source(SocketAddr::new(ip, bound.port()).into());
        }
        Some(IdAddress::Ip(_)) => {}
    }
    id.set_destination(dst.into());
    let is_reached = is_here || (by_packets && has_route(dst));
    if !is_reached {
        id.endpoint
            .change_phase(&[EndpointPhase::Bound], EndpointPhase::Bound)?;
        id.endpoint.report_event(
            RDMA_CM_EVENT_ADDR_ERROR,
            -libc::EHOSTUNREACH,
            EventDetail::None,
        );
        return Ok(());
    }
    report_addr_resolved(id)
}

/// Returns true if the host has a route to `dst`.
fn has_route(dst: SocketAddr) -> bool {
    addr::source_address_to(dst).is_ok()
}

/// Resolves an address of `AF_IB` by the port that has its GID or is in its subnet.
fn resolve_ib(id: &CmId, src: Option<IdAddress>, dst: IbAddr) -> Result {
    let source = match id.source() {
        Some(source) => source,
        None => {
            let any = IbAddr::new([0; 16], dst.pkey);
            bind(id, src.unwrap_or(IdAddress::Ib(any)))?;
            id.source().ok_or(INVALID)?
        }
    };
    let IdAddress::Ib(source) = source else {
        return Err(INVALID);
    };
    // Checks the phase before anything changes.
    id.endpoint
        .change_phase(&[EndpointPhase::Bound], EndpointPhase::Bound)?;
    if !id.is_bound_to_device() {
        let source = if dst.is_any() {
            source.to_loopback()
        } else {
            IbAddr {
                gid: source_gid(id, dst)?,
                ..source
            }
        };
        id.set_source(IdAddress::Ib(source));
    }
    id.set_destination(IdAddress::Ib(dst));
    report_addr_resolved(id)
}

/// Returns the local GID from which `dst` is reached: the same GID, or one in its subnet (`cma_resolve_ib_dev`).
///
/// # Errors
/// `ENODEV` if the port has no such GID or is not in the partition.
fn source_gid(id: &CmId, dst: IbAddr) -> Result<[u8; 16]> {
    let device = id.device_port_of_local_address();
    if device.pkey_index(IdAddress::Ib(dst)).is_err() {
        return Err(Errno(libc::ENODEV));
    }
    if host_has_gid(id, &dst) {
        return Ok(dst.gid);
    }
    let mut gids = device.gids().iter();
    let found = gids.find(|gid| dst.shares_subnet(gid)).copied();
    found.ok_or(Errno(libc::ENODEV))
}

fn report_addr_resolved(id: &CmId) -> Result {
    id.endpoint
        .change_phase(&[EndpointPhase::Bound], EndpointPhase::AddrResolved)?;
    id.bind_to_device();
    id.endpoint
        .report_event(RDMA_CM_EVENT_ADDR_RESOLVED, 0, EventDetail::None);
    Ok(())
}

/// Resolves the route: `rdma_resolve_route(3)`.
///
/// # Errors
/// `EINVAL` if no address has been resolved.
pub fn resolve_route(id: &CmId) -> Result {
    if let Some(IdAddress::Ib(dst)) = id.destination() {
        id.endpoint
            .change_phase(&[EndpointPhase::AddrResolved], EndpointPhase::AddrResolved)?;
        if !id.device_port_of_local_address().is_infiniband() {
            // RoCE needs a network interface, which a GID does not determine.
            return Err(Errno(libc::ENODEV));
        }
        if !dst.is_any() && !host_has_gid(id, &dst) {
            // A subnet manager returns this error for an unknown GID.
            id.endpoint
                .report_event(RDMA_CM_EVENT_ROUTE_ERROR, -libc::EINVAL, EventDetail::None);
            return Ok(());
        }
    }
    id.endpoint
        .change_phase(&[EndpointPhase::AddrResolved], EndpointPhase::RouteResolved)?;
    id.set_path_record();
    id.endpoint
        .report_event(RDMA_CM_EVENT_ROUTE_RESOLVED, 0, EventDetail::None);
    Ok(())
}
