//! Jobs that a driver sends to the worker process.

use serde::{Deserialize, Serialize};

use crate::crowd::MemberOrder;
use crate::depth::DepthOrder;
use crate::events::kinds::Transport;
use crate::link::Exe;
use crate::micro::task::Task;
use crate::nic::NicChoice;
use crate::peers::bare::Bare;
use crate::peers::copy::Copies;
use crate::peers::datagrams::Datagrams;
use crate::peers::lmdb::order::Serve;
use crate::pin::Cores;
use crate::probe::question::Probe;

/// A job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Run the other end of one verb's measurement.
    Micro(MicroOrder),
    /// Run the other end of many queue pairs.
    Connections(ConnectionsOrder),
    /// Run the target of probed WRITEs.
    Probe(ProbeOrder),
    /// Answer requests, and sleep between them.
    Events(EventsOrder),
    /// Run one member of a crowd.
    Crowd(MemberOrder),
    /// Run the server of requests at a given depth.
    Depth(DepthOrder),
    /// Run the target of copies without a NIC.
    HostCopy(Copies),
    /// Run the other end of messages through bare rings.
    Bare(Bare),
    /// Run the other end of datagrams without a NIC.
    Datagrams(Datagrams),
    /// Run the server of an ordered store without a NIC.
    Lmdb(Serve),
    /// Drive a measurement whose other end is a process that this worker starts.
    Drive(DriveOrder),
    /// End the worker.
    Stop,
}

/// A measurement in a process with another environment than the benchmark's driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveOrder {
    pub(crate) cores: Cores,
    /// Program that runs at the other end.
    pub(crate) far: Exe,
    /// NIC of both processes.
    pub(crate) nic: NicChoice,
    #[serde(rename = "what")]
    pub(crate) driven: Driven,
}

/// Measurement to drive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driven {
    /// Measurement of one verb.
    Task(Task),
    /// Measurement of the CPU time of an idle process at the other end.
    IdleCpu {
        /// Connected queue pairs of the idle process.
        queue_pairs: usize,
    },
}

/// One process's part of a measurement of one verb.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MicroOrder {
    /// NIC of the worker.
    pub(crate) nic: NicChoice,
    pub(crate) task: Task,
    /// Number of the worker's threads, one per lane.
    pub(crate) lanes: usize,
    /// Cores for the lanes' threads, used in turn. A worker on another host chooses its own cores.
    pub(crate) cores: Vec<usize>,
}

/// Queue pairs that are connected all at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionsOrder {
    /// NIC of the worker.
    pub(crate) nic: NicChoice,
    pub(crate) queue_pairs: usize,
    /// True if the worker then sleeps until the driver ends the job.
    pub(crate) idle: bool,
}

/// A probe of WRITEs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeOrder {
    /// NIC of the target.
    pub(crate) nic: NicChoice,
    pub(crate) probe: Probe,
}

/// Round trips between processes that sleep; the worker answers every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventsOrder {
    /// NIC of the worker, used only by [`Transport::Verbs`].
    pub(crate) nic: NicChoice,
    pub(crate) transport: Transport,
}
