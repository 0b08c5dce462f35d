//! A service, and state that is independent of who runs its workers: its clients, and its first
//! failure.

use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use verbs::Context;

use crate::config::ServerConfig;
use crate::connector::AcceptSide;
use crate::design::UnsupportedDesign;
use crate::nic::OpenError;
use crate::protocol::{Protocol, check_hello};
use crate::rendezvous::ClientRefusal;
use crate::worker::lock;

/// The server of one system. [`Server`](crate::Server) runs it with threads and TCP,
/// [`LocalServer`](crate::LocalServer) without.
pub trait Service: Debug + Send + Sync + Sized + 'static {
    /// Messages of the rendezvous.
    type Protocol: Protocol;
    /// Configuration of the server.
    type Config: ServerConfig;
    /// Dependencies on the environment, such as a clock. The default is that of a server with
    /// threads.
    type Environment: Default;
    /// A worker that does not run yet.
    type Worker: Debug + Send + 'static;
    /// Error that ends a worker early.
    type WorkerError: Display;
    /// A client's resources at the server; dropping it frees them.
    type Session: Debug + Send + Sync + 'static;
    /// Statistics of the server.
    type Stats;

    /// Creates the service's objects on a device, and its workers.
    ///
    /// # Errors
    /// When the service cannot start.
    fn new(
        context: &Context,
        config: Self::Config,
        runtime: Self::Environment,
    ) -> Result<(Arc<Self>, Vec<Self::Worker>), ServerError>;

    /// Returns the configuration of the server.
    fn config(&self) -> &Self::Config;

    /// Returns the server's first message to a client.
    fn server_offer(&self) -> ServerOfferOf<Self>;

    /// Connects the server's side to a client, whose version and window have been checked.
    ///
    /// # Errors
    /// When the server refuses the client.
    fn accept(
        self: &Arc<Self>,
        hello: &HelloOf<Self>,
    ) -> Result<(AcceptedOf<Self>, Self::Session), ClientRefusal>;

    /// Runs a worker until [`stop`](Self::stop).
    ///
    /// # Errors
    /// When the worker cannot continue.
    fn run_worker(&self, index: usize, worker: Self::Worker) -> Result<(), Self::WorkerError>;

    /// Returns the name and the body of a further thread beside the workers, if the service needs
    /// one.
    fn background_thread_name_and_body(
        self: &Arc<Self>,
        _failure: &FirstFailure,
    ) -> Option<(String, Box<dyn FnOnce() + Send>)> {
        None
    }

    /// Returns the statistics so far, with these counts of clients.
    fn stats(&self, clients: ClientsConnected) -> Self::Stats;

    /// Stops offering anything new to clients; called before their connections end.
    fn stop_offering(&self) {}

    /// Makes the workers end.
    fn stop(&self);
}

/// The first message of a service to a client.
pub type ServerOfferOf<S> = <<S as Service>::Protocol as Protocol>::ServerOffer;
/// The message of a client to a service.
pub type HelloOf<S> = <<S as Service>::Protocol as Protocol>::Hello;
/// The answer of a service to a client that it accepts.
pub type AcceptedOf<S> = <<S as Service>::Protocol as Protocol>::Accepted;

/// Error of a server that does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address of the server.
        address: String,
        /// Cause.
        source: std::io::Error,
    },
    /// The device lacks what the design needs.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedDesign),
    /// The NIC cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The system cannot create a thread or a descriptor.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The service itself cannot start.
    #[error(transparent)]
    Service(Box<dyn std::error::Error + Send + Sync>),
}

verbs::from_verb_errors!(ServerError);

impl ServerError {
    /// Creates the error of a service that cannot start.
    pub fn service_failed(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Service(reason.into())
    }
}

/// Counts of a server's clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientsConnected {
    /// Clients that are connected now.
    pub now: u64,
    /// Clients that have ever connected.
    pub ever: u64,
}

/// The first failure of any of a server's threads. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct FirstFailure(Arc<Mutex<Option<String>>>);

impl FirstFailure {
    /// Records a failure; only the first one is kept.
    pub fn record_if_first(&self, what: String) {
        tracing::error!("{what}");
        lock(&self.0).get_or_insert(what);
    }

    /// Returns the first failure, if any.
    pub fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

/// The state that a server shares with its workers: the service, its first failure and the counts of its clients.
#[derive(Debug)]
pub(crate) struct SharedService<S: Service> {
    pub(crate) service: Arc<S>,
    pub(crate) failure: FirstFailure,
    client_counters: Arc<ClientCounters>,
}

#[derive(Debug, Default)]
struct ClientCounters {
    connected: AtomicU64,
    ever_connected: AtomicU64,
}

/// A client that is counted as connected as long as this value lives.
#[derive(Debug)]
struct ConnectedClientGuard(Arc<ClientCounters>);

impl Drop for ConnectedClientGuard {
    fn drop(&mut self) {
        self.0.connected.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's session and its count.
#[derive(Debug)]
pub(crate) struct CountedSession<T> {
    _session: T,
    _counted: ConnectedClientGuard,
}

impl<S: Service> SharedService<S> {
    /// Creates a service on a device, and its workers, which do not run yet.
    pub(crate) fn new(
        context: &Context,
        config: S::Config,
        runtime: S::Environment,
    ) -> Result<(Arc<Self>, Vec<S::Worker>), ServerError> {
        let (service, workers) = S::new(context, config, runtime)?;
        let host = Arc::new(Self {
            service,
            failure: FirstFailure::default(),
            client_counters: Arc::default(),
        });
        Ok((host, workers))
    }

    /// Fails for an invalid configuration, and for a device that cannot run it.
    pub(crate) fn check_config_and_device(
        context: &Context,
        config: &S::Config,
    ) -> Result<(), ServerError> {
        config.check().map_err(ServerError::Config)?;
        config.check_device(context.capabilities()?)?;
        Ok(())
    }

    pub(crate) fn run_worker(&self, index: usize, worker: S::Worker) {
        if let Err(e) = self.service.run_worker(index, worker) {
            self.failure
                .record_if_first(format!("worker {index} failed: {e}"));
        }
    }

    pub(crate) fn accept_client(
        &self,
        hello: &HelloOf<S>,
    ) -> Result<(AcceptedOf<S>, CountedSession<S::Session>), ClientRefusal> {
        check_hello::<S::Protocol>(hello, self.service.config().max_window())?;
        self.client_counters
            .connected
            .fetch_add(1, Ordering::Relaxed);
        let counted = ConnectedClientGuard(Arc::clone(&self.client_counters));
        let (accepted, session) = self.service.accept(hello)?;
        self.client_counters
            .ever_connected
            .fetch_add(1, Ordering::Relaxed);
        let attached = CountedSession {
            _session: session,
            _counted: counted,
        };
        Ok((accepted, attached))
    }

    pub(crate) fn stats(&self) -> S::Stats {
        self.service.stats(ClientsConnected {
            now: self.client_counters.connected.load(Ordering::Relaxed),
            ever: self.client_counters.ever_connected.load(Ordering::Relaxed),
        })
    }
}

impl<S: Service> AcceptSide<S::Protocol> for SharedService<S> {
    fn server_offer(&self) -> ServerOfferOf<S> {
        self.service.server_offer()
    }

    fn accept(
        &self,
        hello: &HelloOf<S>,
    ) -> Result<(AcceptedOf<S>, Box<dyn Debug + Send + Sync>), ClientRefusal> {
        let (accepted, attached) = self.accept_client(hello)?;
        Ok((accepted, Box::new(attached)))
    }

    fn stop(&self) {
        self.service.stop_offering();
        self.service.stop();
    }
}
