//! The jobs that a driver gives to the responder's process.

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

/// One job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Be the other end of one verb's measurement.
    Micro(MicroOrder),
    /// Be the other end of many queue pairs.
    Connections(ConnectionsOrder),
    /// Be the target of WRITEs that are looked at.
    Probe(ProbeOrder),
    /// Answer requests, and sleep between them.
    Events(EventsOrder),
    /// Be one of a crowd.
    Crowd(MemberOrder),
    /// Be the server of requests at some depth.
    Depth(DepthOrder),
    /// Be the target of copies without a NIC.
    HostCopy(Copies),
    /// Be the other end of messages through bare rings.
    Bare(Bare),
    /// Be the other end of datagrams without a NIC.
    Datagrams(Datagrams),
    /// Be the server of an ordered store without a NIC.
    Lmdb(Serve),
    /// Be the driver of a measurement whose other end is a process that this one starts.
    Drive(DriveOrder),
    /// End.
    Stop,
}

/// A measurement in an environment that the driver of the benchmark does not have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveOrder {
    pub(crate) cores: Cores,
    /// Starts the process at the other end.
    pub(crate) far: Exe,
    /// The NIC of both processes.
    pub(crate) nic: NicChoice,
    pub(crate) what: Driven,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driven {
    /// One verb.
    Task(Task),
    /// CPU time of the process at the other end, which is idle.
    IdleCpu {
        /// Its connected queue pairs.
        queue_pairs: usize,
    },
}

/// A part of a measurement of one verb.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MicroOrder {
    /// The worker's NIC.
    pub(crate) nic: NicChoice,
    pub(crate) task: Task,
    /// Threads of the worker.
    pub(crate) lanes: usize,
    /// Cores for the lanes' threads, in turn; on another host those that it chooses itself.
    pub(crate) cores: Vec<usize>,
}

/// Queue pairs that are connected all at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionsOrder {
    /// The worker's NIC.
    pub(crate) nic: NicChoice,
    pub(crate) queue_pairs: usize,
    /// Whether the worker then sleeps until it is told to end.
    pub(crate) idle: bool,
}

/// A probe of WRITEs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeOrder {
    /// The target's NIC.
    pub(crate) nic: NicChoice,
    pub(crate) probe: Probe,
}

/// Round trips between processes that sleep: answer every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventsOrder {
    /// The worker's NIC, where it needs one.
    pub(crate) nic: NicChoice,
    pub(crate) transport: Transport,
}
