//! The client's side of the handshake.

use super::codec::parse_hello;
use super::error::{EscapedBytes, HandshakeError};
use super::hello::{Hello, HelloParseProgress, ParsedHello};
use super::version::{HandshakeVersion, MAGIC_BYTES};

/// State of a client that has sent its hello and reads the server's hello.
///
/// ```
/// use stream::handshake::{ServerAnswer, ClientHandshake, Hello, HandshakeVersion, encode_ack};
/// let own = Hello { block_bytes: 8192, sq_size: 128, rq_size: 128, lid: 0, gid: [1; 16], qpn: 17 };
/// let (mut client, to_server) = ClientHandshake::new(HandshakeVersion::V2, &own);
/// assert_eq!(to_server.len(), 40);
/// let server = Hello { qpn: 18, ..own };
/// assert_eq!(client.receive(&server.encode(HandshakeVersion::V2))?, Some(ServerAnswer::Rdma(server)));
/// // Connect the queue pair to the server's, then say so.
/// assert_eq!(encode_ack(true), [0, 0, 0, 1]);
/// # Ok::<(), stream::handshake::HandshakeError>(())
/// ```
#[derive(Debug)]
pub struct ClientHandshake {
    version: HandshakeVersion,
    received_bytes: Vec<u8>,
    max_bytes_to_read: usize,
}

/// The server's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerAnswer {
    /// The server can use RDMA. Connect the queue pair to the queue pair in this hello, then
    /// [acknowledge](super::encode_ack) with true. If connecting fails, acknowledge with false and continue
    /// with TCP.
    Rdma(Hello),
    /// The server cannot use RDMA. Acknowledge with false and continue with TCP.
    Tcp,
}

impl ClientHandshake {
    /// Creates a client, and returns the client and the bytes that it must send first.
    pub fn new(version: HandshakeVersion, own: &Hello) -> (Self, Vec<u8>) {
        let client = Self {
            version,
            received_bytes: Vec::new(),
            max_bytes_to_read: MAGIC_BYTES,
        };
        (client, own.encode(version))
    }

    /// Returns the maximum number of bytes to read before the next [`receive`](Self::receive), at
    /// least 1.
    pub fn max_bytes_to_read(&self) -> usize {
        self.max_bytes_to_read
    }

    /// Processes bytes from the server, at most [`max_bytes_to_read`](Self::max_bytes_to_read) per call. Returns the
    /// server's answer once it is complete.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a hello of this version.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<ServerAnswer>, HandshakeError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.max_bytes_to_read.min(rest.len()));
            self.received_bytes.extend_from_slice(now);
            rest = later;
            self.max_bytes_to_read -= now.len();
            if self.max_bytes_to_read > 0 {
                break;
            }
            if let Some(magic) = self.received_bytes.first_chunk::<MAGIC_BYTES>()
                && magic != self.version.magic()
            {
                return Err(HandshakeError::WrongMagic(EscapedBytes(*magic)));
            }
            match parse_hello(self.version, &self.received_bytes)? {
                HelloParseProgress::MissingBytes(more) => self.max_bytes_to_read = more,
                HelloParseProgress::Done(ParsedHello::Rdma(hello)) => {
                    return Ok(Some(ServerAnswer::Rdma(hello)));
                }
                HelloParseProgress::Done(ParsedHello::Declined) => {
                    return Ok(Some(ServerAnswer::Tcp));
                }
            }
        }
        Ok(None)
    }
}
