//! Datagram RPC: requests and responses are UD SENDs.

use verbs::{
    Capability, HeaderOnly, Inline, Postlist, ProtectionDomain, QpEndpoint, Qpn, Ud, UdDestination,
    WcBuffer,
};

use crate::error::MAX_LIST;
use crate::{
    ClientTable, MAX_BATCH, ReceivedDatagram, Request, RequestReply, RpcError, RpcHandler,
    RpcWorkerCounts, UdPort, UdPortConfig,
};

/// Capabilities that datagram RPC needs of a device. A port with a channel also needs [completion
/// events](Capability::CompletionEvents).
pub const NEEDS: &[Capability] = &[Capability::Ud, Capability::Immediates];

/// A server's worker: receives a batch of requests, calls the handler for each, and sends the
/// answers with one doorbell.
#[derive(Debug)]
pub struct Server {
    port: UdPort,
    list: Postlist<Ud>,
    buffer: Box<WcBuffer<MAX_BATCH>>,
    table: ClientTable,
    clients: Vec<Option<UdDestination>>,
    batch: Vec<(u32, u32)>,
    max_batch: usize,
    /// Maximum answers per doorbell.
    answers: usize,
    /// Further queue pairs for answers. Batches rotate over the port's own queue pair (`turn` 0)
    /// and these.
    answer_queues: Vec<(UdPort, Postlist<Ud>)>,
    next_queue: usize,
    payloads: Vec<u8>,
    lens: Vec<usize>,
    payload_max: usize,
    counts: RpcWorkerCounts,
}

impl Server {
    /// Creates a worker. Requests carry at most `config.recv_payload` bytes. One doorbell sends the
    /// answers of at most `batch` requests, 1 to [`MAX_BATCH`].
    ///
    /// # Errors
    /// [`RpcError`] if `batch` is out of range, or if the provider refuses the queue pair, its
    /// queues or its memory.
    pub fn new(
        pd: &ProtectionDomain,
        batch: usize,
        config: &UdPortConfig,
    ) -> Result<Self, RpcError> {
        if batch == 0 || batch > MAX_BATCH {
            return Err(RpcError::Config(format!(
                "a batch of 1 to {MAX_BATCH}: {batch}"
            )));
        }
        let port = UdPort::new(pd, config)?;
        Ok(Self {
            list: port.postlist(MAX_LIST),
            port,
            buffer: Box::default(),
            table: ClientTable::new(),
            clients: Vec::new(),
            batch: Vec::with_capacity(MAX_BATCH),
            max_batch: batch,
            answers: batch,
            answer_queues: Vec::new(),
            next_queue: 0,
            payloads: vec![0; config.recv_payload * MAX_BATCH],
            lens: vec![0; MAX_BATCH],
            payload_max: config.recv_payload,
            counts: RpcWorkerCounts::new(MAX_BATCH),
        })
    }

    /// Limits the answers per doorbell to `answers`, 1 or more. Requests are still handled batch by
    /// batch.
    #[must_use]
    pub fn with_max_answers(self, answers: usize) -> Self {
        Self {
            answers: answers.max(1),
            ..self
        }
    }

    /// Rotates answers over `queues` queue pairs, batch by batch: the one that receives requests,
    /// and others with the parameters in `config`. Answers of different batches may therefore
    /// overtake each other.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses a queue pair, its queues or its memory.
    pub fn with_answer_queues(
        mut self,
        pd: &ProtectionDomain,
        queues: usize,
        config: &UdPortConfig,
    ) -> Result<Self, RpcError> {
        let config = UdPortConfig {
            recv_depth: 0,
            recv_payload: 0,
            channel: None,
            ..config.clone()
        };
        let more = (1..queues).map(|_| {
            let port = UdPort::new(pd, &config)?;
            let list = port.postlist(MAX_LIST);
            Ok::<_, RpcError>((port, list))
        });
        self.answer_queues = more.collect::<Result<_, _>>()?;
        Ok(self)
    }

    /// Returns the endpoint to which clients send.
    pub fn endpoint(&self) -> QpEndpoint {
        self.port.endpoint()
    }

    /// Returns the port, for arming its CQ.
    pub fn port(&self) -> &UdPort {
        &self.port
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> &RpcWorkerCounts {
        &self.counts
    }

    /// Registers a client under an index. Returns false if another client has the same queue pair
    /// number.
    #[must_use]
    pub fn add_client(&mut self, index: u32, to: UdDestination) -> bool {
        if !self.table.insert(to.qpn, index) {
            return false;
        }
        let i = index as usize;
        if self.clients.len() <= i {
            self.clients.resize(i + 1, None);
        }
        self.clients[i] = Some(to);
        true
    }

    /// Removes a client.
    pub fn remove_client(&mut self, index: u32) {
        if let Some(to) = self.clients.get_mut(index as usize).and_then(Option::take) {
            self.table.remove(to.qpn);
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
            port,
            buffer,
            table,
            batch,
            max_batch: most,
            payloads,
            lens,
            payload_max,
            counts,
            ..
        } = self;
        batch.clear();
        // Consecutive requests usually come from the same client, so remember the last one.
        let mut last = (Qpn(u32::MAX), 0);
        let came = port.poll(*most, buffer, |r| {
            if r.src_qp != last.0 {
                match table.get(r.src_qp) {
                    #[expect(clippy::cast_possible_truncation, reason = "indices are u32")]
                    Some(client) => last = (r.src_qp, client as u32),
                    None => {
                        counts.strangers += 1;
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
        if self.batch.is_empty() {
            return Ok(came);
        }
        let mut state = handler.begin(self.batch.len());
        let turn = self.next_queue;
        self.next_queue = if turn < self.answer_queues.len() {
            turn + 1
        } else {
            0
        };
        let (port, list) = match turn {
            0 => (&mut self.port, &mut self.list),
            turn => {
                let (port, list) = &mut self.answer_queues[turn - 1];
                (port, list)
            }
        };
        list.clear();
        let request = |index: usize, client: u32, imm: u32| {
            let start = index * self.payload_max;
            Request {
                client: client as usize,
                index,
                imm,
                payload: &self.payloads[start..start + self.lens[index]],
            }
        };
        for round in 0..if self.batch.len() > 1 {
            H::PREFETCH_ROUNDS
        } else {
            0
        } {
            for (i, &(client, imm)) in self.batch.iter().enumerate() {
                handler.prefetch_round(&mut state, round, request(i, client, imm));
            }
        }
        for (i, &(client, imm)) in self.batch.iter().enumerate() {
            let Some(to) = &self.clients[client as usize] else {
                continue;
            };
            let request = request(i, client, imm);
            handler.handle(
                &mut state,
                request,
                RequestReply {
                    port: &mut *port,
                    list: &mut *list,
                    to,
                    imm,
                },
            );
            if list.len() >= self.answers {
                self.counts.posted(list.len());
                port.post(list)?;
                list.clear();
            }
        }
        drop(state);
        let answers = list.len();
        port.post(list)?;
        if answers > 0 {
            self.counts.posted(answers);
        }
        Ok(came)
    }
}

/// A client: sends requests in postlists and receives answers.
#[derive(Debug)]
pub struct Client {
    port: UdPort,
    list: Postlist<Ud>,
    buffer: Box<WcBuffer<MAX_BATCH>>,
    server: Option<UdDestination>,
    /// Number of header-only requests in the postlist, and their immediate.
    ready: (usize, u32),
}

impl Client {
    /// Creates a client whose answers carry at most `config.recv_payload` bytes. It cannot send
    /// before [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses the queue pair, its queues or its memory.
    pub fn new(pd: &ProtectionDomain, config: &UdPortConfig) -> Result<Self, RpcError> {
        let port = UdPort::new(pd, config)?;
        Ok(Self {
            list: port.postlist(MAX_BATCH),
            port,
            buffer: Box::default(),
            server: None,
            ready: (0, 0),
        })
    }

    /// Returns the endpoint that the server needs for its answers.
    pub fn endpoint(&self) -> QpEndpoint {
        self.port.endpoint()
    }

    /// Sets the server.
    pub fn connect(&mut self, server: UdDestination) {
        self.server = Some(server);
        self.ready = (0, 0);
    }

    /// Sends `count` (at most [`MAX_BATCH`]) header-only requests with the same immediate, with one doorbell.
    ///
    /// # Errors
    /// [`RpcError`] if the post is refused, and before [`connect`](Self::connect).
    #[inline]
    pub fn send_imm(&mut self, count: usize, imm: u32) -> Result<(), RpcError> {
        let Some(server) = &self.server else {
            return Err(RpcError::Config("not connected".into()));
        };
        // The postlist still holds the previous requests, so usually nothing needs to be written.
        if imm != self.ready.1 {
            self.ready = (0, imm);
        }
        if self.ready.0 < count {
            self.list.clear();
            for _ in 0..count.min(MAX_BATCH) {
                self.list.send_with_imm(HeaderOnly, server, imm);
            }
            self.ready.0 = self.list.len();
        }
        self.list.set_len(count.min(MAX_BATCH));
        self.port.post(&mut self.list)
    }

    /// Sends one request with payload.
    ///
    /// # Panics
    /// When the payload is longer than [`UdPortConfig::send_payload`].
    ///
    /// # Errors
    /// [`RpcError`] if the post is refused, and before [`connect`](Self::connect).
    pub fn send(&mut self, payload: &[u8], imm: u32) -> Result<(), RpcError> {
        let Some(server) = &self.server else {
            return Err(RpcError::Config("not connected".into()));
        };
        self.ready = (0, 0);
        self.list.clear();
        let (outbox, number) = self.port.outbox();
        match outbox.stage(number, payload) {
            None => self.list.send_with_imm(Inline(payload), server, imm),
            Some(slot) => self.list.send_with_imm(slot, server, imm),
        };
        self.port.post(&mut self.list)
    }

    /// Receives up to [`MAX_BATCH`] answers. Returns the number of answers.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a post is refused.
    #[inline]
    pub fn poll(&mut self, each: impl FnMut(ReceivedDatagram<'_>)) -> Result<usize, RpcError> {
        self.port.poll(MAX_BATCH, &mut self.buffer, each)
    }
}
