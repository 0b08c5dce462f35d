//! Handlers of a server's requests, and the way back to clients.

use verbs::{HeaderOnly, Inline, Postlist, Ud, UdDestination};

use crate::error::{MAX_BATCH, RpcError};
use crate::port::UdPort;

/// The handler of a server's requests.
pub trait Handler {
    /// The state that [`begin`](Self::begin) prepares for a batch.
    type Batch;

    /// How often [`look`](Self::look) is called for each request of a batch of several.
    const LOOKS: usize = 0;

    /// A batch of `requests` requests is about to be handled.
    fn begin(&mut self, requests: usize) -> Self::Batch;

    /// Looks ahead. In round 0, then 1, up to [`LOOKS`](Self::LOOKS), it is called for all requests of the batch before
    /// the first is handled. So a handler can prefetch their data. Not called for a batch of one.
    #[inline]
    fn look(&mut self, batch: &mut Self::Batch, round: usize, request: Request<'_>) {
        let _ = (batch, round, request);
    }

    /// Answers one request of the batch. Dropping `reply` answers nothing.
    fn handle(&mut self, batch: &mut Self::Batch, request: Request<'_>, reply: Reply<'_>);
}

/// A request as the handler sees it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The client, by the index that its registration gave it.
    pub client: usize,
    /// Its place in the batch, from 0 on.
    pub index: usize,
    /// The immediate (datagram), or the number of the request at this client, from 1 on (HERD).
    pub imm: u32,
    /// The payload.
    pub payload: &'a [u8],
}

/// The way back to the client of one request.
#[derive(Debug)]
pub struct Reply<'a> {
    pub(crate) port: &'a mut UdPort,
    pub(crate) list: &'a mut Postlist<Ud>,
    pub(crate) to: &'a UdDestination,
    pub(crate) imm: u32,
}

impl Reply<'_> {
    /// Answers with payload, and with the immediate of the request.
    ///
    /// # Panics
    /// When the payload is longer than [`UdPortConfig::send_payload`](crate::UdPortConfig::send_payload).
    #[inline]
    pub fn bytes(self, payload: &[u8]) {
        let (outbox, first) = self.port.outbox();
        match outbox.place(first + self.list.len() as u64, payload) {
            None => {
                self.list.send_with_imm(Inline(payload), self.to, self.imm);
            }
            Some(slot) => {
                self.list.send_with_imm(slot, self.to, self.imm);
                self.port.note_long();
            }
        }
    }

    /// Answers with one of several messages, each with the immediate of the request. Those of a batch that has become
    /// too long for one doorbell leave at once.
    ///
    /// # Errors
    /// As posting.
    ///
    /// # Panics
    /// As [`bytes`](Self::bytes).
    pub fn part(&mut self, payload: &[u8]) -> Result<(), RpcError> {
        // The answers of the rest of the batch must find room.
        if self.list.len() >= MAX_BATCH {
            self.port.post(self.list)?;
            self.list.clear();
        }
        Reply {
            port: &mut *self.port,
            list: &mut *self.list,
            ..*self
        }
        .bytes(payload);
        Ok(())
    }

    /// Answers without payload, with the immediate of the request.
    #[inline]
    pub fn header_only(self) {
        self.list.send_with_imm(HeaderOnly, self.to, self.imm);
    }

    /// Answers without payload, with an immediate of the handler's (datagram: with HERD the client tells
    /// answers apart by the immediate).
    #[inline]
    pub fn imm(self, imm: u32) {
        self.list.send_with_imm(HeaderOnly, self.to, imm);
    }
}

/// Counts of a server's worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    /// Doorbells that the answers took.
    pub doorbells: u64,
    /// How many postlists had 1, 2, 3 … WRs.
    pub postlists: Vec<u64>,
    /// Requests of nobody who is registered; they are dropped.
    pub strangers: u64,
}

impl Counts {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            postlists: vec![0; max],
            ..Self::default()
        }
    }

    /// Adds another worker's, or another queue pair's.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.doorbells += other.doorbells;
        self.strangers += other.strangers;
        let longest = self.postlists.len().max(other.postlists.len());
        self.postlists.resize(longest, 0);
        for (sum, n) in self.postlists.iter_mut().zip(&other.postlists) {
            *sum += n;
        }
    }

    #[inline]
    pub(crate) fn posted(&mut self, wrs: usize) {
        self.requests += wrs as u64;
        self.doorbells += 1;
        if let Some(n) = wrs.checked_sub(1).and_then(|i| self.postlists.get_mut(i)) {
            *n += 1;
        }
    }
}
