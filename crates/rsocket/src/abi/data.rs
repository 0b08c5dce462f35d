//! Sending and receiving.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use rdmacm::addr::Addr;
use rdmacm::errno::{Errno, INVALID, Result};

use super::arguments::{address, give_address, iovecs, or_minus_one_s, slice, slice_mut};
use crate::table::{RSocket, find};

/// Bytes of the longest datagram that any call takes.
const MAX_DATAGRAM: usize = 65_536;

/// `recv(2)`.
pub unsafe extern "C" fn rrecv(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: contract of this module.
    or_minus_one_s(find(socket).and_then(|s| s.recv(unsafe { slice_mut(buf, len) }?, flags)))
}

/// `recvfrom(2)`: a stream comes from its peer.
pub unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    src_addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    let got = find(socket).and_then(|s| {
        // SAFETY: contract of this module.
        unsafe {
            let (got, from) = s.recv_from(slice_mut(buf, len)?, flags)?;
            give_address(from, src_addr, addrlen);
            Ok(got)
        }
    });
    or_minus_one_s(got)
}

/// `recvmsg(2)`, without control messages.
pub unsafe extern "C" fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let got = find(socket).and_then(|s| {
        // SAFETY: contract of this module.
        unsafe {
            let msg = msg.as_mut().ok_or(Errno(libc::EFAULT))?;
            if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            msg.msg_flags = 0;
            let buffers = iovecs(msg.msg_iov, msg.msg_iovlen)?;
            if s.is_datagram() {
                let (got, from) = recv_datagram(&s, buffers, flags)?;
                give_address(from, msg.msg_name.cast(), &raw mut msg.msg_namelen);
                return Ok(got);
            }
            recv_all(&s, buffers, flags)
        }
    });
    or_minus_one_s(got)
}

/// Fills buffers: waits for the first byte only, unless `flags` say otherwise.
///
/// # Safety
/// The buffers are valid.
unsafe fn recv_all(socket: &RSocket, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if socket.is_datagram() {
        // SAFETY: contract of this function.
        return unsafe { recv_datagram(socket, buffers, flags) }.map(|(got, _)| got);
    }
    let mut done = 0;
    for buffer in buffers.iter().filter(|b| b.iov_len > 0) {
        let flags = if done > 0 && flags & libc::MSG_WAITALL == 0 {
            flags | libc::MSG_DONTWAIT
        } else {
            flags
        };
        // SAFETY: contract of this function.
        let bytes = unsafe { slice_mut(buffer.iov_base, buffer.iov_len) }?;
        match socket.recv(bytes, flags) {
            Ok(n) => {
                done += n;
                if n < buffer.iov_len {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Fills buffers from one datagram.
///
/// # Safety
/// The buffers are valid.
unsafe fn recv_datagram(
    socket: &RSocket,
    buffers: &[iovec],
    flags: c_int,
) -> Result<(usize, Addr)> {
    let room = buffers
        .iter()
        .fold(0, |n: usize, b| n.saturating_add(b.iov_len));
    let mut bytes = vec![0; room.min(MAX_DATAGRAM)];
    let (got, from) = socket.recv_from(&mut bytes, flags)?;
    let mut rest = bytes.get(..got.min(room)).unwrap_or(&bytes);
    for buffer in buffers {
        let (part, behind) = rest.split_at(rest.len().min(buffer.iov_len));
        // SAFETY: contract of this function.
        unsafe { slice_mut(buffer.iov_base, part.len()) }?.copy_from_slice(part);
        rest = behind;
    }
    Ok((got, from))
}

/// Sends buffers as one datagram.
///
/// # Safety
/// The buffers are valid.
unsafe fn send_datagram(
    socket: &RSocket,
    buffers: &[iovec],
    flags: c_int,
    to: Option<Addr>,
) -> Result<usize> {
    let mut bytes = Vec::new();
    for buffer in buffers {
        if bytes.len().saturating_add(buffer.iov_len) > MAX_DATAGRAM {
            return Err(Errno(libc::EMSGSIZE));
        }
        // SAFETY: contract of this function.
        bytes.extend_from_slice(unsafe { slice(buffer.iov_base, buffer.iov_len) }?);
    }
    socket.send_to(&bytes, flags, to)
}

/// Sends buffers, one behind the other.
///
/// # Safety
/// The buffers are valid.
unsafe fn send_all(socket: &RSocket, buffers: &[iovec], flags: c_int) -> Result<usize> {
    if socket.is_datagram() {
        // SAFETY: contract of this function.
        return unsafe { send_datagram(socket, buffers, flags, None) };
    }
    let mut done = 0;
    for buffer in buffers {
        // SAFETY: contract of this function.
        let bytes = unsafe { slice(buffer.iov_base, buffer.iov_len) }?;
        match socket.send_to(bytes, flags, None) {
            Ok(n) => {
                done += n;
                if n < bytes.len() {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// `send(2)`.
pub unsafe extern "C" fn rsend(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: contract of this module.
    or_minus_one_s(find(socket).and_then(|s| s.send_to(unsafe { slice(buf, len) }?, flags, None)))
}

/// `sendto(2)`. A stream has its peer, and no other address.
pub unsafe extern "C" fn rsendto(
    socket: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    dest_addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    let sent = find(socket).and_then(|s| {
        if !s.is_datagram() && (!dest_addr.is_null() || addrlen != 0) {
            return Err(Errno(libc::EISCONN));
        }
        // SAFETY: contract of this module.
        unsafe {
            let to = (!dest_addr.is_null()).then(|| address(dest_addr, addrlen));
            s.send_to(slice(buf, len)?, flags, to.transpose()?)
        }
    });
    or_minus_one_s(sent)
}

/// `sendmsg(2)`, without control messages.
pub unsafe extern "C" fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    let sent = find(socket).and_then(|s| {
        // SAFETY: contract of this module.
        unsafe {
            let msg = msg.as_ref().ok_or(Errno(libc::EFAULT))?;
            if !msg.msg_control.is_null() && msg.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let buffers = iovecs(msg.msg_iov, msg.msg_iovlen)?;
            if s.is_datagram() && !msg.msg_name.is_null() {
                let to = address(msg.msg_name.cast(), msg.msg_namelen)?;
                return send_datagram(&s, buffers, flags, Some(to));
            }
            send_all(&s, buffers, flags)
        }
    });
    or_minus_one_s(sent)
}

/// `read(2)`.
pub unsafe extern "C" fn rread(socket: c_int, buf: *mut c_void, count: usize) -> ssize_t {
    // SAFETY: contract of this module.
    unsafe { rrecv(socket, buf, count, 0) }
}

/// `readv(2)`.
pub unsafe extern "C" fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    let got = find(socket).and_then(|s| {
        let count = usize::try_from(iovcnt).map_err(|_| INVALID)?;
        // SAFETY: contract of this module.
        unsafe { recv_all(&s, iovecs(iov, count)?, 0) }
    });
    or_minus_one_s(got)
}

/// `write(2)`.
pub unsafe extern "C" fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> ssize_t {
    // SAFETY: contract of this module.
    unsafe { rsend(socket, buf, count, 0) }
}

/// `writev(2)`.
pub unsafe extern "C" fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    let sent = find(socket).and_then(|s| {
        let count = usize::try_from(iovcnt).map_err(|_| INVALID)?;
        // SAFETY: contract of this module.
        unsafe { send_all(&s, iovecs(iov, count)?, 0) }
    });
    or_minus_one_s(sent)
}
