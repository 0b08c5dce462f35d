//! Streams that are measured on a NIC. Each is limited by one or two numbers of its profile.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use crate::micro::{Direction, Parameters, Rate, Stream, Verb};

/// A stream to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Probe {
    /// One core: WRITEs whose WQEs fit one cache line, one per doorbell.
    OneLine,
    /// One core: WRITEs whose WQEs take three cache lines, one per doorbell.
    ThreeLines,
    /// One core: WRITEs in postlists of 32.
    Lists,
    /// One core: WRITEs in postlists of 32, all signaled.
    ListsSignaled,
    /// One core: receives header-only SENDs.
    Receive,
    /// One queue pair: one WRITE per doorbell.
    UnitSingly,
    /// One queue pair: WRITEs in postlists of this length.
    UnitLists(usize),
    /// All cores: header-only SENDs in postlists.
    Send,
    /// All cores: READs.
    Read,
    /// Inbound WRITEs.
    InboundWrite,
    /// Inbound SENDs, header-only and with payload.
    InboundHeaderOnly,
    InboundPayload,
    /// Inbound atomics on 2^16 counters, 8 bytes apart.
    Atomics,
    /// Inbound atomics on one counter.
    OneLock,
    /// Inbound atomics on two counters that are 2^k bytes apart.
    TwoLocks(u32),
    /// One UC WRITE at a time, whose payload is inline, or is fetched by DMA.
    CompleteInline,
    CompleteFetched,
    /// One READ at a time.
    CompleteRead,
    /// Inbound READs of this many bytes.
    Link(usize),
    /// All cores: WQEs of two lines in postlists, and WQEs of three lines, one per doorbell.
    PcieLists,
    PcieMmio,
    /// All cores: windows of this many READs.
    ReadWindow(usize),
}

/// Counters of [`Probe::Atomics`]: more than a NIC has locks.
const COUNTERS: usize = 1 << 16;

/// Payload bytes that make a WRITE's WQE three lines long, with 36 bytes of headers.
const THREE_LINES: usize = 100;

/// Exponents of the distances between two counters that are tried, in bits.
pub(super) const LOCK_BITS: std::ops::RangeInclusive<u32> = 3..=16;

/// Payload sizes from which the link's numbers follow. Both make the link the bottleneck and fit
/// one packet.
pub(super) const LINK_BYTES: [usize; 2] = [256, 1024];

/// Postlist lengths of [`Probe::UnitLists`].
pub(super) const UNIT_LISTS: [usize; 2] = [4, 64];

const READ_WINDOWS: [usize; 7] = [64, 128, 256, 384, 512, 768, 1024];

impl Probe {
    /// Returns all probes. Windows of READs are included only if the machine counts what the NIC
    /// reads (`counted`).
    pub(super) fn all(counted: bool) -> Vec<Probe> {
        use Probe::*;
        let mut all = vec![
            OneLine,
            ThreeLines,
            Lists,
            ListsSignaled,
            Receive,
            UnitSingly,
            Send,
            Read,
            InboundWrite,
            InboundHeaderOnly,
            InboundPayload,
            Atomics,
            OneLock,
            CompleteInline,
            CompleteFetched,
            CompleteRead,
            PcieLists,
            PcieMmio,
        ];
        all.extend(UNIT_LISTS.map(UnitLists));
        all.extend(LINK_BYTES.map(Link));
        all.extend(LOCK_BITS.map(TwoLocks));
        if counted {
            all.extend(READ_WINDOWS.map(ReadWindow));
        }
        all
    }

    /// Returns the stream to run.
    pub(super) fn stream(self, cores: usize, duration_ms: u64) -> Result<Stream> {
        let some = Some::<usize>;
        // One core with so many queue pairs that no processing unit of the NIC limits it.
        let one = Parameters {
            batch: some(1),
            window: some(256),
            signal_every: some(64),
            queue_pairs: some(16),
            ..Parameters::default()
        };
        let all = Parameters {
            batch: some(16),
            window: some(64),
            signal_every: some(16),
            queue_pairs: some(4),
            threads: some(cores),
            ..Parameters::default()
        };
        let inbound = Parameters {
            direction: Direction::Inbound,
            ..all
        };
        let sends = Parameters {
            window: some(256),
            ..inbound
        };
        // Few operations outstanding: one lock completes about two per microsecond.
        let locks = Parameters {
            batch: some(4),
            window: some(16),
            signal_every: some(4),
            ..inbound
        };
        let unit = Parameters {
            queue_pairs: some(1),
            ..one
        };
        let complete = Parameters {
            window: some(1),
            signal_every: some(1),
            queue_pairs: some(1),
            ..one
        };
        let payload = |bytes, parameters| Parameters {
            payload_bytes: some(bytes),
            ..parameters
        };
        let (verb, parameters) = match self {
            Probe::OneLine => (Verb::RcWrite, one),
            Probe::ThreeLines => (
                Verb::RcWrite,
                Parameters {
                    inline: Some(true),
                    ..payload(THREE_LINES, one)
                },
            ),
            Probe::Lists => (
                Verb::RcWrite,
                Parameters {
                    batch: some(32),
                    ..one
                },
            ),
            Probe::ListsSignaled => (
                Verb::RcWrite,
                Parameters {
                    batch: some(32),
                    signal_every: some(1),
                    ..one
                },
            ),
            Probe::Receive => {
                let parameters = Parameters {
                    batch: some(16),
                    queue_pairs: some(8),
                    ..one
                };
                (
                    Verb::UdSend,
                    payload(
                        0,
                        Parameters {
                            direction: Direction::Inbound,
                            ..parameters
                        },
                    ),
                )
            }
            Probe::UnitSingly => (Verb::RcWrite, unit),
            Probe::UnitLists(len) => (
                Verb::RcWrite,
                Parameters {
                    batch: some(len),
                    window: some(512),
                    ..unit
                },
            ),
            Probe::Send => {
                let sends = Parameters {
                    window: some(256),
                    ..all
                };
                (Verb::UdSend, payload(0, sends))
            }
            Probe::Read => (
                Verb::RcRead,
                Parameters {
                    batch: some(1),
                    ..all
                },
            ),
            Probe::InboundWrite => (Verb::RcWrite, inbound),
            Probe::InboundHeaderOnly => (Verb::UdSend, payload(0, sends)),
            Probe::InboundPayload => (Verb::UdSend, sends),
            Probe::Atomics => (
                Verb::Atomics,
                Parameters {
                    addresses: some(COUNTERS),
                    ..inbound
                },
            ),
            Probe::OneLock => (Verb::Atomics, locks),
            Probe::TwoLocks(bits) => {
                let counters = Parameters {
                    addresses: some(2),
                    spacing_bytes: some(1 << bits),
                    ..locks
                };
                (Verb::Atomics, counters)
            }
            Probe::CompleteInline => (
                Verb::UcWrite,
                Parameters {
                    inline: Some(true),
                    ..complete
                },
            ),
            Probe::CompleteFetched => (
                Verb::UcWrite,
                Parameters {
                    inline: Some(false),
                    ..complete
                },
            ),
            Probe::CompleteRead => (Verb::RcRead, complete),
            Probe::Link(bytes) => {
                let few = Parameters {
                    batch: some(8),
                    window: some(16),
                    signal_every: some(8),
                    ..inbound
                };
                (Verb::RcRead, payload(bytes, few))
            }
            Probe::PcieLists => {
                let lists = Parameters {
                    batch: some(64),
                    window: some(256),
                    signal_every: some(64),
                    ..all
                };
                (
                    Verb::UdSend,
                    Parameters {
                        inline: Some(true),
                        ..payload(60, lists)
                    },
                )
            }
            Probe::PcieMmio => {
                let singly = Parameters {
                    batch: some(1),
                    inline: Some(true),
                    ..all
                };
                (Verb::RcWrite, payload(THREE_LINES, singly))
            }
            Probe::ReadWindow(window) => {
                let sliding = Parameters {
                    batch: some(1),
                    window: some(window),
                    queue_pairs: some(1),
                    ..all
                };
                (Verb::RcRead, sliding)
            }
        };
        // One lock completes about two operations per microsecond, so these streams run longer.
        let slow = matches!(self, Probe::OneLock | Probe::TwoLocks(_));
        let duration_ms = if slow { 5 * duration_ms } else { duration_ms };
        Stream::new(verb, &parameters, duration_ms)
    }
}

impl fmt::Display for Probe {
    /// Writes the probe as the evidence in a profile names it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Probe::OneLine => f.write_str("one core, WRITEs of one line, one a doorbell"),
            Probe::ThreeLines => f.write_str("one core, WRITEs of three lines, one a doorbell"),
            Probe::Lists => f.write_str("one core, WRITEs in lists of 32"),
            Probe::ListsSignaled => f.write_str("one core, WRITEs in lists of 32, each signaled"),
            Probe::Receive => f.write_str("one core, header-only RECVs"),
            Probe::UnitSingly => f.write_str("one queue pair, WRITEs one a doorbell"),
            Probe::UnitLists(len) => write!(f, "one queue pair, WRITEs in lists of {len}"),
            Probe::Send => f.write_str("header-only SENDs in lists of 16"),
            Probe::Read => f.write_str("READs of 8 bytes"),
            Probe::InboundWrite => f.write_str("inbound WRITEs of 8 bytes"),
            Probe::InboundHeaderOnly => f.write_str("inbound header-only SENDs"),
            Probe::InboundPayload => f.write_str("inbound SENDs of 8 bytes"),
            Probe::Atomics => write!(f, "inbound fetch-and-adds on {COUNTERS} counters"),
            Probe::OneLock => f.write_str("inbound fetch-and-adds on one counter"),
            Probe::TwoLocks(bits) => write!(f, "the same on two counters 2^{bits} bytes apart"),
            Probe::CompleteInline => f.write_str("one UC WRITE at a time, inline"),
            Probe::CompleteFetched => f.write_str("one UC WRITE at a time, not inline"),
            Probe::CompleteRead => f.write_str("one READ at a time"),
            Probe::Link(bytes) => write!(f, "inbound READs of {bytes} bytes"),
            Probe::PcieLists => f.write_str("SENDs of 60 bytes inline, in lists of 64"),
            Probe::PcieMmio => f.write_str("WRITEs of three lines, one a doorbell, from all cores"),
            Probe::ReadWindow(window) => write!(f, "windows of {window} READs"),
        }
    }
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Measured rate.
    pub rate: Rate,
    /// Cache lines that the NIC read from memory for each WR; `None` if the machine does not count
    /// them.
    pub lines_read: Option<f64>,
}

/// Results of all measurements.
#[derive(Debug, Default)]
pub(super) struct Results {
    samples: BTreeMap<Probe, (Stream, Sample)>,
    /// Reasons why probes could not be run.
    failures: BTreeMap<Probe, String>,
}

impl Results {
    pub(super) fn add(&mut self, probe: Probe, stream: Stream, sample: Result<Sample>) {
        match sample {
            Ok(sample) if sample.rate.rate_mops > 0.0 => {
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
    pub(super) fn nothing(&self) -> Option<&str> {
        let first = self.failures.values().next().map(String::as_str);
        first.filter(|_| self.samples.is_empty())
    }

    /// Returns the time of one operation, in ns.
    pub(super) fn ns(&self, probe: Probe) -> Result<f64, String> {
        match self.samples.get(&probe) {
            Some((_, sample)) => Ok(1e3 / sample.rate.rate_mops),
            None => Err(match self.failures.get(&probe) {
                Some(failure) => format!("{probe} could not be measured ({failure})"),
                None => format!("{probe} were not measured"),
            }),
        }
    }

    pub(super) fn stream(&self, probe: Probe) -> Option<&Stream> {
        self.samples.get(&probe).map(|(stream, _)| stream)
    }

    pub(super) fn lines_read(&self, probe: Probe) -> Option<f64> {
        self.samples.get(&probe)?.1.lines_read
    }

    /// Returns the result as the evidence in a profile names it.
    pub(super) fn evidence(&self, probe: Probe) -> String {
        match self.ns(probe) {
            Ok(ns) => format!("{probe}: {:.4} M/s", 1e3 / ns),
            Err(why) => why,
        }
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = usize> {
        self.samples.keys().filter_map(|probe| match probe {
            Probe::ReadWindow(window) => Some(*window),
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
            for probe in Probe::all(true) {
                let stream = probe.stream(cores, 1);
                assert!(stream.is_ok(), "{probe:?}: {stream:?}");
            }
        }
    }
}
