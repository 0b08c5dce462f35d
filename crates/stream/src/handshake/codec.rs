//! Encoding and decoding of hellos in any version.

use super::error::HandshakeError;
use super::hello::{Hello, HelloParseProgress};
use super::version::HandshakeVersion;
use super::{v2, v3};

impl Hello {
    /// Encodes this hello in a version of the handshake.
    pub fn encode(&self, version: HandshakeVersion) -> Vec<u8> {
        match version {
            HandshakeVersion::V2 => v2::encode(Some(self)),
            HandshakeVersion::V3 => v3::encode(self),
        }
    }
}

/// Parses the bytes of a hello that have been received so far. They begin with the magic of
/// `version`.
pub(crate) fn parse_hello(
    version: HandshakeVersion,
    bytes: &[u8],
) -> Result<HelloParseProgress, HandshakeError> {
    match version {
        HandshakeVersion::V2 => v2::parse(bytes),
        HandshakeVersion::V3 => v3::parse(bytes),
    }
}
