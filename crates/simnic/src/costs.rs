//! A profile as times: what each step of an operation takes of each part of the machine.

use std::collections::HashMap;

use nicmodel::pcie::{self, Kind, Purpose};
use nicmodel::profile::{Place, Profile, Sourced};
use nicmodel::{Footprint, Method, Operation, Receive, Side, Transport, Verb, wqe};

use crate::caches::Caches;
use crate::queue::Ps;

/// Locks of a NIC that are kept one by one.
const MAX_LOCK_BITS: u32 = 16;

/// Why a profile cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "profile {profile} cannot be simulated: it has no {}; give {} in a profile of your own \
     (verbatim model --template prints one)",
    .missing.join(", "),
    if .missing.len() == 1 { "it" } else { "them" }
)]
pub struct MissingCosts {
    /// The profile.
    pub profile: String,
    /// Keys that a simulation needs and the profile does not have.
    pub missing: Vec<&'static str>,
}

/// What does not depend on the operation, nor on whether the host or the DPU uses the NIC.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    pub(crate) units: usize,
    /// One way through the network.
    pub(crate) network: Ps,
    pub(crate) has_atomics: bool,
    pub(crate) lock_bits: u32,
    pub(crate) max_inline: u32,
    pub(crate) mtu: u32,
    pub(crate) wqe_cache: Option<usize>,
}

/// What the host's, or the DPU's, cores and memory cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideCosts {
    pub(crate) cores: u32,
    pub(crate) post_wqe: Ps,
    pub(crate) mmio_write: Ps,
    pub(crate) poll_cqe: Ps,
    pub(crate) post_recv: Ps,
    pub(crate) atomic_add: Ps,
    pub(crate) contended_add: Ps,
    pub(crate) request: Ps,
    pub(crate) empty_look: Ps,
    /// How many times longer a core takes for what a program says in host time.
    pub(crate) slowness: f64,
    /// Nothing if touches of memory cost nothing.
    pub(crate) caches: Option<Caches>,
    /// Processor costs that the profile does not have: cores do these in no time.
    pub(crate) unknown_of_cores: Vec<&'static str>,
    pub(crate) fetch_wait: Ps,
    /// For a WQE that the NIC's cache has lost; a round trip over PCIe if nothing else is known.
    pub(crate) refetch_wait: Ps,
    /// One way over PCIe.
    pub(crate) pcie: Ps,
    pub(crate) lock_hold: Ps,
}

impl Costs {
    pub(crate) fn of(profile: &Profile) -> Result<Self, MissingCosts> {
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
            return Err(MissingCosts { profile, missing });
        }
        Ok(Self {
            units: nic.units.as_ref().map_or(1, |units| units.value as usize),
            network: ps(known(&profile.port.latency_ns)),
            has_atomics: nic.atomic_ns.is_some() && profile.atomics.lock_hold_ns.is_some(),
            lock_bits: profile
                .atomics
                .lock_bits
                .as_ref()
                .map_or(0, |bits| bits.value.min(MAX_LOCK_BITS)),
            max_inline: profile.wqe.max_inline_bytes.value,
            mtu: profile.port.mtu_bytes.value,
            wqe_cache: wqe_cache(profile),
        })
    }
}

impl SideCosts {
    /// Of the side that the profile has as its host, whose cores are so many times as fast as the host's.
    pub(crate) fn of(profile: &Profile, core_speed: f64) -> Self {
        let (host, nic) = (&profile.host, &profile.processing);
        let mut unknown_of_cores = Vec::new();
        let mut core = |key, number: &Option<Sourced<f64>>| {
            if number.is_none() {
                unknown_of_cores.push(key);
            }
            ps(known(number))
        };
        let pcie = ps(known(&profile.pcie.latency_ns));
        Self {
            cores: host.cores.value,
            post_wqe: core("host.post_wqe_ns", &host.post_wqe_ns),
            mmio_write: core("host.mmio_write_ns", &host.mmio_write_ns),
            poll_cqe: core("host.poll_cqe_ns", &host.poll_cqe_ns),
            post_recv: core("host.post_recv_ns", &host.post_recv_ns),
            atomic_add: core("host.atomic_add_ns", &host.atomic_add_ns),
            contended_add: core("host.contended_add_ns", &host.contended_add_ns),
            request: core("host.request_ns", &host.request_ns) + ps(known(&host.written_line_ns)),
            empty_look: ps(known(&host.empty_look_ns)),
            slowness: 1.0 / core_speed,
            caches: Caches::of_host(host),
            unknown_of_cores,
            fetch_wait: ps(known(&nic.wqe_fetch_wait_ns)),
            refetch_wait: nic
                .wqe_fetch_wait_ns
                .as_ref()
                .map_or(2 * pcie, |wait| ps(wait.value)),
            pcie,
            lock_hold: ps(known(&profile.atomics.lock_hold_ns)),
        }
    }

    /// The time of a core of this side for what takes a host's core so long.
    pub(crate) fn work(&self, time: Ps) -> Ps {
        if self.slowness == 1.0 {
            return time;
        }
        #[expect(clippy::cast_precision_loss, reason = "times of a run, far below 2^53")]
        whole(time as f64 * self.slowness)
    }
}

/// WQEs of READs that the NIC keeps: as many as are outstanding at the window that is published as the best, or one.
fn wqe_cache(profile: &Profile) -> Option<usize> {
    let window = profile.cache.read_window.as_ref()?.value as usize;
    let threads = profile.cache.read_window_threads.as_ref()?.value as usize;
    Some((window * threads).max(1))
}

fn known(number: &Option<Sourced<f64>>) -> f64 {
    number.as_ref().map_or(0.0, |number| number.value)
}

/// A time in ns as picoseconds.
fn ps(ns: f64) -> Ps {
    whole(ns * 1e3)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "times and sizes of a checked profile are positive and far below 2^63"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// What one kind of operation takes, apart from how its WQEs were handed over.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) operation: Operation,
    /// As in the ABI.
    pub(crate) opcode: u8,
    /// A READ or atomic: the responder's memory comes back.
    pub(crate) answers: bool,
    /// A WRITE, and whether the message has an immediate.
    pub(crate) write: bool,
    pub(crate) with_imm: bool,
    /// A SEND of a datagram.
    pub(crate) datagram: bool,
    /// Its requester hears from the responder before it is complete.
    pub(crate) reliable: bool,
    /// Its payload is not in the WQE: the NIC fetches it before the message leaves.
    pub(crate) fetched: bool,
    /// Cache lines of a WQE.
    pub(crate) lines: u64,
    /// A processing unit of the requester.
    pub(crate) unit: Ps,
    /// The responder's processing, all units together.
    pub(crate) inbound: Ps,
    /// A port of the network to the responder, and back.
    pub(crate) out_wire: Ps,
    pub(crate) back_wire: Ps,
    /// Its transactions with the cores and memory of each [`Place`].
    pub(crate) with: [Transfers; PLACES],
}

/// How many places there are at most.
pub(crate) const PLACES: usize = 2;

/// What an operation takes of the path between the NIC and the cores and memory of a place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transfers {
    /// Link to the device, for a WQE by MMIO, and the same to the host (link-layer packets).
    pub(crate) by_mmio: Pcie,
    /// Fetching payload that is not inlined.
    pub(crate) payload_fetch: Pcie,
    /// Fetching a WQE again that has left the NIC's cache.
    pub(crate) refetch: Pcie,
    /// Writing the answer of a READ or atomic.
    pub(crate) answer: Pcie,
    /// The responder's DMAs.
    pub(crate) responder: Pcie,
    /// Fetching lists of its WQEs, by the length of the list, where it is known.
    fetches: Vec<Option<Pcie>>,
}

impl Shape {
    /// Its transactions with a place.
    #[inline(always)]
    pub(crate) fn at(&self, place: Place) -> &Transfers {
        &self.with[place as usize]
    }
}

/// Time on both directions of a PCIe link, and what the NIC reads from memory in it: the bytes of whole cache lines (of
/// one that holds several WQEs of RECVs, each one's part).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pcie {
    pub(crate) to_device: Ps,
    pub(crate) to_host: Ps,
    pub(crate) read_bytes: u64,
}

/// What identifies a [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeKey {
    pub(crate) verb: Verb,
    pub(crate) transport: Transport,
    pub(crate) payload: u32,
    pub(crate) inline: bool,
    pub(crate) imm: bool,
    pub(crate) num_sge: u32,
}

/// The shapes that have occurred.
#[derive(Debug)]
pub(crate) struct Shapes {
    /// As the host and, if there is one, the DPU have it.
    profiles: Vec<Profile>,
    /// How RECVs take payload that fits into the completion.
    pub(crate) receive: Receive,
    shapes: Vec<Shape>,
    known: HashMap<ShapeKey, u16>,
    doorbell: [Pcie; PLACES],
    cqe: [Pcie; PLACES],
}

impl Shapes {
    /// Of operations on the NIC of a profile, seen from the host and from the DPU if there is one.
    pub(crate) fn new(profile: &Profile) -> Self {
        let mut profiles = vec![profile.clone()];
        profiles.extend(profile.on_dpu());
        let send = Operation::header_only(Transport::Ud).signaled(1.0);
        let (mut doorbell, mut cqe) = <([Pcie; PLACES], [Pcie; PLACES])>::default();
        for (place, profile) in profiles.iter().enumerate() {
            let link = Link::of(profile);
            let one = Footprint::of_postlist(profile, &send, Method::Doorbell, 1);
            let one = one.expect("every NIC sends datagrams");
            doorbell[place] = link.time(&one.requester, |p| p == Purpose::Doorbell);
            cqe[place] = link.time(&one.requester, |p| p == Purpose::Cqe);
        }
        Self {
            profiles,
            doorbell,
            cqe,
            receive: Receive::Regular,
            shapes: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// The shape of an operation, with the opcode that it has in the ABI; nothing if the NIC cannot do it.
    pub(crate) fn find(&mut self, key: ShapeKey, opcode: u32) -> Option<u16> {
        if let Some(&id) = self.known.get(&key) {
            return Some(id);
        }
        let shape = shape(
            &self.profiles,
            self.receive,
            key,
            u8::try_from(opcode).ok()?,
        )?;
        let id = u16::try_from(self.shapes.len()).ok()?;
        self.shapes.push(shape);
        self.known.insert(key, id);
        Some(id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u16) -> &Shape {
        &self.shapes[usize::from(id)]
    }

    #[inline(always)]
    pub(crate) fn doorbell(&self, place: Place) -> Pcie {
        self.doorbell[place as usize]
    }

    #[inline(always)]
    pub(crate) fn cqe(&self, place: Place) -> Pcie {
        self.cqe[place as usize]
    }

    /// Fetching the WQEs of a list of `len` operations like this one from a place.
    pub(crate) fn fetch(&mut self, id: u16, len: u32, place: Place) -> Pcie {
        let shape = &mut self.shapes[usize::from(id)];
        let fetches = &mut shape.with[place as usize].fetches;
        let index = len as usize;
        if let Some(&Some(known)) = fetches.get(index) {
            return known;
        }
        let profile = &self.profiles[place as usize];
        let list = Footprint::of_postlist(profile, &shape.operation, Method::Doorbell, len.max(1));
        let time = list.map_or(Pcie::default(), |list| {
            Link::of(profile).time(&list.requester, |p| p == Purpose::WqeFetch)
        });
        if fetches.len() <= index {
            fetches.resize(index + 1, None);
        }
        fetches[index] = Some(time);
        time
    }
}

fn shape(profiles: &[Profile], receive: Receive, key: ShapeKey, opcode: u8) -> Option<Shape> {
    let profile = profiles.first()?;
    let operation = Operation {
        inline: key.inline,
        imm: key.imm,
        num_sge: key.num_sge.max(1),
        receive,
        ..Operation::new(key.verb, key.transport, key.payload)
    };
    let one = Footprint::of_postlist(profile, &operation, Method::WqeByMmio, 1).ok()?;
    let mut with = <[Transfers; PLACES]>::default();
    for (with, profile) in with.iter_mut().zip(profiles) {
        *with = transfers(profile, &operation)?;
    }
    let units = profile
        .processing
        .units
        .as_ref()
        .map_or(1.0, |units| f64::from(units.value));
    let port = profile.port.gbps.value / 8.0;
    let wire = |packets: nicmodel::wire::Packets| ps(packets.link_bytes(profile) / port);
    let lines = wqe::lines(operation.wqe_bytes(profile));
    Some(Shape {
        fetched: key.verb.sends_payload() && !key.inline && key.payload > 0,
        operation,
        opcode,
        answers: !key.verb.sends_payload(),
        write: key.verb == Verb::RdmaWrite,
        with_imm: key.imm,
        datagram: key.verb == Verb::Send && key.transport == Transport::Ud,
        reliable: key.transport == Transport::Rc,
        lines: u64::from(lines),
        unit: ps(units * sending(profile, &operation, lines)),
        inbound: ps(nicmodel::bounds::inbound_ns(profile, &operation)?),
        out_wire: wire(one.network.to_responder),
        back_wire: wire(one.network.to_requester),
        with,
    })
}

/// What an operation takes of the path to the side that the profile has as its host.
fn transfers(profile: &Profile, operation: &Operation) -> Option<Transfers> {
    let one = Footprint::of_postlist(profile, operation, Method::WqeByMmio, 1).ok()?;
    let rung = Footprint::of_postlist(profile, operation, Method::Doorbell, 1).ok()?;
    let link = Link::of(profile);
    Some(Transfers {
        by_mmio: link.time(&one.requester, |p| p == Purpose::WqeByMmio),
        payload_fetch: link.time(&one.requester, |p| p == Purpose::PayloadFetch),
        refetch: link.time(&rung.requester, |p| p == Purpose::WqeFetch),
        answer: link.time(&one.requester, |p| p == Purpose::ResponsePlacement),
        responder: link.time(&one.responder, |_| true),
        fetches: Vec::new(),
    })
}

/// Time of the whole NIC for sending one. READs and atomics of a NIC whose rate for them is not
/// known cost what a SEND does.
fn sending(profile: &Profile, operation: &Operation, lines: u32) -> f64 {
    let nic = &profile.processing;
    let send = known(&nic.send_ns) + f64::from(lines.saturating_sub(1)) * known(&nic.wqe_line_ns);
    match operation.verb {
        Verb::Send | Verb::RdmaWrite => send,
        Verb::RdmaRead | Verb::AtomicCmpAndSwp | Verb::AtomicFetchAndAdd | Verb::Flush => {
            nic.read_ns.as_ref().map_or(send, |read| read.value)
        }
    }
}

/// The PCIe link: bytes into time.
struct Link {
    bytes_per_ns: f64,
    per_tlp: f64,
    per_mmio: f64,
}

impl Link {
    fn of(profile: &Profile) -> Self {
        Self {
            bytes_per_ns: pcie::bandwidth_mbps(profile) * 1e-3,
            per_tlp: profile.pcie.link_layer_bytes_per_tlp.value,
            per_mmio: known(&profile.pcie.mmio_overhead_bytes),
        }
    }

    fn time(&self, side: &Side, of: impl Fn(Purpose) -> bool) -> Pcie {
        let (mut to_device, mut to_host, mut lines) = (0.0, 0.0, 0.0);
        for part in side.transactions.iter().filter(|part| of(part.purpose)) {
            // Link-layer packets of a transaction cost each direction.
            let overhead = self.per_tlp * (part.tlps_to_device + part.tlps_to_host);
            let mmio = match part.purpose {
                Purpose::WqeByMmio => self.per_mmio * part.tlps_to_device,
                _ => 0.0,
            };
            to_device += part.bytes_to_device() + overhead + mmio;
            to_host += part.bytes_to_host() + overhead;
            if part.purpose.kind() == Kind::DmaRead {
                lines += part.lines;
            }
        }
        Pcie {
            to_device: ps(to_device / self.bytes_per_ns),
            to_host: ps(to_host / self.bytes_per_ns),
            // A number of bytes, and whole but for rounding.
            read_bytes: whole(lines * f64::from(wqe::CACHE_LINE_BYTES)),
        }
    }
}
