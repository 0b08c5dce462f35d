//! What `serve` and `load` print with `--json`, one object per line, and the comparison reads.

use btree::ServerStats;
use btree::load::LoadReport;
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum Line {
    /// `serve`: the tree is loaded.
    Loaded {
        /// Stable keys.
        keys: u64,
        /// How long it took.
        seconds: f64,
        /// Bytes of nodes in use.
        bytes: u64,
    },
    /// `serve`: clients can come.
    Listening {
        /// Where, on TCP.
        address: String,
    },
    /// `serve`: what it did, when it ends.
    Stats(ServerStats),
    /// `load`: how filling went.
    Filled(LoadReport),
    /// `load`: what one of its threads got.
    Report(LoadReport),
}
