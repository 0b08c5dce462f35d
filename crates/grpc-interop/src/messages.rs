//! The messages of the suite, as far as its cases use them.

use prost::Message;

/// Nothing.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Empty {}

/// Bytes that go one way or the other.
#[derive(Clone, PartialEq, Message)]
pub struct Payload {
    /// The kind; 0 for bytes that nobody compresses.
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    /// The bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub body: prost::bytes::Bytes,
}

impl Payload {
    /// `len` bytes 0.
    pub fn zeros(len: usize) -> Self {
        Self {
            r#type: 0,
            body: vec![0; len].into(),
        }
    }
}

/// A status that the server is to end the call with.
#[derive(Clone, PartialEq, Message)]
pub struct EchoStatus {
    /// The code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The message.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The request of a unary call.
#[derive(Clone, PartialEq, Message)]
pub struct SimpleRequest {
    /// The kind of payload that is wanted.
    #[prost(int32, tag = "1")]
    pub response_type: i32,
    /// How long the payload of the response is to be, in bytes.
    #[prost(int32, tag = "2")]
    pub response_size: i32,
    /// Bytes for the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status to end with; OK without one.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// The response of a unary call.
#[derive(Clone, PartialEq, Message)]
pub struct SimpleResponse {
    /// As many bytes as were asked for.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// One of the requests of a call whose client streams.
#[derive(Clone, PartialEq, Message)]
pub struct StreamingInputCallRequest {
    /// Bytes for the server.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}

/// Its response.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct StreamingInputCallResponse {
    /// Bytes of all payloads.
    #[prost(int32, tag = "1")]
    pub aggregated_payload_size: i32,
}

/// One response that is wanted.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ResponseParameters {
    /// Bytes of its payload.
    #[prost(int32, tag = "1")]
    pub size: i32,
    /// How long to wait before it, in µs.
    #[prost(int32, tag = "2")]
    pub interval_us: i32,
}

/// A request for several responses.
#[derive(Clone, PartialEq, Message)]
pub struct StreamingOutputCallRequest {
    /// The kind of payload that is wanted.
    #[prost(int32, tag = "1")]
    pub response_type: i32,
    /// The responses that are wanted.
    #[prost(message, repeated, tag = "2")]
    pub response_parameters: Vec<ResponseParameters>,
    /// Bytes for the server.
    #[prost(message, optional, tag = "3")]
    pub payload: Option<Payload>,
    /// The status to end with; OK without one.
    #[prost(message, optional, tag = "7")]
    pub response_status: Option<EchoStatus>,
}

/// One of the responses.
#[derive(Clone, PartialEq, Message)]
pub struct StreamingOutputCallResponse {
    /// As many bytes as were asked for.
    #[prost(message, optional, tag = "1")]
    pub payload: Option<Payload>,
}
