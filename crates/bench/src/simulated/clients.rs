//! The clients of a simulated experiment: they connect, begin together, and report.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::rc::Rc;

use anyhow::{Result, bail};
use verbs::Waiter;

use super::SimulatedCluster;

/// The clients of an experiment, each of which returns a report of type `R`.
#[derive(Debug)]
pub(super) struct SimulatedClients<R> {
    barrier: SimulatedBarrier,
    reports: Rc<RefCell<Vec<R>>>,
    last_failure: Rc<RefCell<Option<String>>>,
    /// Number of clients that were started.
    started_clients: Cell<usize>,
    /// Number of clients that have not ended.
    running_clients: Rc<Cell<usize>>,
}

impl<R> Default for SimulatedClients<R> {
    fn default() -> Self {
        Self {
            barrier: SimulatedBarrier::default(),
            reports: Rc::default(),
            last_failure: Rc::default(),
            started_clients: Cell::default(),
            running_clients: Rc::default(),
        }
    }
}

impl<R: 'static> SimulatedClients<R> {
    /// Starts a client on a machine. `run` connects, waits at the barrier, and returns the client's report. The client
    /// that ends last calls `after_last`.
    pub(super) fn start<E: Display>(
        &self,
        cluster: &SimulatedCluster,
        machine: usize,
        run: impl FnOnce(&SimulatedBarrier) -> Result<R, E> + 'static,
        after_last: impl FnOnce() + 'static,
    ) {
        let name = format!("client {}", self.started_clients.get());
        self.started_clients.set(self.started_clients.get() + 1);
        self.running_clients.set(self.running_clients.get() + 1);
        let (barrier, running) = (self.barrier.clone(), Rc::clone(&self.running_clients));
        let (reports, failure) = (Rc::clone(&self.reports), Rc::clone(&self.last_failure));
        cluster.spawn(machine, name, move || {
            match run(&barrier) {
                Ok(report) => reports.borrow_mut().push(report),
                Err(error) => {
                    barrier.arrive();
                    *failure.borrow_mut() = Some(error.to_string());
                }
            }
            running.set(running.get() - 1);
            if running.get() == 0 {
                after_last();
            }
        });
    }

    /// Waits until all clients have connected, and lets them begin.
    ///
    /// # Errors
    /// When a client cannot connect.
    pub(super) fn begin_when_connected(&self, cluster: &SimulatedCluster) -> Result<()> {
        cluster.run_until(|| self.barrier.arrived_threads.get() >= self.started_clients.get())?;
        self.barrier.is_open.set(true);
        match self.take_failure() {
            Some(failure) => bail!("a client cannot connect: {failure}"),
            None => Ok(()),
        }
    }

    /// Returns true if all clients have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.running_clients.get() == 0
    }

    /// Returns the failure of the client that failed last.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.last_failure.take()
    }

    /// Returns the reports of the clients that have ended, in the order of their ends.
    pub(super) fn take_reports(&self) -> Vec<R> {
        self.reports.take()
    }
}

/// A barrier for simulated threads: each thread arrives and waits until `is_open` is set.
#[derive(Clone, Debug, Default)]
pub(super) struct SimulatedBarrier {
    arrived_threads: Rc<Cell<usize>>,
    is_open: Rc<Cell<bool>>,
}

impl SimulatedBarrier {
    /// Notes the arrival of a simulated thread, and waits until the barrier is open.
    pub(super) fn arrive_and_wait(&self) {
        self.arrive();
        let mut waiter = Waiter::new();
        while !self.is_open.get() {
            waiter.idle();
        }
    }

    fn arrive(&self) {
        self.arrived_threads.set(self.arrived_threads.get() + 1);
    }
}
