//! Worker threads: each owns its queue pairs, and all of them serve the same trees.

use std::sync::Arc;
use std::time::Duration;

use rpc::{Request, RequestReplier, RpcError, RpcHandler, RpcWorkerCounts, herd};
use service::ClientSlot;
use service::lock_recovery::LockRecovery;
use service::sessions::{ChangeStatus, WorkerSessions};
use service::worker::{self, Mailbox, ResultSender, WakeEventfd, WorkerLoop};
use verbs::{QueuePair, Uc, UdDestination, Waiter};

use super::handovers_and_load_meter::{Handovers, LoadMeter};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::tree::{Refusal, Store, WalkPosition};
use crate::walk_cost::WalkCost;
use crate::wire::{self, MAX_SCAN_MESSAGES, Operation, Status};

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
    pub(crate) scans: u64,
    pub(crate) scanned_entries: u64,
    pub(crate) changes: u64,
    pub(crate) repeated_changes: u64,
    pub(crate) bad_requests: u64,
    pub(crate) busy_refusals: u64,
}

/// A worker that has not started.
#[derive(Debug)]
pub struct UnstartedWorker<T: KeyOrValue> {
    pub(crate) rpc_server: herd::Server,
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) store: Arc<Store<T>>,
    pub(crate) lock_recovery: Arc<LockRecovery<Store<T>>>,
    pub(crate) handovers: Arc<Handovers<T>>,
    /// Extra time per request, which simulates a slower processor.
    pub(crate) extra_delay_per_request: Duration,
    /// True if the server shares the keys with other servers.
    pub(crate) server_shares_keys_with_others: bool,
    /// The cost of walks on a simulated core.
    pub(crate) walk_cost: Option<Arc<WalkCost>>,
}

impl<T: KeyOrValue> UnstartedWorker<T> {
    /// Serves requests until the worker gets the stop command.
    pub(crate) fn run(self) -> Result<(), RpcError> {
        let Self {
            rpc_server: engine,
            shared,
            store,
            lock_recovery,
            handovers,
            extra_delay_per_request: slow_by,
            server_shares_keys_with_others: shares,
            walk_cost,
        } = self;
        let serve = RequestHandler {
            store: &store,
            lock_recovery,
            handovers,
            extra_delay_per_request: slow_by,
            server_shares_keys_with_others: shares,
            load_meter: LoadMeter::new(),
            walk_cost,
            sessions: WorkerSessions::new(0),
            max_answer_bytes_by_client: Vec::new(),
            batch_keys: vec![T::default(); rpc::MAX_BATCH].into(),
            scan_entries: Vec::new(),
            answer_message: Vec::new(),
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

struct RunningWorker<'s, T: KeyOrValue> {
    rpc_server: herd::Server,
    handler: RequestHandler<'s, T>,
}

impl<T: KeyOrValue> WorkerLoop for RunningWorker<'_, T> {
    type Error = RpcError;
    type Command = Command;
    type Counts = WorkerCounts;

    #[cold]
    fn execute_and_continue(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::RemoveClient(slot) => {
                self.rpc_server.remove_client(slot.index());
                let client = slot.index() as usize;
                self.handler
                    .handovers
                    .thaw_client(self.handler.store, client);
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
        let came = self.rpc_server.poll(&mut self.handler)?;
        if self.handler.server_shares_keys_with_others {
            self.handler.load_meter.end_batch(came);
        }
        Ok(came)
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

/// Answers requests from the trees.
struct RequestHandler<'s, T: KeyOrValue> {
    store: &'s Store<T>,
    lock_recovery: Arc<LockRecovery<Store<T>>>,
    handovers: Arc<Handovers<T>>,
    extra_delay_per_request: Duration,
    /// True if the server shares the keys with other servers, and reports its load.
    server_shares_keys_with_others: bool,
    load_meter: LoadMeter<T>,
    walk_cost: Option<Arc<WalkCost>>,
    sessions: WorkerSessions,
    /// The length of the longest message that each client can receive, in bytes.
    max_answer_bytes_by_client: Vec<usize>,
    /// The keys of the batch's requests whose walks have begun.
    batch_keys: Box<[T]>,
    /// The entries of the SCAN in progress.
    scan_entries: Vec<(T, T)>,
    answer_message: Vec<u8>,
    counts: WorkerCounts,
}

/// Steps that the walks of a batch take together, enough for a tree of five levels. Higher trees are finished request
/// by request.
pub(super) const INTERLEAVED_WALK_STEPS: usize = 5;

/// The walks of a batch.
struct BatchWalks([WalkPosition; rpc::MAX_BATCH]);

impl<T: KeyOrValue> RpcHandler for RequestHandler<'_, T> {
    type BatchState = BatchWalks;

    const PREFETCH_ROUNDS: usize = INTERLEAVED_WALK_STEPS;

    #[inline]
    fn prepare_batch(&mut self, requests: usize) -> Self::BatchState {
        if self.server_shares_keys_with_others {
            self.load_meter.begin_batch();
        }
        if !self.extra_delay_per_request.is_zero() {
            let until = verbs::time::now()
                + self.extra_delay_per_request * u32::try_from(requests).unwrap_or(1);
            while verbs::time::now() < until {
                std::hint::spin_loop();
            }
        }
        if let Some(walk_cost) = &self.walk_cost {
            verbs::time::charge_server_requests(requests);
            walk_cost.charge_walks(requests);
        }
        BatchWalks([WalkPosition::default(); rpc::MAX_BATCH])
    }

    #[inline]
    fn prefetch_request_in_round(
        &mut self,
        walks: &mut Self::BatchState,
        round: usize,
        request: Request<'_>,
    ) {
        let index = request.index_in_batch;
        if round == 0 {
            let decoded = wire::key_and_tree_of_request::<T>(request.payload);
            let Some((key, tree)) =
                decoded.filter(|(_, tree)| usize::from(*tree) < self.store.tree_count())
            else {
                return;
            };
            walks.0[index] = self.store.readable_trees().begin_walk(tree.into());
            self.batch_keys[index] = key;
        }
        let walk = &mut walks.0[index];
        if let Some(tree) = request.payload.get(1).filter(|_| walk.is_begun()) {
            let key = &self.batch_keys[index];
            let is_scan = wire::is_scan_request(request.payload);
            self.store
                .readable_trees()
                .step_walk(usize::from(*tree), key, is_scan, walk);
        }
    }

    #[inline]
    fn finish_prefetch_round(&mut self, walks: &mut Self::BatchState, requests: usize) {
        self.store
            .readable_trees()
            .prefetch_next_reads(&mut walks.0[..requests]);
    }

    #[inline]
    fn handle(
        &mut self,
        walks: &mut Self::BatchState,
        request: Request<'_>,
        reply: RequestReplier<'_>,
    ) {
        let decoded = Operation::decode(request.payload);
        let sizes = self.store.key_and_value_limits();
        let Some((op, tree, number)) = decoded.filter(|(op, tree, _)| {
            usize::from(*tree) < self.store.tree_count() && op.check_lengths(sizes).is_ok()
        }) else {
            return self.reply_bad_request(reply);
        };
        let tree = usize::from(tree);
        let walk = &mut walks.0[request.index_in_batch];
        if !walk.is_begun() {
            *walk = self.store.readable_trees().begin_walk(tree);
        }
        match op {
            Operation::Handover { .. } | Operation::ReadServerLoad => {}
            _ if self.server_shares_keys_with_others => {
                self.load_meter.count_and_sample_key(op.key())
            }
            _ => {}
        }
        match op {
            Operation::Get { key } => self.get(tree, key, walk, reply),
            Operation::Scan { from, end, limit } => {
                let range = (from, end);
                self.scan(
                    (tree, walk),
                    range,
                    (limit, number),
                    request.client_index,
                    reply,
                );
            }
            Operation::Put { .. } | Operation::Delete { .. } | Operation::Handover { .. } => {
                self.change((op, tree), request.client_index, number, walk, reply);
            }
            Operation::ReadServerLoad => self.reply_load_report(request.client_index, reply),
        }
    }
}

impl<T: KeyOrValue> RequestHandler<'_, T> {
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
    fn get(&mut self, tree: usize, key: T, walk: &mut WalkPosition, reply: RequestReplier<'_>) {
        self.counts.gets += 1;
        match self
            .store
            .readable_trees()
            .finish_walk_and_get_value(tree, &key, walk)
        {
            Ok(Some(value)) => {
                self.counts.get_hits += 1;
                let mut message = T::message_buffer();
                let bytes = message.as_mut();
                bytes[..8]
                    .copy_from_slice(&wire::answer_first_word(Status::Ok, true).to_le_bytes());
                let length = 8 + value.encode(&mut bytes[8..]);
                reply.send_payload(&bytes[..length]);
            }
            Ok(None) => {
                reply.send_payload(&wire::answer_first_word(Status::Ok, false).to_le_bytes())
            }
            Err(refusal) => self.reply_refusal(refusal, reply),
        }
    }

    #[cold]
    fn reply_refusal(&mut self, refusal: Refusal<T>, reply: RequestReplier<'_>) {
        if let Refusal::Moved(moved) = &refusal {
            return reply.send_payload(&wire::encode_moved_answer(moved));
        }
        let word = self.count_and_encode_refusal(refusal);
        reply.send_payload(&word.to_le_bytes());
    }

    fn count_and_encode_refusal(&mut self, refusal: Refusal<T>) -> u64 {
        match refusal {
            Refusal::StoreFull => wire::answer_first_word(Status::StoreFull, false),
            Refusal::TooLong(_) => wire::answer_first_word(Status::MalformedOrRefused, false),
            Refusal::Moved(_) => wire::answer_first_word(Status::Moved, false),
            Refusal::BusyNodeOrZero(node) => {
                // A retry succeeds once the lock's owner is gone or its lease has expired.
                self.lock_recovery.try_free_lock_on_complaint(0, node);
                self.handovers.thaw_expired(self.store);
                self.counts.busy_refusals += 1;
                wire::answer_first_word(Status::Busy, false)
            }
        }
    }

    #[inline]
    fn change(
        &mut self,
        (op, tree): (Operation<T>, usize),
        client: usize,
        seq: u32,
        walk: &mut WalkPosition,
        reply: RequestReplier<'_>,
    ) {
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
                let found =
                    |before: Option<T>| wire::answer_first_word(Status::Ok, before.is_some());
                let changed = match op {
                    Operation::Put { key, value, when } => {
                        let put = self.store.put_from_walk(tree, (key, value), when, walk);
                        put.map(found)
                    }
                    Operation::Handover { step, from, end } => {
                        let who = (client, tree);
                        self.handovers.execute_step_and_encode_answer(
                            self.store,
                            who,
                            step,
                            (from, end),
                        )
                    }
                    _ => self
                        .store
                        .remove_from_walk(tree, &op.key(), walk)
                        .map(found),
                };
                match changed {
                    Ok(word) => {
                        self.counts.changes += 1;
                        if let Some(walk_cost) = &self.walk_cost {
                            walk_cost.charge_change();
                        }
                        session.record_answer(seq, word);
                        word
                    }
                    // The change was not made, so it may be executed when it arrives again.
                    Err(refusal) => return self.reply_refusal(refusal, reply),
                }
            }
        };
        reply.send_payload(&word.to_le_bytes());
    }

    fn scan(
        &mut self,
        (tree, walk): (usize, &WalkPosition),
        range: (T, Option<T>),
        (limit, messages): (u32, u32),
        client: usize,
        reply: RequestReplier<'_>,
    ) {
        let most = self
            .max_answer_bytes_by_client
            .get(client)
            .copied()
            .unwrap_or(0);
        let each = wire::entries_per_message(most, self.store.key_and_value_limits());
        let messages = messages.clamp(1, MAX_SCAN_MESSAGES) as usize;
        let limit = (limit as usize).min(each * messages);
        if limit == 0 {
            return self.reply_bad_request(reply);
        }
        self.scan_entries.clear();
        let scanned = self
            .store
            .scan_from_walk(tree, range, (limit, walk), &mut self.scan_entries);
        let next = match scanned {
            Ok(next) => next,
            Err(refusal) => return self.reply_refusal(refusal, reply),
        };
        if let Some(walk_cost) = &self.walk_cost {
            walk_cost.charge_scan(self.scan_entries.len());
        }
        self.counts.scans += 1;
        self.counts.scanned_entries += self.scan_entries.len() as u64;
        self.send_entries(most, next, reply);
    }

    /// Answers with this worker's load counters and sampled keys.
    #[cold]
    fn reply_load_report(&mut self, client: usize, reply: RequestReplier<'_>) {
        let most = self
            .max_answer_bytes_by_client
            .get(client)
            .copied()
            .unwrap_or(0);
        self.scan_entries.clear();
        self.load_meter
            .append_as_entries(self.handovers.unfinished_takes(), &mut self.scan_entries);
        // Values are numbers and keys here.
        let (key_bytes, _) = self.store.key_and_value_limits().max_encoded_bytes();
        let longest = key_bytes.max(wire::encoded_number_bytes::<T>());
        let each = wire::entries_that_fit(most, (longest, longest));
        self.scan_entries
            .truncate(each * wire::max_load_report_messages::<T>() as usize);
        self.send_entries(most, None, reply);
    }

    /// Sends entries in messages of at most `message_bytes` bytes.
    fn send_entries(
        &mut self,
        message_bytes: usize,
        next: Option<T>,
        mut reply: RequestReplier<'_>,
    ) {
        let count = self.scan_entries.len();
        let mut first = 0;
        loop {
            let message = &mut self.answer_message;
            message.clear();
            let begin = first;
            let word = wire::scan_message_first_word(first, count, next.is_some());
            message.extend_from_slice(&word.to_le_bytes());
            next.unwrap_or_default().append_to(message);
            let rest = self.scan_entries.get(first..).unwrap_or_default();
            first += T::append_entries_that_fit(rest, message, message_bytes);
            if first == count {
                return reply.send_payload(message);
            }
            if first == begin {
                // A client wrote a longer entry into a leaf than the tree allows.
                return self.reply_bad_request(reply);
            }
            // The next answer detects a broken send queue; the client repeats its request.
            if reply.send_one_of_several_answers(message).is_err() {
                return;
            }
        }
    }

    #[cold]
    fn reply_bad_request(&mut self, reply: RequestReplier<'_>) {
        self.counts.bad_requests += 1;
        reply.send_payload(
            &wire::answer_first_word(Status::MalformedOrRefused, false).to_le_bytes(),
        );
    }
}
