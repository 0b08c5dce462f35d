//! Errors: of a peer, and of setting a stream up.

use std::io;
use std::net::SocketAddr;

use verbs::{PostError, VerbError, WcStatus};

use crate::handshake::HandshakeError;
use crate::window::TooManyCredits;

/// Why a stream by RDMA has ended before its end.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer closed the connection, or its process has ended.
    #[error("the peer has closed the connection")]
    Closed,
    /// A work request failed: mostly the peer is gone.
    #[error("a work request failed ({0}): the peer or its queue pair is gone")]
    Failed(WcStatus),
    /// The peer sends more than it may.
    #[error(transparent)]
    Credits(#[from] TooManyCredits),
    /// A message without an immediate.
    #[error("the peer sends a message without an immediate: every message of the protocol has one")]
    NoImmediate,
    /// Bytes on the TCP connection, which is silent once RDMA is used.
    #[error("the peer sends bytes on the TCP connection, which must be silent after the handshake")]
    NotSilent,
    /// A verb failed.
    #[error("{0}")]
    Verb(String),
}

impl From<VerbError> for StreamError {
    fn from(e: VerbError) -> Self {
        Self::Verb(e.to_string())
    }
}

impl From<PostError> for StreamError {
    fn from(e: PostError) -> Self {
        Self::Verb(e.to_string())
    }
}

impl From<StreamError> for io::Error {
    fn from(e: StreamError) -> Self {
        let kind = match &e {
            StreamError::Closed => io::ErrorKind::BrokenPipe,
            StreamError::Failed(_) => io::ErrorKind::ConnectionReset,
            StreamError::Verb(_) => io::ErrorKind::Other,
            StreamError::Credits(_) | StreamError::NoImmediate | StreamError::NotSilent => {
                io::ErrorKind::InvalidData
            }
        };
        io::Error::new(kind, e)
    }
}

/// Why there is no stream, or no listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A block size that the protocol does not have.
    #[error("blocks of {0} bytes: choose 8192, 65536 or 2097152")]
    BlockBytes(u32),
    /// A number of WRs that the protocol does not have.
    #[error("queues of {0} WRs: choose 16 to 4096")]
    QueueSize(u16),
    /// There is no device, or it cannot be used.
    #[error("RDMA cannot be used here: {0}")]
    Device(String),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Receives could not be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The peer's handshake is wrong.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer's handshake took too long.
    #[error("the handshake with {0} was not complete in time")]
    TimedOut(SocketAddr),
    /// RDMA is required, and the peer declines it or speaks another protocol.
    #[error("RDMA is required, and {0} offers only TCP")]
    TcpOnly(SocketAddr),
    /// A system call failed, or the peer closed the connection in the handshake.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<SetupError> for io::Error {
    fn from(e: SetupError) -> Self {
        let kind = match e {
            SetupError::Io(e) => return e,
            SetupError::Verb(ref e) => e.source.kind(),
            SetupError::BlockBytes(_) | SetupError::QueueSize(_) => io::ErrorKind::InvalidInput,
            SetupError::Handshake(_) => io::ErrorKind::InvalidData,
            SetupError::TimedOut(_) => io::ErrorKind::TimedOut,
            SetupError::TcpOnly(_) => io::ErrorKind::Unsupported,
            SetupError::Device(_) | SetupError::Post(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}
