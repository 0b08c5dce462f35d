//! Our side of every row: the verbs workloads.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::goal::Row;
use crate::run::{Bench, Measured};

/// Which NIC a workload runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicChoice {
    /// Its provider: `softnic` or `system`.
    pub provider: String,
    /// Its name; the provider's first without one.
    pub device: Option<String>,
}

/// Measures our side of `row` once.
pub(crate) fn measure(_bench: &Bench, row: Row) -> Result<Measured> {
    bail!("{} is not there yet", row.name())
}
