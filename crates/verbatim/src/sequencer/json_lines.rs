//! The lines that `serve` and `client` print with `--json`, one object per line, and that the
//! comparison reads.

use sequencer::{ClientReport, Design, NumberVerdict, ServerStats};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum ServeOrClientLine {
    /// `serve`: the server accepts clients.
    Listening {
        /// The server's TCP address.
        address: String,
        /// The design that is served.
        design: Design,
        /// The first number that the server will return.
        next: u64,
    },
    /// `serve`: the server's statistics, at its end.
    Stats(ServerStats),
    /// `client`: the report of one thread.
    Report(Box<ClientReport>),
    /// `client`: the checker's verdict on the numbers of all threads.
    Verdict(NumberVerdict),
}
