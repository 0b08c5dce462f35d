//! The statistics that servers report as JSON.

use serde::{Deserialize, Serialize};

use crate::tree::TreeStats;

/// Statistics of a server since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerStats {
    /// GETs that were answered.
    pub gets: u64,
    /// GETs that found their key.
    #[serde(rename = "hits")]
    pub get_hits: u64,
    /// SCANs that were answered; a SCAN that the client continues counts again.
    pub scans: u64,
    /// Entries in answers to SCANs.
    #[serde(rename = "scanned")]
    pub scanned_entries: u64,
    /// Changes that were made, and changes whose condition did not hold.
    pub changes: u64,
    /// Changes that arrived again and were not executed a second time.
    #[serde(rename = "repeated")]
    pub repeated_changes: u64,
    /// Malformed requests.
    pub bad_requests: u64,
    /// Requests that were refused because a node was locked for too long or its keys were being handed over.
    #[serde(rename = "busy")]
    pub busy_refusals: u64,
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
    /// Entries that this server took over from others.
    #[serde(default)]
    pub taken_entries: u64,
    /// Size and shape of the trees.
    pub tree: TreeStats,
}
