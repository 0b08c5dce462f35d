//! Functions for buffers that the peer writes.

use std::ffi::c_int;

use c_edge::c_functions;
use libc::off_t;
use rdmacm::errno::{INVALID, Result};

use super::edge::{Buffer, Room, WrittenByteCountOrError};
use crate::socket_table::find;

c_functions! {
    /// Lets the peer write to memory of this process by [`riowrite`]: `rsocket(7)`. Returns the offset that the peer
    /// must use.
    pub riomap => iomap,
        (socket: c_int, buf: Room, len: usize, prot: c_int, flags: c_int, offset: off_t) -> Result<u64>;

    /// Undoes [`riomap`].
    pub riounmap => iounmap, (socket: c_int, buf: Room, len: usize) -> Result;

    /// Writes to memory that the peer has mapped by [`riomap`]. Returns the number of bytes, or `(size_t)-1` with
    /// errno.
    pub riowrite => write_to_peer_mapping, (socket: c_int, buf: Buffer, count: usize, offset: off_t, flags: c_int) -> WrittenByteCountOrError;
}

fn iomap(
    socket: c_int,
    buf: Room,
    len: usize,
    prot: c_int,
    _flags: c_int,
    offset: off_t,
) -> Result<u64> {
    let socket = find(socket)?;
    let offset = match offset {
        -1 => None,
        offset => Some(u64::try_from(offset).map_err(|_| INVALID)?),
    };
    // SAFETY: the memory stays valid until it is unmapped (`rsocket(7)`).
    unsafe {
        socket
            .as_stream_socket()?
            .iomap(buf.addr(), len, prot, offset)
    }
}

fn iounmap(socket: c_int, buf: Room, _len: usize) -> Result {
    find(socket)?.as_stream_socket()?.iounmap(buf.addr())
}

fn write_to_peer_mapping(
    socket: c_int,
    buf: Buffer,
    count: usize,
    offset: off_t,
    flags: c_int,
) -> WrittenByteCountOrError {
    let write = || {
        let socket = find(socket)?;
        let offset = u64::try_from(offset).map_err(|_| INVALID)?;
        socket
            .as_stream_socket()?
            .write_to_peer_mapping(buf.as_bytes(count)?, offset, flags)
    };
    WrittenByteCountOrError(write())
}
