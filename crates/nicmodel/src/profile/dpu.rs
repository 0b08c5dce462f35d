//! The DPU's side of a NIC: its own cores and memory, nearer to the NIC than the host's.

use super::section::section;
use super::sourced::Sourced;

section! {
    /// The DPU's cores and memory, behind the same NIC as the host.
    pub struct Dpu in "dpu" {
        /// Cores of the DPU.
        cores: Sourced<u32> = 1 to 4096,
        /// Speed of a DPU core as a multiple of a host core's. All core times of `host` are divided by it.
        core_speed: Sourced<f64> = 0.01 to 100.0,
        /// Bytes of a core's own caches. Access to a line in them costs nothing beside the program's work.
        core_cache_bytes: Option<Sourced<u32>> = 0 to 1_000_000_000,
        /// Bytes of the last-level cache, which the cores share.
        cache_bytes: Option<Sourced<u32>> = 0 to 4_000_000_000u32,
        /// Latency of a dependent access to a line in the last-level cache.
        cache_hit_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Latency of a dependent access to a line in memory; touches of memory cost nothing if absent.
        memory_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Most lines that a core fetches at a time; one if absent.
        outstanding_misses: Option<Sourced<u32>> = 1 to 1024,
        /// Additional latency of a request's line if the NIC writes to memory and not into the last-level cache
        /// (DDIO); 0 if absent.
        written_line_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// One-way latency of a transaction from the NIC to the DPU's cores or memory.
        latency_ns: Sourced<f64> = 0.0 to 100_000.0,
        /// Bandwidth between the NIC and the DPU's memory in one direction, in 10^6 bytes a second.
        bandwidth_mbps: Sourced<f64> = 10.0 to 1_000_000.0,
        /// Largest data of one read completion from the DPU's memory.
        read_completion_bytes: Sourced<u32> = 64 to 4096,
        /// Time for which an atomic in the DPU's memory holds its lock; as on the host if absent.
        lock_hold_ns: Option<Sourced<f64>> = 1.0 to 1_000_000.0,
    }
}
