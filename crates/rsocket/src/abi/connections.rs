//! Creation, connection and names of sockets.

use std::ffi::c_int;

use c_edge::{InOut, c_functions};
use libc::socklen_t;
use rdmacm::errno::Result;

use super::edge::{Name, NameRoom};
use crate::socket_table::{RSocket, find};

c_functions! {
    /// Makes a socket: `socket(2)`.
    pub rsocket => RSocket::create, (domain: c_int, r#type: c_int, protocol: c_int) -> Result<c_int>;

    /// `bind(2)`.
    pub rbind => bind, (socket: c_int, addr: Name, addrlen: socklen_t) -> Result;

    /// `listen(2)`.
    pub rlisten => listen, (socket: c_int, backlog: c_int) -> Result;

    /// `accept(2)`.
    pub raccept => accept, (socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result<c_int>;

    /// `connect(2)`.
    pub rconnect => connect, (socket: c_int, addr: Name, addrlen: socklen_t) -> Result;

    /// `shutdown(2)`.
    pub rshutdown => shutdown, (socket: c_int, how: c_int) -> Result;

    /// `close(2)`.
    pub rclose => close, (socket: c_int) -> Result;

    /// `getpeername(2)`.
    pub rgetpeername => peer_name, (socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result;

    /// `getsockname(2)`.
    pub rgetsockname => own_name, (socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result;
}

fn close(socket: c_int) -> Result {
    if crate::epoll::close_if_descriptor_set(socket) {
        return Ok(());
    }
    RSocket::close(socket)
}

fn bind(socket: c_int, addr: Name, addrlen: socklen_t) -> Result {
    find(socket)?.bind(addr.to_id_address(addrlen)?)
}

fn listen(socket: c_int, backlog: c_int) -> Result {
    find(socket)?.as_stream_socket()?.listen(backlog)
}

fn accept(socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result<c_int> {
    let (new, peer) = find(socket)?.accept()?;
    addr.write_address_with_length(peer, addrlen);
    Ok(new)
}

fn connect(socket: c_int, addr: Name, addrlen: socklen_t) -> Result {
    find(socket)?.connect(addr.to_id_address(addrlen)?)
}

fn shutdown(socket: c_int, how: c_int) -> Result {
    find(socket)?.shutdown(how)
}

fn peer_name(socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result {
    addr.write_address_with_length(find(socket)?.own_or_peer_address(true)?, addrlen);
    Ok(())
}

fn own_name(socket: c_int, addr: NameRoom, addrlen: InOut<'_, socklen_t>) -> Result {
    addr.write_address_with_length(find(socket)?.own_or_peer_address(false)?, addrlen);
    Ok(())
}
