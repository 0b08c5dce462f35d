//! A process that has tensors for others and gets theirs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use service::config::in_range;
use service::{
    Capabilities, ClientCounts, ConnectError, Connection, NicConfig, OpenError, Refused, Server,
    ServerError, Service, Target, Unsupported,
};
use verbs::{Access, Context, ProtectionDomain};

use crate::catalogue::{Catalogue, Holdings};
use crate::engine::{Engine, Running, Sleeper};
use crate::error::Error;
use crate::link::Link;
use crate::memory::{POOL_BYTES, Pool, Tensor};
use crate::message::Name;
use crate::operation::{Outcome, Pending};
use crate::queues::{Place, Prepared};
use crate::rendezvous::{Accepted, Hello, Rendezvous, Welcome};
use crate::requests::REQUESTS_MAX;
use crate::talk::{Ask, Shelf};

/// Queue pairs for data of a connection at most.
pub const QUEUE_PAIRS_MAX: usize = 8;
/// How long each step of connecting may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a cancelled request may use the caller's memory before it is taken away.
const FENCE_AFTER: Duration = Duration::from_millis(250);

/// How a peer works.
#[derive(Debug, Clone)]
pub struct Config {
    /// The NIC.
    pub nic: NicConfig,
    /// The TCP address where others find it, such as `127.0.0.1:0`; nobody does if `None`.
    pub listen: Option<String>,
    /// Queue pairs that large tensors are striped over, 1 to [`QUEUE_PAIRS_MAX`]; of connections that this side opens.
    pub queue_pairs: usize,
    /// Bytes of tensors that others may store here; 0: they may not.
    pub capacity_bytes: u64,
    /// Bytes of freed memory that are kept registered for the next tensors.
    pub pool_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nic: NicConfig::default(),
            listen: None,
            queue_pairs: 4,
            capacity_bytes: 0,
            pool_bytes: POOL_BYTES,
        }
    }
}

/// Why there is no such peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// It cannot listen.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The system refused a thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A process that has tensors for others and gets theirs. Dropping it ends its connections.
///
/// ```
/// use tensor::{Config, DType, Meta, Name, Peer, Tensor};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let sender = Peer::new(Config { listen: Some("127.0.0.1:0".to_owned()), ..Config::default() })?;
/// let region = sender.pd().register_vec(vec![7u8; 100], verbs::Access::LOCAL_READ)?;
/// let tensor = Tensor::new(Meta::new(DType::U8, vec![100])?, Some(Arc::new(region))).expect("long enough");
/// sender.publish(Name::new("weights", 0)?, tensor);
///
/// // In another process:
/// let receiver = Peer::new(Config::default())?;
/// let remote = receiver.connect(&sender.address().expect("it listens").to_string())?;
/// let got = remote.get(Name::new("weights", 0)?, true, None)?.wait(Some(Duration::from_secs(10)))?;
/// assert_eq!(got.expect("a tensor").to_vec(), [7; 100]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Peer {
    // In this order: nobody new comes, connections end, then their memory goes.
    server: Option<Server<Listening>>,
    _running: Running,
    base: Arc<Base>,
}

/// The state that server and clients of a process share.
#[derive(Debug)]
struct Base {
    place: Place,
    shelf: Arc<Shelf>,
    engine: Arc<Engine>,
    queue_pairs: usize,
}

impl Peer {
    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot start.
    pub fn new(config: Config) -> Result<Self, StartError> {
        in_range("queue_pairs", config.queue_pairs, 1..=QUEUE_PAIRS_MAX)
            .map_err(StartError::Config)?;
        let context = config.nic.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let shelf = Arc::new(Shelf {
            catalogue: Mutex::new(Catalogue::new(config.capacity_bytes)),
            pool: Pool::new(pd.clone(), config.pool_bytes),
        });
        let base = Arc::new(Base {
            place: Place {
                port: config.nic.port(&context)?,
                context: context.clone(),
                pd,
                channel: channel.clone(),
            },
            shelf,
            engine: Engine::new(channel),
            queue_pairs: config.queue_pairs,
        });
        let running = base.engine.start()?;
        let server = config.listen.map(|listen| {
            base.engine.serve();
            let listening = ListeningConfig {
                listen,
                nic: config.nic.clone(),
                base: Some(Arc::clone(&base)),
            };
            Server::start_on(&context, listening)
        });
        Ok(Self {
            server: server.transpose()?,
            _running: running,
            base,
        })
    }

    /// Where others find it, if it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Where memory of tensors has to be registered.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.base.place.pd
    }

    /// Has a tensor for whoever asks, in place of any other of that name. Its bytes must not change until it is
    /// [withdrawn](Self::withdraw).
    pub fn publish(&self, name: Name, tensor: Tensor) {
        let waiting = self.base.shelf.catalogue().publish(name, tensor.clone());
        waiting.into_iter().for_each(|w| w.serve(tensor.clone()));
    }

    /// Has a tensor no more; the tensor, whose bytes may change once every transfer of it has ended.
    pub fn withdraw(&self, name: &Name) -> Option<Tensor> {
        self.base.shelf.catalogue().remove(name)
    }

    /// The tensor of this name that this process itself has.
    pub fn find(&self, name: &Name) -> Option<Tensor> {
        self.base.shelf.catalogue().find(name)
    }

    /// What it has.
    pub fn holdings(&self) -> Holdings {
        self.base.shelf.catalogue().holdings()
    }

    /// Memory of this process for a tensor: peers reach it by the fastest way, and it is used again once it is free.
    ///
    /// # Errors
    /// When the provider has none.
    pub fn allocate(&self, meta: crate::Meta) -> Result<Tensor, Error> {
        let memory = self.base.shelf.pool.memory(&meta)?;
        Ok(Tensor::in_memory(meta, memory))
    }

    /// Connects to a peer that listens.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    pub fn connect(&self, address: &str) -> Result<Remote, ConnectError> {
        let target = Target::<Rendezvous>::Tcp(address.to_owned());
        let base = &self.base;
        let (prepared, accepted, connection) =
            target.open(REQUESTS_MAX, CONNECT_PATIENCE, |welcome: &Welcome| {
                let count = base.queue_pairs.min(welcome.max_queue_pairs).max(1);
                let prepared = Prepared::new(&base.place, count)?;
                let hello = Hello::new(name_of_this_process(), prepared.endpoints());
                Ok::<_, ConnectError>((prepared, hello))
            })?;
        let queues = prepared.connect(&accepted.endpoints)?;
        let link = Link::new(address.to_owned(), queues, &base.shelf);
        base.engine.add(Arc::clone(&link));
        Ok(Remote {
            link,
            engine: Arc::clone(&base.engine),
            _connection: connection,
        })
    }
}

fn name_of_this_process() -> String {
    format!("process {}", std::process::id())
}

/// A peer that this process is connected to. Dropping it ends the connection.
#[derive(Debug)]
pub struct Remote {
    link: Arc<Link>,
    engine: Arc<Engine>,
    _connection: Connection,
}

impl Remote {
    /// Asks for a tensor. If there is none: waits until there is one (`wait`), or fails. `into`: memory for it, of the
    /// tensor that it is taken to be, registered with [`destination_access`](Self::destination_access).
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn get(&self, name: Name, wait: bool, into: Option<Tensor>) -> Result<Operation, Error> {
        self.begin(name.clone(), Ask::Get(name, wait, into))
    }

    /// Stores a tensor there. Its bytes must not change before that is done.
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn put(&self, name: Name, tensor: Tensor) -> Result<Operation, Error> {
        self.begin(name.clone(), Ask::Put(name, tensor))
    }

    /// Removes a tensor there.
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn remove(&self, name: Name) -> Result<Operation, Error> {
        self.begin(name.clone(), Ask::Remove(name))
    }

    /// Access rights that peers need to the destination of a tensor.
    pub fn destination_access() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_WRITE
    }

    /// Whether the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    fn begin(&self, name: Name, ask: Ask) -> Result<Operation, Error> {
        let (index, pending) = self.link.ask(ask)?;
        Ok(Operation {
            name,
            index,
            pending,
            link: Arc::clone(&self.link),
            engine: Arc::clone(&self.engine),
            sleeper: Mutex::new(None),
        })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.link.end("it was closed on this side");
        self.engine.remove(&self.link);
    }
}

/// Something that a peer was asked for. Dropping it before it is done cancels it.
#[derive(Debug)]
pub struct Operation {
    name: Name,
    index: u32,
    pending: Pending,
    link: Arc<Link>,
    engine: Arc<Engine>,
    /// Of an operation that nobody waits for in a thread.
    sleeper: Mutex<Option<Sleeper>>,
}

impl Operation {
    /// Whether it has an outcome.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    /// Has `callback` called once there is an outcome, in the thread that finds it. It must not wait.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        if !self.is_done() {
            *self.sleeper() = Some(self.engine.sleeper());
        }
        self.pending.on_done(Box::new(callback));
    }

    fn sleeper(&self) -> MutexGuard<'_, Option<Sleeper>> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the outcome; for ever without a timeout. When time has passed the operation is cancelled: after that
    /// nothing is written into the memory that was given.
    ///
    /// # Errors
    /// Those of the operation, and [`Error::Timeout`].
    pub fn wait(self, timeout: Option<Duration>) -> Outcome {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let done = || self.pending.is_done();
        if !self.engine.spin(&self.link, deadline, done) {
            let _sleeper = self.engine.sleeper();
            self.pending.sleep(deadline);
        }
        let outcome = self.pending.take();
        outcome.unwrap_or_else(|| Err(self.timed_out(timeout.unwrap_or_default())))
    }

    /// The error of one for which a caller waits no longer than this.
    pub fn timed_out(&self, timeout: Duration) -> Error {
        Error::Timeout {
            name: self.name.clone(),
            timeout,
        }
    }

    /// Waits at most so long; whether there is an outcome. The operation goes on.
    pub fn wait_for(&self, time: Duration) -> bool {
        let deadline = Instant::now().checked_add(time);
        if !self
            .engine
            .spin(&self.link, deadline, || self.pending.is_done())
        {
            let _sleeper = self.engine.sleeper();
            self.pending.sleep(deadline);
        }
        self.pending.is_done()
    }

    /// The outcome, if it is there; once.
    pub fn outcome(&self) -> Option<Outcome> {
        *self.sleeper() = None;
        self.pending.take()
    }

    /// The caller wants no outcome any more. When this returns nothing is written into memory that was given.
    pub fn cancel(&self) {
        *self.sleeper() = None;
        if self.pending.is_done() {
            return;
        }
        let is_given = self.link.cancel(self.index);
        self.pending
            .complete(Err(Error::Cancelled(self.name.clone())));
        if !is_given {
            return;
        }
        let begun = Instant::now();
        while self.link.is_outstanding(self.index) {
            if begun.elapsed() > FENCE_AFTER {
                self.link.fence(self.index);
                break;
            }
            let gone = || !self.link.is_outstanding(self.index);
            self.engine.spin(&self.link, None, gone);
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The side that listens.
#[derive(Debug)]
struct Listening {
    config: ListeningConfig,
    base: Arc<Base>,
}

#[derive(Debug)]
struct ListeningConfig {
    listen: String,
    nic: NicConfig,
    base: Option<Arc<Base>>,
}

impl service::ServerConfig for ListeningConfig {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
    fn check_device(&self, _: &Capabilities) -> Result<(), Unsupported> {
        Ok(())
    }
    fn listen(&self) -> &str {
        &self.listen
    }
    fn nic(&self) -> &NicConfig {
        &self.nic
    }
    fn max_window(&self) -> usize {
        1 + QUEUE_PAIRS_MAX
    }
}

/// A connection that somebody else has opened.
#[derive(Debug)]
struct Session(Arc<Link>, Arc<Engine>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.end("the peer has closed it or has gone");
        self.1.remove(&self.0);
    }
}

impl Service for Listening {
    type Protocol = Rendezvous;
    type Config = ListeningConfig;
    type Runtime = ();
    type Worker = Infallible;
    type WorkerError = Infallible;
    type Session = Session;
    type Stats = ClientCounts;

    fn new(
        _: &Context,
        mut config: ListeningConfig,
        (): (),
    ) -> Result<(Arc<Self>, Vec<Infallible>), ServerError> {
        let base = config.base.take();
        let base = base.ok_or_else(|| ServerError::service("nothing to serve"))?;
        Ok((Arc::new(Self { config, base }), Vec::new()))
    }

    fn config(&self) -> &ListeningConfig {
        &self.config
    }

    fn welcome(&self) -> Welcome {
        Welcome::new(QUEUE_PAIRS_MAX)
    }

    fn accept(self: &Arc<Self>, hello: &Hello) -> Result<(Accepted, Session), Refused> {
        let count = hello.endpoints.len();
        in_range("queue pairs", count, 2..=1 + QUEUE_PAIRS_MAX).map_err(Refused::permanent)?;
        let base = &self.base;
        let prepared = Prepared::new(&base.place, count - 1).map_err(Refused::temporary)?;
        let endpoints = prepared.endpoints();
        let queues = prepared
            .connect(&hello.endpoints)
            .map_err(Refused::temporary)?;
        let link = Link::new(hello.name.clone(), queues, &base.shelf);
        base.engine.add(Arc::clone(&link));
        Ok((
            Accepted { endpoints },
            Session(link, Arc::clone(&base.engine)),
        ))
    }

    fn work(&self, _: usize, worker: Infallible) -> Result<(), Infallible> {
        match worker {}
    }

    fn stats(&self, clients: ClientCounts) -> ClientCounts {
        clients
    }

    fn stop(&self) {}
}
