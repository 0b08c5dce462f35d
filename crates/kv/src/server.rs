//! The server: rendezvous and workers.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rpc::exchange::{Acceptor, Refused, attend};
use rpc::worker::{Mailbox, lock};
use rpc::{OpenError, UdPortConfig, herd};
use verbs::{Access, CompletionQueue, Context, PortGid, ProtectionDomain, Rc};

use crate::client::Locations;
use crate::config::Unsupported;
use crate::rendezvous::{
    self, Accepted, Hello, LaneAccepted, Reach, Reached, ReachedLog, Welcome, Writes,
};
use crate::report::ServerStats;
use crate::store::record::redo;
use crate::store::{self, Condition, NoMemory, Refusal, Set, Store};
use crate::wire;
use crate::worker::{Command, Newcomer, Place, Worker, WorkerShared};
use crate::{Design, ServerConfig};

mod guests;
mod local;
mod loopback;
mod table;

pub(crate) use guests::Guests;
pub use local::{Door, LocalServer, LocalWorker};
pub(crate) use table::{Table, next_version};

/// A running server. Dropping it stops it.
///
/// ```no_run
/// let config = kv::ServerConfig { listen: "127.0.0.1:7472".into(), ..Default::default() };
/// let server = kv::Server::start(config)?;
/// println!("clients find it at {}", server.address());
/// # Ok::<(), kv::ServerError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    acceptor: Option<Acceptor>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The device lacks what the design needs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is not so much memory.
    #[error("{0}; lower --keys, --value-size or --memory")]
    Memory(#[from] NoMemory),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The RPC layer failed.
    #[error(transparent)]
    Rpc(#[from] rpc::RpcError),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    port: PortGid,
    pd: ProtectionDomain,
    /// Of queue pairs on which the server never posts.
    cq: CompletionQueue,
    store: Arc<Store>,
    layout: herd::Layout,
    max_answer: usize,
    workers: Vec<Arc<WorkerShared>>,
    /// Where items are in records: of each partition.
    tables: Vec<Arc<Table>>,
    guests: Arc<Guests>,
    /// Indices of clients that may still come.
    free: Arc<Mutex<Vec<u32>>>,
    clients: AtomicU64,
    clients_total: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// A random number: what hashes start from, so that nobody can choose keys that collide; a session's name.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

impl Server {
    /// Starts a server: it serves when this returns.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(config: ServerConfig) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let context = config.nic.open()?;
        Self::start_on(&context, config)
    }

    /// Starts a server on a device that is open already, whatever [`ServerConfig::nic`] says of provider and device.
    ///
    /// # Errors
    /// Before anything else, [`ServerError::Unsupported`] when the device lacks what the design needs.
    pub fn start_on(context: &Context, config: ServerConfig) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        config.design.check(context.capabilities()?)?;
        let listener = TcpListener::bind(&config.listen).map_err(|source| ServerError::Listen {
            address: config.listen.clone(),
            source,
        })?;
        let address = listener.local_addr()?;
        let (shared, workers) = Shared::new(
            context,
            config,
            store::unix_ms,
            random(),
            (Duration::ZERO, true),
        )?;
        let mut server = Self {
            shared: Arc::clone(&shared),
            acceptor: None,
            address,
            threads: Vec::new(),
        };
        for (i, worker) in workers.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("worker {i}"));
            server.threads.push(thread.spawn(move || {
                if let Err(e) = worker.run() {
                    shared.fail(format!("worker {i} failed: {e}"));
                }
            })?);
        }
        server.acceptor = Some(Acceptor::start(listener, move |stream| {
            attend(stream, rendezvous::WHOSE, &shared.welcome(), |hello| {
                shared.enter(hello)
            });
        })?);
        Ok(server)
    }

    /// The TCP address where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration that it runs with.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
    }

    /// What it serves: other fronts may use it beside the workers, from any thread.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// What it did so far. Counts of a busy worker are a few thousand requests old.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Why it no longer serves, if something broke; the program should stop then.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    /// Stops it and returns what it did.
    pub fn stop(mut self) -> ServerStats {
        self.shut_down();
        self.stats()
    }

    fn shut_down(&mut self) {
        self.acceptor = None;
        self.shared.close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to stop.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A client's place at the server, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    shared: Arc<Shared>,
    place: Arc<Place>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Self { shared, place } = self;
        shared.clients.fetch_sub(1, Ordering::Relaxed);
        shared.guests.remove(place.index);
        for worker in &shared.workers {
            worker.mailbox.tell(Command::Remove(Arc::clone(place)));
        }
    }
}

impl Shared {
    /// A server's objects, and its workers, which do not run yet; whether it may start threads of its own.
    fn new(
        context: &Context,
        config: ServerConfig,
        clock: fn() -> u64,
        seed: u64,
        (cost, threads): (Duration, bool),
    ) -> Result<(Arc<Self>, Vec<Worker>), ServerError> {
        let port = config.nic.port(context)?;
        let mtu = context.query_port(port.port_num)?.active_mtu.bytes() as usize;
        let pd = context.alloc_pd()?;
        let tables = tables(&config, &pd, port, seed)?;
        let of = config.store(clock, seed);
        let store = Arc::new(match config.design {
            Design::Reads if tables.is_empty() => Store::exposed(&of, &pd)?,
            _ => Store::new(&of)?,
        });
        let lease = Duration::from_millis(config.lease_ms.into());
        let guests = Arc::new(Guests::new(tables.clone(), lease, threads));
        let window = u32::try_from(config.max_window.next_power_of_two()).unwrap_or(u32::MAX);
        // A change of the expected length with its word fills whole cache lines.
        let request = wire::REQUEST_HEADER + config.key_bytes + config.value_bytes;
        let payload = (request.next_multiple_of(8) + 8).next_multiple_of(64) - 8;
        let layout = herd::Layout {
            window,
            payload: u32::try_from(payload.min(4088)).unwrap_or(4088),
        };
        // What a ConnectX takes inline at the most is 188 bytes; longer values leave from registered memory.
        let inline = (wire::ANSWER_HEADER + config.value_bytes)
            .next_multiple_of(8)
            .min(188);
        let ud = UdPortConfig {
            port_num: port.port_num,
            gid_index: Some(port.gid_index),
            send_payload: u32::try_from(mtu).unwrap_or(4096),
            inline_payload: u32::try_from(inline).unwrap_or(188),
            ..UdPortConfig::default()
        };
        let doorbells = herd::Doorbells {
            batch: config.batch,
            queues: config.queues,
        };
        let mut workers = Vec::new();
        for number in 0..config.workers {
            let engine = herd::Server::new(&pd, layout, config.max_clients, doorbells, &ud)?;
            workers.push(Worker {
                shared: Arc::new(WorkerShared {
                    region: engine.region(),
                    mailbox: Mailbox::new()?,
                }),
                engine,
                store: Arc::clone(&store),
                table: tables.get(number).cloned(),
                guests: Arc::clone(&guests),
                number,
                cost,
            });
        }
        let clients = u32::try_from(config.max_clients).unwrap_or(u32::MAX);
        let shared = Arc::new(Self {
            cq: context.create_cq(1)?,
            port,
            pd,
            store,
            layout,
            max_answer: mtu,
            workers: workers.iter().map(|w| Arc::clone(&w.shared)).collect(),
            tables,
            guests,
            free: Arc::new(Mutex::new((0..clients).rev().collect())),
            clients: AtomicU64::new(0),
            clients_total: AtomicU64::new(0),
            failure: Mutex::default(),
            config,
        });
        Ok((shared, workers))
    }

    fn stats(&self) -> ServerStats {
        let mut stats = ServerStats {
            clients: self.clients.load(Ordering::Relaxed),
            clients_total: self.clients_total.load(Ordering::Relaxed),
            ..ServerStats::default()
        };
        (stats.recovered_locks, stats.expelled) = self.guests.counts();
        if self.tables.is_empty() {
            stats.store = self.store.stats();
        }
        for table in &self.tables {
            stats.store.add(&table.stats());
        }
        for worker in &self.workers {
            let counts = worker.mailbox.counts();
            stats.gets += counts.gets;
            stats.hits += counts.hits;
            stats.changes += counts.changes;
            stats.repeated += counts.repeated;
            stats.bad_requests += counts.bad;
            stats.answers += counts.rpc.requests;
            stats.doorbells += counts.rpc.doorbells;
        }
        stats
    }

    fn preload(&self, key: &[u8], value: &[u8], known: &Locations) -> Result<(), Refusal> {
        let (hash, mut partition) = self.store.lock(key);
        let number = store::partition_of(hash, self.store.partitions());
        let Some(table) = self.tables.get(number) else {
            partition.set(hash, key, value, Set::default())?;
            return Ok(());
        };
        table.change(hash, key, Some(value), Condition::Always)?;
        if let Some(record) = table.locate(hash, key) {
            known.set(hash, record);
        }
        Ok(())
    }

    fn fail(&self, what: String) {
        tracing::error!("{what}");
        lock(&self.failure).get_or_insert(what);
    }

    /// Tells the workers to end.
    fn close(&self) {
        for worker in &self.workers {
            worker.mailbox.tell(Command::Stop);
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol: rendezvous::PROTOCOL.to_owned(),
            version: rendezvous::VERSION,
            design: self.config.design,
            max_window: self.config.max_window,
            partitions: self.workers.len(),
            seed: self.store.seed(),
            max_answer: self.max_answer,
            layout: self.layout,
        }
    }

    /// Connects this side to a client that has said who it is. What it gets is freed with its pass.
    fn enter(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Pass), Refused> {
        if hello.version != rendezvous::VERSION {
            return Err(Refused::never(format!(
                "version {} of the exchange, {} expected",
                hello.version,
                rendezvous::VERSION
            )));
        }
        if hello.window == 0 || hello.window > self.config.max_window {
            return Err(Refused::never(format!(
                "a window of {}: this server takes 1 to {} (its max-window)",
                hello.window, self.config.max_window
            )));
        }
        if hello.lanes.len() != self.workers.len() || hello.answer > self.max_answer {
            return Err(Refused::never(format!(
                "queue pairs for {} partitions and messages of {} bytes: this server has {} and sends at most {}",
                hello.lanes.len(),
                hello.answer,
                self.workers.len(),
                self.max_answer
            )));
        }
        let index = lock(&self.free).pop().ok_or_else(|| {
            let max = self.config.max_clients;
            Refused::now(format!("this server has its {max} clients already"))
        })?;
        let free = Arc::clone(&self.free);
        self.clients.fetch_add(1, Ordering::Relaxed);
        let pass = Pass {
            shared: Arc::clone(self),
            place: Arc::new(Place { index, free }),
        };
        let accepted = Accepted {
            lanes: self.connect_lanes(hello, &pass.place)?,
            reach: self.connect_reach(hello, index)?,
        };
        self.clients_total.fetch_add(1, Ordering::Relaxed);
        Ok((accepted, pass))
    }

    fn connect_lanes(
        &self,
        hello: &Hello,
        place: &Arc<Place>,
    ) -> Result<Vec<LaneAccepted>, Refused> {
        let window = u32::try_from(hello.window.next_power_of_two()).unwrap_or(u32::MAX);
        let layout = herd::Layout {
            window,
            ..self.layout
        };
        let mut lanes = Vec::new();
        for (lane, worker) in hello.lanes.iter().zip(&self.workers) {
            let to = self.pd.ud_destination_from(self.port, &lane.ud);
            let qp = herd::server_qp(&self.pd, self.port, &self.cq).map_err(Refused::now)?;
            let endpoint = qp.endpoint();
            let qp = qp.connect(&lane.uc).map_err(Refused::now)?;
            let slots = herd::region_of(&worker.region, &self.layout, place.index);
            let slots = slots.ok_or_else(|| Refused::now("the worker has no such slots"))?;
            let to = to.map_err(Refused::now)?;
            let added = worker.mailbox.ask(|done| {
                Command::Add(Box::new(Newcomer {
                    place: Arc::clone(place),
                    session: hello.session,
                    window,
                    answer: hello.answer,
                    qp,
                    to,
                    done,
                }))
            });
            added.map_err(Refused::now)?;
            lanes.push(LaneAccepted {
                endpoint,
                slots,
                layout,
            });
        }
        Ok(lanes)
    }

    /// Opens the store's memory to a client, if the design does.
    fn connect_reach(&self, hello: &Hello, index: u32) -> Result<Option<Reach>, Refused> {
        if self.config.design == Design::Herd {
            return Ok(None);
        }
        let peer = hello.rc.ok_or_else(|| {
            let design = self.config.design;
            Refused::never(format!("no RC queue pair, which design {design} needs"))
        })?;
        let writes = self.config.design == Design::Atomics;
        let access = if writes {
            Access::ALL
        } else {
            Access::REMOTE_READ
        };
        let qp = self
            .pd
            .qp::<Rc>(&self.cq, &self.cq)
            .port_num(self.port.port_num)
            .gid_index(self.port.gid_index)
            .max_send_wr(1)
            .max_recv_wr(1)
            .inline_up_to(0)
            .access(access)
            .build()
            .map_err(Refused::now)?;
        let endpoint = qp.endpoint();
        let qp = qp.connect(&peer).map_err(Refused::now)?;
        let owner = self.guests.next_owner();
        let mut access = guests::Access {
            qp,
            memory: Vec::new(),
            redo: None,
        };
        let memory = match self.tables.first().map(|t| *t.shape()) {
            None => self.reached_logs(),
            Some(shape) => self.reached_records(hello, &mut access, (shape, owner)),
        };
        self.guests.add(index, owner, access);
        let memory = memory.map_err(Refused::now)?;
        Ok(Some(Reach { endpoint, memory }))
    }

    fn reached_logs(&self) -> Result<Reached, verbs::VerbError> {
        let partitions = (0..self.store.partitions()).filter_map(|n| {
            let (index, log) = self.store.partition(n).remote()?;
            Some(ReachedLog { index, log })
        });
        let (key, value) = (self.config.key_bytes, self.config.value_bytes);
        Ok(Reached::Logs {
            partitions: partitions.collect(),
            item_bytes: store::item_bytes(key, value, false) + 8,
        })
    }

    /// Opens records to a client; where it changes them, by registrations that are its own, so that they can be undone.
    fn reached_records(
        &self,
        hello: &Hello,
        access: &mut guests::Access,
        (shape, owner): (store::Shape, u32),
    ) -> Result<Reached, verbs::VerbError> {
        let mut writes = None;
        let mut partitions = Vec::new();
        if self.config.design == Design::Atomics {
            for table in &self.tables {
                let own = table.memory().register_again(Access::ALL)?;
                partitions.push(own.remote());
                access.memory.push(own);
            }
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let redo = self.pd.alloc(hello.window * redo::bytes(&shape), rights)?;
            writes = Some(Writes {
                owner,
                lease_ms: self.config.lease_ms,
                redo: redo.remote(),
            });
            access.redo = Some(redo);
        } else {
            partitions.extend(self.tables.iter().map(|t| t.memory().remote()));
        }
        Ok(Reached::Records {
            partitions,
            shape,
            writes,
        })
    }
}

/// The tables of all partitions, if the design keeps items in records.
fn tables(
    config: &ServerConfig,
    pd: &ProtectionDomain,
    port: PortGid,
    seed: u64,
) -> Result<Vec<Arc<Table>>, ServerError> {
    let Some(shape) = config.shape() else {
        return Ok(Vec::new());
    };
    let writes = config.design == Design::Atomics;
    let table = |_| Ok(Arc::new(Table::new(pd, port, shape, seed, writes)?));
    (0..config.workers).map(table).collect()
}

impl Design {
    /// What clients may rely on, in a line for the documentation and the command line.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Herd => {
                "linearizable: a partition's worker makes one change after the other, and none twice"
            }
            Self::Reads => {
                "linearizable: changes as with herd, and a value that is READ was the key's at that time"
            }
            Self::Atomics => {
                "linearizable: changes hold the record's lock, and a value that is READ was the key's at that time"
            }
        }
    }
}
