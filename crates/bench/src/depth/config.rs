//! Parameters of an exchange of requests and responses.

use serde::{Deserialize, Serialize};
use verbs::{Access, MemoryRegion};

use crate::open_nic::{NicChoice, OpenNic};

/// Verb with which the server moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferVerb {
    /// An RDMA WRITE into the client's memory: the client reads a block.
    Write,
    /// An RDMA READ of the client's memory: the client writes a block.
    Read,
}

impl TransferVerb {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransferVerb::Write => "write",
            TransferVerb::Read => "read",
        }
    }
}

/// Kind of memory that holds the data, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataMemory {
    /// Memory that was allocated for peers to map.
    Shared,
    /// Private memory of the process. The software NIC backs such a region of up to 64 MiB with
    /// memory that peers map.
    Heap,
    /// Private memory in a region of at least 65 MiB, which peers cannot map.
    Large,
}

impl DataMemory {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DataMemory::Shared => "shared",
            DataMemory::Heap => "heap",
            DataMemory::Large => "large",
        }
    }

    /// Registers at least `bytes` zeroed bytes.
    pub(super) fn allocate_and_register_zeroed(
        self,
        nic: &OpenNic,
        bytes: usize,
        access: Access,
    ) -> anyhow::Result<MemoryRegion> {
        const MIN_LARGE_REGION_BYTES: usize = 65 << 20;
        Ok(match self {
            DataMemory::Shared => nic.alloc_registered_memory(bytes, access, None)?,
            DataMemory::Heap => nic.pd.register_vec(vec![0; bytes], access)?,
            DataMemory::Large => nic
                .pd
                .register_vec(vec![0; bytes.max(MIN_LARGE_REGION_BYTES)], access)?,
        })
    }
}

/// Parameters of one exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeConfig {
    /// Verb with which the server moves the data.
    #[serde(rename = "way")]
    pub verb: TransferVerb,
    /// Kind of memory that holds the data.
    pub memory: DataMemory,
    /// Requests in flight on each queue pair, at least 1.
    pub depth: usize,
    /// Number of queue pairs, at least 1.
    pub queue_pairs: usize,
    /// Bytes of data of each request, at least 8.
    pub payload_bytes: usize,
    /// Time for which requests are counted. A warm-up of a tenth of this time precedes it.
    pub duration_ms: u64,
}

/// Bytes of a request.
pub(super) const REQUEST_BYTES: usize = 64;
/// Bytes of a response.
pub(super) const RESPONSE_BYTES: usize = 16;
/// Completions that one poll takes at most. A quarter of a depth of 32 lets both sides work at the
/// same time, so that neither waits for the other's batches.
pub(super) const MAX_COMPLETIONS_PER_POLL: usize = 8;

impl ExchangeConfig {
    /// Returns the number of slots: the requests in flight on all queue pairs.
    pub(super) fn slot_count(&self) -> usize {
        self.depth * self.queue_pairs
    }

    /// Returns the distance of two slots of data, in bytes.
    pub(super) fn slot_stride_bytes(&self) -> usize {
        self.payload_bytes.next_multiple_of(64)
    }
}

/// Order that the driver sends to the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DepthJob {
    pub(crate) nic: NicChoice,
    #[serde(rename = "shape")]
    pub(crate) config: ExchangeConfig,
}
