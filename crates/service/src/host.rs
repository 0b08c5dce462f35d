//! A service and what is known of it, whoever runs its workers: its clients, and whether it broke.

use std::fmt::{Debug, Display};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use verbs::Context;

use crate::config::ServerConfig;
use crate::connector::AcceptSide;
use crate::design::Unsupported;
use crate::nic::OpenError;
use crate::protocol::{Protocol, check_hello};
use crate::rendezvous::Refused;
use crate::worker::lock;

/// What the server of one system does: [`Server`](crate::Server) runs it with threads and TCP,
/// [`LocalServer`](crate::LocalServer) without.
pub trait Service: Debug + Send + Sync + Sized + 'static {
    /// The messages of its rendezvous.
    type Protocol: Protocol;
    /// Its configuration.
    type Config: ServerConfig;
    /// What it takes from its surroundings, such as a clock. The default is that of a server with threads.
    type Environment: Default;
    /// A worker that does not run yet.
    type Worker: Debug + Send + 'static;
    /// Why a worker ends early.
    type WorkerError: Display;
    /// What a client has at the server. Dropping it frees it.
    type Session: Debug + Send + Sync + 'static;
    /// What it reports.
    type Stats;

    /// Its objects on a device, and its workers.
    ///
    /// # Errors
    /// Why it does not start.
    fn new(
        context: &Context,
        config: Self::Config,
        environment: Self::Environment,
    ) -> Result<(Arc<Self>, Vec<Self::Worker>), ServerError>;

    /// The configuration that it runs with.
    fn config(&self) -> &Self::Config;

    /// What a client hears first.
    fn welcome(&self) -> WelcomeOf<Self>;

    /// Connects this side to a client, whose version and window have been checked.
    ///
    /// # Errors
    /// Why not.
    fn accept(
        self: &Arc<Self>,
        hello: &HelloOf<Self>,
    ) -> Result<(AcceptedOf<Self>, Self::Session), Refused>;

    /// Runs a worker until [`stop`](Self::stop).
    ///
    /// # Errors
    /// Why it cannot go on.
    fn work(&self, index: usize, worker: Self::Worker) -> Result<(), Self::WorkerError>;

    /// Work for a thread of its own beside the workers, if there is any.
    fn background(
        self: &Arc<Self>,
        _failure: &Failure,
    ) -> Option<(String, Box<dyn FnOnce() + Send>)> {
        None
    }

    /// What it did so far, with this many clients.
    fn stats(&self, clients: ClientCounts) -> Self::Stats;

    /// Gives clients nothing more: called before their connections end.
    fn close(&self) {}

    /// Tells the workers to end.
    fn stop(&self);
}

/// What a client of a service hears first.
pub type WelcomeOf<S> = <<S as Service>::Protocol as Protocol>::Welcome;
/// What a client of a service says.
pub type HelloOf<S> = <<S as Service>::Protocol as Protocol>::Hello;
/// What a client of a service is answered.
pub type AcceptedOf<S> = <<S as Service>::Protocol as Protocol>::Accepted;

/// Why a server of any service does not start.
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
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    /// The system refused a thread or a descriptor.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The service itself cannot start.
    #[error(transparent)]
    Service(Box<dyn std::error::Error + Send + Sync>),
}

impl ServerError {
    /// The service itself cannot start, for this reason.
    pub fn service(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Service(reason.into())
    }
}

/// Clients of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientCounts {
    /// That are connected.
    pub now: u64,
    /// That have ever connected.
    pub total: u64,
}

/// Why a server no longer serves: the first failure of any of its threads. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Failure(Arc<Mutex<Option<String>>>);

impl Failure {
    /// Something broke.
    pub fn set(&self, what: String) {
        tracing::error!("{what}");
        lock(&self.0).get_or_insert(what);
    }

    /// What broke first, if anything did.
    pub fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

/// A service that is served.
#[derive(Debug)]
pub(crate) struct Host<S: Service> {
    pub(crate) service: Arc<S>,
    pub(crate) failure: Failure,
    clients: Arc<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    now: AtomicU64,
    total: AtomicU64,
}

/// A client that is counted as long as this lives.
#[derive(Debug)]
struct Counted(Arc<Clients>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a client has at the server, and that it is counted.
#[derive(Debug)]
pub(crate) struct Attached<T> {
    _session: T,
    _counted: Counted,
}

impl<S: Service> Host<S> {
    /// A service on a device, and its workers, which do not run yet.
    pub(crate) fn new(
        context: &Context,
        config: S::Config,
        environment: S::Environment,
    ) -> Result<(Arc<Self>, Vec<S::Worker>), ServerError> {
        let (service, workers) = S::new(context, config, environment)?;
        let host = Arc::new(Self {
            service,
            failure: Failure::default(),
            clients: Arc::default(),
        });
        Ok((host, workers))
    }

    /// Refuses a configuration that cannot work, or not on this device.
    pub(crate) fn check(context: &Context, config: &S::Config) -> Result<(), ServerError> {
        config.check().map_err(ServerError::Config)?;
        config.check_device(context.capabilities()?)?;
        Ok(())
    }

    pub(crate) fn run_worker(&self, index: usize, worker: S::Worker) {
        if let Err(e) = self.service.work(index, worker) {
            self.failure.set(format!("worker {index} failed: {e}"));
        }
    }

    pub(crate) fn accept_client(
        &self,
        hello: &HelloOf<S>,
    ) -> Result<(AcceptedOf<S>, Attached<S::Session>), Refused> {
        check_hello::<S::Protocol>(hello, self.service.config().max_window())?;
        self.clients.now.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(&self.clients));
        let (accepted, session) = self.service.accept(hello)?;
        self.clients.total.fetch_add(1, Ordering::Relaxed);
        let attached = Attached {
            _session: session,
            _counted: counted,
        };
        Ok((accepted, attached))
    }

    pub(crate) fn stats(&self) -> S::Stats {
        self.service.stats(ClientCounts {
            now: self.clients.now.load(Ordering::Relaxed),
            total: self.clients.total.load(Ordering::Relaxed),
        })
    }
}

impl<S: Service> AcceptSide<S::Protocol> for Host<S> {
    fn welcome(&self) -> WelcomeOf<S> {
        self.service.welcome()
    }

    fn accept(
        &self,
        hello: &HelloOf<S>,
    ) -> Result<(AcceptedOf<S>, Box<dyn Debug + Send + Sync>), Refused> {
        let (accepted, attached) = self.accept_client(hello)?;
        Ok((accepted, Box::new(attached)))
    }

    fn stop(&self) {
        self.service.close();
        self.service.stop();
    }
}
