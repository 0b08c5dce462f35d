//! The socket end of a ping-pong: a stream socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::ping_pong::{Message, PING_PONG_MESSAGE_BYTES, SingleFdEpoll, SleepingEndpoint};
use crate::link::WorkerLink;

/// A connected nonblocking socket.
pub(super) struct NonblockingSocket<S> {
    stream: S,
    epoll_wait: SingleFdEpoll,
}

/// Connects to the worker's TCP socket, whose address arrives over the link.
pub(super) fn connect_tcp(link: &mut WorkerLink) -> Result<NonblockingSocket<TcpStream>> {
    let address: SocketAddr = link.recv()?;
    make_tcp_nonblocking(
        TcpStream::connect(address).with_context(|| format!("cannot connect to {address}"))?,
    )
}

/// Listens on a free loopback port, sends its address over the link, and accepts one connection.
pub(super) fn listen_and_accept_tcp(link: &mut WorkerLink) -> Result<NonblockingSocket<TcpStream>> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    link.send(&listener.local_addr()?)?;
    make_tcp_nonblocking(listener.accept().context("nobody connects")?.0)
}

fn make_tcp_nonblocking(stream: TcpStream) -> Result<NonblockingSocket<TcpStream>> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    NonblockingSocket::new(stream)
}

/// Connects to the worker's Unix socket, whose path arrives over the link.
pub(super) fn connect_unix(link: &mut WorkerLink) -> Result<NonblockingSocket<UnixStream>> {
    let path: PathBuf = link.recv()?;
    make_unix_nonblocking(
        UnixStream::connect(&path).with_context(|| format!("cannot connect to {path:?}"))?,
    )
}

/// Listens in a temporary folder, sends the path over the link, and accepts one connection. The
/// folder is removed afterwards.
pub(super) fn listen_and_accept_unix(
    link: &mut WorkerLink,
) -> Result<NonblockingSocket<UnixStream>> {
    let folder = tempfile::tempdir().context("cannot make a folder for a socket")?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).with_context(|| format!("cannot bind {path:?}"))?;
    link.send(&path)?;
    make_unix_nonblocking(listener.accept().context("nobody connects")?.0)
}

fn make_unix_nonblocking(stream: UnixStream) -> Result<NonblockingSocket<UnixStream>> {
    stream.set_nonblocking(true)?;
    NonblockingSocket::new(stream)
}

impl<S: Read + Write + AsFd> NonblockingSocket<S> {
    fn new(stream: S) -> Result<Self> {
        Ok(Self {
            epoll_wait: SingleFdEpoll::new(&stream)?,
            stream,
        })
    }
}

impl<S: Read + Write + AsFd> SleepingEndpoint for NonblockingSocket<S> {
    fn send(&mut self, message: &Message) -> Result<()> {
        // The socket buffer always has room, because only one message is under way.
        self.stream.write_all(message).context("cannot send")
    }

    fn receive(&mut self) -> Result<Message> {
        let mut message = [0; PING_PONG_MESSAGE_BYTES];
        let mut filled = 0;
        while filled < PING_PONG_MESSAGE_BYTES {
            self.epoll_wait.sleep_until_readable()?;
            match self.stream.read(&mut message[filled..]) {
                Ok(0) => bail!("the other end has closed its socket"),
                Ok(read) => filled += read,
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error).context("cannot receive"),
            }
        }
        Ok(message)
    }
}
