//! A server without threads and without TCP: the caller runs its workers where it likes, and clients come in by a call.
//! The same workers and queue pairs as behind TCP.

use std::sync::Arc;

use verbs::Context;

use crate::connector::{AcceptSide, Connector};
use crate::host::{Host, ServerError, Service};

/// A server whose workers the caller runs.
#[derive(Debug)]
pub struct LocalServer<S: Service> {
    host: Arc<Host<S>>,
    workers: Vec<LocalWorker<S>>,
}

/// A worker that does not run yet.
#[derive(Debug)]
pub struct LocalWorker<S: Service> {
    host: Arc<Host<S>>,
    index: usize,
    worker: S::Worker,
}

impl<S: Service> LocalServer<S> {
    /// A server on a device, whatever the configuration says of provider, device and address.
    ///
    /// # Errors
    /// As for [`Server::start_on`](crate::Server::start_on).
    pub fn new(
        context: &Context,
        config: S::Config,
        environment: S::Environment,
    ) -> Result<Self, ServerError> {
        Host::<S>::check(context, &config)?;
        let (host, workers) = Host::new(context, config, environment)?;
        let of = |(index, worker)| LocalWorker {
            host: Arc::clone(&host),
            index,
            worker,
        };
        Ok(Self {
            workers: workers.into_iter().enumerate().map(of).collect(),
            host,
        })
    }

    /// Its workers, to be run: none the second time.
    pub fn take_workers(&mut self) -> Vec<LocalWorker<S>> {
        std::mem::take(&mut self.workers)
    }

    /// Connects clients to it. Its workers must be running by the time that one comes.
    pub fn connector(&self) -> Connector<S::Protocol> {
        let host: Arc<dyn AcceptSide<S::Protocol>> = self.host.clone();
        Connector(host)
    }

    /// What it serves.
    pub fn service(&self) -> &Arc<S> {
        &self.host.service
    }

    /// What it did so far. Counts of a busy worker are a few thousand requests old.
    pub fn stats(&self) -> S::Stats {
        self.host.stats()
    }

    /// Why it no longer serves, if something broke.
    pub fn failure(&self) -> Option<String> {
        self.host.failure.get()
    }
}

impl<S: Service> LocalWorker<S> {
    /// Serves until the server is told to stop.
    pub fn run(self) {
        self.host.run_worker(self.index, self.worker);
    }
}
