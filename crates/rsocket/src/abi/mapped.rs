//! Functions for buffers that the peer writes.

use std::ffi::c_int;

use c_edge::c_functions;
use libc::off_t;
use rdmacm::errno::{INVALID, Result};

use super::edge::{Buffer, Room, WrittenBytes};
use crate::table::find;

c_functions! {
    /// Lets the peer write to memory of this process by [`riowrite`]: `rsocket(7)`. Returns the offset that the peer
    /// must use.
    pub riomap => map,
        (socket: c_int, buf: Room, len: usize, prot: c_int, flags: c_int, offset: off_t) -> Result<u64>;

    /// Undoes [`riomap`].
    pub riounmap => unmap, (socket: c_int, buf: Room, len: usize) -> Result;

    /// Writes to memory that the peer has mapped by [`riomap`]. Returns the number of bytes, or `(size_t)-1` with
    /// errno.
    pub riowrite => write, (socket: c_int, buf: Buffer, count: usize, offset: off_t, flags: c_int) -> WrittenBytes;
}

fn map(
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
    unsafe { socket.stream()?.map(buf.addr(), len, prot, offset) }
}

fn unmap(socket: c_int, buf: Room, _len: usize) -> Result {
    find(socket)?.stream()?.unmap(buf.addr())
}

fn write(socket: c_int, buf: Buffer, count: usize, offset: off_t, flags: c_int) -> WrittenBytes {
    let write = || {
        let socket = find(socket)?;
        let offset = u64::try_from(offset).map_err(|_| INVALID)?;
        socket
            .stream()?
            .write_mapped(buf.bytes(count)?, offset, flags)
    };
    WrittenBytes(write())
}
