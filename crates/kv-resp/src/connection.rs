//! How bytes come and go: types of connections, as Redis's `ConnectionType` (`connection.h`).
//!
//! A type is a [`Listener`] that accepts [`Connection`]s. Both say through [`mio::event::Source`] which descriptor
//! becomes ready, so that one thread serves connections of all types; a queue pair's is that of its completion channel.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};

/// A connection. Reads and writes do not block: they return [`io::ErrorKind::WouldBlock`], and what makes the next one
/// worth while makes it ready anew. So does what comes after a read that gave less than there was room for.
///
/// Some types are [polled](Self::is_polled): they are ready when [`poll`](Self::poll) says so, and their descriptors tell
/// only after [`arm`](Self::arm).
pub trait Connection: Read + Write + Source + Send {
    /// Whether it can be polled without system calls.
    fn is_polled(&self) -> bool {
        false
    }

    /// Whether it has become ready since it was asked last.
    fn poll(&mut self) -> bool {
        false
    }

    /// Has the descriptors tell when it becomes ready, before the thread sleeps. False if it has become ready already.
    fn arm(&mut self) -> bool {
        true
    }

    /// How often the peer is told that this end is there; `None` where the system does that.
    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    /// Tells the peer that this end is there.
    ///
    /// # Errors
    /// Those of writing.
    fn keep_alive(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for TcpStream {}

impl Connection for UnixStream {}

/// Accepts connections of one type.
pub trait Listener: Source + Send {
    /// The next connection that waits.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none waits; other errors are of this connection, or of the system, and later
    /// ones may be accepted all the same.
    fn accept(&mut self) -> io::Result<Box<dyn Connection>>;

    /// Where clients find it.
    fn address(&self) -> Address;
}

/// Where a front listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A host and a port, over TCP; port 0 takes a free one.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// An address and a port for RDMA: Valkey's transport, with connections by `rdma_cm`.
    Rdma(SocketAddr),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => path.display().fmt(f),
            Self::Rdma(address) => address.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    /// A path has a `/`; what has none is a host and a port.
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

impl Address {
    /// Listens there. A Unix socket that nobody listens on any more is replaced.
    ///
    /// # Errors
    /// Those of the system. A device is needed to listen for RDMA: [`Rdma::listen`](crate::Rdma::listen).
    pub fn listen(&self) -> io::Result<Box<dyn Listener>> {
        match self {
            Self::Rdma(_) => Err(io::ErrorKind::Unsupported.into()),
            Self::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Box::new(TcpListener::from_std(listener)))
            }
            Self::Unix(path) => {
                remove_stale(path);
                Ok(Box::new(Unix {
                    listener: UnixListener::bind(path)?,
                    path: path.clone(),
                }))
            }
        }
    }
}

/// Removes a socket that a process left behind which was killed. Any other file there makes `bind` fail.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let refused = || {
        let connected = std::os::unix::net::UnixStream::connect(path);
        connected.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
    };
    if is_socket && refused() {
        let _ = std::fs::remove_file(path);
    }
}

impl Listener for TcpListener {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        let (stream, _) = TcpListener::accept(self)?;
        // A reply is written once it is whole, and should not wait for a later one.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }

    fn address(&self) -> Address {
        let address = self.local_addr().map(|a| a.to_string());
        Address::Tcp(address.unwrap_or_default())
    }
}

/// A Unix socket, removed with it.
#[derive(Debug)]
struct Unix {
    listener: UnixListener,
    path: PathBuf,
}

impl Listener for Unix {
    fn accept(&mut self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(self.listener.accept()?.0))
    }

    fn address(&self) -> Address {
        Address::Unix(self.path.clone())
    }
}

impl Drop for Unix {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Source for Unix {
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
    fn addresses_are_told_apart() {
        let tcp = |s: &str| Ok(Address::Tcp(s.to_owned()));
        assert_eq!("127.0.0.1:6379".parse(), tcp("127.0.0.1:6379"));
        assert_eq!("[::1]:0".parse(), tcp("[::1]:0"));
        assert_eq!("./6379".parse(), Ok(Address::Unix("./6379".into())));
        for wrong in ["", "6379", ":6379", "host:", "host:65536", "socket"] {
            let error = wrong.parse::<Address>().expect_err("wrong");
            assert!(error.contains("HOST:PORT"), "{error}");
        }
    }
}
