//! The server: rendezvous, workers, reservations.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rpc::exchange::{Acceptor, Refused, attend};
use rpc::worker::lock;
use rpc::{Counts, UdPortConfig, datagram, herd};
use verbs::{Access, CompletionQueue, Context, PortGid, ProtectionDomain, QueuePair, Rc};

use crate::counter::Counter;
use crate::rendezvous::{self, Accepted, Hello, Welcome};
use crate::state::{StateError, StateFile};
use crate::worker::{self, Command, Engine, WorkerShared};
use crate::{Design, OpenError, ServerConfig, ServerStats, Unsupported};

mod local;

pub use local::{Door, LocalServer, LocalWorker};

/// A running server. Dropping it stops it.
///
/// ```no_run
/// use sequencer::{Design, Server, ServerConfig};
/// let config = ServerConfig { design: Design::RpcBatch, listen: "127.0.0.1:7000".into(), ..Default::default() };
/// let server = Server::start(config)?;
/// println!("clients find it at {}", server.address());
/// # Ok::<(), sequencer::ServerError>(())
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<Acceptor>,
    threads: Vec<JoinHandle<()>>,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
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
    counter: Counter,
    workers: Vec<Arc<WorkerShared>>,
    /// By the numbers of their passes.
    clients: Mutex<HashMap<u64, Client>>,
    /// Passes that were given.
    passes: AtomicU64,
    clients_total: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<String>>,
}

/// A connected client: with `atomics` its queue pair.
type Client = Option<QueuePair<Rc>>;

impl Server {
    /// Starts a server: it serves when this returns.
    pub fn start(config: ServerConfig) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let context = config.nic.open()?;
        Self::start_on(&context, config)
    }

    /// Starts a server on a device that is open already, whatever [`ServerConfig::nic`] says of provider and
    /// device.
    ///
    /// # Errors
    /// Before anything else, [`ServerError::Unsupported`] when the device lacks what the design needs.
    pub fn start_on(context: &Context, config: ServerConfig) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let design = config.design;
        design.check(context.capabilities()?)?;
        let listener = TcpListener::bind(&config.listen).map_err(|source| ServerError::Listen {
            address: config.listen.clone(),
            source,
        })?;
        let address = listener.local_addr()?;
        let mut state = config
            .state
            .as_deref()
            .map(|p| StateFile::open(p, config.start))
            .transpose()?;
        let (shared, engines) = Shared::new(context, config, state.as_mut())?;
        let mut server = Self {
            shared: Arc::clone(&shared),
            address,
            acceptor: None,
            threads: Vec::new(),
        };
        for (i, engine) in engines.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            server.spawn(format!("worker {i}"), move || {
                let speculate = shared.config.design == Design::SpecS0;
                if let Err(e) = worker::run(engine, &shared.workers[i], &shared.counter, speculate)
                {
                    shared.fail(format!("worker {i} failed: {e}"));
                }
            })?;
        }
        if state.is_some() || design == Design::Atomics {
            let shared = Arc::clone(&shared);
            server.spawn("reserver".to_owned(), move || shared.reserver(state))?;
        }
        server.acceptor = Some(Acceptor::start(listener, move |stream| {
            attend(stream, rendezvous::WHOSE, &shared.welcome(), |hello| {
                shared.enter(hello)
            });
        })?);
        Ok(server)
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        self.threads
            .push(std::thread::Builder::new().name(name).spawn(work)?);
        Ok(())
    }

    /// The TCP address where clients find it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The configuration that it runs with.
    pub fn config(&self) -> &ServerConfig {
        &self.shared.config
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
        let s = &self.shared;
        s.stop.store(true, Ordering::Release);
        s.counter.stop();
        self.acceptor = None;
        for worker in &s.workers {
            worker.mailbox.tell(Command::Stop);
        }
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

/// The workers of a design and what the rest of the server needs to know of each.
fn engines(
    config: &ServerConfig,
    port: PortGid,
    context: &Context,
    pd: &ProtectionDomain,
    max_qp_wr: u32,
) -> Result<Vec<(Engine, Arc<WorkerShared>)>, ServerError> {
    let max_clients = u32::try_from(config.max_clients).unwrap_or(u32::MAX);
    let base = UdPortConfig {
        port_num: port.port_num,
        gid_index: Some(port.gid_index),
        ..UdPortConfig::default()
    };
    let make = |_| -> Result<_, ServerError> {
        if config.design == Design::SpecS0 {
            let channel = context.create_comp_channel()?;
            let recv_depth = config.recv_depth.min(max_qp_wr);
            let port = UdPortConfig {
                recv_depth,
                channel: Some(channel.clone()),
                ..base.clone()
            };
            let answers = config.answers.unwrap_or(config.batch);
            let server = |_| {
                let server = datagram::Server::new(pd, config.batch, &port)?;
                Ok(server.answering(answers))
            };
            let servers = (0..config.queues()).map(server);
            let servers: Vec<_> = servers.collect::<Result<_, rpc::RpcError>>()?;
            let endpoints = servers.iter().map(datagram::Server::endpoint).collect();
            let shared = WorkerShared::new(endpoints, None, max_clients, recv_depth as usize)?;
            return Ok((Engine::Datagram(servers, channel), Arc::new(shared)));
        }
        let batch = if config.design == Design::Rpc {
            1
        } else {
            config.batch
        };
        let queues = config.queues();
        let window = u32::try_from(config.max_window.next_power_of_two()).unwrap_or(u32::MAX);
        let layout = herd::Layout { window, payload: 0 };
        let server = herd::Server::new(
            pd,
            layout,
            config.max_clients,
            herd::Doorbells { batch, queues },
            &base,
        )?;
        let region = Some((server.region(), layout));
        let shared = WorkerShared::new(Vec::new(), region, max_clients, usize::MAX)?;
        Ok((Engine::Herd(Box::new(server)), Arc::new(shared)))
    };
    let workers = if config.design == Design::Atomics {
        0
    } else {
        config.workers
    };
    (0..workers).map(make).collect()
}

impl Shared {
    /// A server's objects, and its workers' engines, which do not run yet.
    fn new(
        context: &Context,
        config: ServerConfig,
        state: Option<&mut StateFile>,
    ) -> Result<(Arc<Self>, Vec<Engine>), ServerError> {
        let design = config.design;
        let port = config.nic.port(context)?;
        let device = context.query_device()?;
        let end = design.end_of_numbers();
        let start = state.as_ref().map_or(config.start, |state| state.next());
        if start > end {
            return Err(ServerError::Config(format!(
                "numbers are used up: the state file says {start}, design {design} gives numbers below {end}"
            )));
        }
        // Durable before anything can be given.
        let limit = match state {
            Some(state) => {
                let limit = start.saturating_add(config.reserve).min(end);
                state.reserve(limit)?;
                limit
            }
            None => end,
        };
        let pd = context.alloc_pd()?;
        let counter = Counter::new(&pd, start, limit, end, config.reserve / 2)?;
        let engines = engines(&config, port, context, &pd, device.max_qp_wr)?;
        let (engines, workers): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
        let shared = Arc::new(Self {
            cq: context.create_cq(1)?,
            port,
            pd,
            counter,
            workers,
            clients: Mutex::default(),
            passes: AtomicU64::new(0),
            clients_total: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::default(),
            config,
        });
        Ok((shared, engines))
    }

    /// What the server did so far.
    fn stats(&self) -> ServerStats {
        let clients = lock(&self.clients).len() as u64;
        let (start, next) = (self.counter.start(), self.counter.next());
        let mut counts = Counts::default();
        for worker in &self.workers {
            counts.add(&worker.mailbox.counts());
        }
        let atomics = self.config.design == Design::Atomics;
        ServerStats {
            requests: if atomics {
                next.saturating_sub(start)
            } else {
                counts.requests
            },
            doorbells: counts.doorbells,
            postlists: counts.postlists,
            strangers: counts.strangers,
            clients,
            clients_total: self.clients_total.load(Ordering::Relaxed),
            start,
            next,
        }
    }

    fn fail(&self, what: String) {
        tracing::error!("{what}");
        lock(&self.failure).get_or_insert(what);
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Keeps the limit ahead of the counter, and ends `atomics` when the numbers are used up.
    fn reserver(&self, mut state: Option<StateFile>) {
        self.counter.reserve_from_this_thread();
        let atomics = self.config.design == Design::Atomics;
        let end = self.counter.end();
        while !self.stopping() {
            let (next, limit) = (self.counter.next(), self.counter.limit());
            if atomics && next >= end {
                for rc in lock(&self.clients).values().flatten() {
                    // A queue pair that is in error already does not mind.
                    let _ = rc.to_error();
                }
            }
            if let Some(state) = &mut state
                && limit < end
                && limit.saturating_sub(next) < self.config.reserve / 2
            {
                let target = limit.max(next).saturating_add(self.config.reserve).min(end);
                match state.reserve(target) {
                    Ok(()) => self.counter.raise(target),
                    Err(e) => {
                        self.fail(format!("no more numbers can be reserved: {e}"));
                        std::thread::park_timeout(Duration::from_millis(100));
                    }
                }
                continue;
            }
            if atomics && !lock(&self.clients).is_empty() {
                // Nobody tells when a remote atomic adds.
                std::thread::park_timeout(Duration::from_millis(2));
            } else {
                std::thread::park();
            }
        }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            protocol: rendezvous::PROTOCOL.to_owned(),
            version: rendezvous::VERSION,
            designs: vec![self.config.design],
            max_window: self.config.max_window,
        }
    }

    /// Connects this side to a client that has said who it is. What it gets is freed with its pass: its place at a worker,
    /// or with `atomics` its queue pair in `clients`.
    fn enter(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Pass), Refused> {
        let design = self.config.design;
        if hello.version != rendezvous::VERSION {
            return Err(Refused::never(format!(
                "version {} of the exchange, {} expected",
                hello.version,
                rendezvous::VERSION
            )));
        }
        if hello.design != design {
            return Err(Refused::never(format!(
                "this server serves design {design}, not {}",
                hello.design
            )));
        }
        if hello.window == 0 || hello.window > self.config.max_window {
            let max = self.config.max_window;
            return Err(Refused::never(format!(
                "a window of {}: this server takes 1 to {max} (its max-window)",
                hello.window
            )));
        }
        if self.counter.next() >= self.counter.end() {
            return Err(Refused::never(format!(
                "the numbers are used up: design {design} gives none from {} on",
                self.counter.end()
            )));
        }
        let mut clients = lock(&self.clients);
        if clients.len() >= self.config.max_clients {
            return Err(Refused::now(format!(
                "this server has its {} clients already",
                clients.len()
            )));
        }
        let id = self.passes.fetch_add(1, Ordering::Relaxed);
        clients.insert(id, None);
        drop(clients);
        let mut pass = Pass {
            shared: Arc::clone(self),
            id,
            place: None,
        };
        let accepted = match design {
            Design::Atomics => self.admit_atomics(hello, id)?,
            Design::SpecS0 => self.admit_spec(hello, &mut pass.place)?,
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => {
                self.admit_herd(hello, &mut pass.place)?
            }
        };
        self.clients_total.fetch_add(1, Ordering::Relaxed);
        Ok((accepted, pass))
    }

    fn accepted(&self, endpoint: verbs::QpEndpoint) -> Accepted {
        Accepted {
            design: self.config.design,
            start: self.counter.start(),
            next: self.counter.next(),
            end: self.counter.end(),
            endpoint,
            counter: None,
            limit: None,
            slots: None,
            layout: None,
        }
    }

    fn admit_atomics(&self, hello: &Hello, id: u64) -> Result<Accepted, Refused> {
        let peer = hello.rc.ok_or_else(|| missing("rc"))?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
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
        if let Some(client) = lock(&self.clients).get_mut(&id) {
            *client = Some(qp);
        }
        // The reserver watches the counter while there are clients.
        self.counter.wake_reserver();
        let (counter, limit) = (self.counter.remote_next(), self.counter.remote_limit());
        Ok(Accepted {
            counter: Some(counter),
            limit: Some(limit),
            ..self.accepted(endpoint)
        })
    }

    fn admit_spec(&self, hello: &Hello, place: &mut Option<Place>) -> Result<Accepted, Refused> {
        let peer = hello.ud.ok_or_else(|| missing("ud"))?;
        let to = self.pd.ud_destination_from(self.port, &peer);
        let to = to.map_err(Refused::now)?;
        let (worker, index) = self.place(hello.window, place)?;
        let added = worker
            .mailbox
            .ask(|done| Command::AddDatagram { index, to, done });
        added.map_err(Refused::now)?;
        let queue = index as usize % worker.endpoints.len().max(1);
        let endpoint = worker.endpoints.get(queue);
        let endpoint = endpoint.ok_or_else(|| Refused::now("the worker has no endpoint"))?;
        Ok(self.accepted(*endpoint))
    }

    fn admit_herd(&self, hello: &Hello, place: &mut Option<Place>) -> Result<Accepted, Refused> {
        let (uc, ud) = (
            hello.uc.ok_or_else(|| missing("uc"))?,
            hello.ud.ok_or_else(|| missing("ud"))?,
        );
        let to = self.pd.ud_destination_from(self.port, &ud);
        let to = to.map_err(Refused::now)?;
        let qp = herd::server_qp(&self.pd, self.port, &self.cq).map_err(Refused::now)?;
        let endpoint = qp.endpoint();
        let qp = qp.connect(&uc).map_err(Refused::now)?;
        let (worker, index) = self.place(0, place)?;
        let window = u32::try_from(hello.window.next_power_of_two()).unwrap_or(u32::MAX);
        let slots = worker.region.and_then(|(region, layout)| {
            let slots = herd::region_of(&region, &layout, index)?;
            Some((slots, herd::Layout { window, ..layout }))
        });
        let (slots, layout) =
            slots.ok_or_else(|| Refused::now("the worker has no request region"))?;
        let added = worker.mailbox.ask(|done| Command::AddHerd {
            index,
            qp,
            to,
            window,
            done,
        });
        added.map_err(Refused::now)?;
        Ok(Accepted {
            slots: Some(slots),
            layout: Some(layout),
            ..self.accepted(endpoint)
        })
    }

    /// A place at the worker with the fewest clients: the worker, and the client's index there.
    fn place(
        &self,
        window: usize,
        place: &mut Option<Place>,
    ) -> Result<(&WorkerShared, u32), Refused> {
        let fits = |w: &Arc<WorkerShared>| {
            let p = lock(&w.places);
            p.has_room(window).then_some(p.clients)
        };
        let best = (0..self.workers.len())
            .filter_map(|i| Some((fits(&self.workers[i])?, i)))
            .min();
        let full = || {
            Refused::now(
                "no worker has room for the window: ask for a smaller one, or give the server more workers or a larger \
                 recv-depth",
            )
        };
        let number = best.ok_or_else(full)?.1;
        let worker = &self.workers[number];
        let index = lock(&worker.places).take(window).ok_or_else(full)?;
        *place = Some((number, index, window));
        Ok((worker, index))
    }
}

/// A client's place at the server, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    shared: Arc<Shared>,
    id: u64,
    place: Option<Place>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some((worker, index, window)) = self.place {
            let worker = &self.shared.workers[worker];
            worker.mailbox.tell(Command::Remove { index, window });
        }
        lock(&self.shared.clients).remove(&self.id);
    }
}

/// Worker, index there, and the part of its window.
type Place = (usize, u32, usize);

fn missing(what: &str) -> Refused {
    Refused::never(format!("the message lacks the endpoint {what:?}"))
}
