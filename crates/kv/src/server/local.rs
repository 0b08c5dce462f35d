//! A server without threads and without TCP: the caller runs its workers where it likes, and clients come in by a
//! call. The same workers and queue pairs as behind TCP: only the door is another.

use std::sync::Arc;
use std::time::Duration;

use rpc::exchange::Refused;
use rpc::worker::lock;
use verbs::Context;

use super::{Pass, ServerError, Shared};
use crate::ServerConfig;
use crate::client::Locations;
use crate::rendezvous::{Accepted, Hello, Welcome};
use crate::report::ServerStats;
use crate::store::{Refusal, Store};
use crate::worker::Worker;

/// A server whose workers the caller runs.
#[derive(Debug)]
pub struct LocalServer {
    shared: Arc<Shared>,
    workers: Vec<LocalWorker>,
}

/// A worker that does not run yet.
#[derive(Debug)]
pub struct LocalWorker {
    shared: Arc<Shared>,
    worker: Worker,
}

/// Where clients of a [`LocalServer`] come in. Clones lead to the same server.
#[derive(Debug, Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl LocalServer {
    /// A server on a device, whatever the configuration says of provider, device and address. Hashes start from
    /// `seed`, so that the same is the same in every run; `cost` is what a request costs a simulated core beside its
    /// verbs.
    ///
    /// # Errors
    /// As for [`Server::start_on`](crate::Server::start_on).
    pub fn new(
        context: &Context,
        config: ServerConfig,
        seed: u64,
        cost: Duration,
    ) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        config.design.check(context.capabilities()?)?;
        // Virtual time has its own clock, which nothing here expires by.
        let (shared, workers) = Shared::new(context, config, || 0, seed, (cost, false))?;
        let of = |worker| LocalWorker {
            shared: Arc::clone(&shared),
            worker,
        };
        let workers = workers.into_iter().map(of).collect();
        Ok(Self { shared, workers })
    }

    /// Its workers, to be run: none the second time.
    pub fn take_workers(&mut self) -> Vec<LocalWorker> {
        std::mem::take(&mut self.workers)
    }

    /// What it serves.
    pub fn store(&self) -> &Arc<Store> {
        &self.shared.store
    }

    /// Puts an item without a network, before any client comes; tells `known` where it is, where clients need to know.
    ///
    /// # Errors
    /// As for a PUT.
    pub fn preload(&self, key: &[u8], value: &[u8], known: &Locations) -> Result<(), Refusal> {
        self.shared.preload(key, value, known)
    }

    /// Where clients come in. Its workers must be running by the time that one does.
    pub fn door(&self) -> Door {
        Door {
            shared: Arc::clone(&self.shared),
        }
    }

    /// What it did so far. Counts of a busy worker are a few thousand requests old.
    pub fn stats(&self) -> ServerStats {
        self.shared.stats()
    }

    /// Why it no longer serves, if something broke.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }
}

impl LocalWorker {
    /// Serves until the server is told to stop.
    pub fn run(self) {
        if let Err(e) = self.worker.run() {
            self.shared.fail(format!("a worker failed: {e}"));
        }
    }
}

impl Door {
    pub(crate) fn welcome(&self) -> Welcome {
        self.shared.welcome()
    }

    pub(crate) fn enter(&self, hello: &Hello) -> Result<(Accepted, Pass), Refused> {
        self.shared.enter(hello)
    }

    /// Tells the server to stop: its workers end.
    pub fn close(&self) {
        self.shared.close();
    }
}
