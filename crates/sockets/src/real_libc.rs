//! The C library's own functions, which the preloaded library overrides.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::io;
use std::mem::transmute;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pid_t, pollfd, pthread_attr_t, pthread_t,
    sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval, uid_t,
};

/// Finds the function of this name in the next library.
fn find_next_library_function(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut found = known.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the argument is a NUL-terminated string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        known.store(found, Ordering::Relaxed);
    }
    found
}

/// The error value that is returned if the C library does not have a function.
trait FailureValue {
    const FAILED: Self;
}

impl FailureValue for c_int {
    const FAILED: Self = -1;
}

impl FailureValue for ssize_t {
    const FAILED: Self = -1;
}

impl FailureValue for c_long {
    const FAILED: Self = -1;
}

impl FailureValue for *mut libc::FILE {
    const FAILED: Self = std::ptr::null_mut();
}

macro_rules! real {
    ($( fn $name:ident($( $arg:ident: $type:ty ),*) -> $ret:ty; )*) => {
        $(
            /// The C library's function of this name; where it has none, the call fails with `ENOSYS`.
            ///
            /// # Safety
            /// That of the C library's function of this name.
            pub unsafe fn $name($( $arg: $type ),*) -> $ret {
                type Function = unsafe extern "C" fn($( $type ),*) -> $ret;
                static RESOLVED: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                let name = concat!(stringify!($name), "\0").as_bytes();
                let function = find_next_library_function(&RESOLVED, CStr::from_bytes_with_nul(name).unwrap_or_default());
                if function.is_null() {
                    set_errno(libc::ENOSYS);
                    return FailureValue::FAILED;
                }
                // SAFETY: the C library's function of this name is of this type; the arguments are the caller's.
                unsafe { transmute::<*mut c_void, Function>(function)($( $arg ),*) }
            }
        )*
    };
}

real! {
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t;
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t;
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t;
    fn sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    fn splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: u32) -> ssize_t;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
    fn dup(fd: c_int) -> c_int;
    fn dup2(fd: c_int, to: c_int) -> c_int;
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, arg: c_ulong) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, arg: c_ulong) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, arg: c_ulong) -> c_int;
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    fn pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn epoll_pwait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn fclose(stream: *mut libc::FILE) -> c_int;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    fn setuid(uid: uid_t) -> c_int;
    fn seteuid(effective: uid_t) -> c_int;
    fn setreuid(real: uid_t, effective: uid_t) -> c_int;
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int;
    fn pthread_create(thread: *mut pthread_t, attributes: *const pthread_attr_t, start: extern "C" fn(*mut c_void) -> *mut c_void, argument: *mut c_void) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
    fn execv(path: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, env: *const *const c_char) -> c_int;
}

/// Returns the result of a call that returned a number of bytes, or -1 with `errno`.
pub(crate) fn result(returned: ssize_t) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| fail(errno()))
}

/// Returns the error of an `errno`.
pub(crate) fn fail(errno: c_int) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Sets this thread's `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: the errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Returns this thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: the errno of this thread.
    unsafe { *libc::__errno_location() }
}

/// Returns the number of this process by a system call, because a child of `vfork(2)` shares its parent's cached value.
pub(crate) fn getpid() -> pid_t {
    // SAFETY: no arguments.
    unsafe { libc::getpid() }
}

/// Returns the effective user of this process.
pub(crate) fn effective_uid() -> uid_t {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() }
}

/// Returns the lowest address of this thread's stack, to which that of the main thread can grow, and the one after the
/// highest.
pub(crate) fn stack_of_this_thread() -> Option<(usize, usize)> {
    // SAFETY: any bytes are a valid value; the next call writes it.
    let mut attributes: pthread_attr_t = unsafe { std::mem::zeroed() };
    // SAFETY: `attributes` has room for the answer.
    if unsafe { libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) } != 0 {
        return None;
    }
    let (mut low, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are of the call above, and both places have room for an answer.
    let known = unsafe {
        let known = libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut len);
        libc::pthread_attr_destroy(&raw mut attributes);
        known
    };
    (known == 0).then(|| (low.addr(), low.addr() + len))
}

/// Returns true if this process has child processes.
pub(crate) fn has_children() -> bool {
    // SAFETY: any bytes are a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` has room for the answer. `WNOWAIT` leaves a child that has ended to the program.
    let answer = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, options) };
    answer == 0 || errno() != libc::ECHILD
}

/// Runs `act` while all signals are blocked in this thread. A thread that `act` starts has them blocked for good.
pub(crate) fn with_signals_blocked<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: any bytes are a valid value; the next call writes it.
    let (mut all, mut before): (sigset_t, sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both are sets of this function.
    let blocked = unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before)
    };
    let result = act();
    if blocked == 0 {
        // SAFETY: the set that the call above returned.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
        };
    }
    result
}

/// Closes a descriptor of this library.
pub(crate) fn close_own_descriptor(fd: c_int) {
    // SAFETY: nothing else in this process uses the descriptor.
    unsafe { close(fd) };
}

/// Returns true if the peer of a TCP connection has closed it, or the connection has failed.
pub(crate) fn has_tcp_ended(fd: c_int) -> bool {
    has_tcp_ended_within(fd, 0)
}

/// Returns true if that is so, or becomes so within a time.
pub(crate) fn has_tcp_ended_within(fd: c_int, timeout_ms: c_int) -> bool {
    let (n, revents) = poll_one(fd, libc::POLLRDHUP, timeout_ms);
    n > 0 && revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// Resets a TCP connection. The program gets `ECONNRESET`.
pub(crate) fn reset_connection(fd: c_int) {
    // SAFETY: any bytes are a valid value. The address family of zero dissolves the connection (`connect(2)`).
    let nowhere: sockaddr = unsafe { std::mem::zeroed() };
    let len = socklen_t::try_from(size_of::<sockaddr>()).unwrap_or(16);
    // SAFETY: `nowhere` is an address of `len` bytes.
    unsafe { connect(fd, &raw const nowhere, len) };
}

/// Ends the stream to the peer, unless the program wants `close(2)` to reset the connection (`SO_LINGER`).
pub(crate) fn end_stream_before_close(fd: c_int) {
    let mut linger = libc::linger {
        l_onoff: 0,
        l_linger: 0,
    };
    // A socket without the option has its default: no linger.
    let _ = fixed_size_socket_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger);
    if linger.l_onoff == 0 || linger.l_linger != 0 {
        // SAFETY: the call has no pointers.
        unsafe { shutdown(fd, libc::SHUT_WR) };
    }
}

/// Copies the next bytes of the stream without taking them and without waiting. Returns their number, 0 at the end of
/// the stream, and -1 with `errno` on an error.
pub(crate) fn peek_bytes(fd: c_int, to: &mut [u8]) -> ssize_t {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: `to` has room for so many bytes.
    unsafe { recv(fd, to.as_mut_ptr().cast(), to.len(), flags) }
}

/// Sends all bytes, without waiting for longer than `timeout_ms` at a time. Returns false if that was not possible.
pub(crate) fn send_all(fd: c_int, bytes: &[u8], timeout_ms: c_int) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        // SAFETY: `rest` are bytes to send.
        let n = unsafe { send(fd, rest.as_ptr().cast(), rest.len(), flags) };
        match usize::try_from(n) {
            Ok(n) => done += n,
            Err(_) if errno() == libc::EINTR => {}
            Err(_) if errno() == libc::EAGAIN && poll_one(fd, libc::POLLOUT, timeout_ms).0 > 0 => {}
            Err(_) => return false,
        }
    }
    true
}

/// Discards up to `len` bytes (at most 64) of the stream, without waiting.
pub(crate) fn discard_stream_bytes(fd: c_int, len: u64) -> ssize_t {
    let mut bytes = [0u8; 64];
    let len = usize::try_from(len).unwrap_or(bytes.len()).min(bytes.len());
    // SAFETY: `bytes` has room for `len` bytes.
    unsafe { recv(fd, bytes.as_mut_ptr().cast(), len, libc::MSG_DONTWAIT) }
}

/// Peeks at the next byte of the stream. Returns 0 at the end of the stream, and -1 with `errno` on an error.
pub(crate) fn peek_byte(fd: c_int, flags: c_int) -> ssize_t {
    let mut byte = 0u8;
    // SAFETY: `byte` has room for one byte.
    unsafe { recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | flags) }
}

/// Sends one byte without waiting. Returns false with `errno` if it could not be sent.
pub(crate) fn send_byte(fd: c_int) -> bool {
    let byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `byte` is one byte to send.
    unsafe { send(fd, (&raw const byte).cast(), 1, flags) == 1 }
}

/// Returns true if each signal that has a handler restarts the call that it interrupts (`SA_RESTART`). Signals of a
/// faulting instruction interrupt no call.
pub(crate) fn do_handlers_restart_calls() -> bool {
    const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
    let mut others = (1..=libc::SIGRTMAX()).filter(|signal| !FAULTS.contains(signal));
    others.all(|signal| {
        // SAFETY: any bytes are a valid value; the next call writes it.
        let mut set: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `set` has room for the answer, and nothing is changed.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut set) } == 0;
        let has_handler = !matches!(set.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
        !known || !has_handler || set.sa_flags & libc::SA_RESTART != 0
    })
}

/// Waits for one descriptor. Returns the result of `poll(2)`, and the events.
pub(crate) fn poll_one(fd: c_int, events: i16, timeout_ms: c_int) -> (c_int, i16) {
    let mut one = pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: `one` is one entry.
    let n = unsafe { poll(&raw mut one, 1, timeout_ms) };
    (n, one.revents)
}

/// Calls `epoll_ctl(2)` with these events and data.
pub(crate) fn control_epoll(epoll: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: `event` is a valid event.
    unsafe { epoll_ctl(epoll, op, fd, &raw mut event) }
}

/// Returns true if operations on the descriptor do not block (`O_NONBLOCK`).
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: the command has no argument.
    let flags = unsafe { fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Returns an integer option of a socket.
pub(crate) fn int_socket_option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    fixed_size_socket_option(fd, level, name, &mut value)?;
    Some(value)
}

/// Sets or clears `TCP_NODELAY`.
pub(crate) fn set_nodelay(fd: c_int, on: bool) {
    let value = c_int::from(on);
    let len = socklen_t::try_from(size_of::<c_int>()).unwrap_or(4);
    let from = (&raw const value).cast();
    // SAFETY: `value` is an integer of `len` bytes.
    unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, from, len) };
}

/// Returns the kernel's number of a socket (`SO_COOKIE`), which is unique until the next boot.
pub(crate) fn socket_cookie(fd: c_int) -> Option<u64> {
    let mut value = 0u64;
    fixed_size_socket_option(fd, libc::SOL_SOCKET, libc::SO_COOKIE, &mut value)?;
    Some(value)
}

/// Returns the send timeout (`SO_SNDTIMEO`) in milliseconds; `None` without a timeout.
pub(crate) fn send_timeout_ms(fd: c_int) -> Option<u64> {
    let mut value = timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    fixed_size_socket_option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &mut value)?;
    let ms = value.tv_sec.unsigned_abs() * 1000 + value.tv_usec.unsigned_abs().div_ceil(1000);
    (ms > 0).then_some(ms)
}

/// The kernel's counts of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelByteCounts {
    /// Bytes that this side has sent, and bytes that it has read. The first may include the SYN of the side that
    /// connected.
    SentAndRead(u64, u64),
    /// Bytes or acknowledgements arrived during each attempt to read the counts.
    Changing,
}

/// Number of attempts to read the counts of a connection while they do not change.
const MAX_COUNT_ATTEMPTS: usize = 64;

/// Returns the kernel's counts of a connection (`tcp(7)`, `TCP_INFO`), none for other sockets.
pub(crate) fn byte_counts_by_kernel(fd: c_int) -> Option<KernelByteCounts> {
    // The counts of queued bytes are read by other system calls. Together they are right if nothing arrived between.
    let mut before = acked_and_received_bytes(fd)?;
    for _ in 0..MAX_COUNT_ATTEMPTS {
        let (in_queue, out_queue) = queued_bytes(fd)?;
        let after = acked_and_received_bytes(fd)?;
        if before == after {
            let (acked, received) = after;
            let read = received.checked_sub(in_queue)?;
            return Some(KernelByteCounts::SentAndRead(acked + out_queue, read));
        }
        before = after;
    }
    Some(KernelByteCounts::Changing)
}

fn acked_and_received_bytes(fd: c_int) -> Option<(u64, u64)> {
    // `struct tcp_info` of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received are the words from byte 120 on.
    let mut info = [0u64; 17];
    fixed_size_socket_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Some((info[15], info[16]))
}

/// Returns the number of bytes that wait to be read, and of bytes that the peer has not acknowledged.
fn queued_bytes(fd: c_int) -> Option<(u64, u64)> {
    let (mut in_queue, mut out_queue): (c_int, c_int) = (0, 0);
    // SAFETY: both calls write an integer.
    let failed = unsafe {
        ioctl(
            fd,
            libc::FIONREAD,
            (&raw mut in_queue).expose_provenance() as c_ulong,
        ) < 0
            || ioctl(
                fd,
                libc::TIOCOUTQ,
                (&raw mut out_queue).expose_provenance() as c_ulong,
            ) < 0
    };
    if failed {
        return None;
    }
    Some((
        u64::try_from(in_queue).ok()?,
        u64::try_from(out_queue).ok()?,
    ))
}

fn fixed_size_socket_option<T>(fd: c_int, level: c_int, name: c_int, value: &mut T) -> Option<()> {
    let mut len = socklen_t::try_from(size_of::<T>()).ok()?;
    let to: *mut c_void = std::ptr::from_mut(value).cast();
    // SAFETY: writes at most `len` bytes of a plain value, for which any bytes are valid (integers, or structures of
    // integers).
    let got = unsafe { getsockopt(fd, level, name, to, &raw mut len) };
    (got == 0 && len as usize == size_of::<T>()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn counts_are_right_while_bytes_and_acknowledgements_arrive() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut other_end = TcpStream::connect(address).expect("a connection");
        let (mut own_end, _) = listener.accept().expect("a connection");
        own_end.set_nodelay(true).expect("an open socket");
        other_end.set_nodelay(true).expect("an open socket");
        // The thread reads what comes, and sends bytes that nobody reads.
        let thread = std::thread::spawn(move || {
            let mut byte = [0];
            while other_end.read_exact(&mut byte).is_ok() && other_end.write_all(&byte).is_ok() {}
        });
        let mut certain = 0;
        for sent in 1..=20_000 {
            own_end.write_all(b"x").expect("an open connection");
            match byte_counts_by_kernel(own_end.as_raw_fd()) {
                Some(KernelByteCounts::Changing) => {}
                counts => {
                    assert_eq!(counts, Some(KernelByteCounts::SentAndRead(sent, 0)));
                    certain += 1;
                }
            }
        }
        assert!(certain > 0, "no attempt found counts that did not change");
        own_end
            .shutdown(std::net::Shutdown::Both)
            .expect("an open socket");
        thread.join().expect("no panic");
    }
}
