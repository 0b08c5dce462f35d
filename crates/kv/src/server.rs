//! The server: its objects on a device, and its clients' connections.

use std::sync::Arc;
use std::time::Duration;

use rpc::herd::{self as herd_rpc, BatchPolicy, RequestRegionLayout};
use rpc::{BufferedUdQpConfig, RpcError};
use service::lock_recovery::LockRecovery;
use service::random::from_system;
use service::worker::Mailbox;
use service::{
    ClientRefusal, ClientSlot, ClientsConnected, FreeSlots, Protocol, ServerError, Service,
};
use verbs::{CompletionQueue, Context, PortAndGidIndex, ProtectionDomain};

use crate::record_cache::RecordCache;
use crate::rendezvous::{Accepted, Hello, LaneAccepted, RendezvousProtocol, ServerOffer};
use crate::report::ServerStats;
use crate::store::{self, NoMemory, RecordLayout, Refusal, Store};
use crate::wire;
use crate::{Design, ServerConfig};

mod atomics;
mod design;
mod herd;
mod reads;
mod record_table;
mod worker;

use self::herd::HerdServerDesign;
use atomics::ClientLockableRecordsDesign;
use design::{ConnectingClient, ServerDesign};
use reads::{ClientReadableLogDesign, ClientReadableRecordsDesign};
use record_table::RecordTables;
use worker::{Command, PendingConnection, UnstartedWorker, WorkerShared};

/// The key-value service that a [`Server`](crate::Server) runs.
#[derive(Debug)]
pub struct KvService {
    config: ServerConfig,
    port: PortAndGidIndex,
    pd: ProtectionDomain,
    /// The completion queue of queue pairs on which the server never posts.
    unused_send_cq: CompletionQueue,
    store: Arc<Store>,
    design: Box<dyn ServerDesign>,
    request_region_layout: RequestRegionLayout,
    max_answer_bytes: usize,
    workers: Vec<Arc<WorkerShared>>,
    free_client_slots: FreeSlots,
}

/// The server's dependence on its surroundings: clock, seed, threads and simulated cost.
#[derive(Debug, Clone, Copy)]
pub struct ServerEnvironment {
    /// The clock in milliseconds, by which items expire.
    clock_ms: fn() -> u64,
    /// The seed of key hashes.
    hash_seed: u64,
    /// The simulated time that a core needs for a request, besides its verbs.
    mean_simulated_core_time_per_request: Duration,
    /// True if the server may start threads of its own.
    may_start_threads: bool,
}

impl Default for ServerEnvironment {
    fn default() -> Self {
        Self {
            clock_ms: store::unix_ms,
            hash_seed: from_system(),
            mean_simulated_core_time_per_request: Duration::ZERO,
            may_start_threads: true,
        }
    }
}

impl ServerEnvironment {
    /// A runtime of simulated cores in virtual time, in which nothing expires. Hashes are seeded with `seed`, so
    /// that every run is the same. `cost` is the time that a core needs for a request, besides its verbs.
    pub fn simulated(seed: u64, cost: Duration) -> Self {
        Self {
            clock_ms: || 0,
            hash_seed: seed,
            mean_simulated_core_time_per_request: cost,
            may_start_threads: false,
        }
    }
}

/// A client's resources at the server.
#[derive(Debug)]
pub struct Session {
    kv: Arc<KvService>,
    client_slot: Arc<ClientSlot>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let Self {
            kv,
            client_slot: slot,
        } = self;
        kv.design.close_memory(slot.index());
        for worker in &kv.workers {
            worker.mailbox.send(Command::RemoveClient(Arc::clone(slot)));
        }
    }
}

impl Service for KvService {
    type Protocol = RendezvousProtocol;
    type Config = ServerConfig;
    type Environment = ServerEnvironment;
    type Worker = UnstartedWorker;
    type WorkerError = RpcError;
    type Session = Session;
    type Stats = ServerStats;

    fn new(
        context: &Context,
        config: ServerConfig,
        runtime: ServerEnvironment,
    ) -> Result<(Arc<Self>, Vec<UnstartedWorker>), ServerError> {
        let port = service::ServerConfig::port_and_gid(&config, context)?;
        let mtu = context.query_port(port.port_num)?.active_mtu.bytes() as usize;
        let pd = context.alloc_pd()?;
        let (store, design) = create_store_and_design(&config, (&pd, port), &runtime)?;
        let layout = request_region_layout(&config);
        let ud = ud_port_config_for_answers(&config, port, mtu);
        let doorbells = BatchPolicy {
            max_batch: config.batch,
            answer_qps: config.ud_qps_per_worker,
            region_scan: config.request_region_scan,
            answer_qps_per_batch: config.answer_qps_per_batch,
        };
        let mut workers = Vec::new();
        for number in 0..config.workers {
            let engine = herd_rpc::Server::new(&pd, layout, config.max_clients, doorbells, &ud);
            let engine = engine.map_err(ServerError::service_failed)?;
            workers.push(UnstartedWorker {
                shared: Arc::new(WorkerShared {
                    request_region: engine.request_region(),
                    mailbox: Mailbox::new()?,
                }),
                rpc_server: engine,
                store: Arc::clone(&store),
                partition_index: number,
                mean_simulated_core_time_per_request: runtime.mean_simulated_core_time_per_request,
            });
        }
        let kv = Arc::new(Self {
            unused_send_cq: context.create_cq(1)?,
            port,
            pd,
            store,
            design,
            request_region_layout: layout,
            max_answer_bytes: mtu,
            workers: workers.iter().map(|w| Arc::clone(&w.shared)).collect(),
            free_client_slots: FreeSlots::new(config.max_clients),
            config,
        });
        Ok((kv, workers))
    }

    fn config(&self) -> &ServerConfig {
        &self.config
    }

    fn server_offer(&self) -> ServerOffer {
        ServerOffer {
            protocol: RendezvousProtocol::NAME.to_owned(),
            version: RendezvousProtocol::VERSION,
            design: self.config.design,
            max_window: self.config.max_window,
            partitions: self.workers.len(),
            hash_seed: self.store.hash_seed(),
            max_answer_bytes: self.max_answer_bytes,
            request_region_layout: self.request_region_layout,
        }
    }

    fn accept(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Session), ClientRefusal> {
        if hello.lanes.len() != self.workers.len() || hello.max_answer_bytes > self.max_answer_bytes
        {
            return Err(ClientRefusal::permanent(format!(
                "queue pairs for {} partitions and messages of {} bytes: this server has {} and sends at most {}",
                hello.lanes.len(),
                hello.max_answer_bytes,
                self.workers.len(),
                self.max_answer_bytes
            )));
        }
        let slot = self.free_client_slots.take_free_slot().ok_or_else(|| {
            let max = self.config.max_clients;
            ClientRefusal::temporary(format!("this server has its {max} clients already"))
        })?;
        let session = Session {
            kv: Arc::clone(self),
            client_slot: Arc::new(slot),
        };
        let accepted = Accepted {
            lanes: self.connect_lanes(hello, &session.client_slot)?,
            memory: self.design.open_memory(&ConnectingClient {
                hello,
                index: session.client_slot.index(),
                pd: &self.pd,
                cq: &self.unused_send_cq,
                port: self.port,
            })?,
        };
        Ok((accepted, session))
    }

    fn run_worker(&self, _index: usize, worker: UnstartedWorker) -> Result<(), RpcError> {
        self.design.run_worker(worker)
    }

    fn stats(&self, clients: ClientsConnected) -> ServerStats {
        let design = self.design.stats();
        let mut stats = ServerStats {
            connected_clients: clients.now,
            clients_total: clients.ever,
            recovered_locks: design.recovered_locks,
            expelled_clients: design.expelled_clients,
            store: design.store,
            ..ServerStats::default()
        };
        for worker in &self.workers {
            let counts = worker.mailbox.worker_counts();
            stats.gets += counts.gets;
            stats.get_hits += counts.get_hits;
            stats.changes += counts.changes;
            stats.repeated_changes += counts.repeated_changes;
            stats.bad_requests += counts.bad_requests;
            stats.answer_messages += counts.rpc.answered_requests;
            stats.doorbells += counts.rpc.doorbells;
        }
        stats
    }

    fn stop(&self) {
        for worker in &self.workers {
            worker.mailbox.send(Command::Stop);
        }
    }
}

impl KvService {
    /// Returns the server's store. Other front ends can use the store beside the workers, from any thread.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Stores an item without the network, before any client connects. Enters its record into `record_cache` if clients
    /// need the record.
    ///
    /// # Errors
    /// The same errors as for a PUT.
    pub fn preload(
        &self,
        key: &[u8],
        value: &[u8],
        record_cache: &RecordCache,
    ) -> Result<(), Refusal> {
        self.design.preload(key, value, record_cache)
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
            let connected =
                herd_rpc::connect_client(&self.pd, self.port, &self.unused_send_cq, ends);
            let herd_rpc::ConnectedClient {
                server_endpoint: endpoint,
                qp,
                client_destination: to,
            } = connected.map_err(ClientRefusal::temporary)?;
            let slots = herd_rpc::client_region(
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

/// Creates the store and the configured design.
fn create_store_and_design(
    config: &ServerConfig,
    (pd, port): (&ProtectionDomain, PortAndGidIndex),
    runtime: &ServerEnvironment,
) -> Result<(Arc<Store>, Box<dyn ServerDesign>), ServerError> {
    let seed = runtime.hash_seed;
    let tables = |shape: RecordLayout, writes| {
        let tables = RecordTables::new(pd, port, (shape, seed), config.workers, writes);
        tables.map_err(ServerError::service_failed)
    };
    let of = config.store_config(runtime.clock_ms, seed);
    let no_memory = |e: NoMemory| {
        ServerError::service_failed(format!("{e}; lower --keys, --value-size or --memory"))
    };
    let store = || Store::new(&of).map(Arc::new).map_err(no_memory);
    let lease = Duration::from_millis(config.lock_lease_ms.into());
    let lock_recovery =
        |tables| Arc::new(LockRecovery::new(tables, lease, runtime.may_start_threads));
    let (key, value) = (config.expected_key_bytes, config.expected_value_bytes);
    Ok(match (config.design, config.record_layout()) {
        (Design::Herd, _) => {
            let store = store()?;
            (Arc::clone(&store), Box::new(HerdServerDesign { store }))
        }
        (_, None) => {
            let store = Arc::new(Store::new_registered(&of, pd).map_err(no_memory)?);
            let design = ClientReadableLogDesign {
                log: HerdServerDesign {
                    store: Arc::clone(&store),
                },
                lock_recovery: lock_recovery(Vec::new()),
                expected_item_bytes: store::item_bytes(key, value, false) + 8,
            };
            (store, Box::new(design))
        }
        (Design::Reads, Some(shape)) => {
            let tables = tables(shape, false)?;
            let lock_recovery = lock_recovery(tables.tables_by_partition().to_vec());
            (
                store()?,
                Box::new(ClientReadableRecordsDesign {
                    record_tables: tables,
                    lock_recovery,
                }),
            )
        }
        (Design::Atomics, Some(shape)) => {
            let tables = tables(shape, true)?;
            let design = ClientLockableRecordsDesign {
                lock_recovery: lock_recovery(tables.tables_by_partition().to_vec()),
                record_tables: tables,
                lock_lease_ms: config.lock_lease_ms,
            };
            (store()?, Box::new(design))
        }
    })
}

/// Returns the layout of request slots: a PUT of the expected length and the slot's own word fill whole cache lines.
fn request_region_layout(config: &ServerConfig) -> RequestRegionLayout {
    let window = u32::try_from(config.max_window.next_power_of_two()).unwrap_or(u32::MAX);
    let request =
        wire::REQUEST_HEADER_BYTES + config.expected_key_bytes + config.expected_value_bytes;
    let payload = (request.next_multiple_of(8) + 8).next_multiple_of(64) - 8;
    RequestRegionLayout {
        slots_per_client: window,
        max_payload_bytes: u32::try_from(payload.min(4088)).unwrap_or(4088),
    }
}

/// Returns the UD configuration for answers.
fn ud_port_config_for_answers(
    config: &ServerConfig,
    port: PortAndGidIndex,
    mtu: usize,
) -> BufferedUdQpConfig {
    // A ConnectX takes at most 188 bytes inline; longer values are sent from registered memory.
    let inline = (wire::ANSWER_HEADER_BYTES + config.expected_value_bytes)
        .next_multiple_of(8)
        .min(188);
    BufferedUdQpConfig {
        port_num: port.port_num,
        gid_index: Some(port.gid_index),
        send_depth: config.send_depth,
        max_send_payload_bytes: u32::try_from(mtu).unwrap_or(4096),
        max_inline_payload_bytes: u32::try_from(inline).unwrap_or(188),
        ..BufferedUdQpConfig::default()
    }
}
