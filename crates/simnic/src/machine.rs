//! Machines: NICs, and the cores and memory behind them.

use nicmodel::profile::Place;

use crate::costs::SideCosts;
use crate::fifo::Fifo;
use crate::line::Line;
use crate::port::Ports;
use crate::queue::Ps;
use crate::timetable::Timetable;

/// The counters of a machine's NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
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
pub(crate) struct Machine {
    /// Index of the NIC, which a host shares with its DPU.
    pub(crate) nic: u32,
    pub(crate) place: Place,
    pub(crate) costs: SideCosts,
    /// MMIO writes of the cores; `to_device`: all transfers on the link to the device.
    pub(crate) mmio: Timetable,
    pub(crate) to_device: Fifo,
    pub(crate) to_host: Fifo,
    /// Time at which each lock for atomics in this memory is free; empty until the first atomic.
    pub(crate) locks: Vec<Fifo>,
    /// Regions with WRITEs that are not visible yet, each with the time of its first one; `settles_at`: the earliest of
    /// these times.
    pub(crate) unsettled: Vec<(Ps, u32)>,
    pub(crate) settles_at: Ps,
}

/// A NIC and its ports.
#[derive(Debug, Default)]
pub(crate) struct Nic {
    pub(crate) inbound: Fifo,
    pub(crate) ports: Ports,
    /// Number of busy processing units; `waiting`: queue pairs that wait for a unit.
    pub(crate) busy_units: usize,
    pub(crate) waiting: Line<u32>,
    /// Messages in the order of the times at which the NIC has processed them; `handles_at`: the time of the next event
    /// for them.
    pub(crate) arriving: Line<(Ps, u32)>,
    pub(crate) handles_at: Option<Ps>,
    /// Number of queue pairs with outstanding READs.
    pub(crate) reading: usize,
    pub(crate) counters: Counters,
}
