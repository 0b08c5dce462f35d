//! Configurations of servers and clients, and how clients reach the tree.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use service::config::in_range;
use service::{NicConfig, Unsupported};
use verbs::{Capabilities, Capability};

use crate::node::{MAX_NODE_BYTES, MIN_NODE_BYTES};
use crate::tree::{MAX_TREES, Store};

pub use service::sessions::MAX_WINDOW;

service::designs! {
    /// How a client reaches the tree.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Access {
        /// The server walks: an RPC for each request.
        Rpc: "rpc", "the server walks: UC WRITE in, UD SEND out, walks of a batch interleaved",
            [rpc::herd::NEEDS];
        /// The client walks, and the server's processor knows nothing of it.
        Read: "read", "the client walks: a READ a node, inner nodes cached; changes lock, WRITE and unlock a leaf",
            [rpc::herd::NEEDS, &[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
        /// The one or the other, by what the server's load makes of each.
        Auto: "auto", "the one or the other for each lookup, by the latency that each has at the moment",
            [rpc::herd::NEEDS, &[Capability::Rc, Capability::RdmaRead]];
    }
}

/// How a server runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// The TCP address where clients find it; port 0 takes a free one.
    pub listen: String,
    /// The NIC.
    pub nic: NicConfig,
    /// Bytes of a node, a power of two from 256 to 4096.
    pub node_bytes: usize,
    /// Keys that there is room for, in all trees together, in whatever order they come.
    pub keys: u64,
    /// Trees, 1 to [`MAX_TREES`].
    pub trees: usize,
    /// Worker threads, 1 to 64. All of them serve all trees.
    pub workers: usize,
    /// Requests of one batch, 1 to 64. With 1 every answer has its own doorbell, and walks are not interleaved.
    pub batch: usize,
    /// UD queue pairs of a worker that batches rotate over, 1 to 64.
    pub queues: usize,
    /// Clients at the same time, 1 to 1024.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to [`MAX_WINDOW`].
    pub max_window: usize,
    /// Whether clients may lock and WRITE leaves by themselves, which they must be trusted to do right. The server then takes
    /// locks through its NIC, too, so its own changes are slower.
    pub remote_writes: bool,
    /// How long a client may have a lock while others wait for it, in milliseconds, 1 to 60,000.
    pub lease_ms: u16,
    /// Where the key ranges of several servers that share the trees begin, ascending, but for the first range, which begins
    /// at 0: none for a server alone. Ranges move later.
    pub splits: Vec<u64>,
    /// The number of this server: 0 for the first range.
    pub part: u16,
    /// The TCP addresses of all these servers in the order of their numbers, where a server may be asked to take keys from
    /// another.
    pub parts: Vec<String>,
    /// Bytes a second that this server takes from others at most.
    pub handover_bytes_per_s: u32,
    /// Nanoseconds that each request takes a worker more: a slower processor, for trying what adapts to it.
    pub slow_by_ns: u32,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            nic: NicConfig::default(),
            node_bytes: 1024,
            keys: 1 << 20,
            trees: 1,
            workers: 1,
            batch: 64,
            queues: 1,
            max_clients: 64,
            max_window: 256,
            remote_writes: false,
            lease_ms: 100,
            splits: Vec::new(),
            part: 0,
            parts: Vec::new(),
            handover_bytes_per_s: 100_000_000,
            slow_by_ns: 0,
        }
    }
}

impl ServerConfig {
    /// The range of a server with a number at the beginning: its first key, and the first key behind it.
    pub(crate) fn range_of(&self, part: usize) -> (u64, Option<u64>) {
        let from = part
            .checked_sub(1)
            .and_then(|before| self.splits.get(before));
        (from.copied().unwrap_or(0), self.splits.get(part).copied())
    }

    /// Nodes that there is room for.
    pub(crate) fn nodes(&self) -> u64 {
        Store::nodes_for(self.node_bytes, self.keys)
    }
}

impl service::ServerConfig for ServerConfig {
    fn check(&self) -> Result<(), String> {
        in_range(
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
        let keys = usize::try_from(self.keys).unwrap_or(usize::MAX);
        in_range("keys", keys, 1..=1 << 34)?;
        in_range("trees", self.trees, 1..=MAX_TREES)?;
        in_range("workers", self.workers, 1..=64)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        in_range("queues", self.queues, 1..=64)?;
        in_range("max_clients", self.max_clients, 1..=1024)?;
        if !self.splits.is_sorted_by(|a, b| a < b) || self.splits.first() == Some(&0) {
            return Err("splits must ascend, and be above 0".to_owned());
        }
        in_range("part", self.part.into(), 0..=self.splits.len())?;
        if !self.parts.is_empty() && self.parts.len() != self.splits.len() + 1 {
            return Err(format!(
                "{} addresses of servers for {} ranges of keys",
                self.parts.len(),
                self.splits.len() + 1
            ));
        }
        in_range("lease_ms", self.lease_ms.into(), 1..=60_000)?;
        in_range("max_window", self.max_window, 1..=MAX_WINDOW)
    }

    fn check_device(&self, device: &Capabilities) -> Result<(), Unsupported> {
        if self.remote_writes {
            Access::Read.check(device)?;
        }
        Access::Rpc.check(device)
    }

    fn listen(&self) -> &str {
        &self.listen
    }

    fn nic(&self) -> &NicConfig {
        &self.nic
    }

    fn max_window(&self) -> usize {
        self.max_window
    }
}

/// How a client runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The server's TCP address.
    pub server: String,
    /// The NIC.
    pub nic: NicConfig,
    /// How it reaches the tree.
    pub access: Access,
    /// Nodes that a client which walks keeps of the levels above the leaves; 0 for none, so that each lookup READs a node a
    /// level.
    pub cache_nodes: usize,
    /// Requests outstanding, 1 to [`MAX_WINDOW`].
    pub window: usize,
    /// Requests of one postlist, 1 to 64.
    pub batch: usize,
    /// How long nothing may come before requests are sent again over new queue pairs, in milliseconds.
    pub answer_ms: u64,
    /// How long a request may take in all, reconnecting included, in milliseconds.
    pub deadline_ms: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            server: String::new(),
            nic: NicConfig::default(),
            access: Access::Rpc,
            cache_nodes: 1 << 14,
            window: 64,
            batch: 16,
            answer_ms: 1_000,
            deadline_ms: 10_000,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        in_range("window", self.window, 1..=MAX_WINDOW)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)
    }

    pub(crate) fn answer(&self) -> Duration {
        Duration::from_millis(self.answer_ms.max(1))
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}
