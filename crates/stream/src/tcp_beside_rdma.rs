//! The TCP connection of a stream over RDMA. The connection carries no bytes after the handshake; its end is the end of
//! the stream.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use liveness::keepalive::enable_keepalive;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown, sockopt};

use crate::error::StreamError;

/// Time without a packet after which the kernel asks whether the peer's host still answers. An idle stream sends
/// nothing, and an idle queue pair does not notice that its peer is gone.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);

/// Sets the options of a connection, before the handshake. The connection may become one by plain TCP.
pub(crate) fn set_tcp_options(tcp: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&tcp, true)?;
    enable_keepalive(tcp, KEEPALIVE_IDLE)
}

/// Returns the reason why the connection has ended the stream, or `None` while the connection is open and silent. Takes
/// no byte out of the socket.
pub(crate) fn reason_of_end_if_ended(tcp: impl AsFd) -> Option<StreamError> {
    match recv(tcp, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Some(StreamError::ClosedByPeer),
        Ok(_) => Some(StreamError::BytesOnTcp),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(e) => Some(StreamError::Tcp(e.to_string())),
    }
}

/// Ends a connection that is dropped next. If sent bytes are lost, the connection is reset, so that the peer reads an
/// error and no end of file.
pub(crate) fn shut_down_or_reset(tcp: impl AsFd, bytes_are_lost: bool) {
    // The drop has nobody to whom it could report an error.
    let _ = if bytes_are_lost {
        sockopt::set_socket_linger(tcp, Some(Duration::ZERO))
    } else {
        shutdown(tcp, Shutdown::Both)
    };
}
