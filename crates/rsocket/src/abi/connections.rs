//! The life of sockets, their connections and names.

use std::ffi::c_int;

use libc::{sockaddr, socklen_t};
use rdmacm::abi::or_minus_one;

use super::arguments::{address, give_address, or_minus_one_c};
use crate::table::{RSocket, find};

/// Makes a socket: `socket(2)`.
pub unsafe extern "C" fn rsocket(domain: c_int, r#type: c_int, protocol: c_int) -> c_int {
    or_minus_one_c(RSocket::create(domain, r#type, protocol))
}

/// `bind(2)`.
pub unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(find(socket).and_then(|s| s.bind(unsafe { address(addr, addrlen) }?)))
}

/// `listen(2)`.
pub unsafe extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    or_minus_one(find(socket).and_then(|s| s.stream()?.listen(backlog)))
}

/// `accept(2)`.
pub unsafe extern "C" fn raccept(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    or_minus_one_c(find(socket).and_then(|s| s.accept()).map(|(new, peer)| {
        // SAFETY: contract of this module.
        unsafe { give_address(peer, addr, addrlen) };
        new
    }))
}

/// `connect(2)`.
pub unsafe extern "C" fn rconnect(
    socket: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(find(socket).and_then(|s| s.connect(unsafe { address(addr, addrlen) }?)))
}

/// `shutdown(2)`.
pub unsafe extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    or_minus_one(find(socket).and_then(|s| s.shutdown(how)))
}

/// `close(2)`.
pub unsafe extern "C" fn rclose(socket: c_int) -> c_int {
    or_minus_one(RSocket::close(socket))
}

/// `getpeername(2)`.
pub unsafe extern "C" fn rgetpeername(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(
        find(socket)
            .and_then(|s| s.name(true))
            .map(|name| unsafe { give_address(name, addr, addrlen) }),
    )
}

/// `getsockname(2)`.
pub unsafe extern "C" fn rgetsockname(
    socket: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: contract of this module.
    or_minus_one(
        find(socket)
            .and_then(|s| s.name(false))
            .map(|name| unsafe { give_address(name, addr, addrlen) }),
    )
}
