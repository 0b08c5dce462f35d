//! Sockets over RDMA, as C functions: `rsocket(7)`. Each is what the system call without the `r` is to sockets.

use std::ffi::{c_int, c_long, c_void};
use std::mem::size_of;
use std::time::Duration;

use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use verbs_abi::{RDMA_ROUTE, SOL_RDMA};

use super::returned::{or_minus_one, set_errno};
use crate::addr::{self, Addr};
use crate::errno::{Errno, INVALID, Result};
use crate::rsocket::{RSocket, find, rpoll as poll, rselect as select};

/// Bytes of the longest datagram that any call takes.
const MAX_DATAGRAM: usize = 65_536;

/// The number, or -1 with errno.
fn or_minus_one_c(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        -1
    })
}

/// The size, or -1 with errno.
fn or_minus_one_s(result: Result<usize>) -> ssize_t {
    match result {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// # Safety
/// `addr` is NULL or valid for `len` bytes.
unsafe fn address(addr: *const sockaddr, len: socklen_t) -> Result<Addr> {
    let len = len as usize;
    // SAFETY: contract of this function; the family is within the first bytes of every address.
    unsafe {
        if addr.is_null() || len < size_of::<libc::sa_family_t>() {
            return Err(INVALID);
        }
        let needed = addr::size_of_family((*addr).sa_family.into());
        let needed = needed.ok_or(Errno(libc::EAFNOSUPPORT))?;
        if len < needed {
            return Err(INVALID);
        }
        addr::read(addr).ok_or(INVALID)
    }
}

/// Writes an address as `accept(2)` does: as much as fits, and how long it is.
///
/// # Safety
/// `to` is NULL, or valid for `*len` bytes.
unsafe fn give_address(from: Addr, to: *mut sockaddr, len: *mut socklen_t) {
    // SAFETY: contract of this function.
    unsafe {
        if let (false, Some(len)) = (to.is_null(), len.as_mut()) {
            let (storage, full) = addr::to_c(from);
            let fits = (*len).min(full) as usize;
            std::ptr::copy_nonoverlapping((&raw const storage).cast::<u8>(), to.cast(), fits);
            *len = full;
        }
    }
}

/// Buffers to be sent.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes.
unsafe fn slice<'a>(data: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

/// Buffers to be filled.
///
/// # Safety
/// `data` is NULL or valid for `len` bytes, which nobody else uses.
unsafe fn slice_mut<'a>(data: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if len == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || len > isize::MAX as usize {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), len) })
}

/// # Safety
/// `iov` is NULL or valid for `count` entries.
unsafe fn iovecs<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec]> {
    /// Most entries: `writev(2)`.
    const IOV_MAX: usize = 1024;
    if count == 0 {
        return Ok(&[]);
    }
    if iov.is_null() || count > IOV_MAX {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    Ok(unsafe { std::slice::from_raw_parts(iov, count) })
}

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

/// `poll(2)`, over rsockets and other descriptors.
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let polled = if nfds > 0 && fds.is_null() {
        Err(Errno(libc::EFAULT))
    } else if nfds == 0 {
        poll(&mut [], timeout)
    } else {
        // SAFETY: contract of this module.
        poll(
            unsafe { std::slice::from_raw_parts_mut(fds, nfds as usize) },
            timeout,
        )
    };
    or_minus_one_c(polled.map(|n| c_int::try_from(n).unwrap_or(c_int::MAX)))
}

/// `select(2)`, over rsockets and other descriptors.
pub unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: contract of this module.
    let selected = unsafe {
        let timeout = timeout.as_ref().map(|t| {
            let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_micros(t.tv_usec.try_into().unwrap_or(0))
        });
        select(nfds, [readfds, writefds, exceptfds], timeout)
    };
    or_minus_one_c(selected.map(|n| c_int::try_from(n).unwrap_or(c_int::MAX)))
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

/// `setsockopt(2)`.
pub unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    let set = find(socket).and_then(|s| {
        let len = optlen as usize;
        if optval.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: contract of this module; as much as the length says.
        unsafe {
            match (level, optname) {
                (libc::SOL_SOCKET, libc::SO_LINGER) => {
                    if len < size_of::<libc::linger>() {
                        return Err(INVALID);
                    }
                    let linger = optval.cast::<libc::linger>().read_unaligned();
                    s.stream()?.set_linger(linger.l_onoff, linger.l_linger);
                    Ok(())
                }
                // There is one route.
                (SOL_RDMA, RDMA_ROUTE) => Ok(()),
                _ if len < size_of::<c_int>() => Err(INVALID),
                _ => s.set_option(level, optname, optval.cast::<c_int>().read_unaligned()),
            }
        }
    });
    or_minus_one(set)
}

/// `getsockopt(2)`.
pub unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    let got = find(socket).and_then(|s| {
        // SAFETY: contract of this module.
        unsafe {
            let room = optlen.as_mut().ok_or(Errno(libc::EFAULT))?;
            if optval.is_null() {
                return Err(Errno(libc::EFAULT));
            }
            if (level, optname) == (libc::SOL_SOCKET, libc::SO_LINGER) {
                let (l_onoff, l_linger) = s.stream()?.linger();
                put(libc::linger { l_onoff, l_linger }, optval, room)
            } else {
                put(s.option(level, optname)?, optval, room)
            }
        }
    });
    or_minus_one(got)
}

/// Writes an option's value.
///
/// # Safety
/// `to` is valid for `*room` bytes.
unsafe fn put<T>(value: T, to: *mut c_void, room: &mut socklen_t) -> Result {
    if (*room as usize) < size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: contract of this function.
    unsafe { to.cast::<T>().write_unaligned(value) };
    *room = socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    Ok(())
}

/// `fcntl(2)`, for the flags of the socket. In C it is variadic; Linux passes the third argument, where there is
/// one, as here.
pub unsafe extern "C" fn rfcntl(socket: c_int, cmd: c_int, arg: c_long) -> c_int {
    let done = find(socket).and_then(|s| match cmd {
        libc::F_GETFL => Ok(s.flags()),
        libc::F_SETFL => {
            s.set_flags(c_int::try_from(arg).map_err(|_| INVALID)?);
            Ok(0)
        }
        // They are closed on exec, and stay so.
        libc::F_GETFD => Ok(libc::FD_CLOEXEC),
        libc::F_SETFD => Ok(0),
        _ => Err(Errno(libc::ENOTSUP)),
    });
    or_minus_one_c(done)
}

/// Lets the peer write into memory of this process by [`riowrite`]: `rsocket(7)`. Returns the offset by which the peer
/// names it.
pub unsafe extern "C" fn riomap(
    socket: c_int,
    buf: *mut c_void,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let mapped = find(socket).and_then(|s| {
        let offset = match offset {
            -1 => None,
            offset => Some(u64::try_from(offset).map_err(|_| INVALID)?),
        };
        // SAFETY: contract of this module: the memory stays until it is unmapped.
        unsafe { s.stream()?.map(buf.cast(), len, prot, offset) }
    });
    match mapped {
        Ok(offset) => off_t::try_from(offset).unwrap_or(off_t::MAX),
        Err(Errno(errno)) => {
            set_errno(errno);
            -1
        }
    }
}

/// Undoes [`riomap`].
pub unsafe extern "C" fn riounmap(socket: c_int, buf: *mut c_void, _len: usize) -> c_int {
    or_minus_one(find(socket).and_then(|s| s.stream()?.unmap(buf.cast())))
}

/// Writes into memory that the peer has mapped by [`riomap`]. Returns how much; -1 with errno is the largest number.
pub unsafe extern "C" fn riowrite(
    socket: c_int,
    buf: *const c_void,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let written = find(socket).and_then(|s| {
        let offset = u64::try_from(offset).map_err(|_| INVALID)?;
        // SAFETY: contract of this module.
        s.stream()?
            .write_mapped(unsafe { slice(buf, count) }?, offset, flags)
    });
    written.unwrap_or_else(|Errno(errno)| {
        set_errno(errno);
        usize::MAX
    })
}
