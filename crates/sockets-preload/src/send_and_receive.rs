//! Functions that move bytes.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use sockets::iovec_cursor::IovecCursor;
use sockets::{program_calls, real_libc};

use crate::to_return_value;

/// One buffer as a vector.
fn single_iovec(base: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: base.cast_mut(),
        iov_len: len,
    }]
}

/// A program's vector; nothing where it is none.
///
/// # Safety
/// `iov` points at `count` parts, or is NULL.
unsafe fn iovecs<'a>(iov: *const iovec, count: usize) -> &'a [iovec] {
    if iov.is_null() || count > 1024 {
        return &[];
    }
    // SAFETY: contract of this function.
    unsafe { std::slice::from_raw_parts(iov, count) }
}

/// Exports receiving functions, and their kin for `_FORTIFY_SOURCE`.
macro_rules! export {
    ($( $(#[$doc:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) -> $ret:ty = $ours:expr, else $real:expr; )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// That of the C library's function of this name.
            // SAFETY: the name is the C library's own, and so are the arguments and the behaviour.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($( $arg: $type ),*) -> $ret {
                // SAFETY: what the caller promises of its buffers.
                unsafe {
                    match $ours {
                        Some(result) => to_return_value(result),
                        None => $real,
                    }
                }
            }
        )*
    };
}

export! {
    /// `read(2)`
    fn read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), 0), else real_libc::read(fd, to, len);
    /// `read(2)`, with the size of the buffer
    fn __read_chk(fd: c_int, to: *mut c_void, len: size_t, _size: size_t) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), 0), else real_libc::read(fd, to, len);
    /// `read(2)`
    fn __read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), 0), else real_libc::read(fd, to, len);
    /// `readv(2)`
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(iovecs(iov, usize::try_from(count).unwrap_or(0))), 0), else real_libc::readv(fd, iov, count);
    /// `recv(2)`
    fn recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), flags), else real_libc::recv(fd, to, len, flags);
    /// `recv(2)`
    fn __recv(fd: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), flags), else real_libc::recv(fd, to, len, flags);
    /// `recv(2)`, with the size of the buffer
    fn __recv_chk(fd: c_int, to: *mut c_void, len: size_t, _size: size_t, flags: c_int) -> ssize_t =
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), flags), else real_libc::recv(fd, to, len, flags);
    /// `write(2)`
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t =
        program_calls::send_if_managed(fd, IovecCursor::new(&single_iovec(from, len)), 0), else real_libc::write(fd, from, len);
    /// `write(2)`
    fn __write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t =
        program_calls::send_if_managed(fd, IovecCursor::new(&single_iovec(from, len)), 0), else real_libc::write(fd, from, len);
    /// `writev(2)`
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t =
        program_calls::send_if_managed(fd, IovecCursor::new(iovecs(iov, usize::try_from(count).unwrap_or(0))), 0), else real_libc::writev(fd, iov, count);
    /// `send(2)`
    fn send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t =
        program_calls::send_if_managed(fd, IovecCursor::new(&single_iovec(from, len)), flags), else real_libc::send(fd, from, len, flags);
    /// `send(2)`
    fn __send(fd: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t =
        program_calls::send_if_managed(fd, IovecCursor::new(&single_iovec(from, len)), flags), else real_libc::send(fd, from, len, flags);
    /// `recvfrom(2)`
    fn recvfrom(fd: c_int, to: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t =
        receive_from(fd, to, len, flags, addr_len), else real_libc::recvfrom(fd, to, len, flags, addr, addr_len);
    /// `recvfrom(2)`, with the size of the buffer
    fn __recvfrom_chk(fd: c_int, to: *mut c_void, len: size_t, _size: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t) -> ssize_t =
        receive_from(fd, to, len, flags, addr_len), else real_libc::recvfrom(fd, to, len, flags, addr, addr_len);
    /// `sendto(2)`
    fn sendto(fd: c_int, from: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t) -> ssize_t =
        send_to(fd, from, len, flags, addr), else real_libc::sendto(fd, from, len, flags, addr, addr_len);
    /// `recvmsg(2)`
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t =
        receive_message(fd, msg, flags), else adopt_passed_sockets(real_libc::recvmsg(fd, msg, flags), msg);
    /// `sendmsg(2)`
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t =
        send_message(fd, msg, flags), else real_libc::sendmsg(fd, msg, flags);
    /// `sendfile(2)`
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        send_file(out, from, offset, count), else real_libc::sendfile(out, from, offset, count);
    /// `sendfile(2)`
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        send_file(out, from, offset, count), else real_libc::sendfile(out, from, offset, count);
    /// `splice(2)`
    fn splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, len: size_t, flags: u32) -> ssize_t =
        splice_by_copying(from, [from_at, to_at], to, len, flags), else real_libc::splice(from, from_at, to, to_at, len, flags);
}

type ResultUnlessLeftToKernel = Option<std::io::Result<usize>>;

/// Copies between a connection that is on RDMA and a pipe. The kernel handles calls that it refuses.
fn splice_by_copying(
    from: c_int,
    offsets: [*mut i64; 2],
    to: c_int,
    len: size_t,
    flags: u32,
) -> ResultUnlessLeftToKernel {
    let known =
        libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if len == 0 || flags & !known != 0 || offsets.iter().any(|offset| !offset.is_null()) {
        return None;
    }
    program_calls::splice_if_managed(from, to, len, flags, || {
        let none = std::ptr::null_mut();
        // SAFETY: the offsets are NULL.
        let moved = unsafe { real_libc::splice(from, none, to, none, len, flags) };
        usize::try_from(moved).map_err(|_| std::io::Error::last_os_error())
    })
}

/// # Safety
/// That of `recvfrom(2)`.
unsafe fn receive_from(
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    addr_len: *mut socklen_t,
) -> ResultUnlessLeftToKernel {
    // SAFETY: contract of this function.
    let got = unsafe {
        program_calls::recv_if_managed(fd, IovecCursor::new(&single_iovec(to, len)), flags)
    }?;
    if !addr_len.is_null() {
        // SAFETY: contract of this function. A stream has no address (`recv(2)`).
        unsafe { *addr_len = 0 };
    }
    Some(got)
}

/// # Safety
/// That of `sendto(2)`.
unsafe fn send_to(
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
) -> ResultUnlessLeftToKernel {
    if !addr.is_null() && flags & libc::MSG_FASTOPEN != 0 {
        program_calls::demote(fd);
        return None;
    }
    // SAFETY: contract of this function.
    unsafe { program_calls::send_if_managed(fd, IovecCursor::new(&single_iovec(from, len)), flags) }
}

/// Adopts the sockets that came with a message.
///
/// # Safety
/// `got` is the result of `recvmsg(2)`, and `msg` its message.
unsafe fn adopt_passed_sockets(got: ssize_t, msg: *const msghdr) -> ssize_t {
    if got >= 0 {
        // SAFETY: contract of this function: the kernel has written the control messages.
        unsafe { for_each_passed_descriptor(msg, program_calls::adopt_socket) };
    }
    got
}

/// Calls `act` with each descriptor in the control messages of a message.
///
/// # Safety
/// `msg` is a message of `sendmsg(2)`, or one that `recvmsg(2)` has filled.
unsafe fn for_each_passed_descriptor(msg: *const msghdr, act: impl Fn(c_int)) {
    // SAFETY: contract of this function.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(msg);
        while let Some(header) = next.as_ref() {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data: *const c_int = libc::CMSG_DATA(next).cast();
                let bytes = (next.addr() + header.cmsg_len).saturating_sub(data.addr());
                for i in 0..bytes / size_of::<c_int>() {
                    act(data.add(i).read_unaligned());
                }
            }
            next = libc::CMSG_NXTHDR(msg, next);
        }
    }
}

/// # Safety
/// That of `recvmsg(2)`.
unsafe fn receive_message(fd: c_int, msg: *mut msghdr, flags: c_int) -> ResultUnlessLeftToKernel {
    // SAFETY: contract of this function.
    let header = unsafe { msg.as_mut() }?;
    if flags & libc::MSG_ERRQUEUE != 0 {
        return None;
    }
    if header.msg_controllen > 0 {
        let by_kernel = || {
            // SAFETY: contract of this function.
            let got = unsafe { real_libc::recvmsg(fd, msg, flags) };
            usize::try_from(got).map_err(|_| std::io::Error::last_os_error())
        };
        if let Some(got) = program_calls::recv_by_kernel_if_tcp(fd, flags, by_kernel) {
            return Some(got);
        }
    }
    // SAFETY: contract of this function.
    let to = unsafe { IovecCursor::new(iovecs(header.msg_iov, header.msg_iovlen)) };
    let got = program_calls::recv_if_managed(fd, to, flags)?;
    if got.is_ok() {
        (header.msg_namelen, header.msg_controllen, header.msg_flags) = (0, 0, 0);
    }
    Some(got)
}

/// # Safety
/// That of `sendmsg(2)`.
unsafe fn send_message(fd: c_int, msg: *const msghdr, flags: c_int) -> ResultUnlessLeftToKernel {
    // SAFETY: contract of this function.
    let header = unsafe { msg.as_ref() }?;
    if header.msg_controllen > 0 {
        // SAFETY: contract of this function.
        unsafe { for_each_passed_descriptor(msg, program_calls::before_passing_descriptor) };
    }
    if header.msg_controllen > 0 || flags & libc::MSG_FASTOPEN != 0 {
        program_calls::demote(fd);
        return None;
    }
    // SAFETY: contract of this function.
    let from = unsafe { IovecCursor::new(iovecs(header.msg_iov, header.msg_iovlen)) };
    program_calls::send_if_managed(fd, from, flags)
}

/// Copies a file into a connection that is on RDMA. Before that, the kernel sends the file.
///
/// # Safety
/// That of `sendfile(2)`.
unsafe fn send_file(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ResultUnlessLeftToKernel {
    if !program_calls::is_connection(out) {
        return None;
    }
    let by_kernel = || {
        // SAFETY: contract of this function.
        let sent = unsafe { real_libc::sendfile(out, from, offset, count) };
        usize::try_from(sent).map_err(|_| std::io::Error::last_os_error())
    };
    if let Some(sent) = program_calls::send_by_kernel_unless_rdma(out, by_kernel) {
        return Some(sent);
    }
    // A thread of the program may have a small stack.
    let mut bytes = vec![0u8; 32 * 1024];
    let mut done = 0;
    // SAFETY: NULL, or the caller's.
    let start = match unsafe { offset.as_ref() } {
        Some(at) => *at,
        // SAFETY: asks where the file is read.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    if start < 0 {
        // Not a file with offsets, which could not be put back if the connection is full.
        program_calls::demote(out);
        return None;
    }
    let result = loop {
        let want = (count - done).min(bytes.len());
        let at = start + off_t::try_from(done).unwrap_or(0);
        // SAFETY: room for so many bytes.
        let n = unsafe { libc::pread(from, bytes.as_mut_ptr().cast(), want, at) };
        let Ok(n) = usize::try_from(n) else {
            break Err(std::io::Error::last_os_error());
        };
        if n == 0 {
            break Ok(done);
        }
        // SAFETY: so many bytes were read.
        let sent = unsafe {
            program_calls::send_if_managed(
                out,
                IovecCursor::new(&single_iovec(bytes.as_ptr().cast(), n)),
                0,
            )
        };
        match sent {
            Some(Ok(sent)) => done += sent,
            Some(Err(err)) => break if done > 0 { Ok(done) } else { Err(err) },
            None => break Ok(done),
        }
        let is_short = matches!(sent, Some(Ok(sent)) if sent < n);
        if done == count || is_short {
            break Ok(done);
        }
    };
    let end = start + off_t::try_from(done).unwrap_or(0);
    // SAFETY: NULL, or the caller's.
    match unsafe { offset.as_mut() } {
        Some(at) => *at = end,
        // SAFETY: puts the file where the kernel's function would.
        None => unsafe {
            libc::lseek(from, end, libc::SEEK_SET);
        },
    }
    Some(result)
}
