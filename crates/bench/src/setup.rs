//! What a run of the benchmark is given, and what one measurement gives.

use serde::{Deserialize, Serialize};

use crate::goal::Row;
use crate::link::Exe;
use crate::nic::NicChoice;
use crate::pin::Cores;

/// How much is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How often each row and its peer are measured.
    pub rounds: u32,
    /// Divides every count of operations: 1 for results, more for a run that only has to work.
    pub shrink: u64,
    /// The rows, in order.
    pub rows: Vec<Row>,
}

/// What the benchmark runs with.
#[derive(Clone, Debug)]
pub struct Bench {
    /// How much.
    pub settings: Settings,
    /// Where.
    pub cores: Cores,
    /// Starts a worker.
    pub worker: Exe,
    /// The NIC of our side.
    pub nic: NicChoice,
}

impl Bench {
    /// `count` operations, or as many as a tiny run has.
    #[must_use]
    pub fn scaled(&self, count: u64) -> u64 {
        (count / self.settings.shrink.max(1)).max(64)
    }
}

/// One figure and what was counted for it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// In the unit of the row.
    pub value: f64,
    /// Operations that the receiving end checked.
    pub verified_ops: u64,
    /// Datagrams that did not arrive.
    pub lost_ops: u64,
}
