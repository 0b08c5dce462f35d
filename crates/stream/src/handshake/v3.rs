//! Hello of version 3: a Protocol Buffers message after its length.

use prost::Message;

use super::error::HandshakeError;
use super::hello::{Hello, HelloParseProgress, ParsedHello};
use super::version::{HandshakeVersion, MAGIC_BYTES};

/// Maximum number of bytes of the Protocol Buffers message.
const MAX_PROTOBUF_BYTES: u32 = 8192;
/// Number of bytes before the Protocol Buffers message: magic and length.
const MAGIC_AND_LENGTH_BYTES: usize = MAGIC_BYTES + 4;

/// brpc's message `RdmaHello`. brpc declares its fields as required; here they are optional, so
/// that a missing field is detected.
#[derive(Clone, PartialEq, Message)]
struct RdmaHello {
    #[prost(uint32, optional, tag = "1")]
    block_size: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    sq_size: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    rq_size: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    lid: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "5")]
    gid: Option<Vec<u8>>,
    #[prost(uint32, optional, tag = "6")]
    qp_num: Option<u32>,
    // Field 7, the enhanced connection establishment, is optional, and no device of this side
    // reports one.
}

/// Encodes a hello.
pub(super) fn encode(hello: &Hello) -> Vec<u8> {
    let message = RdmaHello {
        block_size: Some(hello.block_bytes),
        sq_size: Some(hello.sq_size.into()),
        rq_size: Some(hello.rq_size.into()),
        lid: Some(hello.lid.into()),
        gid: Some(hello.gid.to_vec()),
        qp_num: Some(hello.qpn),
    }
    .encode_to_vec();
    let mut out = HandshakeVersion::V3.magic().to_vec();
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(&message);
    out
}

/// Parses the received part of a hello.
pub(super) fn parse(bytes: &[u8]) -> Result<HelloParseProgress, HandshakeError> {
    let Some(len) = bytes
        .get(MAGIC_BYTES..)
        .and_then(|rest| rest.first_chunk::<4>())
    else {
        return Ok(HelloParseProgress::MissingBytes(
            MAGIC_AND_LENGTH_BYTES - bytes.len(),
        ));
    };
    let len = u32::from_be_bytes(*len);
    if !(1..=MAX_PROTOBUF_BYTES).contains(&len) {
        return Err(HandshakeError::LengthOutOfRange {
            version: HandshakeVersion::V3,
            len,
            min: 1,
            max: MAX_PROTOBUF_BYTES,
        });
    }
    let message = &bytes[MAGIC_AND_LENGTH_BYTES..];
    let missing = usize::try_from(len).unwrap_or(usize::MAX) - message.len();
    if missing > 0 {
        return Ok(HelloParseProgress::MissingBytes(missing));
    }
    let hello = RdmaHello::decode(message)
        .map_err(|e| HandshakeError::UndecodableMessage(e.to_string()))?;
    check_hello(&hello).map(HelloParseProgress::Done)
}

fn check_hello(hello: &RdmaHello) -> Result<ParsedHello, HandshakeError> {
    let required = |name, value: Option<u32>| value.ok_or(HandshakeError::MissingField(name));
    let short = |field, value: u32| {
        u16::try_from(value).map_err(|_| HandshakeError::FieldOutOfRange {
            field,
            value,
            least: 0,
            most: u16::MAX.into(),
        })
    };
    let block_bytes = required("block_size", hello.block_size)?;
    let sq_size = short("sq_size", required("sq_size", hello.sq_size)?)?;
    let rq_size = short("rq_size", required("rq_size", hello.rq_size)?)?;
    let lid = short("lid", required("lid", hello.lid)?)?;
    let gid = hello
        .gid
        .as_deref()
        .ok_or(HandshakeError::MissingField("gid"))?;
    let qpn = required("qp_num", hello.qp_num)?;
    let gid = <[u8; 16]>::try_from(gid).map_err(|_| HandshakeError::FieldOutOfRange {
        field: "the length of gid",
        value: u32::try_from(gid.len()).unwrap_or(u32::MAX),
        least: 16,
        most: 16,
    })?;
    if qpn == 0 {
        return Ok(ParsedHello::Declined);
    }
    let hello = Hello {
        block_bytes,
        sq_size,
        rq_size,
        lid,
        gid,
        qpn,
    };
    hello.checked().map(ParsedHello::Rdma)
}
