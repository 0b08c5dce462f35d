//! What servers report: it travels as JSON.

use serde::{Deserialize, Serialize};

use crate::tree::TreeStats;

/// What a server did so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStats {
    /// GETs that were answered.
    pub gets: u64,
    /// GETs that found their key.
    pub hits: u64,
    /// SCANs that were answered, a long one as several.
    pub scans: u64,
    /// Entries in answers to SCANs.
    pub scanned: u64,
    /// Changes that were made, or whose condition did not hold.
    pub changes: u64,
    /// Changes that came again, and were not made again.
    pub repeated: u64,
    /// Requests that are none.
    pub bad_requests: u64,
    /// Requests that found a node locked by a client for long.
    pub busy: u64,
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
    /// Entries that this server took from others.
    #[serde(default)]
    pub taken_entries: u64,
    /// What there is of the trees.
    pub tree: TreeStats,
}
