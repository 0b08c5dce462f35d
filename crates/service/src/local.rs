//! A server without threads and without TCP. The caller runs its workers, and clients connect by a
//! function call. Workers and queue pairs are the same as behind TCP.

use std::sync::Arc;

use verbs::Context;

use crate::connector::{AcceptSide, LocalConnector};
use crate::service_trait::{ServerError, Service, SharedService};

/// A server whose workers the caller runs.
#[derive(Debug)]
pub struct LocalServer<S: Service> {
    shared_service: Arc<SharedService<S>>,
    workers: Vec<LocalWorker<S>>,
}

/// A worker that does not run yet.
#[derive(Debug)]
pub struct LocalWorker<S: Service> {
    shared_service: Arc<SharedService<S>>,
    index: usize,
    worker: S::Worker,
}

impl<S: Service> LocalServer<S> {
    /// Creates a server on a device. Provider, device and address in the configuration are ignored.
    ///
    /// # Errors
    /// As for [`Server::start_on`](crate::Server::start_on).
    pub fn new(
        context: &Context,
        config: S::Config,
        runtime: S::Environment,
    ) -> Result<Self, ServerError> {
        SharedService::<S>::check_config_and_device(context, &config)?;
        let (host, workers) = SharedService::new(context, config, runtime)?;
        let of = |(index, worker)| LocalWorker {
            shared_service: Arc::clone(&host),
            index,
            worker,
        };
        Ok(Self {
            workers: workers.into_iter().enumerate().map(of).collect(),
            shared_service: host,
        })
    }

    /// Returns the workers, which the caller must run; the second call returns none.
    pub fn take_workers(&mut self) -> Vec<LocalWorker<S>> {
        std::mem::take(&mut self.workers)
    }

    /// Returns a connector for clients. The workers must run when the first client connects.
    pub fn connector(&self) -> LocalConnector<S::Protocol> {
        let host: Arc<dyn AcceptSide<S::Protocol>> = self.shared_service.clone();
        LocalConnector(host)
    }

    /// Returns the service.
    pub fn service(&self) -> &Arc<S> {
        &self.shared_service.service
    }

    /// Returns the statistics so far. Counts of a busy worker may lag by a few thousand requests.
    pub fn stats(&self) -> S::Stats {
        self.shared_service.stats()
    }

    /// Returns the failure that ended the service, if any.
    pub fn failure(&self) -> Option<String> {
        self.shared_service.failure.get()
    }
}

impl<S: Service> LocalWorker<S> {
    /// Serves until the server is stopped.
    pub fn run(self) {
        self.shared_service.run_worker(self.index, self.worker);
    }
}
