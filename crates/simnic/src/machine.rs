//! Machines: NICs, and the cores and memory behind them.

use nicmodel::profile::CorePlace;

use crate::costs::SideCosts;
use crate::fifo_queue::FifoQueue;
use crate::port::NicPorts;
use crate::queue::Ps;
use crate::serial_resource::SerialResource;
use crate::timetable::SerialTimetable;

/// The counters of a machine's NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that arrived and were accepted.
    pub received: u64,
    /// Messages that arrived and were dropped: no RECV, no such queue pair, or a wrong key.
    pub dropped: u64,
    /// Doorbells, as opposed to MMIO writes of WQEs.
    pub doorbells: u64,
    /// MMIO writes of whole WQEs.
    pub wqes_by_mmio: u64,
    /// WQEs that were fetched again because the NIC's cache had lost them.
    pub wqe_cache_misses: u64,
    /// Bytes of the cache lines that the NIC read from memory; a processor counts each line as PCIeRdCur. If a line
    /// holds several WQEs of RECVs, each message counts its part.
    pub read_bytes: u64,
}

/// Cores and memory with their path to a NIC: the host of a machine, or its DPU. Each is a device of the provider.
#[derive(Debug, Default)]
pub(crate) struct NicHost {
    /// Index of the NIC, which a host shares with its DPU.
    pub(crate) nic: u32,
    pub(crate) place: CorePlace,
    pub(crate) costs: SideCosts,
    /// MMIO writes of the cores; `to_device`: all transfers on the link to the device.
    pub(crate) mmio: SerialTimetable,
    pub(crate) to_device: SerialResource,
    pub(crate) to_host: SerialResource,
    /// Time at which each lock for atomics in this memory is free; empty until the first atomic.
    pub(crate) locks: Vec<SerialResource>,
    /// Regions with WRITEs that are not visible yet, each with the time of its first one; `next_visible_at`: the earliest of
    /// these times.
    pub(crate) unsettled_writes: Vec<(Ps, u32)>,
    pub(crate) next_visible_at: Ps,
}

/// A NIC and its ports.
#[derive(Debug, Default)]
pub(crate) struct SimulatedNic {
    pub(crate) inbound: SerialResource,
    pub(crate) ports: NicPorts,
    /// Number of busy processing units; `waiting`: queue pairs that wait for a unit.
    pub(crate) busy_units: usize,
    pub(crate) waiting: FifoQueue<u32>,
    /// Messages in the order of the times at which the NIC has processed them; `next_processed_at`: the time of the next event
    /// for them.
    pub(crate) arriving: FifoQueue<(Ps, u32)>,
    pub(crate) next_processed_at: Option<Ps>,
    /// Number of queue pairs with outstanding READs.
    pub(crate) reading: usize,
    pub(crate) counters: NicCounters,
}
