//! Datagram RPC: requests and responses are UD SENDs.

use verbs::{
    Capability, HeaderOnly, Inline, Postlist, ProtectionDomain, QpEndpoint, Qpn, Ud, UdDestination,
    WcBuffer,
};

use crate::error::MAX_ANSWER_POSTLIST_LEN;
use crate::{
    BufferedUdQp, BufferedUdQpConfig, ClientTable, MAX_BATCH, ReceivedDatagram, Request,
    RequestReplier, RpcError, RpcHandler, RpcWorkerCounts,
};

/// Capabilities that datagram RPC needs of a device. A port with a channel also needs [completion
/// events](Capability::CompletionEvents).
pub const NEEDED_CAPABILITIES: &[Capability] = &[Capability::Ud, Capability::Immediates];

/// A server's worker: receives a batch of requests, calls the handler for each, and sends the
/// answers with one doorbell.
#[derive(Debug)]
pub struct Server {
    ud_qp: BufferedUdQp,
    answer_postlist: Postlist<Ud>,
    completion_buffer: Box<WcBuffer<MAX_BATCH>>,
    clients_by_qpn: ClientTable,
    client_destinations: Vec<Option<UdDestination>>,
    batch_clients_and_imms: Vec<(u32, u32)>,
    max_batch: usize,
    /// Maximum answers per doorbell.
    max_answers_per_doorbell: usize,
    /// Further queue pairs for answers. Batches rotate over the port's own queue pair (`turn` 0)
    /// and these.
    extra_answer_qps: Vec<(BufferedUdQp, Postlist<Ud>)>,
    next_answer_qp: usize,
    batch_payloads: Vec<u8>,
    request_payload_lens: Vec<usize>,
    max_request_payload_bytes: usize,
    counts: RpcWorkerCounts,
}

impl Server {
    /// Creates a worker. Requests carry at most `config.max_recv_payload_bytes` bytes. One doorbell sends the
    /// answers of at most `batch` requests, 1 to [`MAX_BATCH`].
    ///
    /// # Errors
    /// [`RpcError`] if `batch` is out of range, or if the provider refuses the queue pair, its
    /// queues or its memory.
    pub fn new(
        pd: &ProtectionDomain,
        batch: usize,
        config: &BufferedUdQpConfig,
    ) -> Result<Self, RpcError> {
        if batch == 0 || batch > MAX_BATCH {
            return Err(RpcError::Config(format!(
                "a batch of 1 to {MAX_BATCH}: {batch}"
            )));
        }
        let port = BufferedUdQp::new(pd, config)?;
        Ok(Self {
            answer_postlist: port.create_postlist(MAX_ANSWER_POSTLIST_LEN),
            ud_qp: port,
            completion_buffer: Box::default(),
            clients_by_qpn: ClientTable::new(),
            client_destinations: Vec::new(),
            batch_clients_and_imms: Vec::with_capacity(MAX_BATCH),
            max_batch: batch,
            max_answers_per_doorbell: batch,
            extra_answer_qps: Vec::new(),
            next_answer_qp: 0,
            batch_payloads: vec![0; config.max_recv_payload_bytes * MAX_BATCH],
            request_payload_lens: vec![0; MAX_BATCH],
            max_request_payload_bytes: config.max_recv_payload_bytes,
            counts: RpcWorkerCounts::new(MAX_BATCH),
        })
    }

    /// Limits the answers per doorbell to `answers`, 1 or more. Requests are still handled batch by
    /// batch.
    #[must_use]
    pub fn with_max_answers_per_doorbell(self, answers: usize) -> Self {
        Self {
            max_answers_per_doorbell: answers.max(1),
            ..self
        }
    }

    /// Rotates answers over `queues` queue pairs, batch by batch: the one that receives requests,
    /// and others with the parameters in `config`. Answers of different batches may therefore
    /// overtake each other.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses a queue pair, its queues or its memory.
    pub fn with_answer_qps(
        mut self,
        pd: &ProtectionDomain,
        queues: usize,
        config: &BufferedUdQpConfig,
    ) -> Result<Self, RpcError> {
        let config = BufferedUdQpConfig {
            recv_depth: 0,
            max_recv_payload_bytes: 0,
            channel: None,
            ..config.clone()
        };
        let more = (1..queues).map(|_| {
            let port = BufferedUdQp::new(pd, &config)?;
            let list = port.create_postlist(MAX_ANSWER_POSTLIST_LEN);
            Ok::<_, RpcError>((port, list))
        });
        self.extra_answer_qps = more.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Returns the endpoint to which clients send.
    pub fn endpoint(&self) -> QpEndpoint {
        self.ud_qp.endpoint()
    }

    /// Returns the port, for arming its CQ.
    pub fn ud_qp(&self) -> &BufferedUdQp {
        &self.ud_qp
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &RpcWorkerCounts {
        &self.counts
    }

    /// Registers a client under an index. Returns false if another client has the same queue pair
    /// number.
    #[must_use]
    pub fn add_client_if_qpn_free(&mut self, index: u32, to: UdDestination) -> bool {
        if !self.clients_by_qpn.insert(to.qpn, index) {
            return false;
        }
        let i = index as usize;
        if self.client_destinations.len() <= i {
            self.client_destinations.resize(i + 1, None);
        }
        self.client_destinations[i] = Some(to);
        true
    }

    /// Removes a client.
    pub fn remove_client(&mut self, index: u32) {
        if let Some(to) = self
            .client_destinations
            .get_mut(index as usize)
            .and_then(Option::take)
        {
            self.clients_by_qpn.remove(to.qpn);
        }
    }

    /// Handles the requests that have arrived, up to a batch. Returns the number of arrived
    /// requests.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a post is refused.
    #[inline]
    pub fn poll<H: RpcHandler>(&mut self, handler: &mut H) -> Result<usize, RpcError> {
        let Self {
            ud_qp: port,
            completion_buffer: buffer,
            clients_by_qpn: table,
            batch_clients_and_imms: batch,
            max_batch: most,
            batch_payloads: payloads,
            request_payload_lens: lens,
            max_request_payload_bytes: payload_max,
            counts,
            ..
        } = self;
        batch.clear();
        // Consecutive requests usually come from the same client, so remember the last one.
        let mut last = (Qpn(u32::MAX), 0);
        let came = port.poll_received(*most, buffer, |r| {
            if r.src_qp != last.0 {
                match table.get(r.src_qp) {
                    #[expect(clippy::cast_possible_truncation, reason = "indices are u32")]
                    Some(client) => last = (r.src_qp, client as u32),
                    None => {
                        counts.requests_from_unknown_clients += 1;
                        return;
                    }
                }
            }
            let i = batch.len();
            if *payload_max > 0 {
                lens[i] = r.copy_to(&mut payloads[i * *payload_max..(i + 1) * *payload_max]);
            }
            batch.push((last.1, r.imm));
        })?;
        if self.batch_clients_and_imms.is_empty() {
            return Ok(came);
        }
        let mut state = handler.prepare_batch(self.batch_clients_and_imms.len());
        let turn = self.next_answer_qp;
        self.next_answer_qp = if turn < self.extra_answer_qps.len() {
            turn + 1
        } else {
            0
        };
        let (port, list) = match turn {
            0 => (&mut self.ud_qp, &mut self.answer_postlist),
            turn => {
                let (port, list) = &mut self.extra_answer_qps[turn - 1];
                (port, list)
            }
        };
        list.clear();
        let request = |index: usize, client: u32, imm: u32| {
            let start = index * self.max_request_payload_bytes;
            Request {
                client_index: client as usize,
                index_in_batch: index,
                imm,
                payload: &self.batch_payloads[start..start + self.request_payload_lens[index]],
            }
        };
        for round in 0..if self.batch_clients_and_imms.len() > 1 {
            H::PREFETCH_ROUNDS
        } else {
            0
        } {
            for (i, &(client, imm)) in self.batch_clients_and_imms.iter().enumerate() {
                handler.prefetch_request_in_round(&mut state, round, request(i, client, imm));
            }
            handler.finish_prefetch_round(&mut state, self.batch_clients_and_imms.len());
        }
        for (i, &(client, imm)) in self.batch_clients_and_imms.iter().enumerate() {
            let Some(to) = &self.client_destinations[client as usize] else {
                continue;
            };
            let request = request(i, client, imm);
            handler.handle(
                &mut state,
                request,
                RequestReplier {
                    ud_qp: &mut *port,
                    answer_postlist: &mut *list,
                    client_destination: to,
                    request_imm: imm,
                },
            );
            if list.len() >= self.max_answers_per_doorbell {
                self.counts.record_posted_answers(list.len());
                port.post(list)?;
                list.clear();
            }
        }
        drop(state);
        let answers = list.len();
        port.post(list)?;
        if answers > 0 {
            self.counts.record_posted_answers(answers);
        }
        Ok(came)
    }
}

/// A client: sends requests in postlists and receives answers.
#[derive(Debug)]
pub struct Client {
    ud_qp: BufferedUdQp,
    request_postlist: Postlist<Ud>,
    completion_buffer: Box<WcBuffer<MAX_BATCH>>,
    server_destination: Option<UdDestination>,
    /// Number of header-only requests in the postlist, and their immediate.
    prepared_count_and_imm: (usize, u32),
}

impl Client {
    /// Creates a client whose answers carry at most `config.max_recv_payload_bytes` bytes. It cannot send
    /// before [`set_server_destination`](Self::set_server_destination).
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses the queue pair, its queues or its memory.
    pub fn new(pd: &ProtectionDomain, config: &BufferedUdQpConfig) -> Result<Self, RpcError> {
        let port = BufferedUdQp::new(pd, config)?;
        Ok(Self {
            request_postlist: port.create_postlist(MAX_BATCH),
            ud_qp: port,
            completion_buffer: Box::default(),
            server_destination: None,
            prepared_count_and_imm: (0, 0),
        })
    }

    /// Returns the endpoint that the server needs for its answers.
    pub fn endpoint(&self) -> QpEndpoint {
        self.ud_qp.endpoint()
    }

    /// Sets the server.
    pub fn set_server_destination(&mut self, server: UdDestination) {
        self.server_destination = Some(server);
        self.prepared_count_and_imm = (0, 0);
    }

    /// Sends `count` (at most [`MAX_BATCH`]) header-only requests with the same immediate, with one doorbell.
    ///
    /// # Errors
    /// [`RpcError`] if the post is refused, and before [`set_server_destination`](Self::set_server_destination).
    #[inline]
    pub fn send_header_only_requests(&mut self, count: usize, imm: u32) -> Result<(), RpcError> {
        let Some(server) = &self.server_destination else {
            return Err(RpcError::Config("not connected".into()));
        };
        // The postlist still holds the previous requests, so usually nothing needs to be written.
        if imm != self.prepared_count_and_imm.1 {
            self.prepared_count_and_imm = (0, imm);
        }
        if self.prepared_count_and_imm.0 < count {
            self.request_postlist.clear();
            for _ in 0..count.min(MAX_BATCH) {
                self.request_postlist.send_with_imm(HeaderOnly, server, imm);
            }
            self.prepared_count_and_imm.0 = self.request_postlist.len();
        }
        self.request_postlist.set_len(count.min(MAX_BATCH));
        self.ud_qp.post(&mut self.request_postlist)
    }

    /// Sends one request with payload.
    ///
    /// # Panics
    /// When the payload is longer than [`BufferedUdQpConfig::max_send_payload_bytes`].
    ///
    /// # Errors
    /// [`RpcError`] if the post is refused, and before [`set_server_destination`](Self::set_server_destination).
    pub fn send(&mut self, payload: &[u8], imm: u32) -> Result<(), RpcError> {
        let Some(server) = &self.server_destination else {
            return Err(RpcError::Config("not connected".into()));
        };
        self.prepared_count_and_imm = (0, 0);
        self.request_postlist.clear();
        let (outbox, number) = self.ud_qp.payload_staging_and_next_number();
        match outbox.stage_unless_inline(number, payload) {
            None => self
                .request_postlist
                .send_with_imm(Inline(payload), server, imm),
            Some(slot) => self.request_postlist.send_with_imm(slot, server, imm),
        };
        self.ud_qp.post(&mut self.request_postlist)
    }

    /// Receives up to [`MAX_BATCH`] answers. Returns the number of answers.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a post is refused.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(ReceivedDatagram<'_>)) -> Result<usize, RpcError> {
        self.ud_qp
            .poll_received(MAX_BATCH, &mut self.completion_buffer, each)
    }
}
