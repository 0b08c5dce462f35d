//! What `serve` and `client` print with `--json`, one object per line, and the ladder reads.

use sequencer::{ClientReport, Design, ServerStats, Verdict};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum Line {
    /// `serve`: clients can come.
    Listening {
        /// Where, on TCP.
        address: String,
        /// What is served.
        design: Design,
        /// The first number that it will give.
        next: u64,
    },
    /// `serve`: what it did, when it ends.
    Stats(ServerStats),
    /// `client`: what one of its threads got.
    Report(Box<ClientReport>),
    /// `client`: what the checker says of all its threads.
    Verdict(Verdict),
}
