//! One verb at a time, with every knob that its cost depends on.
//!
//! A [`Stream`] keeps windows of WRs outstanding and gives a rate; a [`PingPong`] has one message
//! on its way and gives a latency. Both run for a time, not for a count, so that a NIC that is a
//! hundred times slower takes no longer; both check every message or, for RDMA WRITEs, the last one
//! of each place. [`compare`] runs the same on two NICs and beside `perftest`.

pub mod compare;
mod credit;
mod knobs;
mod lanes;
mod model;
mod one_sided;
mod pace;
mod ping;
mod send;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::link::Link;
use crate::workload::{Nic, mops};

pub use knobs::{
    AUTO_INLINE_BYTES, Direction, Knobs, MAX_ADDRESSES, MAX_PAYLOAD_BYTES, MAX_QUEUE_PAIRS,
    MAX_SPACING_BYTES, MAX_THREADS, MAX_WINDOW, Pages, Stream,
};
pub use lanes::{Order, Runner};
pub(crate) use lanes::{Target, check, far, near, together, work};

/// What an immediate carries, as payload of a SEND.
const SHORT_BYTES: usize = 4;

/// What is posted, and on which transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// SEND over UD.
    UdSend,
    /// SEND over RC.
    RcSend,
    /// RDMA WRITE over RC.
    RcWrite,
    /// RDMA WRITE over UC.
    UcWrite,
    /// RDMA READ (RC).
    RcRead,
    /// Fetch-and-add (RC), on counters of 8 bytes.
    Atomics,
}

impl Verb {
    /// Every verb.
    pub const ALL: [Verb; 6] = [
        Verb::UdSend,
        Verb::RcSend,
        Verb::RcWrite,
        Verb::UcWrite,
        Verb::RcRead,
        Verb::Atomics,
    ];

    /// As on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::UdSend => "ud-send",
            Verb::RcSend => "rc-send",
            Verb::RcWrite => "rc-write",
            Verb::UcWrite => "uc-write",
            Verb::RcRead => "rc-read",
            Verb::Atomics => "atomics",
        }
    }

    /// For a table.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Verb::UdSend => "UD SEND",
            Verb::RcSend => "RC SEND",
            Verb::RcWrite => "RC WRITE",
            Verb::UcWrite => "UC WRITE",
            Verb::RcRead => "RC READ",
            Verb::Atomics => "RC fetch-and-add",
        }
    }

    /// Whether it is a SEND, which takes a RECV.
    #[must_use]
    pub fn is_send(self) -> bool {
        matches!(self, Verb::UdSend | Verb::RcSend)
    }

    /// Whether its payload travels with the request, so that it can be inline.
    fn carries_payload(self) -> bool {
        !matches!(self, Verb::RcRead | Verb::Atomics)
    }

    /// What stamps and words need: a whole word, or nothing where nothing can be sent.
    fn check_payload(self, payload_bytes: usize) -> Result<()> {
        match self {
            Verb::Atomics if payload_bytes != 8 => {
                bail!("an atomic has 8 bytes; leave the payload out")
            }
            _ if self.is_send() && [0, SHORT_BYTES].contains(&payload_bytes) => Ok(()),
            _ if payload_bytes < 8 => bail!(
                "a payload of {payload_bytes} bytes has no room for the number that is checked; \
                 take 8 or more{}",
                if self.is_send() {
                    ", 4 inline, or 0 for header-only messages"
                } else {
                    ""
                }
            ),
            _ => Ok(()),
        }
    }
}

/// One message to and fro, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingPong {
    /// What is posted.
    pub verb: Verb,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Whether the payload is inline.
    pub inline: bool,
    /// How long it runs; the first tenth is not measured.
    pub duration_ms: u64,
}

impl PingPong {
    /// Fills in what `knobs` leaves open; batch, window and signaled period do not matter.
    ///
    /// # Errors
    /// When knobs contradict each other; the message says which to change.
    pub fn new(verb: Verb, knobs: &Knobs, duration_ms: u64) -> Result<PingPong> {
        let payload_bytes = knobs.payload_bytes.unwrap_or(8);
        verb.check_payload(payload_bytes)?;
        Ok(PingPong {
            verb,
            payload_bytes,
            inline: knobs.inline(verb, payload_bytes)?,
            duration_ms,
        })
    }

    /// Whether its latency is half of a round trip, or all of it from post to completion.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.verb.carries_payload()
    }
}

/// What came of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Messages in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// Their payload, in 10^9 bytes a second.
    pub bandwidth_gbytes_per_s: f64,
    /// Messages of the whole run that were checked: each SEND, READ and atomic, and for WRITEs those
    /// that were last in their place and, by order, all before them.
    pub verified_ops: u64,
    /// Datagrams that did not arrive.
    pub lost_ops: u64,
}

impl Rate {
    fn new(stream: &Stream, timed: pace::Timed, verified_ops: u64, lost_ops: u64) -> Rate {
        let rate_mops = mops(timed.ops, timed.elapsed_ns);
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let bandwidth_gbytes_per_s = rate_mops * stream.payload_bytes as f64 / 1e3;
        Rate {
            rate_mops,
            bandwidth_gbytes_per_s,
            verified_ops,
            lost_ops,
        }
    }

    /// The same with a rate that was found in another way.
    pub(crate) fn at(self, rate_mops: f64) -> Rate {
        let bytes = if self.rate_mops > 0.0 {
            self.bandwidth_gbytes_per_s / self.rate_mops
        } else {
            0.0
        };
        Rate {
            rate_mops,
            bandwidth_gbytes_per_s: rate_mops * bytes,
            ..self
        }
    }

    /// The rate of two threads together.
    fn plus(self, other: Rate) -> Rate {
        Rate {
            rate_mops: self.rate_mops + other.rate_mops,
            bandwidth_gbytes_per_s: self.bandwidth_gbytes_per_s + other.bandwidth_gbytes_per_s,
            verified_ops: self.verified_ops + other.verified_ops,
            lost_ops: self.lost_ops + other.lost_ops,
        }
    }
}

/// What came of a [`PingPong`]; times in nanoseconds, less what reading the clock takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub latency_ns_p50: f64,
    /// 99 % are at most this.
    pub latency_ns_p99: f64,
    /// 99.9 % are at most this.
    pub latency_ns_p999: f64,
    /// The longest.
    pub latency_ns_max: f64,
    /// The mean.
    pub latency_ns_mean: f64,
    /// What one reading of the clock takes; already subtracted.
    pub clock_ns: f64,
    /// Exchanges that were checked.
    pub verified_ops: u64,
    /// The raw samples: each latency that occurred, to three digits, and how often.
    pub histogram: Vec<(f64, u64)>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A rate.
    Stream(Stream),
    /// A latency.
    PingPong(PingPong),
}

impl Task {
    /// What is posted.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Task::Stream(stream) => stream.verb,
            Task::PingPong(ping) => ping.verb,
        }
    }

    /// Bytes of payload of each message.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Task::Stream(stream) => stream.payload_bytes,
            Task::PingPong(ping) => ping.payload_bytes,
        }
    }
}

/// What came of a [`Task`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of a stream.
    Rate(Rate),
    /// Of a ping-pong.
    Latency(Latency),
}

/// The requester's part, on an open NIC.
fn drive_on(link: &mut Link, nic: &Nic, task: &Task) -> Result<Outcome> {
    Ok(match task {
        Task::Stream(stream) if stream.verb.is_send() => {
            Outcome::Rate(send::drive(link, nic, stream)?)
        }
        Task::Stream(stream) => Outcome::Rate(one_sided::drive(link, nic, stream)?),
        Task::PingPong(ping) => Outcome::Latency(ping::drive(link, nic, ping)?),
    })
}

/// The responder's part, on an open NIC.
fn work_on(link: &mut Link, nic: &Nic, task: &Task, target: &Target) -> Result<()> {
    match task {
        Task::Stream(stream) if stream.verb.is_send() => send::work(link, nic, stream),
        Task::Stream(stream) => one_sided::work(link, nic, stream, target),
        Task::PingPong(ping) => ping::work(link, nic, ping),
    }
}

/// The aligned word that lies last in a payload.
fn tail(payload_bytes: usize) -> usize {
    payload_bytes.saturating_sub(8) & !7
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::NicChoice;

    /// Runs `task` for an instant on the software NIC, with the workers as threads; what came of it, and of them.
    fn run(task: &Task) -> (Result<Outcome>, Vec<Result<()>>) {
        let nic = NicChoice::first_of("softnic");
        let (mut links, workers): (Vec<_>, Vec<_>) = (0..task.processes())
            .map(|_| {
                let (left, mut right) = Link::pair().unwrap();
                let worker = std::thread::spawn(move || crate::worker::serve(&mut right, None));
                (left, worker)
            })
            .unzip();
        let outcome = lanes::measure(&mut links, &nic, task, &[], &[]);
        drop(links);
        let worked = workers.into_iter().map(|worker| worker.join().unwrap());
        (outcome, worked.collect())
    }

    fn tiny(task: Task) -> Outcome {
        match run(&task) {
            (Ok(outcome), worked) if worked.iter().all(Result::is_ok) => outcome,
            (outcome, worked) => panic!("{task:?}: {outcome:?}, workers: {worked:?}"),
        }
    }

    fn stream(verb: Verb, knobs: Knobs) -> Rate {
        let stream = Stream::new(verb, &knobs, 5).unwrap();
        let Outcome::Rate(rate) = tiny(Task::Stream(stream)) else {
            panic!("a stream has a rate");
        };
        assert!(
            rate.verified_ops + rate.lost_ops >= stream.least_messages(),
            "{rate:?}"
        );
        assert!(rate.rate_mops > 0.0, "{rate:?}");
        rate
    }

    fn of(payload_bytes: usize) -> Knobs {
        Knobs {
            payload_bytes: Some(payload_bytes),
            ..Knobs::default()
        }
    }

    #[test]
    fn every_verb_streams_every_form_of_payload() {
        for verb in Verb::ALL {
            let payloads: &[usize] = match verb {
                Verb::Atomics => &[8],
                Verb::UdSend => &[0, 4, 8, 13, 64, 4096],
                Verb::RcSend => &[0, 4, 8, 13, 64, 4096, 1 << 20],
                _ => &[8, 13, 64, 4096, 1 << 20],
            };
            for payload in payloads {
                stream(verb, of(*payload));
            }
        }
    }

    #[test]
    fn knobs_that_do_not_fit_each_other_well() {
        for verb in Verb::ALL {
            for (batch, window, signal_every) in [(1, 1, 1), (1, 7, 7), (3, 18, 9), (5, 10, 2)] {
                stream(
                    verb,
                    Knobs {
                        batch: Some(batch),
                        window: Some(window),
                        signal_every: Some(signal_every),
                        inline: Some(false),
                        ..Knobs::default()
                    },
                );
            }
        }
    }

    #[test]
    fn every_verb_plays_ping_pong() {
        for verb in Verb::ALL {
            for payload in [8, 100, 4096] {
                if verb == Verb::Atomics && payload != 8 {
                    continue;
                }
                let ping = PingPong::new(verb, &of(payload), 5).unwrap();
                let Outcome::Latency(latency) = tiny(Task::PingPong(ping)) else {
                    panic!("a ping-pong has a latency");
                };
                assert!(latency.verified_ops > 0, "{latency:?}");
                assert!(
                    latency.latency_ns_p50 <= latency.latency_ns_p99,
                    "{latency:?}"
                );
                assert!(
                    latency.latency_ns_p99 <= latency.latency_ns_max,
                    "{latency:?}"
                );
            }
        }
        let header_only = PingPong::new(Verb::UdSend, &of(0), 5).unwrap();
        tiny(Task::PingPong(header_only));
    }

    #[test]
    fn a_datagram_longer_than_the_mtu_is_refused() {
        for direction in [Direction::Outbound, Direction::Inbound] {
            let knobs = Knobs {
                direction,
                ..of(4097)
            };
            let long = Stream::new(Verb::UdSend, &knobs, 5).unwrap();
            let (refused, worked) = run(&Task::Stream(long));
            let refused = refused.unwrap_err();
            assert!(refused.to_string().contains("MTU"), "{refused}");
            assert!(worked[0].is_err());
        }
    }

    #[test]
    fn either_end_can_be_measured_with_many_threads() {
        for verb in Verb::ALL {
            for direction in [Direction::Outbound, Direction::Inbound] {
                for (threads, processes, queue_pairs) in [(1, 1, 3), (2, 1, 2), (3, 2, 1)] {
                    let rate = stream(
                        verb,
                        Knobs {
                            direction,
                            window: Some(16),
                            threads: Some(threads),
                            processes: Some(processes),
                            queue_pairs: Some(queue_pairs),
                            ..Knobs::default()
                        },
                    );
                    // Of each queue pair at least two windows.
                    let least = (2 * 16 * threads * queue_pairs) as u64;
                    assert!(
                        rate.verified_ops + rate.lost_ops >= least,
                        "{verb:?}: {rate:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn atomics_on_many_counters_are_checked() {
        for (threads, addresses, spacing_bytes) in [(1, 5, 8), (1, 100, 64), (2, 7, 4096)] {
            stream(
                Verb::Atomics,
                Knobs {
                    direction: Direction::Inbound,
                    threads: Some(threads),
                    addresses: Some(addresses),
                    spacing_bytes: Some(spacing_bytes),
                    ..Knobs::default()
                },
            );
        }
    }

    #[test]
    fn bursts_end_and_are_checked() {
        for verb in Verb::ALL {
            for (window, batch, signal_every) in [(1, 1, 1), (8, 1, 8), (8, 8, 8), (12, 3, 4)] {
                stream(
                    verb,
                    Knobs {
                        window: Some(window),
                        batch: Some(batch),
                        signal_every: Some(signal_every),
                        burst: true,
                        ..Knobs::default()
                    },
                );
            }
        }
    }

    #[test]
    fn names_are_those_of_json() {
        for verb in Verb::ALL {
            let json = serde_json::to_string(&verb).unwrap();
            assert_eq!(json, format!("\"{}\"", verb.name()));
        }
    }
}
