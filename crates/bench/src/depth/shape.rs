//! What an exchange of requests and responses looks like.

use serde::{Deserialize, Serialize};
use verbs::{Access, MemoryRegion};

use crate::nic::{Nic, NicChoice};

/// How the server moves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// An RDMA WRITE into the client's memory: the client reads a block.
    Write,
    /// An RDMA READ of the client's memory: the client writes a block.
    Read,
}

impl Way {
    /// As on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Way::Write => "write",
            Way::Read => "read",
        }
    }
}

/// Where the data lie, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// In memory that was allocated for peers to map.
    Shared,
    /// In memory of the process alone; the software NIC gives such a region of up to 64 MiB a backing that peers map.
    Heap,
    /// The same in a region of 65 MiB, which stays private to its process.
    Large,
}

impl Memory {
    /// As on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Memory::Shared => "shared",
            Memory::Heap => "heap",
            Memory::Large => "large",
        }
    }

    /// Registers at least so many zeroed bytes.
    pub(super) fn register(
        self,
        nic: &Nic,
        bytes: usize,
        access: Access,
    ) -> anyhow::Result<MemoryRegion> {
        const LARGE: usize = 65 << 20;
        Ok(match self {
            Memory::Shared => nic.alloc(bytes, access, None)?,
            Memory::Heap => nic.pd.register_vec(vec![0; bytes], access)?,
            Memory::Large => nic.pd.register_vec(vec![0; bytes.max(LARGE)], access)?,
        })
    }
}

/// One exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// How the server moves the data.
    pub way: Way,
    /// Where they lie.
    pub memory: Memory,
    /// Requests of each queue pair in flight, at least 1.
    pub depth: usize,
    /// Queue pairs, at least 1.
    pub queue_pairs: usize,
    /// Bytes of data of each request, at least 8.
    pub payload_bytes: usize,
    /// How long requests are counted, after a tenth of it that is not.
    pub duration_ms: u64,
}

/// Bytes of a request.
pub(super) const REQUEST_BYTES: usize = 64;
/// Bytes of a response.
pub(super) const RESPONSE_BYTES: usize = 16;
/// Completions that are taken at once: a quarter of a depth of 32, so that the two sides work at the same time and do not
/// wait for each other's batches.
pub(super) const POLL: usize = 8;

impl Shape {
    /// Requests in flight.
    pub(super) fn slots(&self) -> usize {
        self.depth * self.queue_pairs
    }

    /// Bytes from one slot of data to the next.
    pub(super) fn stride(&self) -> usize {
        self.payload_bytes.next_multiple_of(64)
    }
}

/// What the server is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DepthOrder {
    pub(super) nic: NicChoice,
    pub(super) shape: Shape,
}
