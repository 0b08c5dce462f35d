//! The rate of a mix of operations on a NIC, and the resource that limits the rate.

mod contention;
mod processing;
mod round_trip;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::atomic_locks;
use crate::footprint::Footprint;
use crate::operation::{Operation, OperationError, PostMethod};
use crate::pcie::{self, TransactionKind, TransactionPurpose};
use crate::profile::Profile;

use contention::QueueingStation;
pub use processing::nic_ns_per_arriving_operation;
use processing::{known_value, send_ns_without_fetch_wait};
use round_trip::one_way_ns;
pub use round_trip::round_trip_ns;

/// The machine's side of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The machine posts the operation.
    Requester,
    /// The operation arrives from another machine.
    Responder,
}

/// One kind of operation of a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MixOperation {
    /// The operation.
    pub operation: Operation,
    /// The machine's role: it posts the operation or receives it.
    pub role: Role,
    /// Operations of this kind in one request of the mix.
    #[serde(rename = "per_request")]
    pub operations_per_request: f64,
    /// The way in which the requester hands the WQEs to its NIC.
    #[serde(rename = "method")]
    pub post_method: PostMethod,
    /// Operations in a postlist, on average.
    #[serde(rename = "postlist")]
    pub mean_postlist_len: f64,
    /// Number of queue pairs over which the operations are spread evenly, on the machine's side. Other operations of
    /// the mix that have a number share the same queue pairs. `None`: enough queue pairs.
    ///
    /// Each queue pair belongs to one processing unit and to one port: fewer queue pairs than ports leave ports
    /// unused.
    pub queue_pairs: Option<u32>,
    /// Locks over which the atomics are spread evenly. `None`: all locks that atomics can reach.
    pub lock_slots: Option<u32>,
    /// The message with which the peer answers the operation, if the requester waits for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Operation>,
}

impl MixOperation {
    /// One operation in each request, posted alone.
    pub fn new(operation: Operation, role: Role) -> Self {
        Self {
            operation,
            role,
            operations_per_request: 1.0,
            post_method: PostMethod::WqeByMmio,
            mean_postlist_len: 1.0,
            queue_pairs: None,
            lock_slots: None,
            answer: None,
        }
    }

    /// The same load in postlists of this length, which decides the method.
    #[must_use]
    pub fn in_postlists(self, len: f64) -> Self {
        Self {
            post_method: PostMethod::of_postlist(len),
            mean_postlist_len: len,
            ..self
        }
    }

    /// The same load on this number of queue pairs.
    #[must_use]
    pub fn on_queue_pairs(self, queue_pairs: u32) -> Self {
        Self {
            queue_pairs: Some(queue_pairs),
            ..self
        }
    }

    /// The same load on this number of locks.
    #[must_use]
    pub fn on_lock_slots(self, slots: u32) -> Self {
        Self {
            lock_slots: Some(slots),
            ..self
        }
    }

    /// The same load with this number of operations in each request.
    #[must_use]
    pub fn with_operations_per_request(self, per_request: f64) -> Self {
        Self {
            operations_per_request: per_request,
            ..self
        }
    }
}

/// The work of one machine for each request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// The operations, posted and arriving.
    #[serde(rename = "loads")]
    pub operations: Vec<MixOperation>,
    /// Cores that do the machine's work. `None`: enough cores.
    pub cores: Option<u32>,
    /// Work of a core for a request apart from verbs, in ns.
    #[serde(rename = "app_ns")]
    pub app_ns_per_request: f64,
    /// The part of `app_ns_per_request` that only one core can do at a time, such as adding to a shared
    /// counter, in ns.
    #[serde(rename = "shared_ns")]
    pub serialized_app_ns_per_request: f64,
    /// Most operations that the machine has outstanding at a time. `None`: enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "outstanding")]
    pub max_outstanding: Option<f64>,
    /// Most operations for whose answers the machine waits at a time. `None`: enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "unanswered")]
    pub max_unanswered: Option<f64>,
    /// Resources whose use apart from verbs is not known in full: `app_ns` and `shared_ns` lack a part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "unknown")]
    pub partly_unknown_resources: Vec<Resource>,
}

impl Mix {
    /// A mix of these operations without other work, with enough cores and enough operations outstanding.
    pub fn new(loads: Vec<MixOperation>) -> Self {
        Self {
            operations: loads,
            cores: None,
            app_ns_per_request: 0.0,
            serialized_app_ns_per_request: 0.0,
            max_outstanding: None,
            max_unanswered: None,
            partly_unknown_resources: Vec::new(),
        }
    }

    /// The same mix with at most this number of operations outstanding.
    #[must_use]
    pub fn with_outstanding(self, outstanding: f64) -> Self {
        Self {
            max_outstanding: Some(outstanding),
            ..self
        }
    }

    /// The same mix on this number of cores.
    #[must_use]
    pub fn on_cores(self, cores: u32) -> Self {
        Self {
            cores: Some(cores),
            ..self
        }
    }
}

/// A resource that can limit the rate of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// The machine's cores.
    Cpu,
    /// The operations that the machine may have outstanding: each takes a round trip, even on an idle network.
    RoundTrips,
    /// A cache line or other object that only one core can use at a time.
    SharedLine,
    /// The PCIe link to the device, where MMIO writes take most of it.
    Mmio,
    /// The PCIe link to the device, where completions of DMA reads take most of it.
    DmaRead,
    /// The PCIe link to the host: DMA writes, and requests of DMA reads.
    DmaWrite,
    /// The NIC's processing units that serve the queue pairs.
    QueuePairUnits,
    /// The NIC's processing of operations that it sends.
    NicOutbound,
    /// The NIC's processing of operations that arrive.
    NicInbound,
    /// The NIC's locks for atomics.
    AtomicLocks,
    /// The network to the peers: the ports that the queue pairs are on.
    LinkOut,
    /// The network from the peers: the ports that the queue pairs are on.
    LinkIn,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 12] = [
        Self::Cpu,
        Self::RoundTrips,
        Self::SharedLine,
        Self::Mmio,
        Self::DmaRead,
        Self::DmaWrite,
        Self::QueuePairUnits,
        Self::NicOutbound,
        Self::NicInbound,
        Self::AtomicLocks,
        Self::LinkOut,
        Self::LinkIn,
    ];
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cpu => "CPU",
            Self::RoundTrips => "round trips",
            Self::SharedLine => "shared cache line",
            Self::Mmio => "PCIe MMIO bandwidth",
            Self::DmaRead => "PCIe DMA read bandwidth",
            Self::DmaWrite => "PCIe DMA write bandwidth",
            Self::QueuePairUnits => "NIC unit of the queue pairs",
            Self::NicOutbound => "NIC processing, outbound",
            Self::NicInbound => "NIC processing, inbound",
            Self::AtomicLocks => "NIC atomic locks",
            Self::LinkOut => "network link, outbound",
            Self::LinkIn => "network link, inbound",
        })
    }
}

/// The rate that one resource allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The resource.
    pub resource: Resource,
    /// Time for which one request uses the whole resource, in ns.
    #[serde(rename = "busy_ns")]
    pub busy_ns_per_request: f64,
    /// The rate that the resource allows, in 10^6 requests a second.
    pub rate_mops: f64,
}

/// The rates that the resources allow a mix.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bounds {
    /// Resources that the mix uses, the scarcest first.
    pub bounds: Vec<Bound>,
    /// Rate that the resources allow together, with cores that wait for each other, in 10^6 requests a second. `None`
    /// if the mix uses no known resource.
    pub predicted_mops: Option<f64>,
    /// Resources that the mix uses and the profile does not describe: the real rate may be lower because of them.
    #[serde(rename = "unknown")]
    pub unknown_resources: Vec<Resource>,
}

impl Bounds {
    /// Computes the bounds of a mix on a NIC.
    ///
    /// # Errors
    /// An operation that the NIC cannot do, or a number of the mix outside its range.
    pub fn of(profile: &Profile, mix: &Mix) -> Result<Self, OperationError> {
        check_ranges(mix)?;
        let profile = &*profile.with_active_cores(mix.cores.unwrap_or(1));
        let mut demand = ResourceDemand::default();
        for load in &mix.operations {
            demand.add_operation(profile, load)?;
        }
        Ok(demand.bounds(profile, mix))
    }

    /// The resource that allows the lowest rate.
    pub fn bottleneck(&self) -> Option<Resource> {
        self.bounds.first().map(|bound| bound.resource)
    }

    /// The rate that one resource allows, in 10^6 requests a second.
    pub fn rate_mops(&self, resource: Resource) -> Option<f64> {
        let bound = self.bounds.iter().find(|bound| bound.resource == resource);
        bound.map(|bound| bound.rate_mops)
    }
}

fn check_ranges(mix: &Mix) -> Result<(), OperationError> {
    let in_range = |name, value, low, high| {
        if (low..=high).contains(&value) {
            Ok(())
        } else {
            Err(OperationError::OutOfRange {
                name,
                value,
                low,
                high,
            })
        }
    };
    in_range("app_ns", mix.app_ns_per_request, 0.0, 1e12)?;
    in_range(
        "shared_ns",
        mix.serialized_app_ns_per_request,
        0.0,
        mix.app_ns_per_request,
    )?;
    if let Some(cores) = mix.cores {
        in_range("cores", f64::from(cores), 1.0, 4096.0)?;
    }
    for (name, count) in [
        ("outstanding", mix.max_outstanding),
        ("unanswered", mix.max_unanswered),
    ] {
        if let Some(count) = count {
            in_range(name, count, 1.0, 1e12)?;
        }
    }
    for load in &mix.operations {
        in_range("per_request", load.operations_per_request, 0.0, 1e6)?;
        for (name, count) in [
            ("queue_pairs", load.queue_pairs),
            ("lock_slots", load.lock_slots),
        ] {
            if let Some(count) = count {
                in_range(name, f64::from(count), 1.0, f64::from(u32::MAX))?;
            }
        }
    }
    Ok(())
}

/// The use of each resource by one request. Costs that the profile lacks are `None`.
#[derive(Debug)]
struct ResourceDemand {
    verbs_ns: Option<f64>,
    /// The round trips of the machine's own operations, one after the other.
    round_trips_ns: Option<f64>,
    /// The ways of these operations and of their answers, one after the other.
    answers_ns: Option<f64>,
    mmio_bytes: f64,
    dma_read_bytes: f64,
    to_device_bytes: f64,
    to_host_bytes: f64,
    outbound_ns: Option<f64>,
    inbound_ns: Option<f64>,
    queue_pair_units_ns: Option<f64>,
    lock_ns: Option<f64>,
    /// Time for which a request occupies each port in use.
    port_out_ns: f64,
    port_in_ns: f64,
}

impl Default for ResourceDemand {
    fn default() -> Self {
        Self {
            verbs_ns: Some(0.0),
            round_trips_ns: Some(0.0),
            answers_ns: Some(0.0),
            mmio_bytes: 0.0,
            dma_read_bytes: 0.0,
            to_device_bytes: 0.0,
            to_host_bytes: 0.0,
            outbound_ns: Some(0.0),
            inbound_ns: Some(0.0),
            queue_pair_units_ns: Some(0.0),
            lock_ns: Some(0.0),
            port_out_ns: 0.0,
            port_in_ns: 0.0,
        }
    }
}

impl ResourceDemand {
    fn add_operation(
        &mut self,
        profile: &Profile,
        load: &MixOperation,
    ) -> Result<(), OperationError> {
        let one = Footprint::of_one(
            profile,
            &load.operation,
            load.post_method,
            load.mean_postlist_len,
        )?;
        let times = load.operations_per_request;
        let (side, out, arriving) = match load.role {
            Role::Requester => (
                &one.requester,
                one.network_packets.to_responder,
                one.network_packets.to_requester,
            ),
            Role::Responder => (
                &one.responder,
                one.network_packets.to_requester,
                one.network_packets.to_responder,
            ),
        };
        let link_layer = profile.pcie.link_layer_bytes_per_tlp.value;
        let overhead = link_layer * side.tlps();
        let mmio = profile.pcie.mmio_overhead_bytes.as_ref();
        let lines = side.transactions.iter();
        let lines = lines.filter(|part| part.purpose == TransactionPurpose::WqeByMmio);
        let lines: f64 = lines.map(|part| part.tlps_to_device).sum();
        let mmio = mmio.map_or(0.0, |mmio| mmio.value) * lines;
        let to_device = |kind| {
            side.bytes_to_device_of_kind(kind) + link_layer * side.tlps_to_device_of_kind(kind)
        };
        self.mmio_bytes += times * (to_device(TransactionKind::MmioWrite) + mmio);
        self.dma_read_bytes += times * to_device(TransactionKind::DmaRead);
        self.to_device_bytes += times * (side.bytes_to_device() + overhead + mmio);
        self.to_host_bytes += times * (side.bytes_to_host() + overhead);
        let link = ports_bytes_per_ns(profile, load.queue_pairs);
        self.port_out_ns += times * out.link_bytes_with_gaps(profile) / link;
        self.port_in_ns += times * arriving.link_bytes_with_gaps(profile) / link;
        add_multiplied_cost(
            &mut self.verbs_ns,
            times,
            core_ns_per_operation(profile, load, &one),
        );
        match load.role {
            Role::Requester => {
                let round_trip = round_trip_ns(profile, &load.operation, load.post_method);
                add_multiplied_cost(&mut self.round_trips_ns, times, round_trip);
                if let Some(answer) = &load.answer {
                    let there = one_way_ns(profile, &load.operation, load.post_method);
                    let back = one_way_ns(profile, answer, PostMethod::WqeByMmio);
                    let both = there.zip(back).map(|(there, back)| there + back);
                    add_multiplied_cost(&mut self.answers_ns, times, both);
                }
                let outbound = nic_ns_per_sent_operation(profile, load, &one);
                add_multiplied_cost(&mut self.outbound_ns, times, outbound);
                if let Some(queue_pairs) = load.queue_pairs {
                    let units = profile.processing.units.as_ref();
                    let of_all = units.zip(outbound).map(|(units, outbound)| {
                        outbound * f64::from(units.value) / f64::from(queue_pairs)
                    });
                    add_multiplied_cost(&mut self.queue_pair_units_ns, times, of_all);
                }
            }
            Role::Responder => {
                add_multiplied_cost(
                    &mut self.inbound_ns,
                    times,
                    nic_ns_per_arriving_operation(profile, &load.operation),
                );
                if load.operation.verb.is_atomic() {
                    add_multiplied_cost(&mut self.lock_ns, times, amortized_lock_ns(profile, load));
                }
            }
        }
        Ok(())
    }

    fn bounds(&self, profile: &Profile, mix: &Mix) -> Bounds {
        let link = pcie::bandwidth_mbytes_per_s(profile) * 1e-3;
        let (mmio, dma_read) = if self.mmio_bytes > self.dma_read_bytes {
            (self.to_device_bytes, self.dma_read_bytes)
        } else {
            (self.mmio_bytes, self.to_device_bytes)
        };
        // With enough cores the processor limits nothing, so its costs need not be known.
        let cpu = match mix.cores {
            Some(cores) => self
                .verbs_ns
                .map(|verbs| (verbs + mix.app_ns_per_request) / f64::from(cores)),
            None => Some(0.0),
        };
        let each = |all_ns: Option<f64>, at_a_time: Option<f64>| match at_a_time {
            Some(at_a_time) => all_ns.map(|all| all / at_a_time),
            None => Some(0.0),
        };
        let completions = each(self.round_trips_ns, mix.max_outstanding);
        let answers = each(self.answers_ns, mix.max_unanswered);
        let round_trips = completions.zip(answers).map(|(one, other)| one.max(other));
        let busy = [
            (Resource::Cpu, cpu),
            (Resource::RoundTrips, round_trips),
            (
                Resource::SharedLine,
                Some(mix.serialized_app_ns_per_request),
            ),
            (Resource::Mmio, Some(mmio / link)),
            (Resource::DmaRead, Some(dma_read / link)),
            (Resource::DmaWrite, Some(self.to_host_bytes / link)),
            (Resource::QueuePairUnits, self.queue_pair_units_ns),
            (Resource::NicOutbound, self.outbound_ns),
            // Listed before the inbound processing: if one lock holds up all operations, the lock is the cause.
            (Resource::AtomicLocks, self.lock_ns),
            (Resource::NicInbound, self.inbound_ns),
            (Resource::LinkOut, Some(self.port_out_ns)),
            (Resource::LinkIn, Some(self.port_in_ns)),
        ];
        let known = busy.iter().filter_map(|&(resource, busy)| {
            let busy_ns = busy.filter(|busy| *busy > 0.0)?;
            Some(Bound {
                resource,
                busy_ns_per_request: busy_ns,
                rate_mops: 1e3 / busy_ns,
            })
        });
        let mut bounds: Vec<_> = known.collect();
        bounds.sort_by(|a, b| a.rate_mops.total_cmp(&b.rate_mops));
        let is_unknown = |(resource, busy): &&(Resource, Option<f64>)| {
            busy.is_none() || mix.partly_unknown_resources.contains(resource)
        };
        let unknown = busy.iter().filter(is_unknown);
        let alone = bounds.first().map(|bound| bound.rate_mops);
        let together = self.contending_cores_mops(mix, link);
        Bounds {
            predicted_mops: alone.map(|alone| together.map_or(alone, |rate| alone.min(rate))),
            unknown_resources: unknown.map(|&(resource, _)| resource).collect(),
            bounds,
        }
    }

    /// The rate of all cores together if they wait for each other at the NIC and at shared lines, in 10^6 requests a
    /// second.
    fn contending_cores_mops(&self, mix: &Mix, link: f64) -> Option<f64> {
        let own = self.verbs_ns? + mix.app_ns_per_request;
        let nic = QueueingStation {
            service_ns: self.mmio_bytes / link,
            background_ns: (self.to_device_bytes - self.mmio_bytes) / link,
        };
        let shared = QueueingStation {
            service_ns: mix.serialized_app_ns_per_request,
            background_ns: 0.0,
        };
        let alone = (own - nic.service_ns - shared.service_ns).max(0.0);
        let rate = contention::requests_per_ns(mix.cores?, alone, &[nic, shared]);
        rate.is_finite().then_some(rate * 1e3)
    }
}

/// Bytes that the ports of this number of queue pairs carry in a ns, in one direction. Each queue pair is on one
/// port. Queue pairs that cannot be spread evenly, such as three on two ports, are taken as if they could.
fn ports_bytes_per_ns(profile: &Profile, queue_pairs: Option<u32>) -> f64 {
    let port = &profile.port;
    let used = queue_pairs.map_or(port.count.value, |count| count.min(port.count.value));
    f64::from(used) * port.gbps.value / 8.0
}

/// Adds `times * cost` to the sum. The sum becomes `None` if the cost is not known.
fn add_multiplied_cost(sum: &mut Option<f64>, times: f64, cost: Option<f64>) {
    *sum = sum.zip(cost).map(|(sum, cost)| sum + times * cost);
}

/// Core time of one operation, in ns.
fn core_ns_per_operation(profile: &Profile, load: &MixOperation, one: &Footprint) -> Option<f64> {
    let host = &profile.host;
    match load.role {
        Role::Requester => {
            let mmio = known_value(&host.mmio_write_ns)? * one.requester.mmio_writes();
            let poll = if load.operation.signaled_fraction > 0.0 {
                load.operation.signaled_fraction * known_value(&host.poll_cqe_ns)?
            } else {
                0.0
            };
            Some(known_value(&host.post_wqe_ns)? + mmio + poll)
        }
        Role::Responder if load.operation.consumes_recv() => {
            Some(known_value(&host.post_recv_ns)? + known_value(&host.poll_cqe_ns)?)
        }
        Role::Responder => Some(0.0),
    }
}

/// Time for which one operation that is sent occupies the whole NIC, in ns.
fn nic_ns_per_sent_operation(
    profile: &Profile,
    load: &MixOperation,
    one: &Footprint,
) -> Option<f64> {
    let processing = &profile.processing;
    let base = send_ns_without_fetch_wait(profile, &load.operation, one.wqe_cache_lines)?;
    // A profile without `units` has no `wqe_fetch_wait_ns` either: [`Profile::parse`] checks that.
    let units = processing
        .units
        .as_ref()
        .map_or(1.0, |u| f64::from(u.value));
    let wait = known_value(&processing.wqe_fetch_wait_ns).unwrap_or(0.0);
    Some(base + one.requester.doorbells() * wait / units)
}

/// Time for which an atomic that arrives occupies all locks together, in ns.
fn amortized_lock_ns(profile: &Profile, load: &MixOperation) -> Option<f64> {
    let reachable = atomic_locks::reachable_lock_count(profile);
    let slots = match (load.lock_slots, reachable) {
        (Some(wanted), Some(reachable)) => wanted.min(reachable),
        (Some(wanted), None) => wanted,
        (None, reachable) => reachable?,
    };
    Some(known_value(&profile.atomics.lock_hold_ns)? / f64::from(slots))
}
