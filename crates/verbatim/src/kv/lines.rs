//! What `serve` and `load` print with `--json`, one object per line, and the comparison reads.

use kv::ServerStats;
use kv::load::LoadReport;
use kv_resp::FrontStats;
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
        design: kv::Design,
        /// Where in the Redis protocol.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resp: Option<String>,
        /// Where in the Redis protocol over RDMA.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rdma: Option<String>,
    },
    /// `serve`: what its Redis-protocol front did, when it ends.
    Resp(FrontStats),
    /// `serve`: what it did, when it ends.
    Stats(ServerStats),
    /// `load`: how filling went.
    Filled(LoadReport),
    /// `load`: what one of its threads got.
    Report(LoadReport),
}
