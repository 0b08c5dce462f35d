//! The functions of the connection manager, with a trace line for each call if the process is traced.

use std::ffi::{c_char, c_int, c_long, c_void};

use cancellation::{HoldOff, take_or_wait};
use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use tap::trace::SyscallStyleResult;
use verbs_abi::*;

macro_rules! traced_if_asked_for {
    ($( fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Variants of the functions of the connection manager that write a trace line.
        mod writing {
            use super::*;
            $( tap::traced_function! {
                pub(super) fn $name($( $arg: $type ),*) $(-> $ret)?, stringify!($name),
                rdmacm::abi::$name
            } )*
        }

        $(
            pub(crate) unsafe extern "C" fn $name($( $arg: $type ),*) $(-> $ret)? {
                let _hold_off = HoldOff::new();
                // SAFETY: the function has the contract of the man page, which the caller promises.
                unsafe {
                    if tap::trace::is_tracing_on() {
                        crate::verbs::share_handle_numbers_with_libibverbs();
                        writing::$name($( $arg ),*)
                    } else {
                        rdmacm::abi::$name($( $arg ),*)
                    }
                }
            }
        )*
    };
}

traced_if_asked_for! {
    fn rdma_create_event_channel() -> *mut rdma_event_channel;
    fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
    fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
    fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
    fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    fn rdma_create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_destroy_ep(id: *mut rdma_cm_id);
    fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
    fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;
    fn rdma_destroy_qp(id: *mut rdma_cm_id);
    fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
    fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
    fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
    fn rdma_join_multicast_ex(id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
    fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int;
    fn rdma_resolve_addrinfo(id: *mut rdma_cm_id, node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo) -> c_int;
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
}

mod taking {
    use super::*;
    traced_if_asked_for! {
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    }
}

/// Takes an event of the connection manager; the wait is a cancellation point: `rdma_get_cm_event(3)`.
pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: the caller promises the contract of the man page, and is C code.
    unsafe { take_or_wait(|| taking::rdma_get_cm_event(channel, event)) }
}

/// Defines functions of rsockets that write a trace line if the process is traced; they fail as system calls
/// do. `$hold_off` is the guard that holds off cancellation.
macro_rules! sockets_traced_if_asked_for {
    ($hold_off:expr; $( fn $name:ident($( $arg:ident: $type:ty ),*) -> $ret:ty; )*) => {
        /// Variants of the functions of rsockets that write a trace line.
        mod writing_sockets {
            use super::*;
            $( tap::traced_function! {
                pub(super) fn $name($( $arg: $type ),*) -> SyscallStyleResult<$ret>, stringify!($name),
                |$( $arg ),*| SyscallStyleResult(rsocket::abi::$name($( $arg ),*))
            } )*
        }

        $(
            pub(crate) unsafe extern "C" fn $name($( $arg: $type ),*) -> $ret {
                let _hold_off = $hold_off;
                // SAFETY: the function has the contract of the man page, which the caller promises.
                unsafe {
                    if tap::trace::is_tracing_on() {
                        crate::verbs::share_handle_numbers_with_libibverbs();
                        writing_sockets::$name($( $arg ),*).0
                    } else {
                        rsocket::abi::$name($( $arg ),*)
                    }
                }
            }
        )*
    };
}

sockets_traced_if_asked_for! {
    HoldOff::new();
    fn rsocket(domain: c_int, r#type: c_int, protocol: c_int) -> c_int;
    fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
    fn rlisten(socket: c_int, backlog: c_int) -> c_int;
    fn raccept(socket: c_int, from: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
    fn rshutdown(socket: c_int, how: c_int) -> c_int;
    fn rclose(socket: c_int) -> c_int;
    fn rrecvfrom(socket: c_int, buf: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr, addrlen: *mut socklen_t) -> ssize_t;
    fn rsendto(socket: c_int, buf: *const c_void, len: usize, flags: c_int, dest_addr: *const sockaddr, addrlen: socklen_t) -> ssize_t;
    fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
    fn rselect(nfds: c_int, readfds: *mut fd_set, writefds: *mut fd_set, exceptfds: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn rgetpeername(socket: c_int, from: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    fn rgetsockname(socket: c_int, from: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    fn rsetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *const c_void, optlen: socklen_t) -> c_int;
    fn rgetsockopt(socket: c_int, level: c_int, optname: c_int, optval: *mut c_void, optlen: *mut socklen_t) -> c_int;
    fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int;
    fn riomap(socket: c_int, buf: *mut c_void, len: usize, prot: c_int, flags: c_int, offset: off_t) -> off_t;
    fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;
    fn riowrite(socket: c_int, buf: *const c_void, count: usize, offset: off_t, flags: c_int) -> usize;
}

/// The functions of rsockets that transfer data, which call no cancellation point of the C library.
mod streams {
    use super::*;
    sockets_traced_if_asked_for! {
        ();
        fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t;
        fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
        fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t;
        fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
        fn rread(socket: c_int, buf: *mut c_void, count: usize) -> ssize_t;
        fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t;
        fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> ssize_t;
        fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t;
    }
}
pub(crate) use streams::*;

/// Defines functions that wait for sockets as [`rpoll`] does, but without a trace line: a program calls
/// these functions in every turn of its loop.
macro_rules! untraced {
    ($( fn $name:ident($( $arg:ident: $type:ty ),*) -> $ret:ty; )*) => {
        $(
            pub(crate) unsafe extern "C" fn $name($( $arg: $type ),*) -> $ret {
                let _hold_off = HoldOff::new();
                // SAFETY: the function has the contract of the man page, which the caller promises.
                unsafe { rsocket::abi::$name($( $arg ),*) }
            }
        )*
    };
}

// `epoll_create(2)`, `epoll_ctl(2)` and `epoll_wait(2)` for rsockets (RDMACM_1.5).
untraced! {
    fn repoll_create(flags: c_int) -> c_int;
    fn repoll_ctl(set: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    fn repoll_wait(set: c_int, events: *mut libc::epoll_event, max_events: c_int, timeout: c_int) -> c_int;
}
