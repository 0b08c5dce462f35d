//! The sequencer's best design, as a user runs it: a server process and a client process.

use anyhow::{Result, bail};

use crate::run::{Bench, Measured};

/// Measures `spec-s0` with one worker and one client process.
pub(super) fn measure(_bench: &Bench) -> Result<Measured> {
    bail!("not there yet")
}
