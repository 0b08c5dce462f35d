//! The lines that `serve` and `load` print with `--json`, one object per line, and that the
//! comparison reads.

use btree::ServerStats;
use btree::load::LoadReport;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum ServeOrLoadLine {
    /// `serve`: the tree is loaded.
    Loaded {
        /// Number of stable keys.
        keys: u64,
        /// The duration of the load in seconds.
        seconds: f64,
        /// Number of bytes of the nodes in use.
        bytes: u64,
    },
    /// `serve`: the server accepts clients.
    Listening {
        /// The server's TCP address.
        address: String,
    },
    /// `serve`: the server's statistics, at its end.
    Stats(ServerStats),
    /// `load`: the report of filling the tree.
    Filled(LoadReport),
    /// `load`: the report of one thread.
    Report(LoadReport),
}
