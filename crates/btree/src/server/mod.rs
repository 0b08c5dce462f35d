//! The server: its objects on a device, and its clients' connections.

mod handovers_and_load_meter;
mod mover;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use rpc::herd::{self, BatchPolicy, RequestRegionLayout};
use rpc::{BufferedUdQpConfig, RpcError};
use service::lock_recovery::{ClientAccess, LockRecovery};
use service::qp::connect_responder_qp;
use service::worker::Mailbox;
use service::{
    ClientRefusal, ClientSlot, ClientsConnected, FreeSlots, Protocol, ServerError, Service,
};
use verbs::{
    Access as Rights, CompletionQueue, Context, PortAndGidIndex, ProtectionDomain, QpEndpoint,
    QueuePair, Rc,
};

use crate::client::{ClientError, PipelinedClient};
use crate::config::{AccessDesign, ClientConfig, ServerConfig};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::rendezvous::{
    Accepted, Hello, LaneAccepted, LeafWriteParameters, RemoteNodes, RendezvousProtocol,
    ServerOffer, ServerPlace,
};
use crate::report::ServerStats;
use crate::tree::{RangeOwner, Refusal, Store, redo};
use crate::walk_cost::{TreeSize, WalkCost};
use crate::wire;
use handovers_and_load_meter::Handovers;
pub use mover::RangeMover;
use worker::{Command, PendingConnection, UnstartedWorker, WorkerShared};

/// The B-tree service that a [`Server`](crate::Server) runs.
#[derive(Debug)]
pub struct BtreeService<T: KeyOrValue = u64> {
    config: ServerConfig<T>,
    port: PortAndGidIndex,
    pd: ProtectionDomain,
    /// The completion queue of queue pairs on which the server never posts.
    unused_send_cq: CompletionQueue,
    store: Arc<Store<T>>,
    /// Clients that may change leaves themselves.
    lock_recovery: Arc<LockRecovery<Store<T>>>,
    handovers: Arc<Handovers<T>>,
    /// A random number that differs in every run.
    incarnation: u64,
    request_region_layout: RequestRegionLayout,
    max_answer_bytes: usize,
    /// True if the device supports clients' READs.
    supports_client_reads: bool,
    workers: Vec<Arc<WorkerShared>>,
    free_client_slots: FreeSlots,
}

/// The server's dependence on its surroundings: randomness, threads and simulated cost.
#[derive(Debug, Clone, Copy)]
pub struct ServerEnvironment {
    /// The server's identity; a fixed value makes every run of a simulation the same.
    incarnation: u64,
    /// True if the server may start threads of its own.
    may_start_threads: bool,
    /// The tree whose walks are charged to simulated cores, if any.
    tree_size_for_charged_walks: Option<TreeSize>,
}

impl Default for ServerEnvironment {
    fn default() -> Self {
        Self {
            incarnation: service::random::from_system(),
            may_start_threads: true,
            tree_size_for_charged_walks: None,
        }
    }
}

impl ServerEnvironment {
    /// A runtime of simulated cores in virtual time: the same seed gives the same run. Requests and walks cost no
    /// time.
    pub fn simulated(seed: u64) -> Self {
        Self {
            incarnation: seed,
            may_start_threads: false,
            tree_size_for_charged_walks: None,
        }
    }

    /// Charges workers for requests, and for each request a walk through a tree of this shape, independent of the real
    /// tree.
    #[must_use]
    pub fn charging_walks(self, shape: TreeSize) -> Self {
        Self {
            tree_size_for_charged_walks: Some(shape),
            ..self
        }
    }
}

/// A client's resources at the server.
#[derive(Debug)]
pub struct Session<T: KeyOrValue> {
    btree: Arc<BtreeService<T>>,
    client_slot: Arc<ClientSlot>,
    /// The queue pair that answers the client's READs, if the client may not WRITE.
    _client_read_qp: Option<QueuePair<Rc>>,
}

impl<T: KeyOrValue> Drop for Session<T> {
    fn drop(&mut self) {
        let Self {
            btree,
            client_slot: slot,
            ..
        } = self;
        btree.lock_recovery.revoke_and_remove_client(slot.index());
        for worker in &btree.workers {
            worker.mailbox.send(Command::RemoveClient(Arc::clone(slot)));
        }
    }
}

impl<T: KeyOrValue> Service for BtreeService<T> {
    type Protocol = RendezvousProtocol;
    type Config = ServerConfig<T>;
    type Environment = ServerEnvironment;
    type Worker = UnstartedWorker<T>;
    type WorkerError = RpcError;
    type Session = Session<T>;
    type Stats = ServerStats;

    fn new(
        context: &Context,
        config: ServerConfig<T>,
        runtime: ServerEnvironment,
    ) -> Result<(Arc<Self>, Vec<UnstartedWorker<T>>), ServerError> {
        let port = service::ServerConfig::port_and_gid(&config, context)?;
        let mtu = context.query_port(port.port_num)?.active_mtu.bytes() as usize;
        let pd = context.alloc_pd()?;
        check_messages_fit(mtu, config.key_and_value_limits)?;
        let size = (config.trees, config.node_capacity());
        let store = Store::new(
            &pd,
            (config.node_bytes, config.key_and_value_limits),
            size,
            Rights::REMOTE_READ,
        )
        .map_err(|e| {
            ServerError::service_failed(format!(
                "{e}: no memory for {} keys; lower --keys",
                config.key_capacity
            ))
        })?;
        let store = Arc::new(match config.remote_writes {
            true => {
                let mut store = store;
                let shared = store.enable_client_locks(&pd, port);
                shared.map_err(ServerError::service_failed)?;
                store
            }
            false => store,
        });
        let lease = Duration::from_millis(config.lock_lease_ms.into());
        let tables = vec![Arc::clone(&store)];
        let lock_recovery = Arc::new(LockRecovery::new(tables, lease, runtime.may_start_threads));
        let layout = RequestRegionLayout {
            slots_per_client: u32::try_from(config.max_window.next_power_of_two())
                .unwrap_or(u32::MAX),
            max_payload_bytes: u32::try_from(wire::max_request_bytes(config.key_and_value_limits))
                .unwrap_or(u32::MAX),
        };
        let ud = ud_port_config_for_answers(port, mtu, config.key_and_value_limits);
        let doorbells = BatchPolicy {
            max_batch: config.batch,
            answer_qps: config.ud_qps_per_worker,
            ..BatchPolicy::default()
        };
        let handovers = Arc::new(Handovers::default());
        assign_ranges_of_others(&store, &config)?;
        let walk_cost = runtime.tree_size_for_charged_walks.as_ref();
        let walk_cost = walk_cost
            .map(|shape| Arc::new(WalkCost::of_tree(shape, worker::INTERLEAVED_WALK_STEPS)));
        let mut workers = Vec::new();
        for _ in 0..config.workers {
            let engine = herd::Server::new(&pd, layout, config.max_clients, doorbells, &ud);
            let engine = engine.map_err(ServerError::service_failed)?;
            workers.push(UnstartedWorker {
                shared: Arc::new(WorkerShared {
                    request_region: engine.request_region(),
                    mailbox: Mailbox::new()?,
                }),
                rpc_server: engine,
                store: Arc::clone(&store),
                lock_recovery: Arc::clone(&lock_recovery),
                handovers: Arc::clone(&handovers),
                extra_delay_per_request: Duration::from_nanos(config.slow_by_ns.into()),
                server_shares_keys_with_others: !config.splits.is_empty(),
                walk_cost: walk_cost.clone(),
            });
        }
        let btree = Arc::new(Self {
            unused_send_cq: context.create_cq(1)?,
            port,
            pd,
            store,
            lock_recovery,
            handovers,
            incarnation: runtime.incarnation,
            request_region_layout: layout,
            max_answer_bytes: mtu,
            supports_client_reads: AccessDesign::Read.check(context.capabilities()?).is_ok(),
            workers: workers.iter().map(|w| Arc::clone(&w.shared)).collect(),
            free_client_slots: FreeSlots::new(config.max_clients),
            config,
        });
        Ok((btree, workers))
    }

    fn config(&self) -> &ServerConfig<T> {
        &self.config
    }

    fn server_offer(&self) -> ServerOffer {
        ServerOffer {
            protocol: RendezvousProtocol::NAME.to_owned(),
            version: RendezvousProtocol::VERSION,
            incarnation: self.incarnation,
            max_window: self.config.max_window,
            workers: self.workers.len(),
            place: ServerPlace {
                number: self.config.server_number.into(),
                of: 1 + self.config.splits.len(),
            },
            trees: self.config.trees,
            node_bytes: self.config.node_bytes,
            string_limits: self.config.key_and_value_limits.of_strings(),
            max_answer_bytes: self.max_answer_bytes,
            request_region_layout: self.request_region_layout,
            allows_reads: self.supports_client_reads,
            allows_writes: self.config.remote_writes,
        }
    }

    fn accept(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Session<T>), ClientRefusal> {
        let answers =
            wire::min_message_bytes(self.config.key_and_value_limits)..=self.max_answer_bytes;
        if hello.lanes.len() != self.workers.len() || !answers.contains(&hello.max_answer_bytes) {
            return Err(ClientRefusal::permanent(format!(
                "queue pairs for {} workers and messages of {} bytes: this server has {} workers and sends messages of {} to {} bytes",
                hello.lanes.len(),
                hello.max_answer_bytes,
                self.workers.len(),
                answers.start(),
                answers.end()
            )));
        }
        let slot = self.free_client_slots.take_free_slot().ok_or_else(|| {
            let max = self.config.max_clients;
            ClientRefusal::temporary(format!("this server has its {max} clients already"))
        })?;
        let mut session = Session {
            btree: Arc::clone(self),
            client_slot: Arc::new(slot),
            _client_read_qp: None,
        };
        let lanes = self.connect_lanes(hello, &session.client_slot)?;
        let memory = match hello
            .memory_access_qp
            .filter(|_| self.supports_client_reads)
        {
            None => None,
            Some(peer) if self.config.remote_writes => {
                Some(self.open_nodes_to_writer(hello, session.client_slot.index(), &peer)?)
            }
            Some(peer) => {
                let rights = Rights::REMOTE_READ;
                let (endpoint, qp) =
                    connect_responder_qp(&self.pd, &self.unused_send_cq, self.port, rights, &peer)?;
                session._client_read_qp = Some(qp);
                Some(RemoteNodes {
                    server_rc_qp: endpoint,
                    nodes: self.store.remote_memory(),
                    write_parameters: None,
                })
            }
        };
        Ok((
            Accepted {
                lanes,
                remote_nodes: memory,
            },
            session,
        ))
    }

    fn run_worker(&self, _index: usize, worker: UnstartedWorker<T>) -> Result<(), RpcError> {
        worker.run()
    }

    fn stats(&self, clients: ClientsConnected) -> ServerStats {
        let (recovered_locks, expelled) = self
            .lock_recovery
            .recovered_lock_and_revoked_client_counts();
        let mut stats = ServerStats {
            recovered_locks,
            expelled_clients: expelled,
            taken_entries: self.handovers.taken_entries(),
            connected_clients: clients.now,
            clients_total: clients.ever,
            tree: self.store.stats(),
            ..ServerStats::default()
        };
        for worker in &self.workers {
            let counts = worker.mailbox.worker_counts();
            stats.gets += counts.gets;
            stats.get_hits += counts.get_hits;
            stats.scans += counts.scans;
            stats.scanned_entries += counts.scanned_entries;
            stats.changes += counts.changes;
            stats.repeated_changes += counts.repeated_changes;
            stats.bad_requests += counts.bad_requests;
            stats.busy_refusals += counts.busy_refusals;
            stats.answer_messages += counts.rpc.answered_requests;
            stats.doorbells += counts.rpc.doorbells;
        }
        stats
    }

    /// Takes keys from other servers, if their addresses are known.
    fn background_thread_name_and_body(
        self: &Arc<Self>,
        _failure: &service::FirstFailure,
    ) -> Option<(String, Box<dyn FnOnce() + Send>)> {
        if self.config.servers.is_empty() {
            return None;
        }
        let btree = Arc::clone(self);
        let work = move || {
            let (context, config) = (btree.pd.context().clone(), btree.config.clone());
            let mut mover = btree.create_mover(move |number| {
                let server = config.servers.get(usize::from(number));
                let server = server.cloned().unwrap_or_default();
                let client = ClientConfig {
                    server,
                    nic: config.nic.clone(),
                    // A server that stops does not wait long for another one that is gone.
                    deadline_ms: 2_000,
                    ..ClientConfig::default()
                };
                PipelinedClient::connect_on(&context, client)
            });
            while !btree.handovers.is_stopping() {
                if !mover.attempt_chunk_if_due() {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        };
        Some(("mover".to_owned(), Box::new(work)))
    }

    fn stop(&self) {
        self.handovers.stop();
        for worker in &self.workers {
            worker.mailbox.send(Command::Stop);
        }
    }
}

impl<T: KeyOrValue> BtreeService<T> {
    /// Returns the server's trees, which other threads may use beside the workers.
    pub fn store(&self) -> &Arc<Store<T>> {
        &self.store
    }

    /// Returns the mover that takes keys from other servers on request. The caller must call
    /// [`RangeMover::attempt_chunk_if_due`] repeatedly. A server with threads that knows the addresses of the others
    /// runs its own mover. `connect` connects to a server by its number.
    pub fn create_mover(
        &self,
        connect: impl FnMut(u16) -> Result<PipelinedClient<T>, ClientError> + Send + 'static,
    ) -> RangeMover<T> {
        let of = (Arc::clone(&self.store), Arc::clone(&self.handovers));
        let how = (self.config.server_number, self.config.handover_bytes_per_s);
        RangeMover::new(of, how, connect)
    }

    /// Fills a tree before clients connect. `entry` gives `count` entries in ascending order, of which only those in
    /// this server's range are kept. A server that has all keys loads them in parallel with fill factor `fill`. Returns
    /// the number of loaded entries.
    ///
    /// # Errors
    /// [`LoadError`](crate::tree::BulkLoadError), or [`Refusal`].
    pub fn bulk_load(
        &self,
        tree: usize,
        count: u64,
        fill: f64,
        entry: impl Fn(u64) -> (T, T) + Sync,
    ) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        if self.config.splits.is_empty() {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            self.store.bulk_load(tree, count, fill, threads, entry)?;
            return Ok(count);
        }
        let range = self
            .config
            .initial_range_of(self.config.server_number.into());
        let is_own = |key: T| key >= range.0 && range.1.is_none_or(|end| key < end);
        let own: Vec<_> = (0..count)
            .map(entry)
            .filter(|(key, _)| is_own(*key))
            .collect();
        let server = self.config.server_number;
        self.store.assign_range_to_other(
            tree,
            range,
            RangeOwner {
                server_number: server,
                version: 0,
            },
        )?;
        let mut reserved = self.store.reserve_nodes(own.len())?;
        let adopted: Result<(), Refusal<T>> = self.store.adopt(tree, range, &own, &mut reserved);
        self.store.release_nodes(reserved);
        adopted?;
        Ok(own.len() as u64)
    }

    /// Opens the nodes to a client that changes leaves. The client gets its own registration, so that its access can be
    /// revoked.
    fn open_nodes_to_writer(
        &self,
        hello: &Hello,
        index: u32,
        peer: &QpEndpoint,
    ) -> Result<RemoteNodes, ClientRefusal> {
        let (endpoint, qp) =
            connect_responder_qp(&self.pd, &self.unused_send_cq, self.port, Rights::ALL, peer)?;
        let own = self.store.register_again(Rights::ALL);
        let own = own.map_err(ClientRefusal::temporary)?;
        let nodes = own.remote();
        let rights = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE;
        let bytes = hello.window * redo::redo_entry_bytes(self.config.node_bytes / 8);
        let redo = self
            .pd
            .alloc(bytes, rights)
            .map_err(ClientRefusal::temporary)?;
        let owner = self.lock_recovery.assign_owner_number();
        let writes = Some(LeafWriteParameters {
            lock_owner: owner,
            lease_ms: self.config.lock_lease_ms,
            redo_entries: redo.remote(),
        });
        let access = ClientAccess {
            qp,
            client_registrations: vec![own],
            redo_entries: Some(redo),
        };
        self.lock_recovery.add(index, owner, access);
        Ok(RemoteNodes {
            server_rc_qp: endpoint,
            nodes,
            write_parameters: writes,
        })
    }

    fn connect_lanes(
        &self,
        hello: &Hello,
        slot: &Arc<ClientSlot>,
    ) -> Result<Vec<LaneAccepted>, ClientRefusal> {
        let window = u32::try_from(hello.window.next_power_of_two()).unwrap_or(u32::MAX);
        let layout = RequestRegionLayout {
            slots_per_client: window,
            ..self.request_region_layout
        };
        let mut lanes = Vec::new();
        for (lane, worker) in hello.lanes.iter().zip(&self.workers) {
            let ends = (&lane.uc, &lane.ud);
            let connected = herd::connect_client(&self.pd, self.port, &self.unused_send_cq, ends);
            let herd::ConnectedClient {
                server_endpoint: endpoint,
                qp,
                client_destination: to,
            } = connected.map_err(ClientRefusal::temporary)?;
            let slots = herd::client_region(
                &worker.request_region,
                &self.request_region_layout,
                slot.index(),
            );
            let slots =
                slots.ok_or_else(|| ClientRefusal::temporary("the worker has no such slots"))?;
            let added = worker.mailbox.send_and_wait(|done| {
                Command::AddClient(Box::new(PendingConnection {
                    slot: Arc::clone(slot),
                    session_id: hello.session_id,
                    window,
                    max_answer_bytes: hello.max_answer_bytes,
                    request_qp: qp,
                    answer_destination: to,
                    setup_result_sender: done,
                }))
            });
            added.map_err(ClientRefusal::temporary)?;
            lanes.push(LaneAccepted {
                server_uc_qp: endpoint,
                request_slots: slots,
                request_region_layout: layout,
            });
        }
        Ok(lanes)
    }
}

/// Checks that an MTU has room for the longest message about one entry.
fn check_messages_fit(mtu: usize, sizes: impl Sizes) -> Result<(), ServerError> {
    let needed = wire::min_message_bytes(sizes);
    if needed <= mtu {
        return Ok(());
    }
    Err(ServerError::service_failed(format!(
        "keys and values of this size need messages of {needed} bytes, and the MTU of the port is {mtu}: lower \
         --key-size or --value-size"
    )))
}

/// Marks the ranges that belong to other servers at the start.
fn assign_ranges_of_others<T: KeyOrValue>(
    store: &Store<T>,
    config: &ServerConfig<T>,
) -> Result<(), ServerError> {
    for tree in 0..config.trees {
        for number in
            (0..=config.splits.len()).filter(|number| *number != usize::from(config.server_number))
        {
            let owner = RangeOwner {
                server_number: u16::try_from(number).unwrap_or(u16::MAX),
                version: 0,
            };
            let assigned =
                store.assign_range_to_other(tree, config.initial_range_of(number), owner);
            assigned.map_err(ServerError::service_failed)?;
        }
    }
    Ok(())
}

/// Returns the UD configuration for answers: a value is sent inline if the device allows, a SCAN's entries from
/// registered memory.
fn ud_port_config_for_answers(
    port: PortAndGidIndex,
    mtu: usize,
    sizes: impl Sizes,
) -> BufferedUdQpConfig {
    let (_, value_bytes) = sizes.max_encoded_bytes();
    BufferedUdQpConfig {
        port_num: port.port_num,
        gid_index: Some(port.gid_index),
        max_send_payload_bytes: u32::try_from(mtu).unwrap_or(4096),
        max_inline_payload_bytes: u32::try_from(8 + value_bytes).unwrap_or(16),
        ..BufferedUdQpConfig::default()
    }
}
