//! Worker threads: each owns its queue pairs and serves its partition until it gets the stop command.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use rpc::{Request, RequestReplier, RpcError, RpcHandler, RpcWorkerCounts, herd};
use service::ClientSlot;
use service::random::Random;
use service::sessions::{ChangeStatus, WorkerSessions};
use service::worker::{self, Mailbox, ResultSender, WakeEventfd, WorkerLoop};
use verbs::{QueuePair, Uc, UdDestination, Waiter};

use crate::store::{
    MAX_KEY_BYTES, MAX_VALUE_BYTES, Partition, Refusal, Store, hash_of, partition_of,
};
use crate::wire::{
    self, ANSWER_CHUNK_HEADER_BYTES, ANSWER_HEADER_BYTES, FLAG_ANSWER_CHUNK, Op,
    REQUEST_PART_HEADER_BYTES, RecordRequest, Status,
};

/// Bytes of the longest request.
const MAX_REQUEST_BYTES: usize = REQUEST_PART_HEADER_BYTES + 24 + MAX_KEY_BYTES + MAX_VALUE_BYTES;

/// The result of a GET.
pub(crate) enum GetResult<'v> {
    /// The key's value.
    Value { version: u64, value: &'v [u8] },
    /// The key is absent.
    Absent,
    /// The workers of this design execute no operations.
    NotServed,
}

/// The items of a worker's partition, as the design keeps them.
pub(crate) trait PartitionItems {
    /// Looks up a key with its hash, and calls `answer` with the result.
    fn get<R>(
        &mut self,
        partition: &mut Partition,
        key: (u64, &[u8]),
        answer: impl FnOnce(GetResult<'_>) -> R,
    ) -> R;

    /// Executes a change and returns the first word of the answer. Returns `None` if workers make no changes in this
    /// design.
    fn change_and_encode_answer_word_if_served(
        &mut self,
        partition: &mut Partition,
        hash: u64,
        op: Op<'_>,
    ) -> Option<u64>;

    /// Returns the first word of the answer to a request about records, or `None` if the design does not serve it.
    fn encode_record_answer_word_if_served(&mut self, _request: RecordRequest<'_>) -> Option<u64> {
        None
    }
}

/// A client that is connecting.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    pub(crate) slot: Arc<ClientSlot>,
    pub(crate) session_id: u64,
    pub(crate) window: u32,
    pub(crate) max_answer_bytes: usize,
    pub(crate) request_qp: QueuePair<Uc>,
    pub(crate) answer_destination: UdDestination,
    pub(crate) setup_result_sender: ResultSender,
}

#[derive(Debug)]
pub(crate) enum Command {
    AddClient(Box<PendingConnection>),
    RemoveClient(Arc<ClientSlot>),
    Stop,
}

/// The part of a worker that the rest of the server can access.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    pub(crate) request_region: verbs::RemoteMemory,
    pub(crate) mailbox: Mailbox<Command, WorkerCounts>,
}

/// Counters of a worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerCounts {
    pub(crate) rpc: RpcWorkerCounts,
    pub(crate) gets: u64,
    pub(crate) get_hits: u64,
    pub(crate) changes: u64,
    pub(crate) repeated_changes: u64,
    pub(crate) bad_requests: u64,
}

/// A worker that has not started.
#[derive(Debug)]
pub struct UnstartedWorker {
    pub(crate) rpc_server: herd::Server,
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) store: Arc<Store>,
    pub(crate) partition_index: usize,
    /// The mean simulated time that a core needs for a request, besides its verbs.
    pub(crate) mean_simulated_core_time_per_request: Duration,
}

impl UnstartedWorker {
    /// Serves requests on these items until the worker gets the stop command.
    pub(crate) fn run(self, items: impl PartitionItems) -> Result<(), RpcError> {
        let Self {
            rpc_server: engine,
            shared,
            store,
            partition_index: number,
            mean_simulated_core_time_per_request: cost,
        } = self;
        let serve = RequestHandler {
            items,
            store: &store,
            partition_index: number,
            mean_simulated_core_time_per_request: cost,
            random: Random::new(store.hash_seed() ^ number as u64),
            batch_key_hashes: Box::new([0; rpc::MAX_BATCH]),
            sessions: WorkerSessions::new(MAX_REQUEST_BYTES),
            max_answer_bytes_by_client: Vec::new(),
            answer_buffer: Vec::new(),
            counts: WorkerCounts::default(),
        };
        worker::run(
            &mut RunningWorker {
                rpc_server: engine,
                handler: serve,
            },
            &shared.mailbox,
        )
    }
}

struct RunningWorker<'s, I> {
    rpc_server: herd::Server,
    handler: RequestHandler<'s, I>,
}

impl<I: PartitionItems> WorkerLoop for RunningWorker<'_, I> {
    type Error = RpcError;
    type Command = Command;
    type Counts = WorkerCounts;

    #[cold]
    fn execute_and_continue(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::RemoveClient(slot) => {
                self.rpc_server.remove_client(slot.index());
                self.handler.sessions.disconnect(slot.index());
            }
            Command::AddClient(new) => {
                let PendingConnection {
                    slot,
                    session_id: session,
                    window,
                    max_answer_bytes: answer,
                    request_qp: qp,
                    answer_destination: to,
                    setup_result_sender: done,
                } = *new;
                let added = self.rpc_server.add_client(slot.index(), qp, to, window);
                if added.is_ok() {
                    self.handler
                        .register_client(slot.index(), session, (window, answer));
                }
                // The client may be gone already.
                let _ = done.send(added.map_err(|e| e.to_string()));
            }
        }
        true
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, RpcError> {
        self.rpc_server.poll(&mut self.handler)
    }

    fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            rpc: self.rpc_server.counts().clone(),
            ..self.handler.counts.clone()
        }
    }

    #[inline]
    fn wait_briefly(&self, waiter: &mut Waiter) {
        waiter.idle_polling_memory(self.rpc_server.polled_memory());
    }

    /// Sleeps for a limited time or until a command arrives: incoming WRITEs generate no event.
    #[cold]
    fn sleep(&mut self, wake: &WakeEventfd, waiter: &mut Waiter) -> Result<(), RpcError> {
        wake.wait(self.rpc_server.has_clients().then(|| waiter.next_sleep()));
        waiter.record_external_wait();
        Ok(())
    }
}

/// Serves the requests to a partition.
struct RequestHandler<'s, I> {
    items: I,
    store: &'s Store,
    partition_index: usize,
    mean_simulated_core_time_per_request: Duration,
    /// Random numbers for the deviations of `mean_simulated_core_time_per_request` from its mean.
    random: Random,
    /// Hashes of the keys of the current batch.
    batch_key_hashes: Box<[u64; rpc::MAX_BATCH]>,
    sessions: WorkerSessions,
    /// The longest message that each client can receive, in bytes.
    max_answer_bytes_by_client: Vec<usize>,
    answer_buffer: Vec<u8>,
    counts: WorkerCounts,
}

impl<'s, I: PartitionItems> RpcHandler for RequestHandler<'s, I> {
    type BatchState = MutexGuard<'s, Partition>;

    const PREFETCH_ROUNDS: usize = 2;

    #[inline]
    fn prepare_batch(&mut self, requests: usize) -> Self::BatchState {
        if !self.mean_simulated_core_time_per_request.is_zero() {
            self.charge_core_time_of_requests(requests);
        }
        self.store.lock_partition(self.partition_index)
    }

    #[inline]
    fn prefetch_request_in_round(
        &mut self,
        partition: &mut Self::BatchState,
        round: usize,
        request: Request<'_>,
    ) {
        if round == 0 {
            let hash = wire::key_of_request(request.payload).map_or(0, |key| self.store.hash(key));
            self.batch_key_hashes[request.index_in_batch] = hash;
            partition.prefetch_index(hash);
        } else {
            partition.prefetch_item(self.batch_key_hashes[request.index_in_batch]);
        }
    }

    #[inline]
    fn handle(
        &mut self,
        partition: &mut Self::BatchState,
        request: Request<'_>,
        reply: RequestReplier<'_>,
    ) {
        match wire::decode_request(request.payload) {
            Some(wire::Request::Whole { op, seq }) => {
                self.handle_request(partition, request.client_index, op, seq, reply);
            }
            Some(wire::Request::Part {
                offset,
                total,
                bytes,
            }) => self.handle_request_part(
                partition,
                request.client_index,
                (offset, total, bytes),
                reply,
            ),
            Some(wire::Request::Record(request)) => self.handle_record_request(request, reply),
            None => self.reply_bad_request(reply),
        }
    }
}

impl<I: PartitionItems> RequestHandler<'_, I> {
    /// Charges a simulated core for finding the items of `requests` requests. Memory latencies vary, and only their
    /// mean is known, so each is drawn from an exponential distribution. With equal latencies the cores would run in
    /// lockstep and rarely compete for the NIC.
    #[cold]
    fn charge_core_time_of_requests(&mut self, requests: usize) {
        let waits = (0..requests).map(|_| -(1.0 - self.random.next_unit_f64()).ln());
        verbs::time::charge_time(
            self.mean_simulated_core_time_per_request
                .mul_f64(waits.sum()),
        );
    }

    /// Registers a client with its session, its window and its longest message.
    fn register_client(&mut self, client: u32, session: u64, (window, answer): (u32, usize)) {
        self.sessions.connect(client, session, window as usize);
        let i = client as usize;
        if self.max_answer_bytes_by_client.len() <= i {
            self.max_answer_bytes_by_client.resize(i + 1, 0);
        }
        self.max_answer_bytes_by_client[i] = answer;
    }

    #[inline]
    fn handle_request(
        &mut self,
        partition: &mut Partition,
        client: usize,
        op: Op<'_>,
        seq: u32,
        reply: RequestReplier<'_>,
    ) {
        let key = op.key();
        // `prefetch_request_in_round` may have computed this hash. Computing it again is cheaper than keeping it for a batch of
        // one.
        let hash = hash_of(key, self.store.hash_seed());
        if partition_of(hash, self.store.partition_count()) != self.partition_index {
            return self.reply_bad_request(reply);
        }
        if let Op::Get { .. } = op {
            return self.get(partition, (hash, key), client, reply);
        }
        let Some(session) = self.sessions.session(client) else {
            return;
        };
        let word = match session.state_of_change(seq) {
            ChangeStatus::Answered(word) => {
                self.counts.repeated_changes += 1;
                word
            }
            // The client no longer waits for this change.
            ChangeStatus::Stale => {
                self.counts.repeated_changes += 1;
                return;
            }
            ChangeStatus::New => {
                self.counts.changes += 1;
                let changed = self
                    .items
                    .change_and_encode_answer_word_if_served(partition, hash, op);
                self.counts.bad_requests += u64::from(changed.is_none());
                let word = changed.unwrap_or(wire::first_answer_word(Status::BadRequest, 0));
                session.record_answer(seq, word);
                word
            }
        };
        reply.send_payload(&word.to_le_bytes());
    }

    #[inline]
    fn get(
        &mut self,
        partition: &mut Partition,
        key: (u64, &[u8]),
        client: usize,
        reply: RequestReplier<'_>,
    ) {
        let Self {
            items,
            counts,
            max_answer_bytes_by_client: max_answer_bytes,
            answer_buffer: buffer,
            ..
        } = self;
        counts.gets += 1;
        items.get(partition, key, |found| match found {
            GetResult::Value { version, value } => {
                counts.get_hits += 1;
                let word = wire::first_answer_word(Status::Ok, version);
                let most = max_answer_bytes.get(client).copied().unwrap_or(0);
                send_value(buffer, word, value, most, reply);
            }
            GetResult::Absent => {
                reply.send_payload(&wire::first_answer_word(Status::NotFound, 0).to_le_bytes())
            }
            GetResult::NotServed => {
                counts.bad_requests += 1;
                reply.send_payload(&wire::first_answer_word(Status::BadRequest, 0).to_le_bytes());
            }
        });
    }

    /// Serves a request about records that clients change themselves.
    #[cold]
    fn handle_record_request(&mut self, request: RecordRequest<'_>, reply: RequestReplier<'_>) {
        match self.items.encode_record_answer_word_if_served(request) {
            Some(word) => reply.send_payload(&word.to_le_bytes()),
            None => self.reply_bad_request(reply),
        }
    }

    #[cold]
    fn handle_request_part(
        &mut self,
        partition: &mut Partition,
        client: usize,
        (offset, total, bytes): (usize, usize, &[u8]),
        reply: RequestReplier<'_>,
    ) {
        let Some(session) = self.sessions.session(client) else {
            return;
        };
        match session.add_request_part(offset, total, bytes) {
            None => self.reply_bad_request(reply),
            Some(false) => {
                reply.send_payload(&wire::first_answer_word(Status::PartReceived, 0).to_le_bytes())
            }
            Some(true) => {
                let whole = std::mem::take(&mut session.received_request_parts);
                match wire::decode_request(&whole) {
                    Some(wire::Request::Whole { op, seq }) => {
                        self.handle_request(partition, client, op, seq, reply);
                    }
                    _ => self.reply_bad_request(reply),
                }
            }
        }
    }

    #[cold]
    fn reply_bad_request(&mut self, reply: RequestReplier<'_>) {
        self.counts.bad_requests += 1;
        reply.send_payload(&wire::first_answer_word(Status::BadRequest, 0).to_le_bytes());
    }
}

/// Sends a value, in one message or in chunks.
#[inline]
fn send_value(
    buffer: &mut Vec<u8>,
    word: u64,
    value: &[u8],
    most: usize,
    mut reply: RequestReplier<'_>,
) {
    buffer.clear();
    if ANSWER_HEADER_BYTES + value.len() <= most {
        buffer.extend_from_slice(&word.to_le_bytes());
        buffer.extend_from_slice(value);
        return reply.send_payload(buffer);
    }
    let room = most.saturating_sub(ANSWER_CHUNK_HEADER_BYTES);
    if room == 0 || value.len().div_ceil(room) > rpc::MAX_BATCH {
        let word = wire::first_answer_word(Status::TooLong, 0);
        return reply.send_payload(&word.to_le_bytes());
    }
    for (i, chunk) in value.chunks(room).enumerate() {
        buffer.clear();
        buffer.extend_from_slice(&(word | FLAG_ANSWER_CHUNK).to_le_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "values are below 64 KiB")]
        for n in [value.len() as u32, (i * room) as u32] {
            buffer.extend_from_slice(&n.to_le_bytes());
        }
        buffer.extend_from_slice(chunk);
        // The next answer detects a broken send queue; the client repeats its request.
        if reply.send_one_of_several_answers(buffer).is_err() {
            return;
        }
    }
}

/// Returns the first word of the answer for a result; `zero` is the status for the result 0.
pub(crate) fn encode_result_word(result: Result<u64, Refusal>, zero: Status) -> u64 {
    match result {
        Ok(0) => wire::first_answer_word(zero, 0),
        Ok(version) => wire::first_answer_word(Status::Ok, version),
        Err(Refusal::ConditionNotMetAtVersion(version)) => {
            wire::first_answer_word(Status::ConditionNotMet, version)
        }
        Err(Refusal::StoreFull) => wire::first_answer_word(Status::Full, 0),
        Err(Refusal::TooLong) => wire::first_answer_word(Status::TooLong, 0),
    }
}
