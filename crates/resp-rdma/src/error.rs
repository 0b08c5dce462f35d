//! Errors: of a peer, and of setting a connection up.

use std::io;
use std::net::SocketAddr;

use verbs::VerbError;

/// A violation of the protocol by the peer. It ends the connection to this peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A control message of another length.
    #[error("a control message of {0} bytes: they have 32")]
    CommandLength(usize),
    /// A control message with an opcode that there is not.
    #[error("a control message with the opcode {0}: the opcodes are 0 to 3")]
    Opcode(u16),
    /// The peer registers a buffer without bytes, or one that passes the end of the addresses.
    #[error("the peer registers {len} bytes at {addr:#x} as its receive buffer")]
    Buffer {
        /// Where the buffer begins.
        addr: u64,
        /// Its bytes.
        len: u32,
    },
    /// An immediate that counts more bytes than the receive buffer has left.
    #[error("the immediate counts {imm} bytes, and the receive buffer has {left} left")]
    Overrun {
        /// The immediate.
        imm: u32,
        /// Bytes that the buffer had left.
        left: u32,
    },
    /// An immediate that counts fewer bytes than the message has that carries it.
    #[error("the immediate counts {imm} bytes of a message of {len}")]
    Immediate {
        /// The immediate.
        imm: u32,
        /// Bytes of the message.
        len: u32,
    },
    /// More control messages to be answered than the peer takes answers.
    #[error("the peer asks for {0} answers, and takes none of them")]
    Flood(usize),
}

impl From<ProtocolError> for io::Error {
    fn from(e: ProtocolError) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, e)
    }
}

/// Why there is no connection, or no listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// `rdma_cm` works on the software NIC.
    #[error(
        "connections by rdma_cm are made on the software NIC only, and this is a device of the provider {0}"
    )]
    Provider(String),
    /// A receive buffer of this length is not allowed.
    #[error("a receive buffer of {0} bytes: it has 64 KiB to 16 MiB")]
    BufferBytes(u32),
    /// A step of connection management failed.
    #[error("{step} failed: {source}")]
    Cm {
        /// The step, as `rdma_cma.h` spells it.
        step: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Receives could not be posted.
    #[error(transparent)]
    Post(#[from] verbs::PostError),
    /// Nobody listens there, or who listens refused.
    #[error("{0} refuses the connection: does a server listen there by rdma_cm?")]
    Refused(SocketAddr),
    /// The peer's address cannot be reached from the device.
    #[error("{0} cannot be reached from the software NIC")]
    Unreachable(SocketAddr),
    /// The server has not answered in time.
    #[error("{0} has not answered in time")]
    TimedOut(SocketAddr),
}

impl SetupError {
    pub(crate) fn cm(step: &'static str) -> impl FnOnce(rdmacm::errno::Errno) -> Self {
        move |errno| Self::Cm {
            step,
            source: io::Error::from_raw_os_error(errno.0),
        }
    }
}

impl From<SetupError> for io::Error {
    fn from(e: SetupError) -> Self {
        let kind = match &e {
            SetupError::Cm { source, .. } => source.kind(),
            SetupError::Verb(e) => e.source.kind(),
            SetupError::Refused(_) => io::ErrorKind::ConnectionRefused,
            SetupError::Unreachable(_) => io::ErrorKind::HostUnreachable,
            SetupError::TimedOut(_) => io::ErrorKind::TimedOut,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}
