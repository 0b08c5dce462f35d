//! Socket options.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option whose value is an `int`.
pub(crate) fn set_int_socket_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: i32,
) -> io::Result<()> {
    // SAFETY: pointer and length are those of `value`, which the kernel only reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    check_syscall(result)
}

/// A `sock_fprog` with initialised padding: the kernel copies the padding, and memcheck reports uninitialised bytes.
#[repr(C)]
struct FilterProgram {
    len: u16,
    padding: [u8; size_of::<usize>() - size_of::<u16>()],
    filter: *const libc::sock_filter,
}

const _: () = assert!(size_of::<FilterProgram>() == size_of::<libc::sock_fprog>());

/// Sets the BPF program that selects the socket in a group of sockets with the same address
/// (`SO_ATTACH_REUSEPORT_CBPF`).
pub(crate) fn attach_steering_program(
    socket: BorrowedFd<'_>,
    program: &[libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = FilterProgram {
        len,
        padding: [0; size_of::<usize>() - size_of::<u16>()],
        filter: program.as_ptr(),
    };
    // SAFETY: `program` is a `sock_fprog` that points to `len` instructions. The kernel checks them; it reads both and
    // writes neither.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<FilterProgram>() as libc::socklen_t,
        )
    };
    check_syscall(result)
}

/// Returns the number of datagrams that the kernel has dropped since the socket was made, mostly because its buffer was
/// full.
pub(crate) fn kernel_dropped_datagram_count(socket: BorrowedFd<'_>) -> io::Result<u32> {
    /// Index of the drops in the result of `SO_MEMINFO` (`SK_MEMINFO_DROPS`).
    const DROPS_INDEX: usize = 8;
    let mut info = [0_u32; DROPS_INDEX + 1];
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
    check_syscall(result).map(|()| info[DROPS_INDEX])
}

fn check_syscall(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
