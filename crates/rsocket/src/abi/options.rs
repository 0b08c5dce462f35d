//! Options and flags of sockets.

use std::ffi::{c_int, c_long};

use c_edge::{InOut, c_functions};
use libc::socklen_t;
use rdmacm::errno::{Errno, INVALID, Result};
use verbs_abi::{RDMA_ROUTE, SOL_RDMA};

use super::edge::{Buffer, Room};
use crate::socket_table::find;

c_functions! {
    /// `setsockopt(2)`.
    pub rsetsockopt => set_option,
        (socket: c_int, level: c_int, optname: c_int, optval: Buffer, optlen: socklen_t) -> Result;

    /// `getsockopt(2)`.
    pub rgetsockopt => option,
        (socket: c_int, level: c_int, optname: c_int, optval: Room, optlen: InOut<'_, socklen_t>) -> Result;

    /// `fcntl(2)`, for the flags of the socket. The C function is variadic; Linux passes a third argument as declared
    /// here.
    pub rfcntl => fcntl, (socket: c_int, cmd: c_int, arg: c_long) -> Result<c_int>;
}

/// Splits the value of an option into its first `int` and the rest.
fn split_first_int(bytes: &[u8]) -> Result<(c_int, &[u8])> {
    let (number, rest) = bytes.split_first_chunk().ok_or(INVALID)?;
    Ok((c_int::from_ne_bytes(*number), rest))
}

fn set_option(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: Buffer,
    optlen: socklen_t,
) -> Result {
    let socket = find(socket)?;
    if optval.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let value = optval.as_bytes(optlen as usize)?;
    match (level, optname) {
        (libc::SOL_SOCKET, libc::SO_LINGER) => {
            // `struct linger`: on or off, and the number of seconds.
            let (on, rest) = split_first_int(value)?;
            let (seconds, _) = split_first_int(rest)?;
            socket
                .as_stream_socket()?
                .store_ineffective_linger(on, seconds);
            Ok(())
        }
        // Only one route exists, so the option has no effect.
        (SOL_RDMA, RDMA_ROUTE) => Ok(()),
        _ => socket.set_option(level, optname, split_first_int(value)?.0),
    }
}

fn option(
    socket: c_int,
    level: c_int,
    optname: c_int,
    optval: Room,
    optlen: InOut<'_, socklen_t>,
) -> Result {
    let socket = find(socket)?;
    let len = optlen.optional().ok_or(Errno(libc::EFAULT))?;
    if optval.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    if (level, optname) == (libc::SOL_SOCKET, libc::SO_LINGER) {
        let (on, seconds) = socket.as_stream_socket()?.stored_linger_on_and_seconds();
        let mut linger = [0; size_of::<libc::linger>()];
        let (first, second) = linger.split_at_mut(size_of::<c_int>());
        first.copy_from_slice(&on.to_ne_bytes());
        second.copy_from_slice(&seconds.to_ne_bytes());
        optval.write_option_value(linger, len)
    } else {
        optval.write_option_value(socket.option(level, optname)?.to_ne_bytes(), len)
    }
}

fn fcntl(socket: c_int, cmd: c_int, arg: c_long) -> Result<c_int> {
    let socket = find(socket)?;
    match cmd {
        libc::F_GETFL => Ok(socket.status_flags()),
        libc::F_SETFL => {
            socket.set_status_flags(c_int::try_from(arg).map_err(|_| INVALID)?);
            Ok(0)
        }
        // Sockets always have FD_CLOEXEC.
        libc::F_GETFD => Ok(libc::FD_CLOEXEC),
        libc::F_SETFD => Ok(0),
        _ => Err(Errno(libc::ENOTSUP)),
    }
}
