//! A profile's numbers as times: the use of each part of the machine by each step of an operation.

use std::collections::HashMap;

use nicmodel::pcie::{self, TransactionKind, TransactionPurpose};
use nicmodel::profile::{CorePlace, Profile, Sourced};
use nicmodel::{
    Footprint, LinkTransactions, Operation, PayloadDestination, PostMethod, Transport, Verb, wqe,
};

use crate::core_caches::CoreCaches;
use crate::event_queue::Ps;

/// Limit of the number of distinct locks of a NIC, as a logarithm.
const MAX_ATOMIC_LOCK_BITS: u32 = 16;

/// The reason why a profile cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "profile {profile} cannot be simulated: it has no {}; give {} in a profile of your own \
     (verbatim model --template prints one)",
    .missing_keys.join(", "),
    if .missing_keys.len() == 1 { "it" } else { "them" }
)]
pub struct MissingCosts {
    /// Name of the profile.
    pub profile: String,
    /// Keys that a simulation needs and the profile lacks.
    pub missing_keys: Vec<&'static str>,
}

/// The costs that depend neither on the operation nor on the side (host or DPU) that uses the NIC.
#[derive(Clone, Debug)]
pub(crate) struct NicParameters {
    pub(crate) processing_unit_count: usize,
    /// One-way latency of the network.
    pub(crate) network_latency: Ps,
    pub(crate) has_atomics: bool,
    pub(crate) atomic_lock_bits: u32,
    pub(crate) max_inline_bytes: u32,
    pub(crate) mtu: u32,
    pub(crate) read_wqe_cache_entries: Option<usize>,
}

/// The costs of the cores and memory of a host or DPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostOrDpuCosts {
    pub(crate) core_count: u32,
    pub(crate) post_wqe: Ps,
    pub(crate) mmio_write: Ps,
    pub(crate) poll_cqe: Ps,
    pub(crate) post_recv: Ps,
    pub(crate) uncontended_atomic_add: Ps,
    pub(crate) contended_atomic_add: Ps,
    pub(crate) server_request_work: Ps,
    pub(crate) empty_memory_poll: Ps,
    /// Factor by which this core is slower than the host's core, whose time programs give.
    pub(crate) core_slowdown_factor: f64,
    /// Caches; `None` if memory accesses cost no time.
    pub(crate) caches: Option<CoreCaches>,
    /// Processor costs that the profile lacks; cores take no time for these.
    pub(crate) unknown_core_costs: Vec<&'static str>,
    pub(crate) wqe_fetch_wait: Ps,
    /// Time to fetch a WQE that the NIC's cache has lost; a PCIe round trip if the profile has no number.
    pub(crate) wqe_refetch_wait: Ps,
    /// One-way latency of PCIe.
    pub(crate) pcie_latency: Ps,
    pub(crate) atomic_lock_hold: Ps,
}

/// Returns the costs of cores that the profile lacks; simulated cores take no time for these.
#[must_use]
pub fn unknown_core_costs(profile: &Profile) -> Vec<&'static str> {
    HostOrDpuCosts::from_profile(profile, 1.0, 1).unknown_core_costs
}

impl NicParameters {
    pub(crate) fn from_profile(profile: &Profile) -> Result<Self, MissingCosts> {
        let nic = &profile.processing;
        let needed = [
            ("processing.send_ns", &nic.send_ns),
            ("processing.inbound_ns", &nic.inbound_ns),
            ("port.latency_ns", &profile.port.latency_ns),
            ("pcie.latency_ns", &profile.pcie.latency_ns),
        ];
        let missing: Vec<_> = needed
            .iter()
            .filter_map(|(key, number)| number.is_none().then_some(*key))
            .collect();
        if !missing.is_empty() {
            let profile = profile.name.clone();
            return Err(MissingCosts {
                profile,
                missing_keys: missing,
            });
        }
        Ok(Self {
            processing_unit_count: nic.units.as_ref().map_or(1, |units| units.value as usize),
            network_latency: ps_from_ns(value_or_zero(&profile.port.latency_ns)),
            has_atomics: nic.atomic_ns.is_some() && profile.atomics.lock_hold_ns.is_some(),
            atomic_lock_bits: profile
                .atomics
                .lock_bits
                .as_ref()
                .map_or(0, |bits| bits.value.min(MAX_ATOMIC_LOCK_BITS)),
            max_inline_bytes: profile.wqe.max_inline_bytes.value,
            mtu: profile.port.mtu_bytes.value,
            read_wqe_cache_entries: read_wqe_cache_entries(profile),
        })
    }
}

impl HostOrDpuCosts {
    /// Returns the time of a poll that finds nothing or one completion. It is never 0; otherwise a loop that only polls
    /// would never end.
    #[inline(always)]
    pub(crate) fn poll_time(&self) -> Ps {
        self.poll_cqe.max(1000)
    }

    /// Makes the costs of the side that is the host in `profile`, whose cores have `core_speed` times the speed of the
    /// host's, while so many of them are active.
    pub(crate) fn from_profile(profile: &Profile, core_speed: f64, active_cores: u32) -> Self {
        let core_speed = core_speed / profile.slowdown_factor(active_cores);
        let profile = &*profile.with_active_cores(active_cores);
        let (host, nic) = (&profile.host, &profile.processing);
        let mut unknown_core_costs = Vec::new();
        let mut core = |key, number: &Option<Sourced<f64>>| {
            if number.is_none() {
                unknown_core_costs.push(key);
            }
            ps_from_ns(value_or_zero(number))
        };
        let pcie = ps_from_ns(value_or_zero(&profile.pcie.latency_ns));
        Self {
            core_count: host.cores.value,
            post_wqe: core("host.post_wqe_ns", &host.post_wqe_ns),
            mmio_write: core("host.mmio_write_ns", &host.mmio_write_ns),
            poll_cqe: core("host.poll_cqe_ns", &host.poll_cqe_ns),
            post_recv: core("host.post_recv_ns", &host.post_recv_ns),
            uncontended_atomic_add: core("host.atomic_add_ns", &host.atomic_add_ns),
            contended_atomic_add: core("host.contended_add_ns", &host.contended_add_ns),
            server_request_work: core("host.request_ns", &host.request_ns)
                + ps_from_ns(value_or_zero(&host.written_line_ns)),
            empty_memory_poll: ps_from_ns(value_or_zero(&host.empty_look_ns)),
            core_slowdown_factor: 1.0 / core_speed,
            caches: CoreCaches::of_host(host),
            unknown_core_costs,
            wqe_fetch_wait: ps_from_ns(value_or_zero(&nic.wqe_fetch_wait_ns)),
            wqe_refetch_wait: nic
                .wqe_fetch_wait_ns
                .as_ref()
                .map_or(2 * pcie, |wait| ps_from_ns(wait.value)),
            pcie_latency: pcie,
            atomic_lock_hold: ps_from_ns(value_or_zero(&profile.atomics.lock_hold_ns)),
        }
    }

    /// Converts a time of the host's core to the time of a core of this side.
    pub(crate) fn scaled_core_time(&self, time: Ps) -> Ps {
        if self.core_slowdown_factor == 1.0 {
            return time;
        }
        #[expect(clippy::cast_precision_loss, reason = "times of a run, far below 2^53")]
        round_to_u64(time as f64 * self.core_slowdown_factor)
    }
}

/// Returns the number of READ WQEs that the NIC caches: the number outstanding at the best published window, but at
/// least one.
fn read_wqe_cache_entries(profile: &Profile) -> Option<usize> {
    let window = profile.cache.read_window.as_ref()?.value as usize;
    let threads = profile.cache.read_window_threads.as_ref()?.value as usize;
    Some((window * threads).max(1))
}

fn value_or_zero(number: &Option<Sourced<f64>>) -> f64 {
    number.as_ref().map_or(0.0, |number| number.value)
}

/// Converts nanoseconds to picoseconds.
fn ps_from_ns(ns: f64) -> Ps {
    round_to_u64(ns * 1e3)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times and sizes of a checked profile are positive and far below 2^63"
)]
fn round_to_u64(number: f64) -> u64 {
    number.round() as u64
}

/// The costs of one kind of operation, without those of posting its WQEs.
#[derive(Clone, Debug)]
pub(crate) struct OperationCosts {
    pub(crate) operation: Operation,
    /// Opcode of the ABI.
    pub(crate) opcode: u8,
    /// True for a READ or atomic, whose response carries data.
    pub(crate) has_response_data: bool,
    /// True for a WRITE; `has_imm`: true if the message has an immediate.
    pub(crate) is_rdma_write: bool,
    pub(crate) has_imm: bool,
    /// True for a SEND of a datagram.
    pub(crate) is_datagram_send: bool,
    /// True if the requester waits for the responder before the operation completes.
    pub(crate) waits_for_responder: bool,
    /// True if the payload is not in the WQE, so that the NIC fetches it before the message leaves.
    pub(crate) fetches_payload: bool,
    /// Number of cache lines of a WQE.
    pub(crate) wqe_cache_lines: u64,
    /// Bytes of a WQE in the send queue.
    pub(crate) send_queue_slot_bytes: u32,
    /// Time in a processing unit of the requester.
    pub(crate) requester_unit_time: Ps,
    /// Time in the responder's NIC, for all units together.
    pub(crate) inbound_processing_time: Ps,
    /// Packets to the responder; `response_packets`: back to the requester.
    pub(crate) request_packets: PacketCount,
    pub(crate) response_packets: PacketCount,
    /// Time on a port to the responder; `response_wire_time`: back to the requester.
    pub(crate) request_wire_time: Ps,
    pub(crate) response_wire_time: Ps,
    /// Payload of each packet but the last one, if a message has several.
    full_packet_bytes: u32,
    /// PCIe transfers with the cores and memory of each [`CorePlace`].
    pub(crate) transfers_by_place: [PcieTransferCosts; MAX_PLACES],
}

/// The packets of a message in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketCount {
    /// Number of packets, at least 1.
    pub(crate) count: u32,
    /// Average length of a packet.
    pub(crate) average_bytes: u32,
}

impl PacketCount {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a message has at most 2^31 bytes"
    )]
    fn of(packets: nicmodel::wire::PacketCost) -> Self {
        let count = packets.count.max(1.0);
        Self {
            count: count as u32,
            average_bytes: (packets.bytes_without_gaps / count) as u32,
        }
    }
}

/// Largest number of places.
pub(crate) const MAX_PLACES: usize = 2;

/// The PCIe transfers of an operation between the NIC and the cores and memory of a place.
#[derive(Clone, Debug, Default)]
pub(crate) struct PcieTransferCosts {
    /// Transfers of a WQE by MMIO, including link-layer packets to the host.
    pub(crate) wqe_by_mmio: PcieCost,
    /// Fetch of payload that is not inline.
    pub(crate) payload_fetch: PcieCost,
    /// Fetch of a WQE that the NIC's cache has lost.
    pub(crate) wqe_refetch: PcieCost,
    /// Write of the response to a READ or atomic.
    pub(crate) response_write: PcieCost,
    /// Cost of the DMA transfers of the responder.
    pub(crate) responder_dma_cost: PcieCost,
    /// Fetches of lists of WQEs, by the length of the list; `None` if not computed yet.
    wqe_fetch_by_list_len: Vec<Option<PcieCost>>,
}

impl OperationCosts {
    /// Returns the transfers with a place.
    #[inline(always)]
    pub(crate) fn transfers_at(&self, place: CorePlace) -> &PcieTransferCosts {
        &self.transfers_by_place[place as usize]
    }

    /// Returns true if the payload needs several packets.
    pub(crate) fn has_several_packets(&self) -> bool {
        self.request_packets.count > 1 || self.response_packets.count > 1
    }

    /// Returns the share of a full packet in the time that the payload takes at a stage of its way.
    #[inline(always)]
    pub(crate) fn packet_time(&self, payload_time: Ps) -> Ps {
        let packets = self.request_packets.count.max(self.response_packets.count);
        self.full_packet_time(payload_time, packets)
    }

    #[inline(always)]
    fn full_packet_time(&self, time: Ps, packets: u32) -> Ps {
        if packets == 1 {
            return time;
        }
        time * u64::from(self.full_packet_bytes) / u64::from(self.operation.payload_bytes)
    }

    /// Returns the time of a full packet of the request on a port.
    #[inline(always)]
    pub(crate) fn request_packet_wire_time(&self) -> Ps {
        self.full_packet_time(self.request_wire_time, self.request_packets.count)
    }

    /// Returns the time of a full packet of the response on a port.
    pub(crate) fn response_packet_wire_time(&self) -> Ps {
        self.full_packet_time(self.response_wire_time, self.response_packets.count)
    }
}

/// Time on both directions of a PCIe link, and the bytes that the NIC reads from memory, counted in whole cache lines.
/// If a line holds several WQEs of RECVs, each counts its part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PcieCost {
    pub(crate) link_time_to_device: Ps,
    pub(crate) link_time_to_host: Ps,
    pub(crate) dma_read_bytes: u64,
}

impl PcieCost {
    /// Returns the transfers of `packets` of the `count` packets that the whole transfers are for.
    #[inline(always)]
    pub(crate) fn share_for_packets(&self, packets: u32, count: u32) -> Self {
        if packets == count {
            return *self;
        }
        let part = |whole: u64| whole * u64::from(packets) / u64::from(count);
        Self {
            link_time_to_device: part(self.link_time_to_device),
            link_time_to_host: part(self.link_time_to_host),
            dma_read_bytes: part(self.dma_read_bytes),
        }
    }
}

/// The fields that identify a [`OperationCosts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OperationCostKey {
    pub(crate) verb: Verb,
    pub(crate) transport: Transport,
    pub(crate) payload_bytes: u32,
    pub(crate) inline: bool,
    pub(crate) has_imm: bool,
    pub(crate) num_sge: u32,
}

/// The shapes of all operations so far.
#[derive(Debug)]
pub(crate) struct CostTable {
    /// Profiles as seen from the host and, if it exists, from the DPU.
    profiles: Vec<Profile>,
    /// Method by which RECVs take payload that fits into the completion.
    pub(crate) recv_payload_destination: PayloadDestination,
    operation_costs: Vec<OperationCosts>,
    cost_index_by_key: HashMap<OperationCostKey, u16>,
    doorbell_cost: [PcieCost; MAX_PLACES],
    cqe_write_cost: [PcieCost; MAX_PLACES],
}

impl CostTable {
    /// Makes an empty table for the NIC of a profile, as seen from the host and from the DPU.
    pub(crate) fn new(profile: &Profile) -> Self {
        let mut profiles = vec![profile.clone()];
        profiles.extend(profile.as_seen_from_dpu());
        let send = Operation::header_only(Transport::Ud).with_signaled_fraction(1.0);
        let (mut doorbell, mut cqe) = <([PcieCost; MAX_PLACES], [PcieCost; MAX_PLACES])>::default();
        for (place, profile) in profiles.iter().enumerate() {
            let link = PcieLink::from_profile(profile);
            let one = Footprint::of_postlist(profile, &send, PostMethod::Doorbell, 1);
            let one = one.expect("every NIC sends datagrams");
            doorbell[place] =
                link.transaction_cost(&one.requester, |p| p == TransactionPurpose::Doorbell);
            cqe[place] = link.transaction_cost(&one.requester, |p| p == TransactionPurpose::Cqe);
        }
        Self {
            profiles,
            doorbell_cost: doorbell,
            cqe_write_cost: cqe,
            recv_payload_destination: PayloadDestination::Regular,
            operation_costs: Vec::new(),
            cost_index_by_key: HashMap::new(),
        }
    }

    /// Returns the NIC's profile as seen from the host.
    pub(crate) fn host_profile(&self) -> &Profile {
        &self.profiles[0]
    }

    /// Returns the shape of an operation with its opcode of the ABI; `None` if the NIC cannot do the operation.
    pub(crate) fn find_or_add(&mut self, key: OperationCostKey, opcode: u32) -> Option<u16> {
        if let Some(&id) = self.cost_index_by_key.get(&key) {
            return Some(id);
        }
        let shape = compute_operation_costs(
            &self.profiles,
            self.recv_payload_destination,
            key,
            u8::try_from(opcode).ok()?,
        )?;
        let id = u16::try_from(self.operation_costs.len()).ok()?;
        self.operation_costs.push(shape);
        self.cost_index_by_key.insert(key, id);
        Some(id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u16) -> &OperationCosts {
        &self.operation_costs[usize::from(id)]
    }

    #[inline(always)]
    pub(crate) fn doorbell_cost(&self, place: CorePlace) -> PcieCost {
        self.doorbell_cost[place as usize]
    }

    #[inline(always)]
    pub(crate) fn cqe_write_cost(&self, place: CorePlace) -> PcieCost {
        self.cqe_write_cost[place as usize]
    }

    /// Returns the transfers that fetch the WQEs of a list of `len` such operations from a place.
    pub(crate) fn wqe_fetch_cost(&mut self, id: u16, len: u32, place: CorePlace) -> PcieCost {
        let shape = &mut self.operation_costs[usize::from(id)];
        let fetches = &mut shape.transfers_by_place[place as usize].wqe_fetch_by_list_len;
        let index = len as usize;
        if let Some(&Some(known)) = fetches.get(index) {
            return known;
        }
        let profile = &self.profiles[place as usize];
        let list =
            Footprint::of_postlist(profile, &shape.operation, PostMethod::Doorbell, len.max(1));
        let time = list.map_or(PcieCost::default(), |list| {
            PcieLink::from_profile(profile)
                .transaction_cost(&list.requester, |p| p == TransactionPurpose::WqeFetch)
        });
        if fetches.len() <= index {
            fetches.resize(index + 1, None);
        }
        fetches[index] = Some(time);
        time
    }

    /// Returns the transfers that fetch a list of WQEs of different sizes, given by their costs. Equal sizes are
    /// fetched together.
    #[cold]
    pub(crate) fn mixed_wqe_fetch_cost(
        &mut self,
        wqes: impl Iterator<Item = u16>,
        place: CorePlace,
    ) -> PcieCost {
        let mut sizes: Vec<(u32, u16, u32)> = Vec::new();
        for id in wqes {
            let bytes = self.get(id).send_queue_slot_bytes;
            match sizes.iter_mut().find(|(known, ..)| *known == bytes) {
                Some((_, _, count)) => *count += 1,
                None => sizes.push((bytes, id, 1)),
            }
        }
        let mut sum = PcieCost::default();
        for (_, id, count) in sizes {
            let cost = self.wqe_fetch_cost(id, count, place);
            sum.link_time_to_device += cost.link_time_to_device;
            sum.link_time_to_host += cost.link_time_to_host;
            sum.dma_read_bytes += cost.dma_read_bytes;
        }
        sum
    }
}

fn compute_operation_costs(
    profiles: &[Profile],
    receive: PayloadDestination,
    key: OperationCostKey,
    opcode: u8,
) -> Option<OperationCosts> {
    let profile = profiles.first()?;
    let operation = Operation {
        inline: key.inline,
        has_imm: key.has_imm,
        num_sge: key.num_sge.max(1),
        payload_destination: receive,
        ..Operation::new(key.verb, key.transport, key.payload_bytes)
    };
    let one = Footprint::of_postlist(profile, &operation, PostMethod::WqeByMmio, 1).ok()?;
    let mut with = <[PcieTransferCosts; MAX_PLACES]>::default();
    for (with, profile) in with.iter_mut().zip(profiles) {
        *with = pcie_transfer_costs(profile, &operation)?;
    }
    let units = profile
        .processing
        .units
        .as_ref()
        .map_or(1.0, |units| f64::from(units.value));
    let port = profile.port.gbps.value / 8.0;
    let wire = |packets: nicmodel::wire::PacketCost| {
        ps_from_ns(packets.link_bytes_with_gaps(profile) / port)
    };
    let lines = wqe::cache_line_count(operation.wqe_bytes(profile));
    Some(OperationCosts {
        fetches_payload: key.verb.carries_payload_in_request()
            && !key.inline
            && key.payload_bytes > 0,
        operation,
        opcode,
        has_response_data: !key.verb.carries_payload_in_request(),
        is_rdma_write: key.verb == Verb::RdmaWrite,
        has_imm: key.has_imm,
        is_datagram_send: key.verb == Verb::Send && key.transport == Transport::Ud,
        waits_for_responder: key.transport == Transport::Rc,
        wqe_cache_lines: u64::from(lines),
        send_queue_slot_bytes: wqe::send_queue_slot_bytes(operation.wqe_bytes(profile)),
        requester_unit_time: ps_from_ns(
            units * requester_processing_ns(profile, &operation, lines),
        ),
        inbound_processing_time: ps_from_ns(nicmodel::bounds::nic_ns_per_arriving_operation(
            profile, &operation,
        )?),
        request_packets: PacketCount::of(one.network_packets.to_responder),
        response_packets: PacketCount::of(one.network_packets.to_requester),
        request_wire_time: wire(one.network_packets.to_responder),
        response_wire_time: wire(one.network_packets.to_requester),
        full_packet_bytes: profile.port.mtu_bytes.value,
        transfers_by_place: with,
    })
}

/// Returns the transfers of an operation with the side that is the host in `profile`.
fn pcie_transfer_costs(profile: &Profile, operation: &Operation) -> Option<PcieTransferCosts> {
    let one = Footprint::of_postlist(profile, operation, PostMethod::WqeByMmio, 1).ok()?;
    let rung = Footprint::of_postlist(profile, operation, PostMethod::Doorbell, 1).ok()?;
    let link = PcieLink::from_profile(profile);
    Some(PcieTransferCosts {
        wqe_by_mmio: link.transaction_cost(&one.requester, |p| p == TransactionPurpose::WqeByMmio),
        payload_fetch: link
            .transaction_cost(&one.requester, |p| p == TransactionPurpose::PayloadFetch),
        wqe_refetch: link.transaction_cost(&rung.requester, |p| p == TransactionPurpose::WqeFetch),
        response_write: link.transaction_cost(&one.requester, |p| {
            p == TransactionPurpose::ResponsePlacement
        }),
        responder_dma_cost: link.transaction_cost(&one.responder, |_| true),
        wqe_fetch_by_list_len: Vec::new(),
    })
}

/// Returns the NIC's time to send one operation. If the profile has no rate of READs and atomics, they take as long as
/// a SEND.
fn requester_processing_ns(profile: &Profile, operation: &Operation, lines: u32) -> f64 {
    let nic = &profile.processing;
    let send = value_or_zero(&nic.send_ns)
        + f64::from(lines.saturating_sub(1)) * value_or_zero(&nic.wqe_line_ns);
    match operation.verb {
        Verb::Send | Verb::RdmaWrite => send,
        Verb::RdmaRead | Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd | Verb::Flush => {
            nic.read_ns.as_ref().map_or(send, |read| read.value)
        }
    }
}

/// A PCIe link, for the conversion of bytes to time.
struct PcieLink {
    bytes_per_ns: f64,
    overhead_bytes_per_tlp: f64,
    overhead_bytes_per_mmio: f64,
}

impl PcieLink {
    fn from_profile(profile: &Profile) -> Self {
        Self {
            bytes_per_ns: pcie::bandwidth_mbytes_per_s(profile) * 1e-3,
            overhead_bytes_per_tlp: profile.pcie.link_layer_bytes_per_tlp.value,
            overhead_bytes_per_mmio: value_or_zero(&profile.pcie.mmio_overhead_bytes),
        }
    }

    fn transaction_cost(
        &self,
        side: &LinkTransactions,
        of: impl Fn(TransactionPurpose) -> bool,
    ) -> PcieCost {
        let (mut to_device, mut to_host, mut lines) = (0.0, 0.0, 0.0);
        for part in side.transactions.iter().filter(|part| of(part.purpose)) {
            // The link-layer packets of a transaction use both directions.
            let overhead = self.overhead_bytes_per_tlp * (part.tlps_to_device + part.tlps_to_host);
            let mmio = match part.purpose {
                TransactionPurpose::WqeByMmio => self.overhead_bytes_per_mmio * part.tlps_to_device,
                _ => 0.0,
            };
            to_device += part.bytes_to_device() + overhead + mmio;
            to_host += part.bytes_to_host() + overhead;
            if part.purpose.kind() == TransactionKind::DmaRead {
                lines += part.cache_lines;
            }
        }
        PcieCost {
            link_time_to_device: ps_from_ns(to_device / self.bytes_per_ns),
            link_time_to_host: ps_from_ns(to_host / self.bytes_per_ns),
            // The product is an integer, except for rounding.
            dma_read_bytes: round_to_u64(lines * f64::from(wqe::CACHE_LINE_BYTES)),
        }
    }
}
