//! Resolution of an id's own address, its peer's address, and the route between them.
//!
//! The states and errors are those of `linux:drivers/infiniband/core/cma.c`. IP addresses are resolved by the host's
//! network, addresses of `AF_IB` by the port's GIDs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use verbs_abi::*;

use crate::addr::{self, Addr};
use crate::endpoint::{Detail, Phase};
use crate::errno::{Errno, INVALID, Result};
use crate::ib::IbAddr;
use crate::id::CmId;
use crate::ports::Binding;

/// Binds an id to an address: `rdma_bind_addr(3)`.
///
/// # Errors
/// As for `rdma_bind_addr(3)`: `EADDRINUSE`, `EADDRNOTAVAIL`, and others.
pub fn bind(id: &CmId, addr: Addr) -> Result {
    let specific = !addr.is_any();
    match addr {
        Addr::Ip(addr) if specific && !addr::is_local(addr.ip())? => {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        Addr::Ib(addr) if specific && !(id.device().is_infiniband() && has_gid(id, &addr)) => {
            return Err(Errno(libc::ENODEV));
        }
        _ => {}
    }
    let (afonly, reuse) = {
        let extra = id.extra();
        (extra.afonly, extra.reuse_address)
    };
    let bound = id.endpoint.bind(Binding {
        addr,
        afonly,
        reuse,
    })?;
    id.set_source(bound);
    if specific {
        id.bind_to_device();
    }
    Ok(())
}

/// Whether a port of this host has the GID.
fn has_gid(id: &CmId, addr: &IbAddr) -> bool {
    let mut devices = id.endpoint.cm.devices.iter();
    devices.any(|device| device.has_gid(&addr.gid))
}

/// Resolves the peer's address: `rdma_resolve_addr(3)`.
///
/// # Errors
/// `EINVAL` if the id already has a peer, or is bound to an address of another family. An unreachable address is
/// reported as an event.
pub fn resolve_addr(id: &CmId, src: Option<Addr>, dst: Addr) -> Result {
    match (dst, src) {
        (Addr::Ib(dst), _) => resolve_ib(id, src, dst),
        (Addr::Ip(dst), None) => resolve_ip(id, None, dst),
        (Addr::Ip(dst), Some(Addr::Ip(src))) => resolve_ip(id, Some(src), dst),
        (Addr::Ip(_), Some(Addr::Ib(_))) => Err(INVALID),
    }
}

fn loopback_like(ip: IpAddr) -> IpAddr {
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
        dst.set_ip(loopback_like(dst.ip()));
    }
    let src = src.filter(|a| !a.ip().is_unspecified() || a.port() != 0);
    let is_multicast = dst.ip().to_canonical().is_multicast();
    let is_here = is_multicast || addr::is_local(dst.ip())?;
    let by_packets = id.endpoint.cm.gid_by_packets(dst.ip()).is_some();
    // The source is the requested address or, as usual when a host talks to itself, the destination address.
    let from = |asked: Option<SocketAddr>| {
        let asked = asked.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        match asked {
            Some(ip) => ip,
            None if is_multicast => loopback_like(dst.ip()),
            // A port with a single loopback address does not have the whole loopback network.
            None if by_packets && dst.ip().is_loopback() => {
                id.device().loopback_address().unwrap_or(dst.ip())
            }
            None => dst.ip(),
        }
    };
    // The source is the requested address, or the one that the routing table selects.
    let towards = |asked: Option<SocketAddr>| {
        let asked = asked.map(|a| a.ip()).filter(|ip| !ip.is_unspecified());
        asked
            .or_else(|| addr::source_towards(dst).ok())
            .unwrap_or(loopback_like(dst.ip()))
    };
    match id.source() {
        None => {
            let ip = if is_here { from(src) } else { towards(src) };
            let port = src.map_or(0, |a| a.port());
            bind(id, SocketAddr::new(ip, port).into())?;
        }
        Some(Addr::Ib(_)) => return Err(INVALID),
        Some(Addr::Ip(bound)) if bound.ip().is_unspecified() => {
            let ip = if is_here { from(src) } else { towards(src) };
            id.set_source(SocketAddr::new(ip, bound.port()).into());
        }
        Some(Addr::Ip(_)) => {}
    }
    id.set_destination(dst.into());
    let is_reached = is_here || (by_packets && has_route(dst));
    if !is_reached {
        id.endpoint.advance(&[Phase::Bound], Phase::Bound)?;
        id.endpoint.report(
            RDMA_CM_EVENT_ADDR_ERROR,
            -libc::EHOSTUNREACH,
            Detail::Nothing,
        );
        return Ok(());
    }
    addr_resolved(id)
}

/// Returns true if the host has a route to `dst`.
fn has_route(dst: SocketAddr) -> bool {
    addr::source_towards(dst).is_ok()
}

/// Resolves an address of `AF_IB` by the port that has its GID or is in its subnet.
fn resolve_ib(id: &CmId, src: Option<Addr>, dst: IbAddr) -> Result {
    let source = match id.source() {
        Some(source) => source,
        None => {
            let any = IbAddr::new([0; 16], dst.pkey);
            bind(id, src.unwrap_or(Addr::Ib(any)))?;
            id.source().ok_or(INVALID)?
        }
    };
    let Addr::Ib(source) = source else {
        return Err(INVALID);
    };
    // Checks the phase before anything changes.
    id.endpoint.advance(&[Phase::Bound], Phase::Bound)?;
    if !id.has_device() {
        let source = if dst.is_any() {
            source.on_loopback()
        } else {
            IbAddr {
                gid: source_gid(id, dst)?,
                ..source
            }
        };
        id.set_source(Addr::Ib(source));
    }
    id.set_destination(Addr::Ib(dst));
    addr_resolved(id)
}

/// Returns the local GID from which `dst` is reached: the same GID, or one in its subnet (`cma_resolve_ib_dev`).
///
/// # Errors
/// `ENODEV` if the port has no such GID or is not in the partition.
fn source_gid(id: &CmId, dst: IbAddr) -> Result<[u8; 16]> {
    let device = id.device();
    if device.pkey_index(Addr::Ib(dst)).is_err() {
        return Err(Errno(libc::ENODEV));
    }
    if has_gid(id, &dst) {
        return Ok(dst.gid);
    }
    let mut gids = device.gids().iter();
    let found = gids.find(|gid| dst.shares_subnet(gid)).copied();
    found.ok_or(Errno(libc::ENODEV))
}

fn addr_resolved(id: &CmId) -> Result {
    id.endpoint.advance(&[Phase::Bound], Phase::AddrResolved)?;
    id.bind_to_device();
    id.endpoint
        .report(RDMA_CM_EVENT_ADDR_RESOLVED, 0, Detail::Nothing);
    Ok(())
}

/// Resolves the route: `rdma_resolve_route(3)`.
///
/// # Errors
/// `EINVAL` if no address has been resolved.
pub fn resolve_route(id: &CmId) -> Result {
    if let Some(Addr::Ib(dst)) = id.destination() {
        id.endpoint
            .advance(&[Phase::AddrResolved], Phase::AddrResolved)?;
        if !id.device().is_infiniband() {
            // RoCE needs a network interface, which a GID does not determine.
            return Err(Errno(libc::ENODEV));
        }
        if !dst.is_any() && !has_gid(id, &dst) {
            // A subnet manager returns this error for an unknown GID.
            id.endpoint
                .report(RDMA_CM_EVENT_ROUTE_ERROR, -libc::EINVAL, Detail::Nothing);
            return Ok(());
        }
    }
    id.endpoint
        .advance(&[Phase::AddrResolved], Phase::RouteResolved)?;
    id.set_path();
    id.endpoint
        .report(RDMA_CM_EVENT_ROUTE_RESOLVED, 0, Detail::Nothing);
    Ok(())
}
