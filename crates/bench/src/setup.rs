//! Settings of a run of the benchmark, and the result of one measurement.

use serde::{Deserialize, Serialize};

use crate::core_pinning::CorePair;
use crate::goal::Row;
use crate::link::WorkerCommand;
use crate::open_nic::NicChoice;

/// Extent of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchSettings {
    /// Number of measurements of each row and its peer.
    pub rounds: u32,
    /// Divisor of durations and counts of operations: 1 for results, more for a smoke test.
    #[serde(rename = "shrink")]
    pub shrink_divisor: u64,
    /// Rows to measure, in order.
    pub rows: Vec<Row>,
}

/// A run's settings, cores, worker program and NIC.
#[derive(Clone, Debug)]
pub struct BenchSetup {
    /// Extent of the run.
    pub settings: BenchSettings,
    /// Cores of the two processes.
    pub cores: CorePair,
    /// Program that starts a worker.
    pub worker_command: WorkerCommand,
    /// NIC of this project's side.
    pub nic: NicChoice,
}

impl BenchSetup {
    /// Returns `count` divided by the `shrink_divisor` setting, at least 64.
    #[must_use]
    pub fn shrink_count(&self, count: u64) -> u64 {
        (count / self.settings.shrink_divisor.max(1)).max(64)
    }
}

/// A figure of a row, with the operations counted for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowFigure {
    /// Figure in the unit of the row.
    pub value: f64,
    /// Operations that the receiving end checked.
    pub verified_ops: u64,
    /// Datagrams that did not arrive.
    #[serde(rename = "lost_ops")]
    pub lost_messages: u64,
}
