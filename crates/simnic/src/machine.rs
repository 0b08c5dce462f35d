//! Machines: NICs, and the cores and memory behind them.

use nicmodel::profile::CorePlace;

use crate::costs::{HostOrDpuCosts, PcieCost};
use crate::event_queue::Ps;
use crate::fifo_queue::FifoQueue;
use crate::port::NicPorts;
use crate::serial_resource::{PacketTimes, SerialResource};
use crate::timetable::SerialTimetable;

/// The counters of a machine's NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicCounters {
    /// Messages that were sent.
    pub sent_messages: u64,
    /// Messages that arrived and were accepted.
    pub received_messages: u64,
    /// Messages that arrived and were dropped: no RECV for an unreliable message, no such queue pair, or a wrong key.
    pub dropped_messages: u64,
    /// Doorbells, as opposed to MMIO writes of WQEs.
    pub doorbells: u64,
    /// MMIO writes of whole WQEs.
    pub wqes_by_mmio: u64,
    /// Messages and responses of which a packet was lost on the way from this NIC. A message that the responder drops
    /// because an earlier one is missing does not count again.
    pub lost_messages: u64,
    /// Sends of reliable messages that were lost, that the responder dropped, or that it had executed before. Messages
    /// to a queue pair that does not exist are not counted.
    pub wasted_sends: u64,
    /// RNR NAKs that were sent, because a message of a reliable queue pair found no RECV.
    pub rnr_naks: u64,
    /// WQEs that were fetched again because the NIC's cache had lost them.
    pub wqe_cache_misses: u64,
    /// Bytes of the cache lines that the NIC read from memory; a processor counts each line as PCIeRdCur. If a line
    /// holds several WQEs of RECVs, each message counts its part.
    pub dma_read_bytes: u64,
}

/// Returns the LID of a machine.
pub(crate) fn lid_of_machine(machine: u32) -> u16 {
    u16::try_from(machine + 1).unwrap_or(0)
}

/// Returns the GUID of a machine: a locally administered EUI-64 that contains the number of the machine.
pub(crate) fn guid_of_machine(machine: u32) -> u64 {
    0x0200_0000_0000_0000 | u64::from(machine + 1)
}

/// Returns the GID of a machine, which is link-local.
pub(crate) fn gid_of_machine(machine: u32) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&guid_of_machine(machine).to_be_bytes());
    gid
}

/// Cores and memory with their path to a NIC: the host of a machine, or its DPU. Each is a device of the provider.
#[derive(Debug, Default)]
pub(crate) struct HostOrDpuState {
    /// Index of the NIC, which a host shares with its DPU.
    pub(crate) nic_index: u32,
    pub(crate) place: CorePlace,
    /// Number of cores on which threads were started.
    pub(crate) active_cores: u32,
    pub(crate) costs: HostOrDpuCosts,
    /// MMIO writes of the cores; `pcie_to_device`: all transfers on the link to the device.
    pub(crate) mmio_write_timetable: SerialTimetable,
    pub(crate) pcie_to_device: SerialResource,
    pub(crate) pcie_to_host: SerialResource,
    /// Time at which each lock for atomics in this memory is free; empty until the first atomic.
    pub(crate) atomic_locks: Vec<SerialResource>,
    /// Regions with WRITEs that are not visible yet, each with the time of its first one; `next_write_visible_at`: the
    /// earliest of these times.
    pub(crate) regions_with_pending_writes: Vec<(Ps, u32)>,
    pub(crate) next_write_visible_at: Ps,
}

impl HostOrDpuState {
    /// Fetches payload from this memory from `at` on. A packet takes `packet_time` of the link to the device. Returns
    /// the times at which the NIC has the payload of the packets.
    #[inline(always)]
    pub(crate) fn fetch_payload(
        &mut self,
        at: Ps,
        fetch: &PcieCost,
        packet_time: Ps,
    ) -> PacketTimes {
        self.pcie_to_host
            .reserve_without_waiting(at, fetch.link_time_to_host);
        let time = fetch.link_time_to_device;
        let end = self.pcie_to_device.reserve_time(at, time);
        // The data of a fetch moves during its round trip, and that of further packets behind it.
        let after_first = time - packet_time;
        let first = (end - after_first).max(at + 2 * self.costs.pcie_latency);
        PacketTimes {
            first,
            last: first + after_first,
        }
    }

    /// Returns the time at which the NIC would have the payload of the first packet, if it fetches from `at` on.
    pub(crate) fn first_payload_at(&self, at: Ps, packet_time: Ps) -> Ps {
        let fetched = self.pcie_to_device.next_start(at) + packet_time;
        fetched.max(at + 2 * self.costs.pcie_latency)
    }
}

/// A message that arrives at its responder's NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivingMessage {
    /// Time at which the NIC has processed the first packet.
    pub(crate) processed_at: Ps,
    pub(crate) message: u32,
    /// Time from then until the NIC has processed the last packet.
    last_packet_delay_ns: u32,
}

impl ArrivingMessage {
    /// Returns a message whose packets the NIC has processed at `processed`.
    #[inline(always)]
    pub(crate) fn new(message: u32, processed: PacketTimes) -> Self {
        if processed.first == processed.last {
            return Self::of_one_packet(message, processed.first);
        }
        let delay_ns = (processed.last - processed.first).div_ceil(1000);
        Self {
            processed_at: processed.first,
            message,
            // Four seconds are longer than the largest message takes.
            last_packet_delay_ns: u32::try_from(delay_ns).unwrap_or(u32::MAX),
        }
    }

    /// Returns a message of one packet, which the NIC has processed at `processed_at`.
    #[inline(always)]
    pub(crate) fn of_one_packet(message: u32, processed_at: Ps) -> Self {
        Self {
            processed_at,
            message,
            last_packet_delay_ns: 0,
        }
    }

    /// Returns the times at which the NIC has processed the packets.
    #[inline(always)]
    pub(crate) fn processed(&self) -> PacketTimes {
        PacketTimes {
            first: self.processed_at,
            last: self.processed_at + 1000 * u64::from(self.last_packet_delay_ns),
        }
    }
}

/// A NIC and its ports.
#[derive(Debug, Default)]
pub(crate) struct SimulatedNic {
    pub(crate) inbound_processing: SerialResource,
    pub(crate) ports: NicPorts,
    /// Number of busy processing units; `qps_waiting_for_unit`: queue pairs that wait for a unit.
    pub(crate) busy_units: usize,
    pub(crate) qps_waiting_for_unit: FifoQueue<u32>,
    /// Messages in the order of the times at which the NIC has processed their first packets; `next_processed_at`: the
    /// time of the next event for them.
    pub(crate) messages_by_processed_at: FifoQueue<ArrivingMessage>,
    pub(crate) next_processed_at: Option<Ps>,
    /// Number of queue pairs with outstanding READs.
    pub(crate) qps_with_outstanding_reads: usize,
    pub(crate) counters: NicCounters,
}
