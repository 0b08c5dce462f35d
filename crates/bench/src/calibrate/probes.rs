//! Streams that are measured on a NIC. Each is limited by one or two numbers of its profile.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use crate::micro::{MeasuredRole, MicroParameters, StreamRate, Verb, VerbStream};

/// A stream to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProbedStream {
    /// One core: WRITEs whose WQEs fit one cache line, one per doorbell.
    OneLineWqes,
    /// One core: WRITEs whose WQEs take three cache lines, one per doorbell.
    ThreeLineWqes,
    /// One core: WRITEs in postlists of 32.
    WritePostlists,
    /// One core: WRITEs in postlists of 32, all signaled.
    SignaledWritePostlists,
    /// One core: receives header-only SENDs.
    ReceiveHeaderOnlySends,
    /// One queue pair: one WRITE per doorbell.
    OneQpSingleWrites,
    /// One queue pair: WRITEs in postlists of this length.
    OneQpWritePostlists(usize),
    /// All cores: header-only SENDs in postlists.
    AllCoresHeaderOnlySends,
    /// All cores: READs.
    AllCoresReads,
    /// Inbound WRITEs.
    InboundWrite,
    /// Inbound SENDs, header-only and with payload.
    InboundHeaderOnlySends,
    InboundPayloadSends,
    /// Inbound atomics on 2^16 counters, 8 bytes apart.
    InboundAtomicsOnManyCounters,
    /// Inbound atomics on one counter.
    InboundAtomicsOnOneCounter,
    /// Inbound atomics on two counters that are 2^k bytes apart.
    InboundAtomicsOnTwoCounters(u32),
    /// One UC WRITE at a time, whose payload is inline, or is fetched by DMA.
    OneInlineUcWriteAtATime,
    OneFetchedUcWriteAtATime,
    /// One READ at a time.
    OneReadAtATime,
    /// Inbound READs of this many bytes.
    InboundReadsOfBytes(usize),
    /// All cores: WQEs of two lines in postlists, and WQEs of three lines, one per doorbell.
    AllCoresTwoLineWqePostlists,
    AllCoresThreeLineWqesByMmio,
    /// All cores: windows of this many READs.
    ReadWindow(usize),
}

/// Counters of [`ProbedStream::InboundAtomicsOnManyCounters`]: more than a NIC has locks.
const ATOMIC_COUNTERS: usize = 1 << 16;

/// Payload bytes that make a WRITE's WQE three lines long, with 36 bytes of headers.
const THREE_LINE_WQE_PAYLOAD_BYTES: usize = 100;

/// Exponents of the distances between two counters that are tried, in bits.
pub(super) const COUNTER_DISTANCE_EXPONENTS: std::ops::RangeInclusive<u32> = 3..=16;

/// Payload sizes from which the link's numbers follow. Both make the link the bottleneck and fit
/// one packet.
pub(super) const LINK_PROBE_PAYLOADS_BYTES: [usize; 2] = [256, 1024];

/// Postlist lengths of [`ProbedStream::OneQpWritePostlists`].
pub(super) const ONE_QP_POSTLIST_LENGTHS: [usize; 2] = [4, 64];

const PROBED_READ_WINDOWS: [usize; 7] = [64, 128, 256, 384, 512, 768, 1024];

impl ProbedStream {
    /// Returns all probes. Windows of READs are included only if the machine counts what the NIC
    /// reads (`counted`).
    pub(super) fn all_with_read_windows_if_lines_counted(counted: bool) -> Vec<ProbedStream> {
        use ProbedStream::*;
        let mut all = vec![
            OneLineWqes,
            ThreeLineWqes,
            WritePostlists,
            SignaledWritePostlists,
            ReceiveHeaderOnlySends,
            OneQpSingleWrites,
            AllCoresHeaderOnlySends,
            AllCoresReads,
            InboundWrite,
            InboundHeaderOnlySends,
            InboundPayloadSends,
            InboundAtomicsOnManyCounters,
            InboundAtomicsOnOneCounter,
            OneInlineUcWriteAtATime,
            OneFetchedUcWriteAtATime,
            OneReadAtATime,
            AllCoresTwoLineWqePostlists,
            AllCoresThreeLineWqesByMmio,
        ];
        all.extend(ONE_QP_POSTLIST_LENGTHS.map(OneQpWritePostlists));
        all.extend(LINK_PROBE_PAYLOADS_BYTES.map(InboundReadsOfBytes));
        all.extend(COUNTER_DISTANCE_EXPONENTS.map(InboundAtomicsOnTwoCounters));
        if counted {
            all.extend(PROBED_READ_WINDOWS.map(ReadWindow));
        }
        all
    }

    /// Returns the stream to run.
    pub(super) fn verb_stream_to_run(self, cores: usize, duration_ms: u64) -> Result<VerbStream> {
        let (verb, parameters) = self.verb_and_parameters(cores);
        // One lock completes about two operations per microsecond, so these streams run longer.
        let slow = matches!(
            self,
            ProbedStream::InboundAtomicsOnOneCounter | ProbedStream::InboundAtomicsOnTwoCounters(_)
        );
        let duration_ms = if slow { 5 * duration_ms } else { duration_ms };
        VerbStream::new(verb, &parameters, duration_ms)
    }

    fn verb_and_parameters(self, cores: usize) -> (Verb, MicroParameters) {
        use ProbedStream::*;
        // One core with so many queue pairs that no processing unit of the NIC limits it.
        let one_core = stream_parameters(1, 256, 64).with_queue_pairs(16);
        let one_qp = one_core.with_queue_pairs(1);
        let one_at_a_time = stream_parameters(1, 1, 1).with_queue_pairs(1);
        let all_cores = MicroParameters {
            threads: Some(cores),
            ..stream_parameters(16, 64, 16).with_queue_pairs(4)
        };
        let inbound = all_cores.measured_inbound();
        let inbound_sends = inbound.with_window(256);
        // Few operations outstanding: one lock completes about two per microsecond.
        let locks = inbound
            .with_postlists(4)
            .with_window(16)
            .with_signal_every(4);
        match self {
            OneLineWqes => (Verb::RcWrite, one_core),
            ThreeLineWqes => (
                Verb::RcWrite,
                one_core.with_inline_payload(THREE_LINE_WQE_PAYLOAD_BYTES),
            ),
            WritePostlists => (Verb::RcWrite, one_core.with_postlists(32)),
            SignaledWritePostlists => (
                Verb::RcWrite,
                one_core.with_postlists(32).with_signal_every(1),
            ),
            ReceiveHeaderOnlySends => {
                let sends = one_core.with_postlists(16).with_queue_pairs(8);
                (Verb::UdSend, sends.measured_inbound().with_payload(0))
            }
            OneQpSingleWrites => (Verb::RcWrite, one_qp),
            OneQpWritePostlists(len) => {
                (Verb::RcWrite, one_qp.with_postlists(len).with_window(512))
            }
            AllCoresHeaderOnlySends => (Verb::UdSend, all_cores.with_window(256).with_payload(0)),
            AllCoresReads => (Verb::RcRead, all_cores.with_postlists(1)),
            InboundWrite => (Verb::RcWrite, inbound),
            InboundHeaderOnlySends => (Verb::UdSend, inbound_sends.with_payload(0)),
            InboundPayloadSends => (Verb::UdSend, inbound_sends),
            InboundAtomicsOnManyCounters => (Verb::Atomics, inbound.with_counters(ATOMIC_COUNTERS)),
            InboundAtomicsOnOneCounter => (Verb::Atomics, locks),
            InboundAtomicsOnTwoCounters(bits) => {
                let counters = MicroParameters {
                    counter_spacing_bytes: Some(1 << bits),
                    ..locks.with_counters(2)
                };
                (Verb::Atomics, counters)
            }
            OneInlineUcWriteAtATime => (Verb::UcWrite, one_at_a_time.with_inline(true)),
            OneFetchedUcWriteAtATime => (Verb::UcWrite, one_at_a_time.with_inline(false)),
            OneReadAtATime => (Verb::RcRead, one_at_a_time),
            InboundReadsOfBytes(bytes) => {
                let few = inbound
                    .with_postlists(8)
                    .with_window(16)
                    .with_signal_every(8);
                (Verb::RcRead, few.with_payload(bytes))
            }
            AllCoresTwoLineWqePostlists => {
                let lists = all_cores
                    .with_postlists(64)
                    .with_window(256)
                    .with_signal_every(64);
                (Verb::UdSend, lists.with_inline_payload(60))
            }
            AllCoresThreeLineWqesByMmio => {
                let singly = all_cores.with_postlists(1);
                (
                    Verb::RcWrite,
                    singly.with_inline_payload(THREE_LINE_WQE_PAYLOAD_BYTES),
                )
            }
            ReadWindow(window) => {
                let sliding = all_cores.with_postlists(1).with_queue_pairs(1);
                (Verb::RcRead, sliding.with_window(window))
            }
        }
    }
}

/// Returns parameters with the given postlists and window, and one signaled work request in `signal_every`.
fn stream_parameters(
    wrs_per_doorbell: usize,
    window: usize,
    signal_every: usize,
) -> MicroParameters {
    MicroParameters::default()
        .with_postlists(wrs_per_doorbell)
        .with_window(window)
        .with_signal_every(signal_every)
}

impl MicroParameters {
    fn with_postlists(self, wrs_per_doorbell: usize) -> Self {
        Self {
            wrs_per_doorbell: Some(wrs_per_doorbell),
            ..self
        }
    }

    fn with_window(self, window: usize) -> Self {
        Self {
            window: Some(window),
            ..self
        }
    }

    fn with_signal_every(self, signal_every: usize) -> Self {
        Self {
            signal_every: Some(signal_every),
            ..self
        }
    }

    fn with_queue_pairs(self, per_thread: usize) -> Self {
        Self {
            queue_pairs_per_thread: Some(per_thread),
            ..self
        }
    }

    fn with_payload(self, bytes: usize) -> Self {
        Self {
            payload_bytes: Some(bytes),
            ..self
        }
    }

    fn with_inline(self, inline: bool) -> Self {
        Self {
            inline: Some(inline),
            ..self
        }
    }

    fn with_inline_payload(self, bytes: usize) -> Self {
        self.with_payload(bytes).with_inline(true)
    }

    fn with_counters(self, counters: usize) -> Self {
        Self {
            atomic_counters: Some(counters),
            ..self
        }
    }

    /// Returns the same parameters for a measurement of what arrives.
    fn measured_inbound(self) -> Self {
        Self {
            measured_role: MeasuredRole::Inbound,
            ..self
        }
    }
}

impl fmt::Display for ProbedStream {
    /// Writes the probe as the evidence in a profile names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbedStream::OneLineWqes => {
                f.write_str("one core, WRITEs of one line, one a doorbell")
            }
            ProbedStream::ThreeLineWqes => {
                f.write_str("one core, WRITEs of three lines, one a doorbell")
            }
            ProbedStream::WritePostlists => f.write_str("one core, WRITEs in lists of 32"),
            ProbedStream::SignaledWritePostlists => {
                f.write_str("one core, WRITEs in lists of 32, each signaled")
            }
            ProbedStream::ReceiveHeaderOnlySends => f.write_str("one core, header-only RECVs"),
            ProbedStream::OneQpSingleWrites => f.write_str("one queue pair, WRITEs one a doorbell"),
            ProbedStream::OneQpWritePostlists(len) => {
                write!(f, "one queue pair, WRITEs in lists of {len}")
            }
            ProbedStream::AllCoresHeaderOnlySends => {
                f.write_str("header-only SENDs in lists of 16")
            }
            ProbedStream::AllCoresReads => f.write_str("READs of 8 bytes"),
            ProbedStream::InboundWrite => f.write_str("inbound WRITEs of 8 bytes"),
            ProbedStream::InboundHeaderOnlySends => f.write_str("inbound header-only SENDs"),
            ProbedStream::InboundPayloadSends => f.write_str("inbound SENDs of 8 bytes"),
            ProbedStream::InboundAtomicsOnManyCounters => {
                write!(f, "inbound fetch-and-adds on {ATOMIC_COUNTERS} counters")
            }
            ProbedStream::InboundAtomicsOnOneCounter => {
                f.write_str("inbound fetch-and-adds on one counter")
            }
            ProbedStream::InboundAtomicsOnTwoCounters(bits) => {
                write!(f, "the same on two counters 2^{bits} bytes apart")
            }
            ProbedStream::OneInlineUcWriteAtATime => f.write_str("one UC WRITE at a time, inline"),
            ProbedStream::OneFetchedUcWriteAtATime => {
                f.write_str("one UC WRITE at a time, not inline")
            }
            ProbedStream::OneReadAtATime => f.write_str("one READ at a time"),
            ProbedStream::InboundReadsOfBytes(bytes) => write!(f, "inbound READs of {bytes} bytes"),
            ProbedStream::AllCoresTwoLineWqePostlists => {
                f.write_str("SENDs of 60 bytes inline, in lists of 64")
            }
            ProbedStream::AllCoresThreeLineWqesByMmio => {
                f.write_str("WRITEs of three lines, one a doorbell, from all cores")
            }
            ProbedStream::ReadWindow(window) => write!(f, "windows of {window} READs"),
        }
    }
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRate {
    /// Measured rate.
    pub stream_rate: StreamRate,
    /// Cache lines that the NIC read from memory for each WR; `None` if the machine does not count
    /// them.
    pub cache_lines_read_per_wr: Option<f64>,
}

/// Results of all measurements.
#[derive(Debug, Default)]
pub(super) struct ProbeResults {
    samples: BTreeMap<ProbedStream, (VerbStream, MeasuredRate)>,
    /// Reasons why probes could not be run.
    failures: BTreeMap<ProbedStream, String>,
}

impl ProbeResults {
    pub(super) fn add(
        &mut self,
        probe: ProbedStream,
        stream: VerbStream,
        sample: Result<MeasuredRate>,
    ) {
        match sample {
            Ok(sample) if sample.stream_rate.rate_mops > 0.0 => {
                self.samples.insert(probe, (stream, sample));
            }
            Ok(_) => {
                self.failures.insert(probe, "it gave no rate".to_owned());
            }
            Err(error) => {
                self.failures.insert(probe, format!("{error:#}"));
            }
        }
    }

    /// Returns why the first probe failed if no probe succeeded at all.
    pub(super) fn first_failure_if_none_succeeded(&self) -> Option<&str> {
        let first = self.failures.values().next().map(String::as_str);
        first.filter(|_| self.samples.is_empty())
    }

    /// Returns the time of one operation, in ns.
    pub(super) fn ns_per_operation(&self, probe: ProbedStream) -> Result<f64, String> {
        match self.samples.get(&probe) {
            Some((_, sample)) => Ok(1e3 / sample.stream_rate.rate_mops),
            None => Err(match self.failures.get(&probe) {
                Some(failure) => format!("{probe} could not be measured ({failure})"),
                None => format!("{probe} were not measured"),
            }),
        }
    }

    pub(super) fn stream(&self, probe: ProbedStream) -> Option<&VerbStream> {
        self.samples.get(&probe).map(|(stream, _)| stream)
    }

    pub(super) fn cache_lines_read_per_wr(&self, probe: ProbedStream) -> Option<f64> {
        self.samples.get(&probe)?.1.cache_lines_read_per_wr
    }

    /// Returns the result as the evidence in a profile names it.
    pub(super) fn evidence_text(&self, probe: ProbedStream) -> String {
        match self.ns_per_operation(probe) {
            Ok(ns) => format!("{probe}: {:.4} M/s", 1e3 / ns),
            Err(why) => why,
        }
    }

    pub(super) fn measured_read_windows(&self) -> impl Iterator<Item = usize> {
        self.samples.keys().filter_map(|probe| match probe {
            ProbedStream::ReadWindow(window) => Some(*window),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_is_a_stream_on_any_number_of_cores() {
        for cores in [1, 2, 14, 128] {
            for probe in ProbedStream::all_with_read_windows_if_lines_counted(true) {
                let stream = probe.verb_stream_to_run(cores, 1);
                assert!(stream.is_ok(), "{probe:?}: {stream:?}");
            }
        }
    }
}
