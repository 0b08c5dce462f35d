//! A process that has tensors for others and gets theirs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use service::config::check_in_range;
use service::{
    Capabilities, ClientRefusal, ClientSession, ClientsConnected, ConnectError, NicConfig,
    OpenError, Server, ServerError, ServerLocation, Service, UnsupportedDesign,
};
use verbs::{Access, Context, ProtectionDomain};

use crate::catalogue::{StoreStatistics, TensorCatalogue};
use crate::connection_poller::{ConnectionPoller, PollingThread, ReliesOnThreadGuard};
use crate::error::Error;
use crate::incoming_room::IncomingRoom;
use crate::link::PeerLink;
use crate::memory::{DEFAULT_MAX_FREE_POOL_BYTES, RegisteredPool, Tensor};
use crate::message::TensorName;
use crate::pending_operation::{Outcome, PendingOperation};
use crate::protocol::{CallerMemoryInUse, CallerRequest};
use crate::queues::{NicResources, PreparedQueues};
use crate::rendezvous::{AcceptReply, Hello, RendezvousProtocol, ServerHello};
use crate::requests::REQUESTS_MAX;
use crate::store::Store;

/// Queue pairs for data of a connection at most.
pub const DATA_QUEUE_PAIRS_MAX: usize = 8;
/// How long each step of connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a cancelled request may use the caller's memory before it is taken away.
const CANCELLED_MEMORY_GRACE: Duration = Duration::from_millis(250);

/// The configuration of a peer.
#[derive(Debug, Clone)]
pub struct Config {
    /// The NIC.
    pub nic: NicConfig,
    /// The TCP address where others find it, such as `127.0.0.1:0`; nobody does if `None`.
    pub listen_address: Option<String>,
    /// Queue pairs that large tensors are striped over, 1 to [`DATA_QUEUE_PAIRS_MAX`]; of connections that this side
    /// opens.
    pub data_queue_pair_count: usize,
    /// Bytes of tensors that others may store here; 0: they may not. As many bytes again may be on their way.
    pub peer_store_capacity_bytes: u64,
    /// Bytes of freed memory that are kept registered for the next tensors.
    pub max_free_pool_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            nic: NicConfig::default(),
            listen_address: None,
            data_queue_pair_count: 4,
            peer_store_capacity_bytes: 0,
            max_free_pool_bytes: DEFAULT_MAX_FREE_POOL_BYTES,
        }
    }
}

impl Config {
    /// Bytes of freed memory that are kept: for a store not more than its capacity.
    fn max_free_pool_bytes_of_peer(&self) -> usize {
        let capacity = usize::try_from(self.peer_store_capacity_bytes).unwrap_or(usize::MAX);
        match capacity {
            0 => self.max_free_pool_bytes,
            _ => self.max_free_pool_bytes.min(capacity),
        }
    }
}

/// Why there is no such peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration cannot work.
    #[error("{0}")]
    InvalidConfig(String),
    /// The NIC cannot be used.
    #[error(transparent)]
    OpenNic(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The peer cannot listen.
    #[error(transparent)]
    CannotListen(#[from] ServerError),
    /// The system refused a thread.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

verbs::from_verb_errors!(StartError);

/// A process that has tensors for others and gets theirs. Dropping it ends its connections.
///
/// ```
/// use tensor::{Config, DType, TensorMeta, TensorName, Peer, Tensor};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// let sender = Peer::new(Config { listen_address: Some("127.0.0.1:0".to_owned()), ..Config::default() })?;
/// let region = sender.pd().register_vec(vec![7u8; 100], verbs::Access::LOCAL_READ)?;
/// let tensor = Tensor::new(TensorMeta::new(DType::U8, vec![100])?, Some(Arc::new(region))).expect("long enough");
/// sender.publish(TensorName::new("weights", 0)?, tensor);
///
/// // In another process:
/// let receiver = Peer::new(Config::default())?;
/// let remote = receiver.connect(&sender.address().expect("it listens").to_string())?;
/// let got = remote.get(TensorName::new("weights", 0)?, true, None)?.wait(Some(Duration::from_secs(10)))?;
/// assert_eq!(got.expect("a tensor").to_vec(), [7; 100]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Peer {
    // In this order: nobody new comes, connections end, then their memory goes.
    server: Option<Server<TensorService>>,
    _polling_thread: PollingThread,
    state: Arc<PeerState>,
}

/// The state that server and clients of a process share.
#[derive(Debug)]
struct PeerState {
    resources: NicResources,
    store: Arc<Store>,
    poller: Arc<ConnectionPoller>,
    data_queue_pair_count: usize,
}

impl Peer {
    /// Starts it.
    ///
    /// # Errors
    /// Why it cannot start.
    pub fn new(config: Config) -> Result<Self, StartError> {
        check_in_range(
            "queue_pairs",
            config.data_queue_pair_count,
            1..=DATA_QUEUE_PAIRS_MAX,
        )
        .map_err(StartError::InvalidConfig)?;
        let context = config.nic.open()?;
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        // The event that made the descriptor readable may be gone by the time it is taken, if its completion queue is
        // destroyed meanwhile.
        channel.set_nonblocking(true)?;
        let store = Arc::new(Store {
            catalogue: Mutex::new(TensorCatalogue::new(config.peer_store_capacity_bytes)),
            pool: RegisteredPool::new(pd.clone(), config.max_free_pool_bytes_of_peer()),
            incoming_room: IncomingRoom::new(config.peer_store_capacity_bytes),
        });
        let base = Arc::new(PeerState {
            resources: NicResources {
                port: config.nic.port_and_gid(&context, None)?,
                context: context.clone(),
                pd,
                channel: channel.clone(),
            },
            store,
            poller: ConnectionPoller::new(channel),
            data_queue_pair_count: config.data_queue_pair_count,
        });
        let running = base.poller.start()?;
        let server = config.listen_address.map(|listen| {
            base.poller.set_may_get_peer_requests();
            let listening = ListeningConfig {
                listen_address: listen,
                nic: config.nic.clone(),
                state: Some(Arc::clone(&base)),
            };
            Server::start_on(&context, listening)
        });
        Ok(Self {
            server: server.transpose()?,
            _polling_thread: running,
            state: base,
        })
    }

    /// Returns the address to which other peers connect, if this peer listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::address)
    }

    /// Returns the protection domain in which memory of tensors must be registered.
    pub fn pd(&self) -> &ProtectionDomain {
        &self.state.resources.pd
    }

    /// Has a tensor for whoever asks, in place of any other of that name. Its bytes must not change until it is
    /// [withdrawn](Self::withdraw).
    pub fn publish(&self, name: TensorName, tensor: Tensor) {
        let waiting = self.state.store.catalogue().publish(name, tensor.clone());
        waiting
            .into_iter()
            .for_each(|w| w.answer_with_tensor(tensor.clone()));
    }

    /// Has a tensor no more; the tensor, whose bytes may change once every transfer of it has ended.
    pub fn withdraw(&self, name: &TensorName) -> Option<Tensor> {
        self.state.store.catalogue().remove(name)
    }

    /// The tensor of this name that this process itself has.
    pub fn find_local(&self, name: &TensorName) -> Option<Tensor> {
        self.state.store.catalogue().find_and_mark_used(name)
    }

    /// Returns the statistics of the peer's store.
    pub fn store_statistics(&self) -> StoreStatistics {
        self.state.store.catalogue().statistics()
    }

    /// Memory of this process for a tensor: peers reach it by the fastest way, and it is used again once it is free.
    ///
    /// # Errors
    /// When the provider has none.
    pub fn allocate(&self, meta: crate::TensorMeta) -> Result<Tensor, Error> {
        let memory = self.state.store.pool.allocate_for_tensor(&meta)?;
        Ok(Tensor::in_memory(meta, memory))
    }

    /// Connects to a peer that listens.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    pub fn connect(&self, address: &str) -> Result<ConnectedPeer, ConnectError> {
        let target = ServerLocation::<RendezvousProtocol>::Tcp(address.to_owned());
        let base = &self.state;
        let (prepared, accepted, connection) =
            target.open_session(REQUESTS_MAX, CONNECT_TIMEOUT, |offer: &ServerHello| {
                let count = base.data_queue_pair_count.min(offer.max_queue_pairs).max(1);
                let prepared = PreparedQueues::new(&base.resources, count)?;
                let hello = Hello::new(process_name(), prepared.endpoints());
                Ok::<_, ConnectError>((prepared, hello))
            })?;
        let queues = prepared.connect(&accepted.endpoints)?;
        let link = PeerLink::new(address.to_owned(), queues, &base.store);
        base.poller.add_link(Arc::clone(&link));
        Ok(ConnectedPeer {
            link,
            poller: Arc::clone(&base.poller),
            _connection: connection,
        })
    }
}

fn process_name() -> String {
    format!("process {}", std::process::id())
}

/// A peer that this process is connected to. Dropping it ends the connection.
#[derive(Debug)]
pub struct ConnectedPeer {
    link: Arc<PeerLink>,
    poller: Arc<ConnectionPoller>,
    _connection: ClientSession,
}

impl ConnectedPeer {
    /// Asks for a tensor. If there is none: waits until there is one (`wait`), or fails. `into`: memory for it, of the
    /// tensor that it is taken to be, registered with [`destination_access`](Self::destination_access).
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn get(
        &self,
        name: TensorName,
        wait: bool,
        into: Option<Tensor>,
    ) -> Result<Operation, Error> {
        self.start_operation(name.clone(), CallerRequest::Get(name, wait, into))
    }

    /// Stores a tensor there. Its bytes must not change before that is done or cancelled. The operation fails if the
    /// peer has published a tensor of this name.
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn put(&self, name: TensorName, tensor: Tensor) -> Result<Operation, Error> {
        self.start_operation(name.clone(), CallerRequest::Put(name, tensor))
    }

    /// Removes a tensor that was stored there. The operation fails if the peer has published it.
    ///
    /// # Errors
    /// When the connection has ended, or too much is outstanding.
    pub fn remove(&self, name: TensorName) -> Result<Operation, Error> {
        self.start_operation(name.clone(), CallerRequest::Remove(name))
    }

    /// Access rights that peers need to the destination of a tensor.
    pub fn destination_access() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_WRITE
    }

    /// Returns true if the connection has ended.
    pub fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    fn start_operation(&self, name: TensorName, ask: CallerRequest) -> Result<Operation, Error> {
        let (index, pending) = self.link.start_request(ask)?;
        Ok(Operation {
            name,
            request_index: index,
            pending_operation: pending,
            link: Arc::clone(&self.link),
            poller: Arc::clone(&self.poller),
            relies_on_thread_guard: Mutex::new(None),
        })
    }
}

impl Drop for ConnectedPeer {
    fn drop(&mut self) {
        self.link.end_connection("it was closed on this side");
        self.poller.remove_link(&self.link);
    }
}

/// Something that a peer was asked for. Dropping it before it is done cancels it.
#[derive(Debug)]
pub struct Operation {
    name: TensorName,
    request_index: u32,
    pending_operation: PendingOperation,
    link: Arc<PeerLink>,
    poller: Arc<ConnectionPoller>,
    /// Of an operation that nobody waits for in a thread.
    relies_on_thread_guard: Mutex<Option<ReliesOnThreadGuard>>,
}

impl Operation {
    /// Returns true if the operation has an outcome.
    pub fn is_done(&self) -> bool {
        self.pending_operation.is_done()
    }

    /// Has `callback` called once there is an outcome, in the thread that finds it. It must not wait.
    pub fn on_done(&self, callback: impl FnOnce() + Send + 'static) {
        if !self.is_done() {
            *self.lock_relies_on_thread_guard() =
                Some(self.poller.register_caller_relying_on_thread());
        }
        self.pending_operation.on_done(Box::new(callback));
    }

    fn lock_relies_on_thread_guard(&self) -> MutexGuard<'_, Option<ReliesOnThreadGuard>> {
        self.relies_on_thread_guard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the outcome; for ever without a timeout. When time has passed the operation is
    /// [cancelled](Self::cancel).
    ///
    /// # Errors
    /// The errors of the operation, and [`Error::Timeout`].
    pub fn wait(self, timeout: Option<Duration>) -> Outcome {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let done = || self.pending_operation.is_done();
        if !self.poller.spin_until_done(&self.link, deadline, done) {
            let _sleeper = self.poller.register_caller_relying_on_thread();
            self.pending_operation.wait_until_done(deadline);
        }
        let outcome = self.pending_operation.take_outcome();
        outcome.unwrap_or_else(|| Err(self.timeout_error(timeout.unwrap_or_default())))
    }

    /// The error of one for which a caller waits no longer than this.
    pub fn timeout_error(&self, timeout: Duration) -> Error {
        Error::Timeout {
            name: self.name.clone(),
            timeout,
        }
    }

    /// Waits at most so long; whether there is an outcome. The operation goes on.
    pub fn is_done_within(&self, time: Duration) -> bool {
        let deadline = Instant::now().checked_add(time);
        if !self
            .poller
            .spin_until_done(&self.link, deadline, || self.pending_operation.is_done())
        {
            let _sleeper = self.poller.register_caller_relying_on_thread();
            self.pending_operation.wait_until_done(deadline);
        }
        self.pending_operation.is_done()
    }

    /// The outcome, if it is there; once.
    pub fn take_outcome(&self) -> Option<Outcome> {
        *self.lock_relies_on_thread_guard() = None;
        self.pending_operation.take_outcome()
    }

    /// The caller wants no outcome any more. After the call no peer writes into memory that was given. None reads a
    /// tensor that was to be stored: the peer stores all bytes as they are now, or nothing.
    pub fn cancel(&self) {
        *self.lock_relies_on_thread_guard() = None;
        if self.pending_operation.is_done() {
            return;
        }
        let (link, index) = (&self.link, self.request_index);
        let in_use = link.cancel_request(index);
        self.pending_operation
            .complete(Err(Error::Cancelled(self.name.clone())));
        let is_free = || match in_use {
            CallerMemoryInUse::None => true,
            CallerMemoryInUse::Destination => !link.is_outstanding(index),
            CallerMemoryInUse::Source => !link.is_sending_offer(index),
        };
        let begun = Instant::now();
        while !is_free() {
            if begun.elapsed() > CANCELLED_MEMORY_GRACE {
                match in_use {
                    CallerMemoryInUse::Source => {
                        link.end_connection("a cancelled transfer was not sent in time");
                    }
                    _ => link.revoke_destination(index),
                }
                break;
            }
            self.poller.spin_until_done(link, None, is_free);
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
struct TensorService {
    config: ListeningConfig,
    state: Arc<PeerState>,
}

#[derive(Debug)]
struct ListeningConfig {
    listen_address: String,
    nic: NicConfig,
    state: Option<Arc<PeerState>>,
}

impl service::ServerConfig for ListeningConfig {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
    fn check_device(&self, _: &Capabilities) -> Result<(), UnsupportedDesign> {
        Ok(())
    }
    fn listen_address(&self) -> &str {
        &self.listen_address
    }
    fn nic(&self) -> &NicConfig {
        &self.nic
    }
    fn max_window(&self) -> usize {
        1 + DATA_QUEUE_PAIRS_MAX
    }
}

/// A connection that somebody else has opened.
#[derive(Debug)]
struct AcceptedConnection(Arc<PeerLink>, Arc<ConnectionPoller>);

impl Drop for AcceptedConnection {
    fn drop(&mut self) {
        self.0.end_connection("the peer has closed it or has gone");
        self.1.remove_link(&self.0);
    }
}

impl Service for TensorService {
    type Protocol = RendezvousProtocol;
    type Config = ListeningConfig;
    type Environment = ();
    type Worker = Infallible;
    type WorkerError = Infallible;
    type Session = AcceptedConnection;
    type Stats = ClientsConnected;

    fn new(
        _: &Context,
        mut config: ListeningConfig,
        (): (),
    ) -> Result<(Arc<Self>, Vec<Infallible>), ServerError> {
        let base = config.state.take();
        let base = base.ok_or_else(|| ServerError::service_failed("nothing to serve"))?;
        Ok((
            Arc::new(Self {
                config,
                state: base,
            }),
            Vec::new(),
        ))
    }

    fn config(&self) -> &ListeningConfig {
        &self.config
    }

    fn server_offer(&self) -> ServerHello {
        ServerHello::new(DATA_QUEUE_PAIRS_MAX)
    }

    fn accept(
        self: &Arc<Self>,
        hello: &Hello,
    ) -> Result<(AcceptReply, AcceptedConnection), ClientRefusal> {
        let count = hello.endpoints.len();
        check_in_range("queue pairs", count, 2..=1 + DATA_QUEUE_PAIRS_MAX)
            .map_err(ClientRefusal::permanent)?;
        let base = &self.state;
        let prepared =
            PreparedQueues::new(&base.resources, count - 1).map_err(ClientRefusal::temporary)?;
        let endpoints = prepared.endpoints();
        let queues = prepared
            .connect(&hello.endpoints)
            .map_err(ClientRefusal::temporary)?;
        let link = PeerLink::new(hello.name.clone(), queues, &base.store);
        base.poller.add_link(Arc::clone(&link));
        Ok((
            AcceptReply { endpoints },
            AcceptedConnection(link, Arc::clone(&base.poller)),
        ))
    }

    fn run_worker(&self, _: usize, worker: Infallible) -> Result<(), Infallible> {
        match worker {}
    }

    fn stats(&self, clients: ClientsConnected) -> ClientsConnected {
        clients
    }

    fn stop(&self) {}
}
