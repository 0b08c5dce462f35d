//! The versions of the handshake.

use std::fmt;

/// Number of magic bytes, which identify a hello.
pub const MAGIC_BYTES: usize = 4;

/// A version of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HandshakeVersion {
    /// "RDMA": a hello of 40 bytes, understood by every brpc with RDMA.
    #[default]
    V2,
    /// "RDM3": a hello as a Protocol Buffers message. Servers of older brpc releases take it for
    /// another protocol.
    V3,
}

impl HandshakeVersion {
    /// Returns the first bytes of this version's hellos.
    pub const fn magic(self) -> &'static [u8; MAGIC_BYTES] {
        match self {
            Self::V2 => b"RDMA",
            Self::V3 => b"RDM3",
        }
    }
}

impl fmt::Display for HandshakeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V2 => "2",
            Self::V3 => "3",
        })
    }
}
