//! The TCP connection of a stream over RDMA. The connection carries no bytes after the handshake; its end is the end of
//! the stream.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::error::StreamError;

/// Returns the reason why the connection has ended the stream, or `None` while the connection is open and silent. Takes
/// no byte out of the socket.
pub(crate) fn peek(tcp: impl AsFd) -> Option<StreamError> {
    match recv(tcp, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Some(StreamError::Closed),
        Ok(_) => Some(StreamError::BytesOnTcp),
        Err(Errno::AGAIN | Errno::INTR) => None,
        Err(e) => Some(StreamError::Tcp(e.to_string())),
    }
}
