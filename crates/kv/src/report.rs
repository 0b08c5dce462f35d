//! What servers report: it travels as JSON.

use serde::{Deserialize, Serialize};

use crate::store::PartitionStats;

/// What a server did so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStats {
    /// Requests that came, those answered and those dropped.
    pub gets: u64,
    /// GETs that found their key.
    pub hits: u64,
    /// Changes that were made, or refused for a reason that the answer names.
    pub changes: u64,
    /// Changes that came again, and were not made again.
    pub repeated: u64,
    /// Requests that are none.
    pub bad_requests: u64,
    /// Messages that answers took.
    pub answers: u64,
    /// Doorbells that answers took.
    pub doorbells: u64,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that have ever connected.
    pub clients_total: u64,
    /// Locks that the server freed for clients that were gone or too slow.
    #[serde(default)]
    pub recovered_locks: u64,
    /// Clients whose access was taken away because they had a lock for too long.
    #[serde(default)]
    pub expelled: u64,
    /// What the store holds and did.
    pub store: PartitionStats,
}
