//! Hello of version 2: a structure of 40 bytes.

use super::error::HandshakeError;
use super::hello::{Hello, HelloParseProgress, ParsedHello};
use super::version::{HandshakeVersion, MAGIC_BYTES};

/// Number of bytes of a hello of version 2.
const HELLO_BYTES: usize = 40;
/// Maximum number of bytes of a hello. A later version may send more fields than this side knows;
/// this side skips these fields.
const MAX_HELLO_BYTES: u32 = 4096;
const HELLO_VERSION: u16 = 2;
const IMPL_VERSION: u16 = 1;

/// Encodes a hello, or the declining answer for `None`.
pub(super) fn encode(hello: Option<&Hello>) -> Vec<u8> {
    let mut out = Vec::with_capacity(HELLO_BYTES);
    let (hello_version, impl_version) = match hello {
        Some(_) => (HELLO_VERSION, IMPL_VERSION),
        None => (0, 0),
    };
    let hello = hello.unwrap_or(&Hello::DECLINED);
    out.extend_from_slice(HandshakeVersion::V2.magic());
    out.extend_from_slice(&40u16.to_be_bytes());
    out.extend_from_slice(&hello_version.to_be_bytes());
    out.extend_from_slice(&impl_version.to_be_bytes());
    out.extend_from_slice(&hello.block_bytes.to_be_bytes());
    out.extend_from_slice(&hello.sq_size.to_be_bytes());
    out.extend_from_slice(&hello.rq_size.to_be_bytes());
    out.extend_from_slice(&hello.lid.to_be_bytes());
    out.extend_from_slice(&hello.gid);
    out.extend_from_slice(&hello.qpn.to_be_bytes());
    out
}

/// Parses the received part of a hello.
pub(super) fn parse(bytes: &[u8]) -> Result<HelloParseProgress, HandshakeError> {
    const LEN: usize = MAGIC_BYTES + 2;
    if bytes.len() < LEN {
        return Ok(HelloParseProgress::MissingBytes(LEN - bytes.len()));
    }
    let mut rest = &bytes[MAGIC_BYTES..];
    let len = u16::from_be_bytes(take_array(&mut rest));
    if !(40..=MAX_HELLO_BYTES).contains(&len.into()) {
        return Err(HandshakeError::LengthOutOfRange {
            version: HandshakeVersion::V2,
            len: len.into(),
            min: 40,
            max: MAX_HELLO_BYTES,
        });
    }
    if bytes.len() < usize::from(len) {
        return Ok(HelloParseProgress::MissingBytes(
            usize::from(len) - bytes.len(),
        ));
    }
    let versions: [u16; 2] = [
        u16::from_be_bytes(take_array(&mut rest)),
        u16::from_be_bytes(take_array(&mut rest)),
    ];
    if versions != [HELLO_VERSION, IMPL_VERSION] {
        return Ok(HelloParseProgress::Done(ParsedHello::Declined));
    }
    let hello = Hello {
        block_bytes: u32::from_be_bytes(take_array(&mut rest)),
        sq_size: u16::from_be_bytes(take_array(&mut rest)),
        rq_size: u16::from_be_bytes(take_array(&mut rest)),
        lid: u16::from_be_bytes(take_array(&mut rest)),
        gid: take_array(&mut rest),
        qpn: u32::from_be_bytes(take_array(&mut rest)),
    };
    hello
        .checked()
        .map(|hello| HelloParseProgress::Done(ParsedHello::Rdma(hello)))
}

/// Takes the next `N` bytes; the caller has checked that enough bytes remain.
fn take_array<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (first, after) = rest.split_first_chunk().expect("the length was checked");
    *rest = after;
    *first
}
