//! The entry points for a program's calls, which the preloaded library passes on.
//!
//! A function returns `None` if only the kernel must handle the call.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, epoll_event, pollfd};

use crate::conn::Conn;
use crate::descriptor_table::DescriptorEntry;
use crate::epoll::WatchedObject;
use crate::iovec_cursor::IovecCursor;
use crate::not_rdma_reason::NotRdmaReason;
use crate::poll::SelectSets;
use crate::{descriptor_table, nic, own_calls, pipe, poll, real_libc};

/// Registers a socket that `socket(2)` created.
pub fn on_socket(fd: c_int, domain: c_int, kind: c_int) {
    if own_calls::must_keep_table() {
        return;
    }
    let is_stream = kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == libc::SOCK_STREAM;
    if fd >= 0 && is_stream && matches!(domain, libc::AF_INET | libc::AF_INET6) {
        descriptor_table::add_conn(fd);
    }
}

/// Registers a connection that was accepted at `listener`.
pub fn on_accept(listener: c_int, fd: c_int) {
    if fd < 0 {
        return;
    }
    let domain =
        real_libc::int_socket_option(listener, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(0);
    let kind = real_libc::int_socket_option(listener, libc::SOL_SOCKET, libc::SO_TYPE).unwrap_or(0);
    on_socket(fd, domain, kind);
}

/// Returns the connection of a descriptor, if the call is the program's.
#[inline]
fn find_conn_of_program(fd: c_int) -> Option<&'static Conn> {
    descriptor_table::find_conn(fd).filter(|_| !own_calls::are_all_calls_own())
}

/// Records that a socket connects.
pub fn before_connect(fd: c_int) {
    if let Some(conn) = descriptor_table::find_conn(fd) {
        conn.called_connect
            .store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Handles `recvmsg(2)` and the other receiving calls.
#[inline]
#[must_use]
pub fn recv_if_managed(fd: c_int, to: IovecCursor<'_>, flags: c_int) -> Option<io::Result<usize>> {
    Some(find_conn_of_program(fd)?.recv(fd, to, flags))
}

/// Handles `sendmsg(2)` and the other sending calls.
#[inline]
#[must_use]
pub fn send_if_managed(
    fd: c_int,
    from: IovecCursor<'_>,
    flags: c_int,
) -> Option<io::Result<usize>> {
    Some(find_conn_of_program(fd)?.send(fd, from, flags))
}

/// Handles a call that sends by the kernel's own means, such as `sendfile(2)`.
///
/// `by_kernel` is that call. That call is executed, and its bytes are counted, while the connection does not use RDMA.
/// On RDMA the result is `None`, and the caller sends the bytes by [`send_if_managed`].
pub fn send_by_kernel_unless_rdma(
    fd: c_int,
    by_kernel: impl FnOnce() -> io::Result<usize>,
) -> Option<io::Result<usize>> {
    descriptor_table::find_conn(fd)?.send_by_kernel_unless_rdma(fd, by_kernel)
}

/// Handles a call that receives by the kernel's own means, such as `recvmsg(2)` with control messages.
///
/// `by_kernel` is that call, and `flags` are its flags. That call is executed, and its bytes are counted, while the
/// connection is plain TCP. Otherwise the result is `None`, and the caller receives the bytes by [`recv_if_managed`].
pub fn recv_by_kernel_if_tcp(
    fd: c_int,
    flags: c_int,
    by_kernel: impl FnOnce() -> io::Result<usize>,
) -> Option<io::Result<usize>> {
    descriptor_table::find_conn(fd)?.recv_by_kernel_if_tcp(fd, flags, by_kernel)
}

/// Handles `splice(2)` between a connection and a pipe, without offsets. `by_kernel` is that call.
pub fn splice_if_managed(
    from: c_int,
    to: c_int,
    len: usize,
    flags: c_uint,
    by_kernel: impl Fn() -> io::Result<usize>,
) -> Option<io::Result<usize>> {
    match (
        descriptor_table::find_conn(from),
        descriptor_table::find_conn(to),
    ) {
        (Some(conn), None) if pipe::is_pipe_open_for(to, libc::O_WRONLY) => {
            Some(conn.splice_to_pipe(from, to, len, flags, by_kernel))
        }
        (None, Some(conn)) if pipe::is_pipe_open_for(from, libc::O_RDONLY) => {
            Some(conn.splice_from_pipe(to, from, len, flags, by_kernel))
        }
        // The kernel refuses the call.
        _ => None,
    }
}

/// Returns true if the descriptor is a connection of this library.
#[must_use]
pub fn is_connection(fd: c_int) -> bool {
    descriptor_table::find_conn(fd).is_some()
}

/// Demotes a connection to TCP, for a call that only the kernel can execute.
pub fn demote(fd: c_int) {
    if let Some(conn) = descriptor_table::find_conn(fd) {
        conn.demote(fd, NotRdmaReason::Unsupported);
    }
}

/// Demotes a connection to TCP, for a program that will read by other means than this library. Waits until a peer on
/// another host sends by TCP, and resets the connection if it does not: the program would read records as data.
pub fn demote_for_other_reads(fd: c_int) {
    if let Some(conn) = descriptor_table::find_conn(fd) {
        conn.demote(fd, NotRdmaReason::Unsupported);
        if !conn.wait_for_plain_bytes(fd, MAX_WAIT_FOR_PLAIN_BYTES) {
            real_libc::reset_connection(fd);
        }
    }
}

/// Prepares a connection for `shutdown(2)`.
pub fn before_shutdown(fd: c_int) {
    if let Some(conn) = find_conn_of_program(fd) {
        conn.demote(fd, NotRdmaReason::Shutdown);
        // A send after a shutdown fails at once.
        conn.delays_next_reset.store(false, Ordering::SeqCst);
    }
}

/// Removes a descriptor that is about to be closed.
pub fn before_close(fd: c_int) {
    if descriptor_table::find_entry(fd).is_some()
        && !own_calls::must_keep_table()
        && is_table_owner_process()
    {
        descriptor_table::remove_entry(fd);
    }
}

/// Removes descriptors that are about to be closed.
pub fn before_close_range(first: u32, last: u32) {
    if is_table_owner_process() {
        for fd in descriptor_table::fds_with_entry(first, last) {
            descriptor_table::remove_entry(fd);
        }
    }
}

/// Records that `to` has become a duplicate of `from`.
pub fn on_dup(from: c_int, to: c_int) {
    if to >= 0
        && (descriptor_table::find_entry(from).is_some()
            || descriptor_table::find_entry(to).is_some())
        && !own_calls::must_keep_table()
        && is_table_owner_process()
    {
        descriptor_table::duplicate_entry(from, to);
    }
}

/// Returns the number of bytes that can be read at once, if the kernel does not know it.
#[must_use]
pub fn unread_bytes_unknown_to_kernel(fd: c_int) -> Option<u64> {
    descriptor_table::find_conn(fd)?.unread_bytes_unknown_to_kernel()
}

/// Takes the error of the socket that this library got and keeps for the program (`SO_ERROR`).
#[must_use]
pub fn take_kept_errno(fd: c_int) -> Option<c_int> {
    descriptor_table::find_conn(fd)?.take_kept_errno()
}

/// Returns true if bytes precede the mark of urgent data (`SIOCATMARK`) of which the kernel does not know. Takes the
/// wake bytes before the mark.
#[must_use]
pub fn has_bytes_before_mark_unknown_to_kernel(fd: c_int) -> bool {
    descriptor_table::find_conn(fd).is_some_and(|conn| {
        conn.take_wake_bytes_unless_needed(fd);
        conn.unread_bytes_unknown_to_kernel().is_some()
    })
}

/// Registers a new epoll instance.
pub fn on_epoll_create(fd: c_int) {
    if fd >= 0 && !own_calls::must_keep_table() {
        descriptor_table::add_epoll(fd);
    }
}

/// Handles `epoll_ctl(2)`.
#[must_use]
pub fn epoll_control_if_managed(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Option<c_int> {
    let object = descriptor_table::find_entry(fd).map(|entry| match entry {
        DescriptorEntry::Conn(conn, _) => WatchedObject::Conn(conn),
        DescriptorEntry::Epoll(epoll, _) => WatchedObject::Epoll(epoll),
    });
    descriptor_table::find_epoll(epoll)?.control(epoll, op, fd, object, event)
}

/// Handles `epoll_wait(2)`; `sleep` is the kernel's function with a timeout in milliseconds.
pub fn epoll_wait_if_managed(
    epoll: c_int,
    events: &mut [epoll_event],
    deadline: Option<Instant>,
    sleep: impl FnMut(&mut [epoll_event], c_int) -> c_int,
) -> Option<c_int> {
    Some(descriptor_table::find_epoll(epoll)?.wait(epoll, events, deadline, sleep))
}

/// Handles `poll(2)`; `sleep` is the kernel's function with a timeout in milliseconds.
pub fn poll_wait(
    fds: &mut [pollfd],
    deadline: Option<Instant>,
    sleep: impl FnMut(&mut [pollfd], c_int) -> c_int,
) -> c_int {
    poll::poll(fds, deadline, sleep)
}

/// Handles `select(2)`; `sleep` is `poll(2)` with a timeout in milliseconds.
pub fn select_wait_if_managed(
    sets: &mut SelectSets<'_>,
    deadline: Option<Instant>,
    sleep: impl FnMut(&mut [pollfd], c_int) -> c_int,
) -> Option<c_int> {
    let mut fds = sets.to_pollfds_if_managed()?;
    let n = poll::poll(&mut fds, deadline, sleep);
    Some(if n < 0 { n } else { sets.write_ready_fds(&fds) })
}

/// Demotes all connections, because `exec` is about to replace the program.
pub fn before_exec() {
    if is_table_owner_process() {
        for (fd, conn) in descriptor_table::all_conns() {
            if !conn.is_plain_tcp() {
                conn.demote(fd, NotRdmaReason::OtherProcess);
                // A peer that takes longer sends the bytes again by TCP, because this process's queue pair ends.
                conn.wait_for_plain_bytes(fd, MAX_WAIT_BEFORE_EXEC);
            }
        }
    }
}

/// Demotes all connections, because the process is about to get this effective user; -1 leaves the user. The new user has
/// no access to the queue pairs and the pages of the old one's processes.
pub fn before_user_change(effective_uid: libc::uid_t) {
    let is_change =
        effective_uid != libc::uid_t::MAX && effective_uid != real_libc::effective_uid();
    if is_change && is_table_owner_process() {
        for (fd, conn) in descriptor_table::all_conns() {
            conn.demote_unless_not_started(fd, NotRdmaReason::OtherUser);
        }
    }
}

/// The longest wait of `exec` until a peer on another host sends by TCP.
const MAX_WAIT_BEFORE_EXEC: Duration = Duration::from_secs(1);

/// The longest wait until a peer on another host sends by TCP, for a program that reads by other means.
const MAX_WAIT_FOR_PLAIN_BYTES: Duration = Duration::from_secs(10);

/// Marks a connection as shared, because its descriptor goes to another process in a message.
pub fn before_passing_descriptor(fd: c_int) {
    if let Some(conn) = descriptor_table::find_conn(fd) {
        conn.mark_shared();
    }
}

/// Registers a socket that came from another process by a message or by `exec`. A connection that is on RDMA is demoted
/// to TCP.
pub fn adopt_socket(fd: c_int) {
    let domain = real_libc::int_socket_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(0);
    let kind = real_libc::int_socket_option(fd, libc::SOL_SOCKET, libc::SO_TYPE).unwrap_or(0);
    let listens =
        real_libc::int_socket_option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(1);
    if listens {
        return;
    }
    on_socket(fd, domain, kind);
    if let Some(conn) = descriptor_table::find_conn(fd) {
        conn.mark_shared();
        conn.begin_data_call(fd);
    }
}

/// Adopts the sockets that the previous program of this process had on RDMA; called at the start of a program.
pub fn adopt_inherited_sockets() {
    if let Ok(fds) = nic::inherited_connection_fds() {
        fds.into_iter().for_each(adopt_socket);
    }
}

/// Makes this process, a forked child, the owner of its table.
pub(crate) fn own_table() {
    OWN_PID.store(real_libc::getpid(), std::sync::atomic::Ordering::Relaxed);
}

static OWN_PID: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// Returns true if this process owns the table: a child of `vfork(2)` only borrows its parent's memory.
fn is_table_owner_process() -> bool {
    use std::sync::atomic::Ordering::Relaxed;
    let pid = real_libc::getpid();
    OWN_PID
        .compare_exchange(0, pid, Relaxed, Relaxed)
        .map_or_else(|known| known == pid, |_| true)
}
