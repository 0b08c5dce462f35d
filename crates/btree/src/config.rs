//! Configurations of servers and clients, and how clients reach the tree.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::config::check_in_range;
use service::{NicConfig, UnsupportedDesign};
use verbs::{Capabilities, Capability};

use crate::key_or_value::private::Sizes;
use crate::key_or_value::{ByteString, KeyOrValue, StringSizes};
use crate::node::{MAX_NODE_BYTES, MIN_NODE_BYTES, NodeShape};
use crate::tree::{MAX_TREES, Store};

pub use service::sessions::MAX_WINDOW;

service::designs! {
    /// How a client reaches the tree.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum AccessDesign {
        /// The server walks the tree: one RPC per request.
        Rpc: "rpc", "the server walks: UC WRITE in, UD SEND out, walks of a batch interleaved",
            [rpc::herd::NEEDED_CAPABILITIES];
        /// The client READs nodes and walks the tree; the server's processor takes no part.
        Read: "read", "the client walks: a READ a node, inner nodes cached; changes lock, WRITE and unlock a leaf",
            [rpc::herd::NEEDED_CAPABILITIES, &[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
        /// Each lookup goes by RPC or by READs, whichever has the lower latency at the moment.
        Auto: "auto", "the one or the other for each lookup, by the latency that each has at the moment",
            [rpc::herd::NEEDED_CAPABILITIES, &[Capability::Rc, Capability::RdmaRead]];
    }
}

/// Configuration of a server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig<T: KeyOrValue = u64> {
    /// The server's TCP address for clients; port 0 takes a free port.
    pub listen: String,
    /// The NIC.
    pub nic: NicConfig,
    /// Bytes of a node, a power of two from 256 to 4096. A node must have room for [`MIN_ENTRIES_PER_NODE`] entries.
    pub node_bytes: usize,
    /// The limits of keys and values: [`NumberSizes`](crate::NumberSizes) or [`StringSizes`].
    pub key_and_value_limits: T::Sizes,
    /// Number of keys that the memory is sized for, in all trees together and in any order of insertion.
    pub key_capacity: u64,
    /// Number of trees, 1 to [`MAX_TREES`].
    pub trees: usize,
    /// Number of worker threads, 1 to 64. Every worker serves all trees.
    pub workers: usize,
    /// Largest number of requests in a batch, 1 to 64. With 1, every answer has its own doorbell, and walks are not
    /// interleaved.
    pub batch: usize,
    /// UD queue pairs of each worker, 1 to 64. Batches of answers rotate over them.
    pub ud_qps_per_worker: usize,
    /// Largest number of clients connected at the same time, 1 to 1024.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to [`MAX_WINDOW`].
    pub max_window: usize,
    /// True if clients may lock and WRITE leaves themselves. The server trusts such clients to WRITE valid nodes. The
    /// server then takes its own locks through its NIC, which makes its own changes slower.
    pub remote_writes: bool,
    /// Milliseconds that a client may hold a lock while others wait for it, 1 to 60,000.
    pub lock_lease_ms: u16,
    /// First keys of the ranges of servers that share the trees, ascending. The first range begins at the least key and
    /// is left out, so a single server has no splits. Ranges can move while the servers run.
    pub splits: Vec<T>,
    /// The number of this server: server 0 has the first range.
    pub server_number: u16,
    /// TCP addresses of all servers that share the trees, in the order of their numbers. A server needs them to take
    /// keys from another server.
    pub servers: Vec<String>,
    /// Upper limit of the rate at which this server takes entries from others, in bytes per second.
    pub handover_bytes_per_s: u32,
    /// Extra nanoseconds of work per request: a simulated slower processor, to test adaptive clients and balancing.
    pub slow_by_ns: u32,
}

impl<T: KeyOrValue> Default for ServerConfig<T> {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            nic: NicConfig::default(),
            node_bytes: 1024,
            key_and_value_limits: T::Sizes::default(),
            key_capacity: 1 << 20,
            trees: 1,
            workers: 1,
            batch: 64,
            ud_qps_per_worker: 1,
            max_clients: 64,
            max_window: 256,
            remote_writes: false,
            lock_lease_ms: 100,
            splits: Vec::new(),
            server_number: 0,
            servers: Vec::new(),
            handover_bytes_per_s: 100_000_000,
            slow_by_ns: 0,
        }
    }
}

impl<T: KeyOrValue> ServerConfig<T> {
    /// Returns a server's initial range: the first key, and the end, which is exclusive.
    pub(crate) fn initial_range_of(&self, server_number: usize) -> (T, Option<T>) {
        let from = server_number
            .checked_sub(1)
            .and_then(|before| self.splits.get(before));
        (
            from.copied().unwrap_or_default(),
            self.splits.get(server_number).copied(),
        )
    }

    /// Returns the number of nodes that the memory has room for.
    pub(crate) fn node_capacity(&self) -> u64 {
        Store::<T>::nodes_needed_for_keys(
            self.node_bytes,
            self.key_and_value_limits,
            self.key_capacity,
        )
    }
}

impl<T: KeyOrValue> service::ServerConfig for ServerConfig<T> {
    fn check(&self) -> Result<(), String> {
        check_in_range(
            "node_bytes",
            self.node_bytes,
            MIN_NODE_BYTES..=MAX_NODE_BYTES,
        )?;
        if !self.node_bytes.is_power_of_two() {
            return Err(format!(
                "node_bytes is {}: it must be a power of two",
                self.node_bytes
            ));
        }
        check_string_sizes::<T>(self.node_bytes, self.key_and_value_limits)?;
        let keys = usize::try_from(self.key_capacity).unwrap_or(usize::MAX);
        check_in_range("keys", keys, 1..=1 << 34)?;
        check_in_range("trees", self.trees, 1..=MAX_TREES)?;
        check_in_range("workers", self.workers, 1..=64)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        check_in_range("queues", self.ud_qps_per_worker, 1..=64)?;
        check_in_range("max_clients", self.max_clients, 1..=1024)?;
        if !self.splits.is_sorted_by(|a, b| a < b) || self.splits.first() == Some(&T::default()) {
            return Err("splits must ascend, and be above the least key".to_owned());
        }
        for split in &self.splits {
            split
                .check_key(self.key_and_value_limits)
                .map_err(|e| e.to_string())?;
        }
        check_in_range("part", self.server_number.into(), 0..=self.splits.len())?;
        if !self.servers.is_empty() && self.servers.len() != self.splits.len() + 1 {
            return Err(format!(
                "{} addresses of servers for {} ranges of keys",
                self.servers.len(),
                self.splits.len() + 1
            ));
        }
        check_in_range("lease_ms", self.lock_lease_ms.into(), 1..=60_000)?;
        check_in_range("max_window", self.max_window, 1..=MAX_WINDOW)
    }

    fn check_device(&self, device: &Capabilities) -> Result<(), UnsupportedDesign> {
        if self.remote_writes {
            AccessDesign::Read.check(device)?;
        }
        AccessDesign::Rpc.check(device)
    }

    fn listen_address(&self) -> &str {
        &self.listen
    }

    fn nic(&self) -> &NicConfig {
        &self.nic
    }

    fn max_window(&self) -> usize {
        self.max_window
    }
}

/// The smallest number of entries for which a node must have room.
pub const MIN_ENTRIES_PER_NODE: usize = 4;

/// Checks that keys and values are not too long for byte strings and for nodes.
pub(crate) fn check_string_sizes<T: KeyOrValue>(
    node_bytes: usize,
    sizes: T::Sizes,
) -> Result<(), String> {
    let Some(strings) = sizes.of_strings() else {
        return Ok(());
    };
    check_in_range("key_bytes", strings.key_bytes, 1..=ByteString::MAX_BYTES)?;
    check_in_range(
        "value_bytes",
        strings.value_bytes,
        1..=ByteString::MAX_BYTES,
    )?;
    let words = node_bytes / 8;
    let entries = NodeShape::<T> {
        words_per_node: words,
        key_and_value_limits: sizes,
    }
    .entry_capacity(0);
    if entries < MIN_ENTRIES_PER_NODE {
        return Err(format!(
            "a node of {node_bytes} bytes has room for {entries} keys and values of {} and {} bytes: at least \
             {MIN_ENTRIES_PER_NODE} are needed, so give it more with --node-size",
            strings.key_bytes, strings.value_bytes
        ));
    }
    Ok(())
}

impl StringSizes {
    /// Returns a node size that leaves trees of these strings about as low as trees of numbers. It is the smallest size
    /// from 1024 bytes on with room for 8 entries, or 4096 bytes.
    pub fn suggested_node_bytes(self) -> usize {
        let has_room = |bytes: &usize| {
            let shape = NodeShape::<ByteString> {
                words_per_node: bytes / 8,
                key_and_value_limits: self,
            };
            shape.entry_capacity(0) >= 8
        };
        [1024, 2048]
            .into_iter()
            .find(has_room)
            .unwrap_or(MAX_NODE_BYTES)
    }
}

/// Configuration of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The server's TCP address.
    pub server: String,
    /// The NIC.
    pub nic: NicConfig,
    /// How the client reaches the tree.
    pub access: AccessDesign,
    /// Inner nodes that the cache of a walking client keeps. With 0, each lookup READs one node per level.
    #[serde(rename = "cache_nodes")]
    pub max_cached_nodes: usize,
    /// Largest number of outstanding requests, 1 to [`MAX_WINDOW`].
    pub window: usize,
    /// Largest number of requests in a postlist, 1 to 64.
    pub batch: usize,
    /// Milliseconds without any answer after which the client connects new queue pairs and sends its requests again.
    pub answer_ms: u64,
    /// Milliseconds that a request may take in total, including reconnecting.
    pub deadline_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            nic: NicConfig::default(),
            access: AccessDesign::Rpc,
            max_cached_nodes: 1 << 14,
            window: 64,
            batch: 16,
            answer_ms: 1_000,
            deadline_ms: 10_000,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        check_in_range("window", self.window, 1..=MAX_WINDOW)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.answer_ms.max(1))
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}
