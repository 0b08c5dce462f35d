//! The statistics that servers report as JSON.

use serde::{Deserialize, Serialize};

use crate::store::PartitionStats;

/// Statistics of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStats {
    /// GETs that workers executed.
    pub gets: u64,
    /// GETs that found their key.
    #[serde(rename = "hits")]
    pub get_hits: u64,
    /// Changes that were executed, including those that were refused for a reason that the answer names.
    pub changes: u64,
    /// Changes that arrived again and were not executed a second time.
    #[serde(rename = "repeated")]
    pub repeated_changes: u64,
    /// Malformed requests, and requests that the design does not serve.
    pub bad_requests: u64,
    /// Messages that carried answers.
    #[serde(rename = "answers")]
    pub answer_messages: u64,
    /// Doorbells for answers.
    pub doorbells: u64,
    /// Number of clients that are connected.
    #[serde(rename = "clients")]
    pub connected_clients: u64,
    /// Number of clients that have ever connected.
    pub clients_total: u64,
    /// Locks that the server released for clients that had died or exceeded their lease.
    #[serde(default)]
    pub recovered_locks: u64,
    /// Clients whose access was revoked because they held a lock for too long.
    #[serde(default)]
    #[serde(rename = "expelled")]
    pub expelled_clients: u64,
    /// Contents and counters of the store.
    pub store: PartitionStats,
}
