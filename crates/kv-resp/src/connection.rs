//! The types of connections that carry bytes, as Redis's `ConnectionType` (`connection.h`).
//!
//! A type is a [`Listener`] that accepts [`Connection`]s. Both report readiness through [`mio::event::Source`], so that
//! one thread serves connections of all types. A queue pair's descriptor is that of its completion channel.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use liveness::keepalive::enable_keepalive;
use liveness::socket_file::SocketFile;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

/// Time without a packet after which the kernel asks whether a client's host still answers: the default of Redis's
/// `tcp-keepalive`.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(5);

/// Number of TCP connections that the kernel completes before they are accepted, at most `net.core.somaxconn`. Beyond it the
/// kernel drops the first packet of a client, which tries again after one second. The standard library asks for 128.
const BACKLOG: i32 = 4096;

/// A connection. Reads and writes do not block, but return [`io::ErrorKind::WouldBlock`]. The connection becomes ready
/// again when another attempt can succeed. It also becomes ready when data arrives after a read that did not fill the
/// buffer.
///
/// Some types are [polled](Self::supports_polling): [`poll`](Self::poll) returns their readiness, and their descriptors
/// report events only after [`arm_unless_ready`](Self::arm_unless_ready).
pub trait Connection: Read + Write + Source + Send {
    /// Returns true if the connection can be polled without system calls.
    fn supports_polling(&self) -> bool {
        false
    }

    /// Returns true if the connection has become ready since the last call.
    fn poll(&mut self) -> bool {
        false
    }

    /// Makes the descriptors report readiness, before the thread sleeps. Returns false if the connection is already
    /// ready.
    fn arm_unless_ready(&mut self) -> bool {
        true
    }

    /// Returns the interval of keep-alive messages; `None` if the system sends them.
    fn keep_alive_interval(&self) -> Option<Duration> {
        None
    }

    /// Returns true if the next read returns the end of the stream or an error, without a further event.
    fn has_unreported_end(&self) -> bool {
        false
    }

    /// Sends a keep-alive message to the peer.
    ///
    /// # Errors
    /// The errors of writing.
    fn send_keep_alive(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for TcpStream {}

impl Connection for UnixStream {}

/// Accepts connections of one type.
pub trait Listener: Source + Send {
    /// Accepts the next waiting connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if no connection waits. Other errors concern this connection or the system; later
    /// calls can succeed.
    fn accept(&mut self) -> io::Result<Box<dyn Connection>>;

    /// Returns the address for clients.
    fn address(&self) -> ListenAddress;

    /// Registers descriptors that the accepted connections share, if there are any. When they are readable, the caller
    /// calls [`take_ready`](Self::take_ready).
    ///
    /// # Errors
    /// The errors of `epoll_ctl(2)`.
    fn register_shared_descriptors(&mut self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }

    /// Takes the events of the shared descriptors, and passes the token of each connection that may be ready to `ready`.
    fn take_ready(&mut self, _ready: &mut dyn FnMut(Token)) {}
}

/// The address on which a front end listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// A host and a port for TCP; port 0 takes a free port.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// An address and a port for RDMA: Valkey's transport, with connections by `rdma_cm`.
    Rdma(SocketAddr),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
            Self::Rdma(address) => address.fmt(f),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    /// Parses a string with a `/` as a path, and any other as host and port.
    fn from_str(s: &str) -> Result<Self, String> {
        if s.contains('/') {
            return Ok(Self::Unix(s.into()));
        }
        match s.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self::Tcp(s.to_owned()))
            }
            _ => Err(format!(
                "{s:?} is neither HOST:PORT, such as 127.0.0.1:6379, nor the path of a Unix socket, such as ./socket"
            )),
        }
    }
}

impl ListenAddress {
    /// Listens at the address. An unused Unix socket file is replaced.
    ///
    /// # Errors
    /// The errors of the system. RDMA needs a device: [`RdmaListener::listen`](crate::RdmaListener::listen).
    pub fn listen(&self) -> io::Result<Box<dyn Listener>> {
        match self {
            Self::Rdma(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                rustix::net::listen(&listener, BACKLOG)?;
                listener.set_nonblocking(true)?;
                Ok(Box::new(TcpListener::from_std(listener)))
            }
            Self::Unix(path) => {
                let (listener, file) = SocketFile::listen(path)?;
                listener.set_nonblocking(true)?;
                let listener = UnixListener::from_std(listener);
                Ok(Box::new(UnixSocketListener { listener, file }))
            }
        }
    }
}

/// Accepts a client, and sets the options of its connection.
fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    // Replies are written when they are complete, and must not wait for later ones.
    stream.set_nodelay(true)?;
    enable_keepalive(&stream, KEEPALIVE_IDLE)?;
    Ok(stream)
}

impl Listener for TcpListener {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(accept_tcp(self)?))
    }

    fn address(&self) -> ListenAddress {
        let address = self.local_addr().map(|a| a.to_string());
        ListenAddress::Tcp(address.unwrap_or_default())
    }
}

/// A Unix socket, whose file is removed on drop.
#[derive(Debug)]
struct UnixSocketListener {
    listener: UnixListener,
    file: SocketFile,
}

impl Listener for UnixSocketListener {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(self.listener.accept()?.0))
    }

    fn address(&self) -> ListenAddress {
        ListenAddress::Unix(self.file.path().to_owned())
    }
}

impl Source for UnixSocketListener {
    fn register(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.listener.register(r, token, interests)
    }

    fn reregister(&mut self, r: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.listener.reregister(r, token, interests)
    }

    fn deregister(&mut self, r: &Registry) -> io::Result<()> {
        self.listener.deregister(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_the_keepalive_of_redis() {
        use rustix::net::sockopt::{socket_keepalive, tcp_keepidle, tcp_keepintvl};

        let any = "127.0.0.1:0".parse().expect("an address");
        let listener = TcpListener::bind(any).expect("listens");
        let address = listener.local_addr().expect("an address");
        let _client = std::net::TcpStream::connect(address).expect("connects");
        let stream = accept_tcp(&listener).expect("accepts");
        assert!(socket_keepalive(&stream).expect("an option"));
        let seconds = [tcp_keepidle(&stream), tcp_keepintvl(&stream)];
        let seconds = seconds.map(|time| time.expect("an option").as_secs());
        assert_eq!(seconds, [300, 100]);
    }

    #[test]
    fn clients_that_come_together_need_not_try_again() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a limit");
        let most: usize = most.trim().parse().expect("a number");
        let any = ListenAddress::Tcp("127.0.0.1:0".into());
        let listener = any.listen().expect("listens");
        let address = listener.address().to_string().parse().expect("an address");
        // Nothing is accepted. A client whose first packet was dropped has no answer within this time.
        let connect =
            |_| std::net::TcpStream::connect_timeout(&address, Duration::from_millis(900));
        let connected: Result<Vec<_>, _> = (0..most.min(500)).map(connect).collect();
        connected.expect("every client is connected at once");
    }

    #[test]
    fn addresses_are_told_apart() {
        let tcp = |s: &str| Ok(ListenAddress::Tcp(s.to_owned()));
        assert_eq!("127.0.0.1:6379".parse(), tcp("127.0.0.1:6379"));
        assert_eq!("[::1]:0".parse(), tcp("[::1]:0"));
        assert_eq!("./6379".parse(), Ok(ListenAddress::Unix("./6379".into())));
        for wrong in ["", "6379", ":6379", "host:", "host:65536", "socket"] {
            let error = wrong.parse::<ListenAddress>().expect_err("wrong");
            assert!(error.contains("HOST:PORT"), "{error}");
        }
    }
}
