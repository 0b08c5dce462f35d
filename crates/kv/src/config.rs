//! Designs and configurations.

use std::time::Duration;

use rpc::herd::Scan;
use serde::{Deserialize, Serialize};
use service::config::in_range;
use service::{NicConfig, Unsupported};
use verbs::{Capabilities, Capability};

use crate::store::{LockPlacement, MAX_VALUE_BYTES, Mode, Shape, StoreConfig};

pub use service::sessions::MAX_WINDOW;

service::designs! {
    /// How clients reach the data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Design {
        /// HERD: requests are UC WRITEs into a request region, workers poll it and answer a batch with one doorbell.
        Herd: "herd", "an RPC for each request: UC WRITE in, UD SEND out, batches and prefetching",
            [rpc::herd::NEEDS];
        /// As Pilaf and FaRM-KV: a GET is READs of the server's memory, with items that verify themselves; changes are RPCs.
        Reads: "reads", "a GET READs index bucket and item, which verifies itself; changes are RPCs",
            [rpc::herd::NEEDS, &[Capability::Rc, Capability::RdmaRead]];
        /// As DrTM-KV: a GET is a READ of the key's record; a change locks it by compare-and-swap, WRITEs it and unlocks it.
        Atomics: "atomics", "a GET READs a record; a change locks, WRITEs and unlocks it with remote atomics",
            [rpc::herd::NEEDS, &[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
    }
}

impl Design {
    /// What clients may rely on, in a line for the documentation and the command line.
    pub fn promise(self) -> &'static str {
        match self {
            Self::Herd => {
                "linearizable: a partition's worker makes one change after the other, and none twice"
            }
            Self::Reads => {
                "linearizable: changes as with herd, and a value that is READ was the key's at that time"
            }
            Self::Atomics => {
                "linearizable: changes hold the record's lock, and a value that is READ was the key's at that time"
            }
        }
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
    /// The design.
    pub design: Design,
    /// Worker threads, each with a partition of its own, 1 to 64.
    pub workers: usize,
    /// Requests of one batch, 1 to 64. With 1 every answer has its own doorbell and nothing is prefetched.
    pub batch: usize,
    /// UD queue pairs of a worker that batches rotate over, 1 to 64.
    pub queues: usize,
    /// How many requests a pass of a worker takes from each client.
    #[serde(skip_serializing_if = "is_usual_scan")]
    pub scan: Scan,
    /// Queue pairs that the answers of a batch are divided over, by the client: a power of two that divides `queues`.
    /// Each has a doorbell of its own. See [`rpc::herd::Doorbells::split`].
    #[serde(skip_serializing_if = "is_one")]
    pub split: usize,
    /// SENDs that a queue pair of a worker may have under way, 64 to 32,768. A worker waits while there are as many.
    #[serde(skip_serializing_if = "is_usual_depth")]
    pub send_depth: u32,
    /// Clients at the same time, 1 to 1024.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to [`MAX_WINDOW`].
    pub max_window: usize,
    /// Whether items are dropped when there is no room, or refused.
    pub mode: Mode,
    /// Items that there is room for.
    pub items: usize,
    /// Bytes of their keys, about.
    pub key_bytes: usize,
    /// Bytes of their values, about: longer ones work too, slower. Memory, slots and messages are made for these.
    pub value_bytes: usize,
    /// Bytes of all logs; enough for the items if `None`.
    pub log_bytes: Option<usize>,
    /// `reads`: with 0 a GET is two READs, of an index bucket and of an item. Otherwise it is one READ of so many bytes, at most
    /// 64 KiB: a neighbourhood of records with keys and values inline, as in FaRM-KV. `atomics`: what a client
    /// READs to find the record of a key that it does not know; 0 stands for 512.
    pub read_size: usize,
    /// `atomics`: where locks are.
    pub lock_placement: LockPlacement,
    /// `atomics`: records begin at multiples of this, a power of two from 8 to 4096.
    pub record_align: usize,
    /// `atomics`: how long a client may have a lock while others wait for it, in milliseconds, 1 to 60,000.
    pub lease_ms: u16,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            nic: NicConfig::default(),
            design: Design::Herd,
            workers: 1,
            batch: 64,
            queues: 1,
            scan: Scan::default(),
            split: 1,
            send_depth: SEND_DEPTH,
            max_clients: 64,
            max_window: 256,
            mode: Mode::Cache,
            items: 1 << 20,
            key_bytes: 16,
            value_bytes: 32,
            log_bytes: None,
            read_size: 0,
            lock_placement: LockPlacement::default(),
            record_align: 64,
            lease_ms: 100,
        }
    }
}

impl ServerConfig {
    /// Whether items are in records of a fixed size, without a time to live, and never dropped.
    pub fn has_records(&self) -> bool {
        self.shape().is_some()
    }

    /// The records of each partition, if the design keeps items in such.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let (read, locks) = match (self.design, self.read_size) {
            (Design::Herd, _) | (Design::Reads, 0) => return None,
            (Design::Reads, size) => (size, LockPlacement::Spread),
            (Design::Atomics, 0) => (512, self.lock_placement),
            (Design::Atomics, size) => (size, self.lock_placement),
        };
        // Partitions get their share give or take.
        let items = self.items.div_ceil(self.workers);
        let items = items + items / 32 + 64;
        let lengths = (self.key_bytes, self.value_bytes);
        Some(Shape::new(items, lengths, read, locks, self.record_align))
    }

    /// The store that it serves.
    pub(crate) fn store(&self, clock: fn() -> u64, seed: u64) -> StoreConfig {
        // An item that is READ ends in a checksum.
        let value = self.value_bytes + if self.design == Design::Reads { 8 } else { 0 };
        let fits = StoreConfig::for_items(self.workers, self.items, self.key_bytes, value);
        StoreConfig {
            log_bytes: self.log_bytes.unwrap_or(fits.log_bytes),
            mode: self.mode,
            clock,
            seed,
            ..fits
        }
    }
}

impl service::ServerConfig for ServerConfig {
    fn check(&self) -> Result<(), String> {
        in_range("workers", self.workers, 1..=64)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        in_range("queues", self.queues, 1..=64)?;
        in_range("send_depth", self.send_depth as usize, 64..=1 << 15)?;
        if !self.split.is_power_of_two() || !self.queues.is_multiple_of(self.split) {
            return Err(format!(
                "split is {}: it must be a power of two that divides the {} queues",
                self.split, self.queues
            ));
        }
        in_range("max_clients", self.max_clients, 1..=1024)?;
        in_range("max_window", self.max_window, 1..=MAX_WINDOW)?;
        in_range("items", self.items, 1..=1 << 32)?;
        in_range("key_bytes", self.key_bytes, 0..=crate::store::MAX_KEY_BYTES)?;
        in_range("value_bytes", self.value_bytes, 0..=MAX_VALUE_BYTES)?;
        in_range("read_size", self.read_size, 0..=1 << 16)?;
        in_range("record_align", self.record_align, 8..=4096)?;
        in_range("lease_ms", self.lease_ms.into(), 1..=60_000)?;
        if !self.record_align.is_power_of_two() {
            return Err(format!(
                "record_align is {}: it must be a power of two",
                self.record_align
            ));
        }
        let least = self.workers << 16;
        in_range(
            "log_bytes",
            self.log_bytes.unwrap_or(least),
            least..=1 << 43,
        )
    }

    fn check_device(&self, device: &Capabilities) -> Result<(), Unsupported> {
        self.design.check(device)
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
    /// Requests outstanding, 1 to [`MAX_WINDOW`].
    pub window: usize,
    /// Requests of one postlist, 1 to 64.
    pub batch: usize,
    /// The longest value that comes in one message; longer ones come in up to 64.
    pub value_bytes: usize,
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
            window: 64,
            batch: 16,
            value_bytes: 1064,
            answer_ms: 1_000,
            deadline_ms: 10_000,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check(&self) -> Result<(), String> {
        in_range("window", self.window, 1..=MAX_WINDOW)?;
        in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        in_range("value_bytes", self.value_bytes, 0..=MAX_VALUE_BYTES)
    }

    pub(crate) fn answer(&self) -> Duration {
        Duration::from_millis(self.answer_ms.max(1))
    }

    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

/// SENDs that a queue pair may have under way, unless told otherwise.
const SEND_DEPTH: u32 = 512;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_usual_depth(depth: &u32) -> bool {
    *depth == SEND_DEPTH
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_usual_scan(scan: &Scan) -> bool {
    *scan == Scan::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(value: &usize) -> bool {
    *value == 1
}

#[cfg(test)]
mod tests {
    use service::ServerConfig as _;

    use super::*;

    #[test]
    fn designs_parse_by_the_name_they_print() {
        for d in Design::ALL {
            assert_eq!(d.to_string().parse(), Ok(d));
            let json = serde_json::to_string(&d).expect("a string");
            assert_eq!(json, format!("\"{d}\""));
        }
        let unknown = "hred".parse::<Design>().expect_err("unknown");
        assert!(unknown.contains("herd, reads"));
    }

    #[test]
    fn limits_are_named() {
        let bad = ServerConfig {
            workers: 0,
            ..ServerConfig::default()
        };
        assert_eq!(
            bad.check(),
            Err("workers is 0: it must be 1 to 64".to_owned())
        );
        let bad = ClientConfig {
            window: 5000,
            ..ClientConfig::default()
        };
        assert_eq!(
            bad.check(),
            Err("window is 5000: it must be 1 to 4096".to_owned())
        );
        assert!(ServerConfig::default().check().is_ok() && ClientConfig::default().check().is_ok());
    }
}
