//! Errors of streams, and of their setup.

use std::io;
use std::net::SocketAddr;

use verbs::{PostError, VerbError, WcStatus};

use crate::handshake::HandshakeError;
use crate::window::TooManyCredits;

/// Reason why a stream over RDMA has ended early.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer has closed the connection, or its process has ended.
    #[error("the peer has closed the connection")]
    ClosedByPeer,
    /// A work request has failed, usually because the peer has ended.
    #[error("a work request failed ({0}): the peer or its queue pair is gone")]
    WorkRequestFailed(WcStatus),
    /// The peer gave more credits than the flow control permits.
    #[error(transparent)]
    TooManyCredits(#[from] TooManyCredits),
    /// The peer sent a message without an immediate.
    #[error("the peer sends a message without an immediate: every message of the protocol has one")]
    NoImmediate,
    /// The peer sent bytes on the TCP connection, which must carry no bytes once RDMA is used.
    #[error("the peer sends bytes on the TCP connection, which must be silent after the handshake")]
    BytesOnTcp,
    /// The TCP connection failed: the peer could not deliver all that it had sent, or the peer's host is gone.
    #[error("the TCP connection of the stream failed ({0}): bytes of the peer may be lost")]
    Tcp(String),
    /// A verb failed.
    #[error("{0}")]
    Verb(String),
}

verbs::from_verb_errors!(StreamError);

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
            StreamError::ClosedByPeer => io::ErrorKind::BrokenPipe,
            StreamError::WorkRequestFailed(_) | StreamError::Tcp(_) => {
                io::ErrorKind::ConnectionReset
            }
            StreamError::Verb(_) => io::ErrorKind::Other,
            StreamError::TooManyCredits(_) | StreamError::NoImmediate | StreamError::BytesOnTcp => {
                io::ErrorKind::InvalidData
            }
        };
        io::Error::new(kind, e)
    }
}

/// Error of setting up a stream or a listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The configured block size is not one of the protocol's block sizes.
    #[error("blocks of {0} bytes: choose 8192, 65536 or 2097152")]
    InvalidBlockBytes(u32),
    /// The configured queue size is out of the protocol's range.
    #[error("queues of {0} WRs: choose 16 to 4096")]
    QueueSizeOutOfRange(u16),
    /// The device does not exist or cannot be used.
    #[error("RDMA cannot be used here: {0}")]
    Device(String),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Posting receives failed.
    #[error(transparent)]
    PostReceives(#[from] PostError),
    /// The peer's handshake is invalid.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer's handshake took longer than the timeout.
    #[error("the handshake with {0} was not complete in time")]
    TimedOut(SocketAddr),
    /// RDMA is required, and the peer declines it or speaks another protocol.
    #[error("RDMA is required, and {0} offers only TCP")]
    PeerOffersOnlyTcp(SocketAddr),
    /// A system call failed, or the peer closed the connection in the handshake.
    #[error(transparent)]
    Io(#[from] io::Error),
}

verbs::from_verb_errors!(SetupError);

impl From<SetupError> for io::Error {
    fn from(e: SetupError) -> Self {
        let kind = match e {
            SetupError::Io(e) => return e,
            SetupError::Verb(ref e) => e.os_error().kind(),
            SetupError::InvalidBlockBytes(_) | SetupError::QueueSizeOutOfRange(_) => {
                io::ErrorKind::InvalidInput
            }
            SetupError::Handshake(_) => io::ErrorKind::InvalidData,
            SetupError::TimedOut(_) => io::ErrorKind::TimedOut,
            SetupError::PeerOffersOnlyTcp(_) => io::ErrorKind::Unsupported,
            SetupError::Device(_) | SetupError::PostReceives(_) => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}
