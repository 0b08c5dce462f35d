//! Handlers of a server's requests, and their replies to clients.

use verbs::{HeaderOnly, Inline, Postlist, Ud, UdDestination};

use crate::buffered_ud_qp::BufferedUdQp;
use crate::error::{MAX_BATCH, RpcError};

/// The handler of a server's requests.
pub trait RpcHandler {
    /// The state that [`prepare_batch`](Self::prepare_batch) prepares for a batch.
    type BatchState;

    /// Number of calls of [`prefetch_request_in_round`](Self::prefetch_request_in_round) for each request, in batches
    /// of more than one request.
    const PREFETCH_ROUNDS: usize = 0;

    /// Prepares the state for a batch of `requests` requests, before the first is handled.
    fn prepare_batch(&mut self, requests: usize) -> Self::BatchState;

    /// Looks ahead at a request, so that a handler can prefetch its data. In each of
    /// [`PREFETCH_ROUNDS`](Self::PREFETCH_ROUNDS) rounds, counted from 0, this function is called for all requests of
    /// the batch before the first is handled. It is not called for a batch of one request.
    #[inline]
    fn prefetch_request_in_round(
        &mut self,
        batch: &mut Self::BatchState,
        round: usize,
        request: Request<'_>,
    ) {
        let _ = (batch, round, request);
    }

    /// Ends a round, after [`prefetch_request_in_round`](Self::prefetch_request_in_round) was called for all `requests`
    /// requests of the batch. Prefetches of all requests in one loop overlap better than prefetches between other work.
    #[inline]
    fn finish_prefetch_round(&mut self, batch: &mut Self::BatchState, requests: usize) {
        let _ = (batch, requests);
    }

    /// Answers one request of the batch. Dropping `reply` sends no answer.
    fn handle(
        &mut self,
        batch: &mut Self::BatchState,
        request: Request<'_>,
        reply: RequestReplier<'_>,
    );
}

/// A request, as passed to the handler.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Index under which the client was registered.
    pub client_index: usize,
    /// Index of the request in the batch, from 0 on.
    pub index_in_batch: usize,
    /// Immediate of the request (datagram), or the client's number of the request, from 1 on
    /// (HERD).
    pub imm: u32,
    /// Payload of the request.
    pub payload: &'a [u8],
}

/// The means to answer one request.
#[derive(Debug)]
pub struct RequestReplier<'a> {
    pub(crate) ud_qp: &'a mut BufferedUdQp,
    pub(crate) answer_postlist: &'a mut Postlist<Ud>,
    pub(crate) client_destination: &'a UdDestination,
    pub(crate) request_imm: u32,
}

impl RequestReplier<'_> {
    /// Answers with payload and with the immediate of the request.
    ///
    /// # Panics
    /// When the payload is longer than
    /// [`BufferedUdQpConfig::max_send_payload_bytes`](crate::BufferedUdQpConfig::max_send_payload_bytes).
    #[inline]
    pub fn send_payload(self, payload: &[u8]) {
        let (outbox, first) = self.ud_qp.payload_staging_and_next_number();
        match outbox.stage_unless_inline(first + self.answer_postlist.len() as u64, payload) {
            None => {
                self.answer_postlist.send_with_imm(
                    Inline(payload),
                    self.client_destination,
                    self.request_imm,
                );
            }
            Some(slot) => {
                self.answer_postlist
                    .send_with_imm(slot, self.client_destination, self.request_imm);
                self.ud_qp.mark_registered_payload();
            }
        }
    }

    /// Answers with one of several messages, each with the immediate of the request. If the batch's
    /// answers have become too many for one doorbell, they are posted first.
    ///
    /// # Errors
    /// When posting fails.
    ///
    /// # Panics
    /// As [`send_payload`](Self::send_payload).
    pub fn send_one_of_several_answers(&mut self, payload: &[u8]) -> Result<(), RpcError> {
        // Leave room for the answers of the rest of the batch.
        if self.answer_postlist.len() >= MAX_BATCH {
            self.ud_qp.post(self.answer_postlist)?;
            self.answer_postlist.clear();
        }
        RequestReplier {
            ud_qp: &mut *self.ud_qp,
            answer_postlist: &mut *self.answer_postlist,
            ..*self
        }
        .send_payload(payload);
        Ok(())
    }

    /// Answers without payload and with the immediate of the request.
    #[inline]
    pub fn send_header_only(self) {
        self.answer_postlist
            .send_with_imm(HeaderOnly, self.client_destination, self.request_imm);
    }

    /// Answers without payload and with an immediate that the handler chooses. Only for datagram
    /// RPC: a HERD client identifies answers by their immediate.
    #[inline]
    pub fn send_header_only_with_imm(self, imm: u32) {
        self.answer_postlist
            .send_with_imm(HeaderOnly, self.client_destination, imm);
    }
}

/// Counts of a server's worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RpcWorkerCounts {
    /// Number of answered requests.
    #[serde(rename = "requests")]
    pub answered_requests: u64,
    /// Number of doorbells for answers.
    pub doorbells: u64,
    /// Number of postlists with 1, 2, 3 … WRs.
    #[serde(rename = "postlists")]
    pub postlists_by_length: Vec<u64>,
    /// Number of dropped requests from unregistered clients.
    #[serde(rename = "strangers")]
    pub requests_from_unknown_clients: u64,
}

impl RpcWorkerCounts {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            postlists_by_length: vec![0; max],
            ..Self::default()
        }
    }

    /// Adds the counts of another worker, or of another queue pair.
    pub fn add(&mut self, other: &Self) {
        self.answered_requests += other.answered_requests;
        self.doorbells += other.doorbells;
        self.requests_from_unknown_clients += other.requests_from_unknown_clients;
        let longest = self
            .postlists_by_length
            .len()
            .max(other.postlists_by_length.len());
        self.postlists_by_length.resize(longest, 0);
        for (sum, n) in self
            .postlists_by_length
            .iter_mut()
            .zip(&other.postlists_by_length)
        {
            *sum += n;
        }
    }

    #[inline]
    pub(crate) fn record_posted_answers(&mut self, wrs: usize) {
        self.answered_requests += wrs as u64;
        self.doorbells += 1;
        if let Some(n) = wrs
            .checked_sub(1)
            .and_then(|i| self.postlists_by_length.get_mut(i))
        {
            *n += 1;
        }
    }
}
