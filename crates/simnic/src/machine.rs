//! Machines: NICs, and the cores and memory behind them.

use nicmodel::profile::Place;

use crate::costs::SideCosts;
use crate::fifo::Fifo;
use crate::line::Line;
use crate::port::Ports;
use crate::queue::Ps;
use crate::timetable::Timetable;

/// What a machine's NIC counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that left.
    pub sent: u64,
    /// Messages that arrived and were taken.
    pub received: u64,
    /// Messages that arrived and were dropped: no RECV, no such queue pair, a wrong key.
    pub dropped: u64,
    /// Doorbells that were rung.
    pub doorbells: u64,
    /// MMIO writes of whole WQEs.
    pub wqes_by_mmio: u64,
    /// WQEs that were fetched again because the NIC's cache had lost them.
    pub wqe_cache_misses: u64,
    /// Bytes of the cache lines that it read from memory: a processor counts each line as PCIeRdCur. Of a line of WQEs
    /// of RECVs each message that takes one counts its part.
    pub read_bytes: u64,
}

/// A place of cores and memory, and its path to a NIC: a machine's host, or its DPU. A device of the provider.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// The NIC, which a host shares with its DPU.
    pub(crate) nic: u32,
    pub(crate) place: Place,
    pub(crate) costs: SideCosts,
    /// MMIO writes of the cores, and the link to the device with all that uses it.
    pub(crate) mmio: Timetable,
    pub(crate) to_device: Fifo,
    pub(crate) to_host: Fifo,
    /// When each lock for atomics in this memory is free; empty until there is an atomic.
    pub(crate) locks: Vec<Fifo>,
    /// Regions with writes that are not visible yet, each with when its first is, and when the first of all is.
    pub(crate) unsettled: Vec<(Ps, u32)>,
    pub(crate) settles_at: Ps,
}

/// A NIC and its ports.
#[derive(Debug, Default)]
pub(crate) struct Nic {
    pub(crate) inbound: Fifo,
    pub(crate) ports: Ports,
    /// Units that work, and queue pairs that wait for one.
    pub(crate) busy_units: usize,
    pub(crate) waiting: Line<u32>,
    /// Messages that the NIC is to have handled at a time, in the order of these times, and when it looks at them.
    pub(crate) arriving: Line<(Ps, u32)>,
    pub(crate) handles_at: Option<Ps>,
    /// Queue pairs that have READs outstanding.
    pub(crate) reading: usize,
    pub(crate) counters: Counters,
}
