//! The client's side.

use super::codec::parse;
use super::error::{HandshakeError, Shown};
use super::hello::{Hello, Progress, Said};
use super::version::{MAGIC_BYTES, Version};

/// The client's side: it has said hello and reads the server's.
///
/// ```
/// use stream::handshake::{Answer, Client, Hello, Version, ack};
/// let own = Hello { block_bytes: 8192, sq_size: 128, rq_size: 128, lid: 0, gid: [1; 16], qpn: 17 };
/// let (mut client, to_server) = Client::new(Version::V2, &own);
/// assert_eq!(to_server.len(), 40);
/// let server = Hello { qpn: 18, ..own };
/// assert_eq!(client.receive(&server.encode(Version::V2))?, Some(Answer::Rdma(server)));
/// // Connect the queue pair to the server's, then say so.
/// assert_eq!(ack(true), [0, 0, 0, 1]);
/// # Ok::<(), stream::handshake::HandshakeError>(())
/// ```
#[derive(Debug)]
pub struct Client {
    version: Version,
    bytes: Vec<u8>,
    wants: usize,
}

/// What the server said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It can use RDMA: connect the queue pair to this one, then [acknowledge](super::ack) with true. If that fails,
    /// acknowledge with false and go on with TCP.
    Rdma(Hello),
    /// It cannot: acknowledge with false and go on with TCP.
    Tcp,
}

impl Client {
    /// A client, and what it sends first.
    pub fn new(version: Version, own: &Hello) -> (Self, Vec<u8>) {
        let client = Self {
            version,
            bytes: Vec::new(),
            wants: MAGIC_BYTES,
        };
        (client, own.encode(version))
    }

    /// How many bytes to read at most before the next [`receive`](Self::receive); 1 at least.
    pub fn wants(&self) -> usize {
        self.wants
    }

    /// Takes bytes from the server, [`wants`](Self::wants) at most at a time; the answer once it is complete.
    ///
    /// # Errors
    /// The bytes are no hello of this version.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Answer>, HandshakeError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.wants.min(rest.len()));
            self.bytes.extend_from_slice(now);
            rest = later;
            self.wants -= now.len();
            if self.wants > 0 {
                break;
            }
            if let Some(magic) = self.bytes.first_chunk::<MAGIC_BYTES>()
                && magic != self.version.magic()
            {
                return Err(HandshakeError::Magic(Shown(*magic)));
            }
            match parse(self.version, &self.bytes)? {
                Progress::Wants(more) => self.wants = more,
                Progress::Done(Said::Rdma(hello)) => return Ok(Some(Answer::Rdma(hello))),
                Progress::Done(Said::Declined) => return Ok(Some(Answer::Tcp)),
            }
        }
        Ok(None)
    }
}
