//! Errors of a handshake.

use std::fmt;

use super::version::{HandshakeVersion, MAGIC_BYTES};

/// A violation of the handshake by the peer, which ends the connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The server's first bytes are not the magic of a hello of this version.
    #[error("the peer answers {0} instead of a hello: it does not speak brpc's RDMA handshake")]
    WrongMagic(EscapedBytes),
    /// A hello declares a length that is out of range.
    #[error("a hello of {len} bytes: version {version} has {min} to {max}")]
    LengthOutOfRange {
        /// The version of the handshake.
        version: HandshakeVersion,
        /// Length that the hello declares, in bytes.
        len: u32,
        /// Minimum length in bytes.
        min: u32,
        /// Maximum length in bytes.
        max: u32,
    },
    /// The Protocol Buffers message of a hello cannot be decoded.
    #[error("the RdmaHello message cannot be decoded: {0}")]
    UndecodableMessage(String),
    /// A field of the hello is missing.
    #[error("the RdmaHello message has no {0}, which is required")]
    MissingField(&'static str),
    /// A number in a hello is out of range.
    #[error("the hello says {field} = {value}: {least} to {most} are allowed")]
    FieldOutOfRange {
        /// Name of the field in brpc.
        field: &'static str,
        /// Value of the field.
        value: u32,
        /// Minimum value that is allowed.
        least: u32,
        /// Maximum value that is allowed.
        most: u32,
    },
    /// The client acknowledges RDMA, although the server has declined it.
    #[error("the client acknowledges RDMA, which this server has declined")]
    AckAfterDecline,
}

/// The first bytes that a peer sent instead of a hello, displayed as text.
#[derive(Clone, PartialEq, Eq)]
pub struct EscapedBytes(pub [u8; MAGIC_BYTES]);

impl fmt::Debug for EscapedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for EscapedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
