//! Worker threads: each owns its queue pairs, and all of them serve the same trees.

use std::sync::Arc;
use std::time::Duration;

use rpc::{Request, RequestReply, RpcError, RpcHandler, RpcWorkerCounts, herd};
use service::ClientSlot;
use service::lock_recovery::LockRecovery;
use service::sessions::{ChangeState, WorkerSessions};
use service::worker::{self, Done, Mailbox, WakeEventfd, WorkerLoop};
use verbs::{QueuePair, Uc, UdDestination, Waiter};

use super::handover::{Handovers, LoadMeter};
use crate::tree::{Refusal, Store, WalkPosition};
use crate::walk_cost::WalkCost;
use crate::wire::{self, ENTRY, MAX_MESSAGES, Op, SCAN_HEADER, Status};

/// A client that is connecting.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    pub(crate) slot: Arc<ClientSlot>,
    pub(crate) session: u64,
    pub(crate) window: u32,
    pub(crate) answer: usize,
    pub(crate) qp: QueuePair<Uc>,
    pub(crate) to: UdDestination,
    pub(crate) done: Done,
}

#[derive(Debug)]
pub(crate) enum Command {
    Add(Box<PendingConnection>),
    Remove(Arc<ClientSlot>),
    Stop,
}

/// The part of a worker that the rest of the server can access.
#[derive(Debug)]
pub(crate) struct WorkerShared {
    pub(crate) region: verbs::RemoteMemory,
    pub(crate) mailbox: Mailbox<Command, WorkerCounts>,
}

/// Counters of a worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkerCounts {
    pub(crate) rpc: RpcWorkerCounts,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) scans: u64,
    pub(crate) scanned: u64,
    pub(crate) changes: u64,
    pub(crate) repeated: u64,
    pub(crate) bad_requests: u64,
    pub(crate) busy: u64,
}

/// A worker that has not started.
#[derive(Debug)]
pub struct Worker {
    pub(crate) engine: herd::Server,
    pub(crate) shared: Arc<WorkerShared>,
    pub(crate) store: Arc<Store>,
    pub(crate) lock_recovery: Arc<LockRecovery<Store>>,
    pub(crate) handovers: Arc<Handovers>,
    /// Extra time per request, which simulates a slower processor.
    pub(crate) extra_delay: Duration,
    /// True if the server shares the keys with other servers.
    pub(crate) shares_keys: bool,
    /// The cost of walks on a simulated core.
    pub(crate) walk_cost: Option<Arc<WalkCost>>,
}

impl Worker {
    /// Serves requests until the worker gets the stop command.
    pub(crate) fn run(self) -> Result<(), RpcError> {
        let Self {
            engine,
            shared,
            store,
            lock_recovery,
            handovers,
            extra_delay: slow_by,
            shares_keys: shares,
            walk_cost,
        } = self;
        let serve = RequestHandler {
            store: &store,
            lock_recovery,
            handovers,
            extra_delay: slow_by,
            shares_keys: shares,
            meter: LoadMeter::new(),
            walk_cost,
            sessions: WorkerSessions::new(0),
            max_answer_bytes: Vec::new(),
            entries: Vec::new(),
            message: Vec::new(),
            counts: WorkerCounts::default(),
        };
        worker::run(&mut RunningWorker { engine, serve }, &shared.mailbox)
    }
}

struct RunningWorker<'s> {
    engine: herd::Server,
    serve: RequestHandler<'s>,
}

impl WorkerLoop for RunningWorker<'_> {
    type Error = RpcError;
    type Command = Command;
    type Counts = WorkerCounts;

    #[cold]
    fn execute(&mut self, command: Command) -> bool {
        match command {
            Command::Stop => return false,
            Command::Remove(slot) => {
                self.engine.remove_client(slot.index());
                let client = slot.index() as usize;
                self.serve.handovers.thaw_client(self.serve.store, client);
                self.serve.sessions.disconnect(slot.index());
            }
            Command::Add(new) => {
                let PendingConnection {
                    slot,
                    session,
                    window,
                    answer,
                    qp,
                    to,
                    done,
                } = *new;
                let added = self.engine.add_client(slot.index(), qp, to, window);
                if added.is_ok() {
                    self.serve.admit(slot.index(), session, (window, answer));
                }
                // The client may be gone already.
                let _ = done.send(added.map_err(|e| e.to_string()));
            }
        }
        true
    }

    #[inline]
    fn poll(&mut self) -> Result<usize, RpcError> {
        let came = self.engine.poll(&mut self.serve)?;
        if self.serve.shares_keys {
            self.serve.meter.end_batch(came);
        }
        Ok(came)
    }

    fn counts(&self) -> WorkerCounts {
        WorkerCounts {
            rpc: self.engine.counts().clone(),
            ..self.serve.counts.clone()
        }
    }

    #[inline]
    fn idle(&self, waiter: &mut Waiter) {
        waiter.idle_reading(self.engine.memory());
    }

    /// Sleeps for a limited time or until a command arrives: incoming WRITEs generate no event.
    #[cold]
    fn sleep(&mut self, wake: &WakeEventfd, waiter: &mut Waiter) -> Result<(), RpcError> {
        wake.wait(self.engine.has_clients().then(|| waiter.next_sleep()));
        waiter.record_sleep();
        Ok(())
    }
}

/// Answers requests from the trees.
struct RequestHandler<'s> {
    store: &'s Store,
    lock_recovery: Arc<LockRecovery<Store>>,
    handovers: Arc<Handovers>,
    extra_delay: Duration,
    /// True if the server shares the keys with other servers, and reports its load.
    shares_keys: bool,
    meter: LoadMeter,
    walk_cost: Option<Arc<WalkCost>>,
    sessions: WorkerSessions,
    /// The length of the longest message that each client can receive, in bytes.
    max_answer_bytes: Vec<usize>,
    /// The entries of the SCAN in progress.
    entries: Vec<(u64, u64)>,
    message: Vec<u8>,
    counts: WorkerCounts,
}

/// Steps that the walks of a batch take together, enough for a tree of five levels. Higher trees are finished request
/// by request.
pub(super) const PREFETCH_ROUNDS: usize = 5;

/// The walks of a batch.
struct BatchWalks([WalkPosition; rpc::MAX_BATCH]);

impl RpcHandler for RequestHandler<'_> {
    type Batch = BatchWalks;

    const PREFETCH_ROUNDS: usize = PREFETCH_ROUNDS;

    #[inline]
    fn begin(&mut self, requests: usize) -> Self::Batch {
        if self.shares_keys {
            self.meter.begin_batch();
        }
        if !self.extra_delay.is_zero() {
            let until =
                verbs::time::now() + self.extra_delay * u32::try_from(requests).unwrap_or(1);
            while verbs::time::now() < until {
                std::hint::spin_loop();
            }
        }
        if let Some(walk_cost) = &self.walk_cost {
            verbs::time::charge_requests(requests);
            walk_cost.charge_walks(requests);
        }
        BatchWalks([WalkPosition::default(); rpc::MAX_BATCH])
    }

    #[inline]
    fn prefetch_round(&mut self, walks: &mut Self::Batch, round: usize, request: Request<'_>) {
        let Some((key, tree)) = wire::routing_key(request.payload) else {
            return;
        };
        let tree = usize::from(tree);
        if tree >= self.store.trees() {
            return;
        }
        let walk = &mut walks.0[request.index];
        if round == 0 {
            *walk = self.store.index().begin(tree);
        }
        self.store.index().step(tree, key, walk);
    }

    #[inline]
    fn handle(&mut self, walks: &mut Self::Batch, request: Request<'_>, reply: RequestReply<'_>) {
        let decoded = Op::decode(request.payload);
        let Some((op, tree, number)) =
            decoded.filter(|(_, tree, _)| usize::from(*tree) < self.store.trees())
        else {
            return self.reply_bad(reply);
        };
        let tree = usize::from(tree);
        let walk = &mut walks.0[request.index];
        if !walk.is_begun() {
            *walk = self.store.index().begin(tree);
        }
        match op {
            Op::Handover { .. } | Op::Load => {}
            _ if self.shares_keys => self.meter.record_key(op.key()),
            _ => {}
        }
        match op {
            Op::Get { key } => self.get(tree, key, walk, reply),
            Op::Scan { from, end, limit } => {
                self.scan(tree, (from, end), (limit, number), request.client, reply);
            }
            Op::Put { .. } | Op::Delete { .. } | Op::Handover { .. } => {
                self.change((op, tree), request.client, number, walk, reply);
            }
            Op::Load => self.load(request.client, reply),
        }
    }
}

impl RequestHandler<'_> {
    /// Registers a client with its session, its window and its longest message.
    fn admit(&mut self, client: u32, session: u64, (window, answer): (u32, usize)) {
        self.sessions.connect(client, session, window as usize);
        let i = client as usize;
        if self.max_answer_bytes.len() <= i {
            self.max_answer_bytes.resize(i + 1, 0);
        }
        self.max_answer_bytes[i] = answer;
    }

    #[inline]
    fn get(&mut self, tree: usize, key: u64, walk: &mut WalkPosition, reply: RequestReply<'_>) {
        self.counts.gets += 1;
        match self.store.index().finish(tree, key, walk) {
            Ok(Some(value)) => {
                self.counts.hits += 1;
                let mut message = [0; 16];
                message[..8].copy_from_slice(&wire::word(Status::Ok, true).to_le_bytes());
                message[8..].copy_from_slice(&value.to_le_bytes());
                reply.bytes(&message);
            }
            Ok(None) => reply.bytes(&wire::word(Status::Ok, false).to_le_bytes()),
            Err(refusal) => self.refuse(refusal, reply),
        }
    }

    #[cold]
    fn refuse(&mut self, refusal: Refusal, reply: RequestReply<'_>) {
        if let Refusal::Moved(moved) = &refusal {
            return reply.bytes(&wire::encode_moved(moved));
        }
        let word = self.refusal(refusal);
        reply.bytes(&word.to_le_bytes());
    }

    fn refusal(&mut self, refusal: Refusal) -> u64 {
        match refusal {
            Refusal::Full => wire::word(Status::Full, false),
            Refusal::Moved(_) => wire::word(Status::Moved, false),
            Refusal::Busy(node) => {
                // A retry succeeds once the lock's owner is gone or its lease has expired.
                self.lock_recovery.handle_complaint(0, node);
                self.handovers.thaw_expired(self.store);
                self.counts.busy += 1;
                wire::word(Status::Busy, false)
            }
        }
    }

    #[inline]
    fn change(
        &mut self,
        (op, tree): (Op, usize),
        client: usize,
        seq: u32,
        walk: &mut WalkPosition,
        reply: RequestReply<'_>,
    ) {
        let Some(session) = self.sessions.session(client) else {
            return;
        };
        let word = match session.state_of(seq) {
            ChangeState::Answered(word) => {
                self.counts.repeated += 1;
                word
            }
            // The client no longer waits for this change.
            ChangeState::Stale => {
                self.counts.repeated += 1;
                return;
            }
            ChangeState::New => {
                let found = |before: Option<u64>| wire::word(Status::Ok, before.is_some());
                let changed = match op {
                    Op::Put { key, value, when } => {
                        let put = self.store.put_at(tree, (key, value), when, walk);
                        put.map(found)
                    }
                    Op::Handover { step, from, end } => {
                        let who = (client, tree);
                        self.handovers
                            .execute_step(self.store, who, step, (from, end))
                    }
                    _ => self.store.remove_at(tree, op.key(), walk).map(found),
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
                    Err(refusal) => return self.refuse(refusal, reply),
                }
            }
        };
        reply.bytes(&word.to_le_bytes());
    }

    fn scan(
        &mut self,
        tree: usize,
        range: (u64, Option<u64>),
        (limit, messages): (u32, u32),
        client: usize,
        reply: RequestReply<'_>,
    ) {
        let most = self.max_answer_bytes.get(client).copied().unwrap_or(0);
        let each = most.saturating_sub(SCAN_HEADER) / ENTRY;
        let messages = messages.clamp(1, MAX_MESSAGES) as usize;
        let limit = (limit as usize).min(each * messages);
        if limit == 0 {
            return self.reply_bad(reply);
        }
        self.entries.clear();
        let next = match self.store.scan(tree, range, limit, &mut self.entries) {
            Ok(next) => next,
            Err(refusal) => return self.refuse(refusal, reply),
        };
        if let Some(walk_cost) = &self.walk_cost {
            walk_cost.charge_scan(self.entries.len());
        }
        self.counts.scans += 1;
        self.counts.scanned += self.entries.len() as u64;
        self.send_entries(each, next, reply);
    }

    /// Answers with this worker's load counters and sampled keys.
    #[cold]
    fn load(&mut self, client: usize, reply: RequestReply<'_>) {
        let most = self.max_answer_bytes.get(client).copied().unwrap_or(0);
        let each = most.saturating_sub(SCAN_HEADER) / ENTRY;
        self.entries.clear();
        self.meter
            .report(self.handovers.taking(), &mut self.entries);
        self.entries.truncate(each);
        if self.entries.is_empty() {
            return self.reply_bad(reply);
        }
        self.send_entries(each, None, reply);
    }

    /// Sends entries, `each` of them per message.
    fn send_entries(&mut self, each: usize, next: Option<u64>, mut reply: RequestReply<'_>) {
        let count = self.entries.len();
        let mut first = 0;
        loop {
            let to = count.min(first + each);
            self.message.clear();
            let word = wire::scan_word(first, count, next.is_some());
            self.message.extend_from_slice(&word.to_le_bytes());
            self.message
                .extend_from_slice(&next.unwrap_or(0).to_le_bytes());
            for (key, value) in &self.entries[first..to] {
                self.message.extend_from_slice(&key.to_le_bytes());
                self.message.extend_from_slice(&value.to_le_bytes());
            }
            first = to;
            if first == count {
                return reply.bytes(&self.message);
            }
            // The next answer detects a broken send queue; the client repeats its request.
            if reply.part(&self.message).is_err() {
                return;
            }
        }
    }

    #[cold]
    fn reply_bad(&mut self, reply: RequestReply<'_>) {
        self.counts.bad_requests += 1;
        reply.bytes(&wire::word(Status::Bad, false).to_le_bytes());
    }
}
