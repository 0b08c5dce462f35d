//! NIC profiles: a NIC, its PCIe link, its port and its host as numbers, each with its evidence.

mod active_cores;
mod adapter_without_costs;
mod builtin;
mod dpu;
mod error;
mod host_or_dpu;
mod identity;
mod section;
mod sourced;
mod turbo;

use serde::{Deserialize, Serialize};

pub use adapter_without_costs::{
    AdapterWithoutCosts, CapabilityValue, adapter_without_cost_profile,
    adapters_without_cost_profile,
};
pub use builtin::{PROFILE_TEMPLATE_TOML, builtin_profile, builtin_profiles};
pub use dpu::Dpu;
pub use error::{ImpossibleValue, ProfileError};
pub use host_or_dpu::CorePlace;
pub use identity::Identity;
pub use section::ProfileNumber;
pub use sourced::{Evidence, Sourced};
pub use turbo::Turbo;

use section::section;

/// The version of the profile format that this crate reads.
pub const SCHEMA_VERSION: u32 = 1;

/// The numbers of a NIC and its host.
///
/// A field that is `None` is unknown for this NIC. Bounds that need it are not computed and are reported as unknown.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the format: [`SCHEMA_VERSION`].
    pub schema: u32,
    /// Short name, as on a command line: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// NIC, link and processor in one line.
    pub title: String,
    /// Further facts for the reader, such as what the numbers do not cover.
    pub about: String,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// The identity that the NIC reports to programs, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The machine's processor.
    pub host: Host,
    /// The clock rates of the processor by active cores; cores do not slow each other down if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turbo: Option<Turbo>,
    /// The link between processor and NIC.
    pub pcie: Pcie,
    /// Sizes of WQEs and CQEs.
    pub wqe: WqeSizes,
    /// Processing times of the NIC itself.
    pub processing: ProcessingTimes,
    /// The NIC's locks for atomics.
    pub atomics: AtomicLocks,
    /// The network port.
    pub port: Port,
    /// State that the NIC caches in its own memory.
    pub cache: NicCache,
    /// The DPU behind the same NIC, if any. `host`, `pcie` and `atomics` then describe the host's side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpu: Option<Dpu>,
}

/// The link layer of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkLayer {
    /// InfiniBand packets.
    Infiniband,
    /// RoCEv2: InfiniBand's transport in UDP over IPv4 over Ethernet.
    Roce,
}

section! {
    /// The machine's processor, and the times of its verbs calls.
    pub struct Host in "host" {
        /// Cores that can use the NIC.
        cores: Sourced<u32> = 1 to 4096,
        /// Clock rate of a core in GHz.
        clock_ghz: Option<Sourced<f64>> = 0.1 to 10.0,
        /// Core time to build one WQE.
        post_wqe_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Time for which one MMIO write (a cache line of a WQE, or a doorbell) holds a core.
        mmio_write_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Core time to poll one completion.
        poll_cqe_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Core time to post one RECV.
        post_recv_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Time of an atomic add by a core to a line that is its own.
        atomic_add_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Time of an atomic add by a core to a line that other cores add to as well.
        contended_add_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Time of a look at memory that peers WRITE to if nothing new has arrived; 0 if absent.
        empty_look_ns: Option<Sourced<f64>> = 0.0 to 10_000.0,
        /// Work of a core to serve a small request, without verbs and shared counters.
        request_ns: Option<Sourced<f64>> = 0.0 to 1_000_000.0,
        /// Work of a core to serve a request to a key-value store, which looks up its key; as on Connect-IB's host if
        /// absent.
        lookup_ns: Option<Sourced<f64>> = 0.0 to 1_000_000.0,
        /// Work of a core to serve such a request if the look-ups of a batch are prefetched together; as on
        /// Connect-IB's host if absent.
        batched_lookup_ns: Option<Sourced<f64>> = 0.0 to 1_000_000.0,
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
    }
}

section! {
    /// The PCIe link of the NIC.
    pub struct Pcie in "pcie" {
        /// Lanes.
        lanes: Sourced<u32> = 1 to 32,
        /// Bandwidth of a lane in one direction after line coding, in 10^6 bytes a second.
        lane_mbps: Sourced<f64> = 10.0 to 100_000.0,
        /// Bytes that a memory request (read request, or write before its data) adds, framing included.
        request_header_bytes: Sourced<u32> = 12 to 64,
        /// Bytes that a read completion adds to its data, framing included.
        completion_header_bytes: Sourced<u32> = 8 to 64,
        /// Largest data of one read completion: the root complex' completion combining size.
        read_completion_bytes: Sourced<u32> = 64 to 4096,
        /// Largest data of one write by the NIC (Max_Payload_Size).
        max_payload_bytes: Sourced<u32> = 64 to 4096,
        /// Largest read by the NIC in one request (Max_Read_Request_Size).
        max_read_request_bytes: Sourced<u32> = 64 to 4096,
        /// Data of a doorbell.
        doorbell_bytes: Sourced<u32> = 4 to 64,
        /// Bytes of link-layer packets (acknowledgements, flow control) that a transaction of either direction costs
        /// each direction.
        link_layer_bytes_per_tlp: Sourced<f64> = 0.0 to 64.0,
        /// Additional bytes of the link that an MMIO write of a WQE's line takes, since write-combining buffers are
        /// not always flushed whole. 0 if absent.
        mmio_overhead_bytes: Option<Sourced<f64>> = 0.0 to 64.0,
        /// Latency of a transaction from one end of the link to the other.
        latency_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Most WQEs that the NIC fetches by one DMA read after a doorbell; all new ones if absent.
        wqes_per_fetch: Option<Sourced<u32>> = 1 to 1024,
    }
}

section! {
    /// Sizes of WQEs and CQEs.
    pub struct WqeSizes in "wqe" {
        /// Header of a SEND, WRITE or READ on RC, with the size field of inlined data.
        rc_header_bytes: Sourced<u32> = 8 to 256,
        /// Header of a SEND or WRITE on UC, with the size field of inlined data.
        uc_header_bytes: Sourced<u32> = 8 to 256,
        /// Header of a SEND on UD, with the size field of inlined data.
        ud_header_bytes: Sourced<u32> = 8 to 256,
        /// Bytes of the header's size field for inlined data; WQEs without inlined data have no such field.
        inline_size_bytes: Sourced<u32> = 0 to 8,
        /// One scatter/gather element of data that is not inlined.
        sge_bytes: Sourced<u32> = 8 to 64,
        /// An atomic's WQE without its scatter/gather element.
        atomic_header_bytes: Sourced<u32> = 8 to 256,
        /// A RECV with one scatter/gather element.
        recv_bytes: Sourced<u32> = 8 to 256,
        /// Largest WQE.
        max_wqe_bytes: Sourced<u32> = 64 to 4096,
        /// Most data that a WQE can carry inline.
        max_inline_bytes: Sourced<u32> = 0 to 4096,
        /// Bytes that the NIC writes for a completion.
        cqe_bytes: Sourced<u32> = 8 to 256,
        /// Most data that a CQE can carry for an inline RECV on UD; the NIC has none if absent.
        inline_recv_bytes: Option<Sourced<u32>> = 1 to 256,
    }
}

section! {
    /// Processing times of an otherwise idle NIC. Times are the reciprocals of the whole NIC's rates, not latencies.
    pub struct ProcessingTimes in "processing" {
        /// Processing units; a queue pair is served by one of them.
        units: Option<Sourced<u32>> = 1 to 1024,
        /// Time to send a SEND or WRITE whose WQE has one cache line.
        send_ns: Option<Sourced<f64>> = 0.01 to 100_000.0,
        /// Additional time for each further cache line of the WQE.
        wqe_line_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Time for which a queue pair's processing unit waits for the WQEs that a doorbell announced.
        wqe_fetch_wait_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Time to send a READ and handle its response.
        read_ns: Option<Sourced<f64>> = 0.01 to 100_000.0,
        /// Time to handle an arrived message that takes one DMA (WRITE, READ, header-only SEND).
        inbound_ns: Option<Sourced<f64>> = 0.01 to 100_000.0,
        /// Additional time for the second DMA of an arrived message (a SEND with payload, a WRITE with immediate).
        inbound_dma_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Additional time for payload that goes into the CQE of an inline RECV.
        inline_recv_ns: Option<Sourced<f64>> = 0.0 to 100_000.0,
        /// Time to handle an arrived atomic, without waiting for its lock.
        atomic_ns: Option<Sourced<f64>> = 0.01 to 100_000.0,
    }
}

section! {
    /// The NIC's locks for atomics.
    pub struct AtomicLocks in "atomics" {
        /// Low address bits that choose the lock: 2^bits locks, with 0 a single lock.
        lock_bits: Option<Sourced<u32>> = 0 to 32,
        /// Time for which an atomic holds its lock.
        lock_hold_ns: Option<Sourced<f64>> = 1.0 to 1_000_000.0,
    }
}

section! {
    /// The network port.
    pub struct Port in "port" {
        /// Latency of a packet from port to port, cables and switches included.
        latency_ns: Option<Sourced<f64>> = 0.0 to 1_000_000.0,
        /// Ports in use.
        count: Sourced<u32> = 1 to 16,
        /// Data rate of a port in one direction after line coding, in 10^9 bits a second.
        gbps: Sourced<f64> = 0.1 to 10_000.0,
        /// Largest payload of a packet.
        mtu_bytes: Sourced<u32> = 256 to 9000,
        /// Bytes of the link that a packet takes beyond its own.
        packet_gap_bytes: Sourced<f64> = 0.0 to 1024.0,
        /// Further bytes of the link that a packet of a READ's response takes.
        read_response_gap_bytes: Option<Sourced<f64>> = 0.0 to 1024.0,
    }
}

section! {
    /// State that the NIC caches in its own memory.
    pub struct NicCache in "cache" {
        /// Most outstanding READs of a thread that raise its rate.
        read_window: Option<Sourced<u32>> = 1 to 1_000_000,
        /// Number of threads with which `read_window` was found.
        read_window_threads: Option<Sourced<u32>> = 1 to 4096,
        /// Connected queue pairs that the NIC serves without fetching their state.
        connected_qps: Option<Sourced<u32>> = 1 to 10_000_000,
    }
}

/// Formats an error of the TOML reader. The reader names only the expected type of a number; key and range are added.
fn toml_error_text(err: &toml::de::Error, text: &str) -> String {
    let mut message = err.to_string().trim_end().to_owned();
    let wrong_kind = ["invalid type", "invalid value"];
    if wrong_kind
        .iter()
        .any(|kind| err.message().starts_with(kind))
        && let Some((key, (low, high))) = err
            .span()
            .and_then(|span| key_and_range_at_offset(text, span.start))
    {
        message.push_str(&format!("\n{key} must be from {low} to {high}"));
    }
    message
}

/// Returns the key and the permitted range of the numeric field in the line at this byte offset. The key includes its
/// table.
fn key_and_range_at_offset(text: &str, at: usize) -> Option<(String, (f64, f64))> {
    let before = text.get(..at)?;
    let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
    let (field, _) = text.get(begin..)?.lines().next()?.split_once('=')?;
    let field = field.trim();
    let header = before.lines().rev().find(|line| line.starts_with('['))?;
    let (table, _) = header.strip_prefix('[')?.split_once(']')?;
    let range = match table.trim() {
        "host" => Host::range(field),
        "pcie" => Pcie::range(field),
        "wqe" => WqeSizes::range(field),
        "processing" => ProcessingTimes::range(field),
        "atomics" => AtomicLocks::range(field),
        "port" => Port::range(field),
        "cache" => NicCache::range(field),
        "dpu" => Dpu::range(field),
        _ => None,
    };
    Some((format!("{}.{field}", table.trim()), range?))
}

impl Profile {
    /// Reads a profile from TOML.
    ///
    /// # Errors
    /// - [`ProfileError::Malformed`]: the text is not TOML, a key is missing, unknown or wrong, or a number has no
    ///   evidence; with line and column.
    /// - [`ProfileError::Impossible`]: every value that is outside its range, or contradicts another value.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let profile: Self = toml::from_str(text)
            .map_err(|err| ProfileError::Malformed(toml_error_text(&err, text)))?;
        let problems = profile.impossible_values(text);
        if problems.is_empty() {
            Ok(profile)
        } else {
            Err(ProfileError::Impossible(problems))
        }
    }

    /// Every number of the profile with its meaning and evidence, in the order of the format.
    pub fn numbers(&self) -> Vec<ProfileNumber<'_>> {
        let mut all = Vec::new();
        self.host.numbers(&mut all);
        self.turbo
            .iter()
            .for_each(|turbo| turbo.add_numbers_to(&mut all));
        self.pcie.numbers(&mut all);
        self.wqe.numbers(&mut all);
        self.processing.numbers(&mut all);
        self.atomics.numbers(&mut all);
        self.port.numbers(&mut all);
        self.cache.numbers(&mut all);
        self.dpu.iter().for_each(|dpu| dpu.numbers(&mut all));
        all
    }

    /// Returns the profile with another value for the number of this key, such as `host.request_ns`. Whole numbers
    /// are rounded. The evidence stays, and neither range nor agreement with other numbers is checked.
    ///
    /// Returns `None` if the profile has no such number.
    #[must_use]
    pub fn with_number(&self, key: &str, value: f64) -> Option<Self> {
        let mut changed = self.clone();
        let (table, field) = key.split_once('.')?;
        let is_set = match table {
            "host" => changed.host.set(field, value),
            "turbo" => changed.turbo.as_mut()?.set_clock_rate(field, value),
            "pcie" => changed.pcie.set(field, value),
            "wqe" => changed.wqe.set(field, value),
            "processing" => changed.processing.set(field, value),
            "atomics" => changed.atomics.set(field, value),
            "port" => changed.port.set(field, value),
            "cache" => changed.cache.set(field, value),
            "dpu" => changed.dpu.as_mut()?.set(field, value),
            _ => false,
        };
        is_set.then_some(changed)
    }

    fn impossible_values(&self, text: &str) -> Vec<ImpossibleValue> {
        let line = |at: usize| {
            let before = text.as_bytes().get(..at).unwrap_or_default();
            1 + before.iter().filter(|&&byte| byte == b'\n').count()
        };
        let line_of_key = |key: &str| {
            let found = text
                .lines()
                .position(|line| line.trim_start().starts_with(key));
            found.map_or(1, |index| index + 1)
        };
        let mut problems = Vec::new();
        if self.schema != SCHEMA_VERSION {
            problems.push(ImpossibleValue {
                line: line_of_key("schema"),
                key: "schema".to_owned(),
                message: format!(
                    "version {} of the format is not known; this program reads version {SCHEMA_VERSION}",
                    self.schema
                ),
            });
        }
        let name_is_good = (1..=32).contains(&self.name.len())
            && self
                .name
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_".contains(&c));
        if !name_is_good {
            problems.push(ImpossibleValue {
                line: line_of_key("name"),
                key: "name".to_owned(),
                message: "a name has 1 to 32 lower-case letters, digits, '-' or '_'".to_owned(),
            });
        }
        problems.extend(self.identity.iter().flat_map(|identity| {
            let wrong = identity.problems().into_iter();
            wrong.map(|(at, key, message)| ImpossibleValue {
                line: line(at),
                key: format!("identity.{key}"),
                message: message.to_owned(),
            })
        }));
        let turbo = self.turbo.as_ref().and_then(Turbo::problem);
        problems.extend(turbo.map(|(at, message)| ImpossibleValue {
            line: line(at),
            key: "turbo.ghz".to_owned(),
            message: message.to_owned(),
        }));
        let mut out_of_range = Vec::new();
        self.host.out_of_range(&mut out_of_range);
        self.pcie.out_of_range(&mut out_of_range);
        self.wqe.out_of_range(&mut out_of_range);
        self.processing.out_of_range(&mut out_of_range);
        self.atomics.out_of_range(&mut out_of_range);
        self.port.out_of_range(&mut out_of_range);
        self.cache.out_of_range(&mut out_of_range);
        let dpu = self.dpu.iter();
        dpu.for_each(|dpu| dpu.out_of_range(&mut out_of_range));
        problems.extend(out_of_range.into_iter().map(|number| ImpossibleValue {
            line: line(number.byte_offset),
            key: number.key,
            message: format!(
                "{} is out of range; it must be from {} to {}",
                number.value, number.low, number.high
            ),
        }));
        // The comparison of numbers would repeat the problems found so far.
        if problems.is_empty() {
            self.report_contradictions(|at, key, message| {
                problems.push(ImpossibleValue {
                    line: line(at),
                    key: key.to_owned(),
                    message,
                });
            });
        }
        problems
    }

    /// Calls `found` for each number that contradicts others.
    fn report_contradictions(&self, mut found: impl FnMut(usize, &str, String)) {
        let wqe = &self.wqe;
        // RC and UC have the small headers; a UD WQE has less room for inline data.
        let header = wqe.rc_header_bytes.value.min(wqe.uc_header_bytes.value);
        if header + wqe.max_inline_bytes.value > wqe.max_wqe_bytes.value {
            let message = format!(
                "{} bytes of inline data and a header of {header} do not fit wqe.max_wqe_bytes = {}",
                wqe.max_inline_bytes.value, wqe.max_wqe_bytes.value
            );
            found(
                wqe.max_inline_bytes.span.start,
                "wqe.max_inline_bytes",
                message,
            );
        }
        let headers = [
            ("wqe.rc_header_bytes", &wqe.rc_header_bytes),
            ("wqe.uc_header_bytes", &wqe.uc_header_bytes),
            ("wqe.ud_header_bytes", &wqe.ud_header_bytes),
            ("wqe.atomic_header_bytes", &wqe.atomic_header_bytes),
        ];
        for (key, header) in headers {
            if header.value + wqe.sge_bytes.value > wqe.max_wqe_bytes.value {
                let message = format!(
                    "a header of {} bytes and an SGE of {} do not fit wqe.max_wqe_bytes = {}",
                    header.value, wqe.sge_bytes.value, wqe.max_wqe_bytes.value
                );
                found(header.span.start, key, message);
            }
        }
        let on_dpu = self
            .dpu
            .as_ref()
            .map(|dpu| ("dpu.read_completion_bytes", &dpu.read_completion_bytes));
        let powers = [
            (
                "pcie.read_completion_bytes",
                &self.pcie.read_completion_bytes,
            ),
            ("pcie.max_payload_bytes", &self.pcie.max_payload_bytes),
            (
                "pcie.max_read_request_bytes",
                &self.pcie.max_read_request_bytes,
            ),
        ];
        for (key, size) in powers.into_iter().chain(on_dpu) {
            if !size.value.is_power_of_two() {
                found(
                    size.span.start,
                    key,
                    format!(
                        "{} is no power of two, and PCIe knows no other sizes",
                        size.value
                    ),
                );
            }
        }
        let lanes = &self.pcie.lanes;
        if ![1, 2, 4, 8, 12, 16, 32].contains(&lanes.value) {
            found(
                lanes.span.start,
                "pcie.lanes",
                format!(
                    "PCIe knows no link of {} lanes; there are 1, 2, 4, 8, 12, 16 and 32",
                    lanes.value
                ),
            );
        }
        if let (Some(wait), None) = (&self.processing.wqe_fetch_wait_ns, &self.processing.units) {
            found(
                wait.span.start,
                "processing.wqe_fetch_wait_ns",
                "a wait of processing units needs their number: add processing.units".to_owned(),
            );
        }
    }
}
