//! Jobs that a driver sends to the worker process.

use serde::{Deserialize, Serialize};

use crate::core_pinning::CorePair;
use crate::crowd::MemberJob;
use crate::depth::DepthJob;
use crate::events::transport_and_placement::Transport;
use crate::link::WorkerCommand;
use crate::micro::task::MeasurementTask;
use crate::open_nic::NicChoice;
use crate::peers::bare_exchange_parameters::BareExchangeParameters;
use crate::peers::copy_parameters::CopyParameters;
use crate::peers::datagram_parameters::DatagramParameters;
use crate::peers::lmdb::serve_job::LmdbServeJob;
use crate::probe::write_probe::WriteProbe;

/// A job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Run the other end of one verb's measurement.
    Micro(MicroJob),
    /// Run the other end of many queue pairs.
    Connections(ConnectionsJob),
    /// Run the target of probed WRITEs.
    Probe(ProbeJob),
    /// Answer requests, and sleep between them.
    Events(EventsJob),
    /// Run one member of a crowd.
    Crowd(MemberJob),
    /// Run the server of requests at a given depth.
    Depth(DepthJob),
    /// Run the target of copies without a NIC.
    HostCopy(CopyParameters),
    /// Run the other end of messages through bare rings.
    Bare(BareExchangeParameters),
    /// Run the other end of datagrams without a NIC.
    Datagrams(DatagramParameters),
    /// Run the server of an ordered store without a NIC.
    Lmdb(LmdbServeJob),
    /// Drive a measurement whose other end is a process that this worker starts.
    Drive(DriveJob),
    /// End the worker.
    Stop,
}

/// A measurement in a process with another environment than the benchmark's driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DriveJob {
    pub(crate) cores: CorePair,
    /// Program that runs at the other end.
    #[serde(rename = "worker_exe")]
    pub(crate) worker_command: WorkerCommand,
    /// NIC of both processes.
    pub(crate) nic: NicChoice,
    #[serde(rename = "what")]
    pub(crate) measurement: DrivenMeasurement,
}

/// Measurement to drive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DrivenMeasurement {
    /// Measurement of one verb.
    Task(MeasurementTask),
    /// Measurement of the CPU time of an idle process at the other end.
    IdleCpu {
        /// Connected queue pairs of the idle process.
        queue_pairs: usize,
    },
}

/// One process's part of a measurement of one verb.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MicroJob {
    /// NIC of the worker.
    pub(crate) nic: NicChoice,
    pub(crate) task: MeasurementTask,
    /// Number of the worker's threads, one per lane.
    #[serde(rename = "lanes")]
    pub(crate) thread_count: usize,
    /// Cores for the lanes' threads, used in turn. A worker on another host chooses its own cores.
    pub(crate) cores: Vec<usize>,
}

/// Queue pairs that are connected all at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionsJob {
    /// NIC of the worker.
    pub(crate) nic: NicChoice,
    pub(crate) queue_pairs: usize,
    /// True if the worker then sleeps until the driver ends the job.
    #[serde(rename = "idle")]
    pub(crate) sleeps_after_connecting: bool,
}

/// A probe of WRITEs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProbeJob {
    /// NIC of the target.
    pub(crate) nic: NicChoice,
    pub(crate) probe: WriteProbe,
}

/// Round trips between processes that sleep; the worker answers every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EventsJob {
    /// NIC of the worker, used only by [`Transport::Verbs`].
    pub(crate) nic: NicChoice,
    pub(crate) transport: Transport,
}
