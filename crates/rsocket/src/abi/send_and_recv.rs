//! Sending and receiving.

use std::ffi::c_int;

use c_edge::{InConst, InOut, c_functions};
use libc::{msghdr, socklen_t};
use rdmacm::addr::IdAddress;
use rdmacm::errno::{Errno, INVALID, Result};

use super::edge::{Buffer, Buffers, IovecPart, Name, NameRoom, Room, split_msghdr};
use crate::socket_table::{RSocket, find};

/// Largest datagram that any call accepts, in bytes.
const MAX_DATAGRAM_BYTES: usize = 65_536;

c_functions! {
    /// `recv(2)`.
    pub rrecv => recv, (socket: c_int, buf: Room, len: usize, flags: c_int) -> Result<usize>;

    /// `recvfrom(2)`; for a stream, the source is its peer.
    pub rrecvfrom => recv_from,
        (socket: c_int, buf: Room, len: usize, flags: c_int, src_addr: NameRoom, addrlen: InOut<'_, socklen_t>)
        -> Result<usize>;

    /// `recvmsg(2)`, without control messages.
    pub rrecvmsg => recv_message, (socket: c_int, msg: InOut<'_, msghdr>, flags: c_int) -> Result<usize>;

    /// `send(2)`.
    pub rsend => send, (socket: c_int, buf: Buffer, len: usize, flags: c_int) -> Result<usize>;

    /// `sendto(2)`; a stream accepts no address.
    pub rsendto => send_to,
        (socket: c_int, buf: Buffer, len: usize, flags: c_int, dest_addr: Name, addrlen: socklen_t) -> Result<usize>;

    /// `sendmsg(2)`, without control messages.
    pub rsendmsg => send_message, (socket: c_int, msg: InConst<'_, msghdr>, flags: c_int) -> Result<usize>;

    /// `read(2)`.
    pub rread => read, (socket: c_int, buf: Room, count: usize) -> Result<usize>;

    /// `readv(2)`.
    pub rreadv => read_parts, (socket: c_int, iov: Buffers, iovcnt: c_int) -> Result<usize>;

    /// `write(2)`.
    pub rwrite => write, (socket: c_int, buf: Buffer, count: usize) -> Result<usize>;

    /// `writev(2)`.
    pub rwritev => write_parts, (socket: c_int, iov: Buffers, iovcnt: c_int) -> Result<usize>;
}

fn recv(socket: c_int, buf: Room, len: usize, flags: c_int) -> Result<usize> {
    find(socket)?.recv(buf.as_mut_bytes(len)?, flags)
}

fn recv_from(
    socket: c_int,
    buf: Room,
    len: usize,
    flags: c_int,
    src_addr: NameRoom,
    addrlen: InOut<'_, socklen_t>,
) -> Result<usize> {
    let (got, from) = find(socket)?.recv_from(buf.as_mut_bytes(len)?, flags)?;
    src_addr.write_address_with_length(from, addrlen);
    Ok(got)
}

fn recv_message(socket: c_int, msg: InOut<'_, msghdr>, flags: c_int) -> Result<usize> {
    let socket = find(socket)?;
    let mut msg = msg.optional();
    let (buffers, count, _, name) = split_msghdr(msg.as_deref())?;
    if let Some(msg) = &mut msg {
        msg.msg_flags = 0;
    }
    let parts = buffers.parts(count)?;
    if socket.is_datagram() {
        let (got, from) = recv_datagram(&socket, parts, flags)?;
        name.write_address(from, msg.map(|msg| &mut msg.msg_namelen));
        return Ok(got);
    }
    recv_into_parts(&socket, parts, flags)
}

/// Fills several buffers. Waits only for the first byte, unless `flags` contain `MSG_WAITALL`.
fn recv_into_parts(socket: &RSocket, parts: &[IovecPart], flags: c_int) -> Result<usize> {
    if socket.is_datagram() {
        return recv_datagram(socket, parts, flags).map(|(got, _)| got);
    }
    let mut done = 0;
    for part in parts.iter().filter(|part| part.len() > 0) {
        let flags = if done > 0 && flags & libc::MSG_WAITALL == 0 {
            flags | libc::MSG_DONTWAIT
        } else {
            flags
        };
        match socket.recv(part.writable_prefix(part.len())?, flags) {
            Ok(n) => {
                done += n;
                if n < part.len() {
                    break;
                }
            }
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Fills several buffers from one datagram.
fn recv_datagram(
    socket: &RSocket,
    parts: &[IovecPart],
    flags: c_int,
) -> Result<(usize, IdAddress)> {
    let room = parts
        .iter()
        .fold(0, |n: usize, part| n.saturating_add(part.len()));
    let mut bytes = vec![0; room.min(MAX_DATAGRAM_BYTES)];
    let (got, from) = socket.recv_from(&mut bytes, flags)?;
    let mut rest = bytes.get(..got.min(room)).unwrap_or(&bytes);
    for part in parts {
        let (here, behind) = rest.split_at(rest.len().min(part.len()));
        part.writable_prefix(here.len())?.copy_from_slice(here);
        rest = behind;
    }
    Ok((got, from))
}

/// Sends several buffers as one datagram.
fn send_datagram(
    socket: &RSocket,
    parts: &[IovecPart],
    flags: c_int,
    to: Option<IdAddress>,
) -> Result<usize> {
    let mut bytes = Vec::new();
    for part in parts {
        if bytes.len().saturating_add(part.len()) > MAX_DATAGRAM_BYTES {
            return Err(Errno(libc::EMSGSIZE));
        }
        bytes.extend_from_slice(part.as_bytes()?);
    }
    socket.send_to(&bytes, flags, to)
}

/// Sends several buffers in order.
fn send_from_parts(socket: &RSocket, parts: &[IovecPart], flags: c_int) -> Result<usize> {
    if socket.is_datagram() {
        return send_datagram(socket, parts, flags, None);
    }
    let mut done = 0;
    for part in parts {
        let bytes = part.as_bytes()?;
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

fn send(socket: c_int, buf: Buffer, len: usize, flags: c_int) -> Result<usize> {
    find(socket)?.send_to(buf.as_bytes(len)?, flags, None)
}

fn send_to(
    socket: c_int,
    buf: Buffer,
    len: usize,
    flags: c_int,
    dest_addr: Name,
    addrlen: socklen_t,
) -> Result<usize> {
    let socket = find(socket)?;
    if !socket.is_datagram() && (!dest_addr.is_null() || addrlen != 0) {
        return Err(Errno(libc::EISCONN));
    }
    let to = (!dest_addr.is_null()).then(|| dest_addr.to_id_address(addrlen));
    socket.send_to(buf.as_bytes(len)?, flags, to.transpose()?)
}

fn send_message(socket: c_int, msg: InConst<'_, msghdr>, flags: c_int) -> Result<usize> {
    let socket = find(socket)?;
    let msg = msg.optional();
    let (buffers, count, name, _) = split_msghdr(msg)?;
    let parts = buffers.parts(count)?;
    if socket.is_datagram() && !name.is_null() {
        let to = name.to_id_address(msg.map_or(0, |msg| msg.msg_namelen))?;
        return send_datagram(&socket, parts, flags, Some(to));
    }
    send_from_parts(&socket, parts, flags)
}

fn read(socket: c_int, buf: Room, count: usize) -> Result<usize> {
    recv(socket, buf, count, 0)
}

fn read_parts(socket: c_int, iov: Buffers, iovcnt: c_int) -> Result<usize> {
    let socket = find(socket)?;
    let count = usize::try_from(iovcnt).map_err(|_| INVALID)?;
    recv_into_parts(&socket, iov.parts(count)?, 0)
}

fn write(socket: c_int, buf: Buffer, count: usize) -> Result<usize> {
    send(socket, buf, count, 0)
}

fn write_parts(socket: c_int, iov: Buffers, iovcnt: c_int) -> Result<usize> {
    let socket = find(socket)?;
    let count = usize::try_from(iovcnt).map_err(|_| INVALID)?;
    send_from_parts(&socket, iov.parts(count)?, 0)
}
