//! What is measured of a NIC: streams, each of which is bound by one or two numbers of its profile.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;

use crate::micro::{Direction, Knobs, Rate, Stream, Verb};

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Probe {
    /// One core, WRITEs whose WQEs have one cache line, one a doorbell.
    OneLine,
    /// The same with three lines.
    ThreeLines,
    /// One core, lists of 32.
    Lists,
    /// The same, and each is signaled.
    ListsSignaled,
    /// One core that receives header-only SENDs.
    Receive,
    /// One queue pair, one WRITE a doorbell.
    UnitSingly,
    /// One queue pair, lists of so many.
    UnitLists(usize),
    /// All cores: header-only SENDs in lists.
    Send,
    /// All cores: READs.
    Read,
    /// WRITEs from elsewhere.
    InboundWrite,
    /// Header-only SENDs from elsewhere, and with payload.
    InboundHeaderOnly,
    InboundPayload,
    /// Atomics from elsewhere on so many counters, 8 bytes apart.
    Atomics,
    /// On one counter.
    OneLock,
    /// On two counters that are 2^k bytes apart.
    TwoLocks(u32),
    /// One UC WRITE at a time: its payload is inline, or has to be fetched.
    CompleteInline,
    CompleteFetched,
    /// One READ at a time.
    CompleteRead,
    /// READs of so many bytes from elsewhere.
    Link(usize),
    /// All cores: WQEs of two lines in lists, and of three lines one a doorbell.
    PcieLists,
    PcieMmio,
    /// All cores: windows of so many READs.
    ReadWindow(usize),
}

/// Counters of [`Probe::Atomics`]: more than a NIC has locks.
const COUNTERS: usize = 1 << 16;

/// Bytes of payload that make a WRITE's WQE three lines, with a header of 36 bytes.
const THREE_LINES: usize = 100;

/// Low bits of addresses that are tried.
pub(super) const LOCK_BITS: std::ops::RangeInclusive<u32> = 3..=16;

/// The two payloads from which the link follows: long enough for it to bind, and of one packet.
pub(super) const LINK_BYTES: [usize; 2] = [256, 1024];

/// Lists of [`Probe::UnitLists`].
pub(super) const UNIT_LISTS: [usize; 2] = [4, 64];

const READ_WINDOWS: [usize; 7] = [64, 128, 256, 384, 512, 768, 1024];

impl Probe {
    /// All of them; windows of READs only where somebody counts what the NIC reads.
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

    /// What to run.
    pub(super) fn stream(self, cores: usize, duration_ms: u64) -> Result<Stream> {
        let some = Some::<usize>;
        // One core with queue pairs enough that none of the NIC's units holds it up.
        let one = Knobs {
            batch: some(1),
            window: some(256),
            signal_every: some(64),
            queue_pairs: some(16),
            ..Knobs::default()
        };
        let all = Knobs {
            batch: some(16),
            window: some(64),
            signal_every: some(16),
            queue_pairs: some(4),
            threads: some(cores),
            ..Knobs::default()
        };
        let inbound = Knobs {
            direction: Direction::Inbound,
            ..all
        };
        let sends = Knobs {
            window: some(256),
            ..inbound
        };
        // Few outstanding: one lock does about two in a microsecond.
        let locks = Knobs {
            batch: some(4),
            window: some(16),
            signal_every: some(4),
            ..inbound
        };
        let unit = Knobs {
            queue_pairs: some(1),
            ..one
        };
        let complete = Knobs {
            window: some(1),
            signal_every: some(1),
            queue_pairs: some(1),
            ..one
        };
        let payload = |bytes, knobs| Knobs {
            payload_bytes: some(bytes),
            ..knobs
        };
        let (verb, knobs) = match self {
            Probe::OneLine => (Verb::RcWrite, one),
            Probe::ThreeLines => (
                Verb::RcWrite,
                Knobs {
                    inline: Some(true),
                    ..payload(THREE_LINES, one)
                },
            ),
            Probe::Lists => (
                Verb::RcWrite,
                Knobs {
                    batch: some(32),
                    ..one
                },
            ),
            Probe::ListsSignaled => (
                Verb::RcWrite,
                Knobs {
                    batch: some(32),
                    signal_every: some(1),
                    ..one
                },
            ),
            Probe::Receive => {
                let knobs = Knobs {
                    batch: some(16),
                    queue_pairs: some(8),
                    ..one
                };
                (
                    Verb::UdSend,
                    payload(
                        0,
                        Knobs {
                            direction: Direction::Inbound,
                            ..knobs
                        },
                    ),
                )
            }
            Probe::UnitSingly => (Verb::RcWrite, unit),
            Probe::UnitLists(len) => (
                Verb::RcWrite,
                Knobs {
                    batch: some(len),
                    window: some(512),
                    ..unit
                },
            ),
            Probe::Send => {
                let sends = Knobs {
                    window: some(256),
                    ..all
                };
                (Verb::UdSend, payload(0, sends))
            }
            Probe::Read => (
                Verb::RcRead,
                Knobs {
                    batch: some(1),
                    ..all
                },
            ),
            Probe::InboundWrite => (Verb::RcWrite, inbound),
            Probe::InboundHeaderOnly => (Verb::UdSend, payload(0, sends)),
            Probe::InboundPayload => (Verb::UdSend, sends),
            Probe::Atomics => (
                Verb::Atomics,
                Knobs {
                    addresses: some(COUNTERS),
                    ..inbound
                },
            ),
            Probe::OneLock => (Verb::Atomics, locks),
            Probe::TwoLocks(bits) => {
                let counters = Knobs {
                    addresses: some(2),
                    spacing_bytes: some(1 << bits),
                    ..locks
                };
                (Verb::Atomics, counters)
            }
            Probe::CompleteInline => (
                Verb::UcWrite,
                Knobs {
                    inline: Some(true),
                    ..complete
                },
            ),
            Probe::CompleteFetched => (
                Verb::UcWrite,
                Knobs {
                    inline: Some(false),
                    ..complete
                },
            ),
            Probe::CompleteRead => (Verb::RcRead, complete),
            Probe::Link(bytes) => {
                let few = Knobs {
                    batch: some(8),
                    window: some(16),
                    signal_every: some(8),
                    ..inbound
                };
                (Verb::RcRead, payload(bytes, few))
            }
            Probe::PcieLists => {
                let lists = Knobs {
                    batch: some(64),
                    window: some(256),
                    signal_every: some(64),
                    ..all
                };
                (
                    Verb::UdSend,
                    Knobs {
                        inline: Some(true),
                        ..payload(60, lists)
                    },
                )
            }
            Probe::PcieMmio => {
                let singly = Knobs {
                    batch: some(1),
                    inline: Some(true),
                    ..all
                };
                (Verb::RcWrite, payload(THREE_LINES, singly))
            }
            Probe::ReadWindow(window) => {
                let sliding = Knobs {
                    batch: some(1),
                    window: some(window),
                    queue_pairs: some(1),
                    ..all
                };
                (Verb::RcRead, sliding)
            }
        };
        // One lock does about two in a microsecond: fewer of them need longer.
        let slow = matches!(self, Probe::OneLock | Probe::TwoLocks(_));
        let duration_ms = if slow { 5 * duration_ms } else { duration_ms };
        Stream::new(verb, &knobs, duration_ms)
    }
}

impl fmt::Display for Probe {
    /// As evidence names it.
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

/// What came of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Its rate.
    pub rate: Rate,
    /// Cache lines that the NIC read from memory for each WR, where somebody counts.
    pub lines_read: Option<f64>,
}

/// What came of all of them.
#[derive(Debug, Default)]
pub(super) struct Results {
    samples: BTreeMap<Probe, (Stream, Sample)>,
    /// Why some could not be run.
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

    /// Where nothing could be measured at all, why the first could not.
    pub(super) fn nothing(&self) -> Option<&str> {
        let first = self.failures.values().next().map(String::as_str);
        first.filter(|_| self.samples.is_empty())
    }

    /// Time of one operation, in ns.
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

    /// As evidence names a result.
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
