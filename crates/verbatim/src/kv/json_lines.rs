//! The lines that `serve` and `load` print with `--json`, one object per line, and that the
//! comparison reads.

use kv::ServerStats;
use kv::load::LoadReport;
use kv_resp::FrontEndStats;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum ServeOrLoadLine {
    /// `serve`: the server accepts clients.
    Listening {
        /// The server's TCP address.
        address: String,
        /// The design that is served.
        design: kv::Design,
        /// The address for clients of the Redis protocol; null if it is not spoken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resp: Option<String>,
        /// The address for clients of the Redis protocol over RDMA; null if it is not spoken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rdma: Option<String>,
        /// The address for clients of the Redis protocol over TLS; null if it is not spoken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resp_tls: Option<String>,
    },
    /// `serve`: the statistics of the Redis-protocol front end, at its end.
    Resp(FrontEndStats),
    /// `serve`: the server's statistics, at its end.
    Stats(ServerStats),
    /// `load`: the report of filling the store.
    Filled(LoadReport),
    /// `load`: the report of one thread.
    Report(LoadReport),
}
