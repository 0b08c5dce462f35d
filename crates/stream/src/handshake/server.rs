//! The server's side of the handshake.

use super::codec::parse_hello;
use super::error::HandshakeError;
use super::hello::{Hello, HelloParseProgress, ParsedHello};
use super::version::{HandshakeVersion, MAGIC_BYTES};
use super::{v2, v3};

/// State of a server that reads the client's hello, [answers](Self::encode_answer), and reads the
/// acknowledgement.
#[derive(Debug, Default)]
pub struct ServerHandshake {
    state: ServerHandshakeState,
    received_bytes: Vec<u8>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ServerHandshakeState {
    /// The server has received fewer than four bytes.
    #[default]
    AwaitingMagic,
    AwaitingHello {
        version: HandshakeVersion,
        wants: usize,
    },
    /// The hello is complete, and the server must answer next.
    Answering(HandshakeVersion),
    AwaitingAck {
        offered: bool,
    },
}

/// The client's request, decoded from its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientRequest {
    /// The first bytes are not a hello. These bytes belong to the protocol that the client speaks
    /// over plain TCP.
    OtherProtocol(Vec<u8>),
    /// The client can use RDMA. Connect a queue pair to the queue pair in this hello, then
    /// [encode_answer](ServerHandshake::encode_answer).
    Rdma(Hello),
    /// The server cannot serve the client's hello by RDMA and must [decline](ServerHandshake::encode_answer).
    MustDecline,
}

impl ServerHandshake {
    /// Creates a server that has received no bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the maximum number of bytes to read before the next [`receive`](Self::receive) or
    /// [`receive_ack`](Self::receive_ack).
    pub fn max_bytes_to_read(&self) -> usize {
        match self.state {
            ServerHandshakeState::AwaitingMagic | ServerHandshakeState::AwaitingAck { .. } => {
                MAGIC_BYTES - self.received_bytes.len()
            }
            ServerHandshakeState::AwaitingHello { wants, .. } => wants,
            ServerHandshakeState::Answering(_) => 0,
        }
    }

    /// Processes bytes from the client, at most [`max_bytes_to_read`](Self::max_bytes_to_read) per call. Returns the
    /// request once it is complete; the next call must then be [`encode_answer`](Self::encode_answer).
    ///
    /// # Errors
    /// Returns an error if the hello is invalid.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<ClientRequest>, HandshakeError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.max_bytes_to_read().min(rest.len()));
            self.received_bytes.extend_from_slice(now);
            rest = later;
            let version = match &mut self.state {
                ServerHandshakeState::AwaitingMagic => match self.match_magic() {
                    MagicMatch::OtherMagic => {
                        self.received_bytes.extend_from_slice(rest);
                        return Ok(Some(ClientRequest::OtherProtocol(std::mem::take(
                            &mut self.received_bytes,
                        ))));
                    }
                    MagicMatch::TooShort => continue,
                    MagicMatch::Matches(version) => version,
                },
                ServerHandshakeState::AwaitingHello { version, wants } => {
                    *wants -= now.len();
                    if *wants > 0 {
                        break;
                    }
                    *version
                }
                ServerHandshakeState::Answering(_) | ServerHandshakeState::AwaitingAck { .. } => {
                    break;
                }
            };
            match parse_hello(version, &self.received_bytes)? {
                HelloParseProgress::MissingBytes(wants) => {
                    self.state = ServerHandshakeState::AwaitingHello { version, wants }
                }
                HelloParseProgress::Done(parsed) => {
                    self.state = ServerHandshakeState::Answering(version);
                    self.received_bytes.clear();
                    return Ok(Some(match parsed {
                        ParsedHello::Rdma(hello) => ClientRequest::Rdma(hello),
                        ParsedHello::Declined => ClientRequest::MustDecline,
                    }));
                }
            }
        }
        Ok(None)
    }

    fn match_magic(&self) -> MagicMatch {
        for version in [HandshakeVersion::V2, HandshakeVersion::V3] {
            if self.received_bytes == version.magic() {
                return MagicMatch::Matches(version);
            }
        }
        let begins = |version: HandshakeVersion| version.magic().starts_with(&self.received_bytes);
        if begins(HandshakeVersion::V2) || begins(HandshakeVersion::V3) {
            MagicMatch::TooShort
        } else {
            MagicMatch::OtherMagic
        }
    }

    /// Encodes the server's answer. With a hello, the server offers RDMA, and its queue pair must
    /// be ready. With `None`, the server declines RDMA.
    pub fn encode_answer(&mut self, own: Option<&Hello>) -> Vec<u8> {
        let version = match self.state {
            ServerHandshakeState::Answering(version) => version,
            _ => HandshakeVersion::V2,
        };
        self.state = ServerHandshakeState::AwaitingAck {
            offered: own.is_some(),
        };
        match (version, own) {
            (HandshakeVersion::V2, own) => v2::encode(own),
            (HandshakeVersion::V3, own) => v3::encode(own.unwrap_or(&Hello::DECLINED)),
        }
    }

    /// Processes bytes of the acknowledgement. Once the acknowledgement is complete, returns true
    /// if both sides use RDMA from now on.
    ///
    /// # Errors
    /// Returns an error if the client acknowledges RDMA after the server has declined.
    pub fn receive_ack(&mut self, bytes: &[u8]) -> Result<Option<bool>, HandshakeError> {
        self.received_bytes.extend_from_slice(bytes);
        let Some(ack) = self.received_bytes.first_chunk() else {
            return Ok(None);
        };
        let wanted = u32::from_be_bytes(*ack) & 1 == 1;
        match self.state {
            ServerHandshakeState::AwaitingAck { offered: true } => Ok(Some(wanted)),
            _ if wanted => Err(HandshakeError::AckAfterDecline),
            _ => Ok(Some(false)),
        }
    }
}

enum MagicMatch {
    TooShort,
    Matches(HandshakeVersion),
    OtherMagic,
}
