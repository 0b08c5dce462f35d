//! Designs, and the configurations of servers and clients.

use std::time::Duration;

use rpc::herd::RequestsPerClient;
use serde::{Deserialize, Serialize};
use service::config::check_in_range;
use service::{NicConfig, UnsupportedDesign};
use verbs::{Capabilities, Capability};

use crate::store::{FullPolicy, LockPlacement, MAX_VALUE_BYTES, RecordLayout, StoreConfig};

pub use service::sessions::MAX_WINDOW;

service::designs! {
    /// The way in which clients reach the data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Design {
        /// HERD: clients WRITE requests over UC into a request region. Workers poll the region and answer a batch with
        /// one doorbell.
        Herd: "herd", "an RPC for each request: UC WRITE in, UD SEND out, batches and prefetching",
            [rpc::herd::NEEDED_CAPABILITIES];
        /// As in Pilaf and FaRM-KV: a GET READs the server's memory and verifies the item by its checksum; changes are
        /// RPCs.
        Reads: "reads", "a GET READs index bucket and item, which verifies itself; changes are RPCs",
            [rpc::herd::NEEDED_CAPABILITIES, &[Capability::Rc, Capability::RdmaRead]];
        /// As in DrTM-KV: a GET READs the key's record; a change locks the record by compare-and-swap, WRITEs it and
        /// unlocks it.
        Atomics: "atomics", "a GET READs a record; a change locks, WRITEs and unlocks it with remote atomics",
            [rpc::herd::NEEDED_CAPABILITIES, &[Capability::Rc, Capability::RdmaRead, Capability::Atomics]];
    }
}

impl Design {
    /// Returns the consistency that clients can rely on, as a line for the documentation and the command line.
    pub fn consistency_guarantee(self) -> &'static str {
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

/// Configuration of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerConfig {
    /// The server's TCP address for clients; port 0 takes a free port.
    pub listen: String,
    /// The NIC.
    pub nic: NicConfig,
    /// The design.
    pub design: Design,
    /// Number of worker threads, each with its own partition, 1 to 64.
    pub workers: usize,
    /// Largest number of requests in a batch, 1 to 64. With 1, every answer has its own doorbell and nothing is
    /// prefetched.
    pub batch: usize,
    /// UD queue pairs of each worker, 1 to 64. Batches of answers rotate over them.
    #[serde(rename = "queues")]
    pub ud_qps_per_worker: usize,
    /// Number of requests that a worker takes from each client per pass.
    #[serde(skip_serializing_if = "is_default_region_scan")]
    #[serde(rename = "scan")]
    pub request_region_scan: RequestsPerClient,
    /// Number of queue pairs over which a batch's answers are divided, by client: a power of two that divides
    /// `ud_qps_per_worker`. Each has its own doorbell. See [`rpc::herd::BatchPolicy::answer_qps_per_batch`].
    #[serde(skip_serializing_if = "is_one")]
    #[serde(rename = "split")]
    pub answer_qps_per_batch: usize,
    /// Largest number of outstanding SENDs per queue pair of a worker, 64 to 32,768. At this limit the worker waits.
    #[serde(skip_serializing_if = "is_default_send_depth")]
    pub send_depth: u32,
    /// Largest number of clients connected at the same time, 1 to 1024.
    pub max_clients: usize,
    /// The largest window a client may ask for, 1 to [`MAX_WINDOW`].
    pub max_window: usize,
    /// Selects what happens if the store is full: old items are dropped, or new ones refused.
    #[serde(rename = "mode")]
    pub full_policy: FullPolicy,
    /// Number of items that the store is sized for.
    #[serde(rename = "items")]
    pub item_capacity: usize,
    /// Expected bytes of a key.
    #[serde(rename = "key_bytes")]
    pub expected_key_bytes: usize,
    /// Expected bytes of a value; memory, slots and messages are sized for it. Longer values work, but slower.
    #[serde(rename = "value_bytes")]
    pub expected_value_bytes: usize,
    /// Bytes of all logs together; if `None`, enough for `items` items.
    pub log_bytes: Option<usize>,
    /// `reads`: with 0, a GET is two READs, of an index bucket and of an item. Otherwise a GET is one READ of this many
    /// bytes, at most 64 KiB: a neighbourhood of records with keys and values inline, as in FaRM-KV.
    ///
    /// `atomics`: bytes that a client READs to find a key whose record is not known; 0 stands for 512.
    #[serde(rename = "read_size")]
    pub neighbourhood_read_bytes: usize,
    /// `atomics`: the placement of lock words.
    pub lock_placement: LockPlacement,
    /// `atomics`: alignment of records in bytes, a power of two from 8 to 4096.
    pub record_align: usize,
    /// `atomics`: milliseconds that a client may hold a lock while others wait for it, 1 to 60,000.
    #[serde(rename = "lease_ms")]
    pub lock_lease_ms: u16,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            nic: NicConfig::default(),
            design: Design::Herd,
            workers: 1,
            batch: 64,
            ud_qps_per_worker: 1,
            request_region_scan: RequestsPerClient::default(),
            answer_qps_per_batch: 1,
            send_depth: DEFAULT_SEND_DEPTH,
            max_clients: 64,
            max_window: 256,
            full_policy: FullPolicy::Cache,
            item_capacity: 1 << 20,
            expected_key_bytes: 16,
            expected_value_bytes: 32,
            log_bytes: None,
            neighbourhood_read_bytes: 0,
            lock_placement: LockPlacement::default(),
            record_align: 64,
            lock_lease_ms: 100,
        }
    }
}

impl ServerConfig {
    /// Returns true if each item is in a record of fixed size. Such items never expire and are never dropped.
    pub fn has_fixed_size_records(&self) -> bool {
        self.record_layout().is_some()
    }

    /// Returns the layout of each partition's records, or `None` if the design has no records.
    pub(crate) fn record_layout(&self) -> Option<RecordLayout> {
        let (read, locks) = match (self.design, self.neighbourhood_read_bytes) {
            (Design::Herd, _) | (Design::Reads, 0) => return None,
            (Design::Reads, size) => (size, LockPlacement::Spread),
            (Design::Atomics, 0) => (512, self.lock_placement),
            (Design::Atomics, size) => (size, self.lock_placement),
        };
        // Hashing gives partitions slightly different shares.
        let items = self.item_capacity.div_ceil(self.workers);
        let items = items + items / 32 + 64;
        let lengths = (self.expected_key_bytes, self.expected_value_bytes);
        Some(RecordLayout::new(
            items,
            lengths,
            read,
            locks,
            self.record_align,
        ))
    }

    /// Returns the configuration of the store.
    pub(crate) fn store_config(&self, clock: fn() -> u64, seed: u64) -> StoreConfig {
        // An item that clients READ ends in a checksum.
        let value = self.expected_value_bytes + if self.design == Design::Reads { 8 } else { 0 };
        let fits = StoreConfig::for_items(
            self.workers,
            self.item_capacity,
            self.expected_key_bytes,
            value,
        );
        StoreConfig {
            log_bytes: self.log_bytes.unwrap_or(fits.log_bytes),
            full_policy: self.full_policy,
            clock_ms: clock,
            hash_seed: seed,
            ..fits
        }
    }
}

impl service::ServerConfig for ServerConfig {
    fn check(&self) -> Result<(), String> {
        check_in_range("workers", self.workers, 1..=64)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        check_in_range("queues", self.ud_qps_per_worker, 1..=64)?;
        check_in_range("send_depth", self.send_depth as usize, 64..=1 << 15)?;
        if !self.answer_qps_per_batch.is_power_of_two()
            || !self
                .ud_qps_per_worker
                .is_multiple_of(self.answer_qps_per_batch)
        {
            return Err(format!(
                "split is {}: it must be a power of two that divides the {} queues",
                self.answer_qps_per_batch, self.ud_qps_per_worker
            ));
        }
        check_in_range("max_clients", self.max_clients, 1..=1024)?;
        check_in_range("max_window", self.max_window, 1..=MAX_WINDOW)?;
        check_in_range("items", self.item_capacity, 1..=1 << 32)?;
        check_in_range(
            "key_bytes",
            self.expected_key_bytes,
            0..=crate::store::MAX_KEY_BYTES,
        )?;
        check_in_range(
            "value_bytes",
            self.expected_value_bytes,
            0..=MAX_VALUE_BYTES,
        )?;
        check_in_range("read_size", self.neighbourhood_read_bytes, 0..=1 << 16)?;
        check_in_range("record_align", self.record_align, 8..=4096)?;
        check_in_range("lease_ms", self.lock_lease_ms.into(), 1..=60_000)?;
        if !self.record_align.is_power_of_two() {
            return Err(format!(
                "record_align is {}: it must be a power of two",
                self.record_align
            ));
        }
        let least = self.workers << 16;
        check_in_range(
            "log_bytes",
            self.log_bytes.unwrap_or(least),
            least..=1 << 43,
        )
    }

    fn check_device(&self, device: &Capabilities) -> Result<(), UnsupportedDesign> {
        self.design.check(device)
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

/// Configuration of a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// The server's TCP address.
    pub server: String,
    /// The NIC.
    pub nic: NicConfig,
    /// Largest number of outstanding requests, 1 to [`MAX_WINDOW`].
    pub window: usize,
    /// Largest number of requests in a postlist, 1 to 64.
    pub batch: usize,
    /// Bytes of the longest value that arrives in one message; longer values take up to 64 messages.
    #[serde(rename = "value_bytes")]
    pub max_single_message_value_bytes: usize,
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
            window: 64,
            batch: 16,
            max_single_message_value_bytes: 1064,
            answer_ms: 1_000,
            deadline_ms: 10_000,
        }
    }
}

impl ClientConfig {
    pub(crate) fn check_values_in_range(&self) -> Result<(), String> {
        check_in_range("window", self.window, 1..=MAX_WINDOW)?;
        check_in_range("batch", self.batch, 1..=rpc::MAX_BATCH)?;
        check_in_range(
            "value_bytes",
            self.max_single_message_value_bytes,
            0..=MAX_VALUE_BYTES,
        )
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.answer_ms.max(1))
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }
}

/// Default of [`ServerConfig::send_depth`].
const DEFAULT_SEND_DEPTH: u32 = 512;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_send_depth(depth: &u32) -> bool {
    *depth == DEFAULT_SEND_DEPTH
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_default_region_scan(scan: &RequestsPerClient) -> bool {
    *scan == RequestsPerClient::default()
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
            bad.check_values_in_range(),
            Err("window is 5000: it must be 1 to 4096".to_owned())
        );
        assert!(
            ServerConfig::default().check().is_ok()
                && ClientConfig::default().check_values_in_range().is_ok()
        );
    }
}
