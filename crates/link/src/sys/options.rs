//! Options of sockets.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option that is an `int`.
pub(crate) fn set_int(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    check(result)
}

/// A `sock_fprog` whose padding has a value: the kernel copies it, and memcheck reports bytes without one.
#[repr(C)]
struct Program {
    len: u16,
    padding: [u8; size_of::<usize>() - size_of::<u16>()],
    filter: *const libc::sock_filter,
}

const _: () = assert!(size_of::<Program>() == size_of::<libc::sock_fprog>());

/// Sets the program that chooses the socket of a group of sockets that share an address (`SO_ATTACH_REUSEPORT_CBPF`).
pub(crate) fn set_steering(
    socket: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = Program {
        len,
        padding: [0; size_of::<usize>() - size_of::<u16>()],
        filter: program.as_ptr(),
    };
    // SAFETY: `program` is a `sock_fprog` that points at `len` instructions, and the kernel, which checks them, reads both and writes neither.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<Program>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Datagrams that the kernel dropped since the socket exists, most of them because its buffer was full.
pub(crate) fn drops(socket: BorrowedFd<'_>) -> io::Result<u32> {
    /// Index of the drops in what `SO_MEMINFO` gives (`SK_MEMINFO_DROPS`).
    const DROPS: usize = 8;
    let mut info = [0_u32; DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info` and the length to `len`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    check(result).map(|()| info[DROPS])
}

fn check(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
