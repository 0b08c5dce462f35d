//! A server with threads: listens on TCP, runs its workers, and stops.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use verbs::Context;

use crate::acceptor::Acceptor;
use crate::config::ServerConfig;
use crate::connector::AcceptSide;
use crate::protocol::Protocol;
use crate::rendezvous::serve_connection;
use crate::service_trait::{ServerError, Service, SharedService};

/// A running server; dropping it stops the server.
#[derive(Debug)]
pub struct Server<S: Service> {
    shared_service: Arc<SharedService<S>>,
    address: SocketAddr,
    acceptor: Option<Acceptor>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Service> Server<S> {
    /// Starts a server. It serves clients when this function returns.
    ///
    /// # Errors
    /// When the server cannot start.
    pub fn start(config: S::Config) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let context = config.nic().open()?;
        Self::start_on(&context, config)
    }

    /// Starts a server on an open device. Provider and device in the configuration are ignored.
    ///
    /// # Errors
    /// When the server cannot start. The first check is for [`ServerError::Unsupported`]: the
    /// device lacks what the design needs.
    pub fn start_on(context: &Context, config: S::Config) -> Result<Self, ServerError> {
        Self::start_prepared_on(context, config, |_| Ok(()))
    }

    /// Starts a server on an open device after `prepare` has returned, for a service that is filled before clients see
    /// it. The address is bound before: clients that connect meanwhile wait.
    ///
    /// # Errors
    /// Those of [`start_on`](Self::start_on), and those of `prepare`.
    pub fn start_prepared_on<E: From<ServerError>>(
        context: &Context,
        config: S::Config,
        prepare: impl FnOnce(&S) -> Result<(), E>,
    ) -> Result<Self, E> {
        SharedService::<S>::check_config_and_device(context, &config)?;
        let listen = |source| ServerError::Listen {
            address: config.listen_address().to_owned(),
            source,
        };
        let listener = TcpListener::bind(config.listen_address()).map_err(listen)?;
        let address = listener.local_addr().map_err(ServerError::from)?;
        let (host, workers) = SharedService::new(context, config, S::Environment::default())?;
        prepare(&host.service)?;
        let mut server = Self {
            shared_service: host,
            address,
            acceptor: None,
            threads: Vec::new(),
        };
        server.start_threads(listener, workers)?;
        Ok(server)
    }

    fn start_threads(
        &mut self,
        listener: TcpListener,
        workers: Vec<S::Worker>,
    ) -> Result<(), ServerError> {
        for (i, worker) in workers.into_iter().enumerate() {
            let host = Arc::clone(&self.shared_service);
            self.spawn(format!("worker {i}"), move || host.run_worker(i, worker))?;
        }
        if let Some((name, work)) = self
            .shared_service
            .service
            .background_thread_name_and_body(&self.shared_service.failure)
        {
            self.spawn(name, work)?;
        }
        let host = Arc::clone(&self.shared_service);
        self.acceptor = Some(Acceptor::start(listener, move |stream| {
            let offer = host.server_offer();
            serve_connection(stream, S::Protocol::SERVICE, &offer, |hello| {
                host.accept_client(hello)
            });
        })?);
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        let thread = std::thread::Builder::new().name(name).spawn(work)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Returns the TCP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the configuration of the server.
    pub fn config(&self) -> &S::Config {
        self.shared_service.service.config()
    }

    /// Returns the service.
    pub fn service(&self) -> &Arc<S> {
        &self.shared_service.service
    }

    /// Returns the statistics so far. Counts of a busy worker may lag by a few thousand requests.
    pub fn stats(&self) -> S::Stats {
        self.shared_service.stats()
    }

    /// Returns the failure that ended the service, if any; the program should stop then.
    pub fn failure(&self) -> Option<String> {
        self.shared_service.failure.get()
    }

    /// Stops the server and returns its statistics.
    pub fn stop(mut self) -> S::Stats {
        self.shut_down();
        self.stats()
    }

    fn shut_down(&mut self) {
        self.shared_service.service.stop_offering();
        // End the connections first, while the workers still process the removal of clients.
        self.acceptor = None;
        self.shared_service.service.stop();
        for thread in self.threads.drain(..) {
            // A panicked thread needs no stop.
            let _ = thread.join();
        }
    }
}

impl<S: Service> Drop for Server<S> {
    fn drop(&mut self) {
        self.shut_down();
    }
}
