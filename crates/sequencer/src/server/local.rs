//! A server without threads and without TCP: the caller runs its workers where it likes, and clients come in
//! by a call. The same workers and queue pairs as behind TCP: only the door is another.

use std::sync::Arc;

use rpc::exchange::Refused;
use rpc::worker::lock;
use verbs::Context;

use super::{Pass, ServerError, Shared};
use crate::rendezvous::{Accepted, Hello, Welcome};
use crate::worker::{self, Command, Engine};
use crate::{Design, ServerConfig, ServerStats};

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
    index: usize,
    engine: Engine,
}

/// Where clients of a [`LocalServer`] come in. Clones lead to the same server.
#[derive(Debug, Clone)]
pub struct Door {
    shared: Arc<Shared>,
}

impl LocalServer {
    /// A server on a device, whatever the configuration says of provider, device and address.
    ///
    /// # Errors
    /// As for [`Server::start_on`](crate::Server::start_on); [`ServerError::Config`] if it is to keep a state
    /// file, which needs a thread.
    pub fn new(context: &Context, config: ServerConfig) -> Result<Self, ServerError> {
        config.check().map_err(ServerError::Config)?;
        if config.state.is_some() {
            return Err(ServerError::Config(
                "a server without threads keeps no state file".to_owned(),
            ));
        }
        config.design.check(context.capabilities()?)?;
        let (shared, engines) = Shared::new(context, config, None)?;
        let workers = engines
            .into_iter()
            .enumerate()
            .map(|(index, engine)| LocalWorker {
                shared: Arc::clone(&shared),
                index,
                engine,
            });
        Ok(Self {
            workers: workers.collect(),
            shared,
        })
    }

    /// Its workers, to be run: none with `atomics`, and none the second time.
    pub fn take_workers(&mut self) -> Vec<LocalWorker> {
        std::mem::take(&mut self.workers)
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

    /// The next number.
    pub fn next(&self) -> u64 {
        self.shared.counter.next()
    }

    /// Why it no longer serves, if something broke.
    pub fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }
}

impl LocalWorker {
    /// Serves until the server is told to stop.
    pub fn run(self) {
        let Self {
            shared,
            index,
            engine,
        } = self;
        let speculate = shared.config.design == Design::SpecS0;
        let result = worker::run(engine, &shared.workers[index], &shared.counter, speculate);
        if let Err(e) = result {
            shared.fail(format!("worker {index} failed: {e}"));
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
        self.shared.counter.stop();
        for worker in &self.shared.workers {
            worker.mailbox.tell(Command::Stop);
        }
    }
}
