//! Address resolution: `rdma_getaddrinfo(3)`.
//!
//! All parts of a result are allocated by `malloc(3)`, because programs add addresses of their own.

use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::ptr;

use c_edge::{InConst, Out, c_functions};
use libc::{addrinfo, sockaddr, socklen_t};
use verbs_abi::*;

use super::argument_types::IdArg;
use crate::addr::{self, IdAddress};
use crate::address_list::AddressList;
use crate::cm_event::wait_for_outcome_if_synchronous;
use crate::device_port::DEFAULT_PKEY;
use crate::endpoint::EventDetail;
use crate::errno::{Errno, INVALID, Result};
use crate::ib_addr::IbAddr;

c_functions! {
    /// Resolves a node and a service: `rdma_getaddrinfo(3)`.
    pub rdma_getaddrinfo => getaddrinfo,
        (node: *const c_char, service: *const c_char, hints: InConst<'_, rdma_addrinfo>,
         res: Out<'_, *mut rdma_addrinfo>) -> Result;

    /// Resolves a node and a service, and reports the result as an event: `rdma_resolve_addrinfo(3)`. The name service
    /// is queried before the call returns. `RAI_SA` fails with EOPNOTSUPP, since no subnet administrator exists.
    pub rdma_resolve_addrinfo => resolve_addrinfo,
        (id: IdArg<'_>, node: *const c_char, service: *const c_char, hints: InConst<'_, rdma_addrinfo>) -> Result;

    /// Returns the result of an id's last `rdma_resolve_addrinfo`: `rdma_query_addrinfo(3)`. The program must free it.
    pub rdma_query_addrinfo => query_addrinfo, (id: IdArg<'_>, info: Out<'_, *mut rdma_addrinfo>) -> Result;
}

fn resolve_addrinfo(
    id: IdArg<'_>,
    node: *const c_char,
    service: *const c_char,
    hints: InConst<'_, rdma_addrinfo>,
) -> Result {
    let id = id.get()?;
    let mut hints = hints.optional().copied();
    let flags = hints.map_or(0, |hints| hints.ai_flags);
    if flags & RAI_SA != 0 {
        let both = flags & RAI_DNS != 0;
        return Err(if both {
            INVALID
        } else {
            Errno(libc::EOPNOTSUPP)
        });
    }
    if node.is_null() && service.is_null() {
        return Err(INVALID);
    }
    if let Some(hints) = &mut hints {
        hints.ai_flags &= !RAI_DNS;
    }
    // SAFETY: texts and hints are valid as the man page requires.
    let found = unsafe { resolve_to_rdma_addrinfo(node, service, hints.as_ref()) };
    let (kind, status) = match &found {
        Ok(_) => (RDMA_CM_EVENT_ADDRINFO_RESOLVED, 0),
        Err(Errno(errno)) => (RDMA_CM_EVENT_ADDRINFO_ERROR, -errno),
    };
    let before = std::mem::replace(
        &mut id.lock_extra_fields().addrinfo,
        found.ok().map(take_ownership_of_list),
    );
    drop(before);
    id.endpoint.report_event(kind, status, EventDetail::None);
    wait_for_outcome_if_synchronous(id)
}

/// Stores the list until the program asks for it.
fn take_ownership_of_list(list: *mut rdma_addrinfo) -> AddressList {
    // SAFETY: a list of this module that no other code uses; the function frees such lists.
    unsafe { AddressList::new(list, rdma_freeaddrinfo) }
}

/// `rdma_query_addrinfo`: gives the program the list that `rdma_resolve_addrinfo` stored.
fn query_addrinfo(id: IdArg<'_>, info: Out<'_, *mut rdma_addrinfo>) -> Result {
    let id = id.get()?;
    let place = info.get()?;
    let found = id.lock_extra_fields().addrinfo.take().ok_or(INVALID)?;
    place.write(found.into_list());
    Ok(())
}

fn getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: InConst<'_, rdma_addrinfo>,
    res: Out<'_, *mut rdma_addrinfo>,
) -> Result {
    let place = res.get()?;
    let hints = hints.optional();
    if node.is_null() && service.is_null() && hints.is_none() {
        return Err(INVALID);
    }
    // SAFETY: texts and hints are valid as the man page requires.
    place.write(unsafe { resolve_to_rdma_addrinfo(node, service, hints) }?);
    Ok(())
}

/// # Safety
/// As for `rdma_getaddrinfo`.
unsafe fn resolve_to_rdma_addrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result<*mut rdma_addrinfo> {
    // SAFETY: contract of this function; `res` is zeroed, which is an empty result, and freed on failure.
    unsafe {
        let res: *mut rdma_addrinfo = libc::calloc(1, size_of::<rdma_addrinfo>()).cast();
        let Some(rai) = res.as_mut() else {
            return Err(Errno(libc::ENOMEM));
        };
        let filled = fill_rdma_addrinfo(rai, node, service, hints);
        if filled.is_err() {
            rdma_freeaddrinfo(res);
        }
        filled.map(|()| res)
    }
}

/// # Safety
/// As for `rdma_getaddrinfo`; `rai` is empty.
unsafe fn fill_rdma_addrinfo(
    rai: &mut rdma_addrinfo,
    node: *const c_char,
    service: *const c_char,
    hints: Option<&rdma_addrinfo>,
) -> Result {
    let none = rdma_addrinfo::zeroed();
    let given = hints.unwrap_or(&none);
    // SAFETY: contract of this function.
    unsafe {
        if node.is_null() && service.is_null() {
            rai.ai_flags = given.ai_flags;
            rai.ai_family = given.ai_family;
            rai.ai_qp_type = given.ai_qp_type;
            rai.ai_port_space = given.ai_port_space;
            (rai.ai_dst_addr, rai.ai_dst_len) =
                copy_sockaddr_to_malloc(given.ai_dst_addr, given.ai_dst_len)?;
        } else {
            let ai_hints = hints.map(addrinfo_hints);
            let ai_hints = ai_hints.as_ref().map_or(ptr::null(), ptr::from_ref);
            let mut found: *mut addrinfo = ptr::null_mut();
            let failed = libc::getaddrinfo(node, service, ai_hints, &raw mut found);
            if failed != 0 {
                return Err(errno_of_getaddrinfo_error(failed));
            }
            let converted = fill_from_host_addrinfo(rai, given, &*found);
            libc::freeaddrinfo(found);
            converted?;
        }
        if rai.ai_src_len == 0 {
            (rai.ai_src_addr, rai.ai_src_len) =
                copy_sockaddr_to_malloc(given.ai_src_addr, given.ai_src_len)?;
        }
    }
    Ok(())
}

/// Returns true if the node must be the text of a GID: `RAI_FAMILY` makes the family `AF_IB` significant.
fn is_gid_required(hints: &rdma_addrinfo) -> bool {
    let flags = RAI_NUMERICHOST | RAI_FAMILY;
    hints.ai_flags & flags == flags && hints.ai_family == AF_IB
}

/// Returns the hints for `getaddrinfo(3)`.
fn addrinfo_hints(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: the structure has only integers and pointers, for which zero is valid.
    let mut ai: addrinfo = unsafe { std::mem::zeroed() };
    if hints.ai_flags & RAI_PASSIVE != 0 {
        ai.ai_flags = libc::AI_PASSIVE;
    }
    if hints.ai_flags & RAI_NUMERICHOST != 0 {
        ai.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != AF_IB {
        ai.ai_family = hints.ai_family;
    } else if is_gid_required(hints) {
        // GIDs are written like IPv6 addresses.
        ai.ai_family = libc::AF_INET6;
    }
    ai.ai_socktype = match ibv_qp_type::try_from(hints.ai_qp_type) {
        Ok(IBV_QPT_RC | IBV_QPT_UC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) => libc::SOCK_STREAM,
        Ok(IBV_QPT_UD) => libc::SOCK_DGRAM,
        _ => 0,
    };
    ai.ai_protocol = match (
        rdma_port_space::try_from(hints.ai_port_space),
        ai.ai_socktype,
    ) {
        (Ok(RDMA_PS_TCP), _) | (Ok(RDMA_PS_IB), libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (Ok(RDMA_PS_IPOIB | RDMA_PS_UDP), _) | (Ok(RDMA_PS_IB), libc::SOCK_DGRAM) => {
            libc::IPPROTO_UDP
        }
        _ => 0,
    };
    ai
}

/// # Safety
/// `ai` came from `getaddrinfo(3)`.
unsafe fn fill_from_host_addrinfo(
    rai: &mut rdma_addrinfo,
    given: &rdma_addrinfo,
    ai: &addrinfo,
) -> Result {
    let number = |n: u32| c_int::try_from(n).unwrap_or(0);
    rai.ai_qp_type = match (given.ai_qp_type, ai.ai_socktype) {
        (0, libc::SOCK_DGRAM) => number(IBV_QPT_UD),
        (0, _) => number(IBV_QPT_RC),
        (asked, _) => asked,
    };
    rai.ai_port_space = match (given.ai_port_space, ai.ai_protocol) {
        (0, libc::IPPROTO_UDP) => number(RDMA_PS_UDP),
        (0, _) => number(RDMA_PS_TCP),
        (asked, _) => asked,
    };
    // SAFETY: contract of this function.
    unsafe {
        let address = if is_gid_required(given) {
            rai.ai_family = AF_IB;
            ib_sockaddr_from_ipv6(ai.ai_addr, rai.ai_port_space)?
        } else {
            rai.ai_family = ai.ai_family;
            copy_sockaddr_to_malloc(ai.ai_addr, ai.ai_addrlen)?
        };
        let name = if ai.ai_canonname.is_null() {
            ptr::null_mut()
        } else {
            libc::strdup(ai.ai_canonname)
        };
        if given.ai_flags & RAI_PASSIVE != 0 {
            rai.ai_flags = RAI_PASSIVE;
            (rai.ai_src_addr, rai.ai_src_len) = address;
            rai.ai_src_canonname = name;
        } else {
            (rai.ai_dst_addr, rai.ai_dst_len) = address;
            rai.ai_dst_canonname = name;
        }
    }
    Ok(())
}

/// Makes the `AF_IB` address whose GID has the text of an IPv6 address, in the default partition and with the service
/// id of its port.
///
/// # Safety
/// As for [`crate::addr::read_sockaddr`].
unsafe fn ib_sockaddr_from_ipv6(
    addr: *const sockaddr,
    port_space: c_int,
) -> Result<(*mut sockaddr, socklen_t)> {
    // SAFETY: contract of this function.
    let Some(IdAddress::Ip(SocketAddr::V6(v6))) = (unsafe { addr::read_sockaddr(addr) }) else {
        return Err(Errno(libc::EAFNOSUPPORT));
    };
    let port_space = u32::try_from(port_space).map_err(|_| INVALID)?;
    let gid = IbAddr {
        flowinfo: u32::from_be(v6.flowinfo()),
        scope_id: v6.scope_id().into(),
        ..IbAddr::new(v6.ip().octets(), DEFAULT_PKEY)
    };
    let (c, len) = addr::to_sockaddr(IdAddress::Ib(gid.with_service(port_space, v6.port())));
    // SAFETY: the pointer leads to an address of `len` bytes.
    unsafe { copy_sockaddr_to_malloc((&raw const c).cast(), len) }
}

/// Copies an address to memory from `malloc(3)`.
///
/// # Safety
/// `addr` is NULL or valid for `len` bytes.
unsafe fn copy_sockaddr_to_malloc(
    addr: *const sockaddr,
    len: socklen_t,
) -> Result<(*mut sockaddr, socklen_t)> {
    if addr.is_null() || len == 0 {
        return Ok((ptr::null_mut(), 0));
    }
    let bytes = len as usize;
    // SAFETY: contract of this function; the allocation has `bytes` bytes.
    unsafe {
        let to = libc::malloc(bytes);
        if to.is_null() {
            return Err(Errno(libc::ENOMEM));
        }
        ptr::copy_nonoverlapping(addr.cast::<c_void>(), to, bytes);
        Ok((to.cast(), len))
    }
}

/// Converts an error of `getaddrinfo(3)` to the errno that `rdma_getaddrinfo(3)` reports.
fn errno_of_getaddrinfo_error(eai: c_int) -> Errno {
    match eai {
        libc::EAI_SYSTEM => crate::device_port::last_errno(),
        libc::EAI_MEMORY => Errno(libc::ENOMEM),
        libc::EAI_AGAIN => Errno(libc::EAGAIN),
        libc::EAI_FAMILY => Errno(libc::EAFNOSUPPORT),
        libc::EAI_NONAME | libc::EAI_NODATA | libc::EAI_FAIL => Errno(libc::EADDRNOTAVAIL),
        _ => INVALID,
    }
}

/// Frees a result: `rdma_getaddrinfo(3)`.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    // SAFETY: the list came from this module and is freed once; the program's additions came from `malloc` as well.
    unsafe {
        while let Some(rai) = next.as_mut() {
            let this = next;
            next = rai.ai_next;
            libc::free(rai.ai_connect);
            libc::free(rai.ai_route);
            libc::free(rai.ai_src_canonname.cast());
            libc::free(rai.ai_dst_canonname.cast());
            libc::free(rai.ai_src_addr.cast());
            libc::free(rai.ai_dst_addr.cast());
            libc::free(this.cast());
        }
    }
}
