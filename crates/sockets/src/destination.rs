//! Where received bytes go: a program's memory, or a pipe.

use std::io;

use libc::{c_int, iovec};

use crate::iovec_cursor::IovecCursor;
use crate::pipe;
use crate::real_libc::{self, result};
use crate::ring::Ring;

/// Where received bytes go.
#[derive(Clone, Copy)]
pub(crate) enum Destination<'a> {
    Memory(IovecCursor<'a>),
    /// A pipe, which gets at most `len` bytes.
    Pipe {
        fd: c_int,
        len: usize,
    },
}

impl Destination<'_> {
    /// Returns the largest number of bytes to receive.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Memory(to) => to.len(),
            Self::Pipe { len, .. } => *len,
        }
    }

    /// Receives up to `len` bytes of the kernel's stream without waiting.
    pub(crate) fn receive(self, fd: c_int, len: usize, flags: c_int) -> io::Result<usize> {
        let flags = flags | libc::MSG_DONTWAIT;
        match self {
            Self::Memory(to) => recv_by_kernel(fd, &to.iovecs_of_range(0, len), flags),
            Self::Pipe { fd: pipe, .. } => {
                // The socket may block, and then `splice(2)` does if there is nothing.
                let there = self.count_bytes(fd, len, flags)?;
                let (none, flags) = (std::ptr::null_mut(), libc::SPLICE_F_NONBLOCK);
                // SAFETY: the offsets are NULL.
                result(unsafe { real_libc::splice(fd, none, pipe, none, there, flags) })
            }
        }
    }

    /// Returns how many bytes of the kernel's stream, at most `len`, there are to receive. Copies them into memory.
    pub(crate) fn count_bytes(self, fd: c_int, len: usize, flags: c_int) -> io::Result<usize> {
        let flags = flags | libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match self {
            Self::Memory(to) => recv_by_kernel(fd, &to.iovecs_of_range(0, len), flags),
            Self::Pipe { .. } => {
                let nowhere = std::ptr::null_mut();
                // SAFETY: with `MSG_TRUNC` the kernel copies nothing (`tcp(7)`).
                result(unsafe { real_libc::recv(fd, nowhere, len, flags | libc::MSG_TRUNC) })
            }
        }
    }

    /// Copies up to `len` bytes of a ring, from cursor `from` on. Returns how many.
    ///
    /// # Errors
    /// Those of `write(2)` to a pipe; `EAGAIN` if it is full.
    pub(crate) fn copy_from_ring(self, ring: &Ring, from: u64, len: usize) -> io::Result<usize> {
        match self {
            Self::Memory(to) => {
                ring.copy_out(from, to, 0, len);
                Ok(len)
            }
            // SAFETY: the parts are within the ring.
            Self::Pipe { fd, .. } => unsafe { pipe::try_write(fd, &ring.iovecs(from, len)) },
        }
    }
}

/// Calls `recvmsg(2)` for these buffers of a program.
pub(crate) fn recv_by_kernel(fd: c_int, parts: &[iovec], flags: c_int) -> io::Result<usize> {
    // SAFETY: any bytes are valid; NULL pointers without lengths.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.msg_iovlen) = (parts.as_ptr().cast_mut(), parts.len());
    // SAFETY: the parts are a program's buffers to receive into (`IovecCursor::new`).
    result(unsafe { real_libc::recvmsg(fd, &raw mut msg, flags) })
}
