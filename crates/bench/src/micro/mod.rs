//! One verb at a time, with every knob that its cost depends on.
//!
//! A [`Stream`] keeps a window of WRs outstanding and gives a rate; a [`PingPong`] has one message
//! on its way and gives a latency. Both run for a time, not for a count, so that a NIC that is a
//! hundred times slower takes no longer; both check every message or, for RDMA WRITEs, the last one
//! of each place. [`compare`] runs the same on two NICs and beside `perftest`.

pub mod compare;
mod one_sided;
mod pace;
mod ping;
mod send;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::link::{Exe, Link};
use crate::pin::{Cores, pinned};
use crate::worker::Job;
use crate::workload::{Nic, NicChoice, mops};

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
    /// Fetch-and-add (RC), always on one counter of 8 bytes.
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

    fn is_send(self) -> bool {
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
            _ if self.is_send() && payload_bytes == 0 => Ok(()),
            _ if payload_bytes < 8 => bail!(
                "a payload of {payload_bytes} bytes has no room for the number that is checked; \
                 take 8 or more{}",
                if self.is_send() {
                    ", or 0 for header-only messages"
                } else {
                    ""
                }
            ),
            _ => Ok(()),
        }
    }
}

/// The largest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 28;

/// The most WRs in a window.
pub const MAX_WINDOW: usize = 8192;

/// Payloads up to this many bytes are inline unless somebody says otherwise: one cache line.
pub const AUTO_INLINE_BYTES: usize = 64;

/// Windows are at most so many bytes of payload unless somebody says otherwise.
const AUTO_WINDOW_BYTES: usize = 8 << 20;

/// The most memory that a window may need, in bytes.
const MAX_WINDOW_BYTES: usize = 1 << 30;

/// Knobs of a measurement; `None` is a default that fits the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Bytes of payload of each message; 8 unless set.
    pub payload_bytes: Option<usize>,
    /// WRs that one doorbell announces; 16 unless set or the window is too small.
    pub batch: Option<usize>,
    /// WRs outstanding at most; 256 unless set or the payloads are long.
    pub window: Option<usize>,
    /// One WR in so many is signaled; 16 unless set or the window is too small.
    pub signal_every: Option<usize>,
    /// Whether the payload is inline; up to [`AUTO_INLINE_BYTES`] unless set.
    pub inline: Option<bool>,
}

impl Knobs {
    fn inline(&self, verb: Verb, payload_bytes: usize) -> Result<bool> {
        let possible = verb.carries_payload() && payload_bytes > 0;
        match self.inline {
            Some(true) if !possible => bail!(
                "{} has no payload of its own that could be inline",
                verb.label()
            ),
            Some(inline) => Ok(inline),
            None => Ok(possible && payload_bytes <= AUTO_INLINE_BYTES),
        }
    }
}

/// A window of one verb's WRs, refilled for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// What is posted.
    pub verb: Verb,
    /// Bytes of payload of each message.
    pub payload_bytes: usize,
    /// WRs that one doorbell announces.
    pub batch: usize,
    /// WRs outstanding at most; a multiple of `batch` and of `signal_every`.
    pub window: usize,
    /// One WR in so many is signaled.
    pub signal_every: usize,
    /// Whether the payload is inline.
    pub inline: bool,
    /// How long it runs; the first tenth is not measured.
    pub duration_ms: u64,
}

impl Stream {
    /// Fills in what `knobs` leaves open.
    ///
    /// # Errors
    /// When knobs contradict each other; the message says which to change.
    pub fn new(verb: Verb, knobs: &Knobs, duration_ms: u64) -> Result<Stream> {
        let payload_bytes = knobs.payload_bytes.unwrap_or(8);
        verb.check_payload(payload_bytes)?;
        let given = lcm(knobs.batch.unwrap_or(1), knobs.signal_every.unwrap_or(1));
        let window = knobs.window.unwrap_or_else(|| {
            let fit = (AUTO_WINDOW_BYTES / payload_bytes.max(1)).clamp(2, 256);
            // A power of two, so that the other defaults divide it.
            let fit = 1 << fit.ilog2();
            fit.max(2 * given).next_multiple_of(given)
        });
        let auto = || largest_divisor(window, 16.min(window / 2));
        let stream = Stream {
            verb,
            payload_bytes,
            batch: knobs.batch.unwrap_or_else(auto),
            window,
            signal_every: knobs.signal_every.unwrap_or_else(auto),
            inline: knobs.inline(verb, payload_bytes)?,
            duration_ms,
        };
        stream.check()?;
        Ok(stream)
    }

    fn check(&self) -> Result<()> {
        let Stream {
            batch,
            window,
            signal_every,
            ..
        } = *self;
        if batch == 0 || signal_every == 0 || !(1..=MAX_WINDOW).contains(&window) {
            bail!(
                "batch, window and signaled period are 1 or more, the window at most {MAX_WINDOW}"
            );
        }
        if !window.is_multiple_of(batch) || !window.is_multiple_of(signal_every) {
            bail!(
                "a window of {window} WRs is no multiple of the batch ({batch}) and of the \
                 signaled period ({signal_every}); take one of {}",
                lcm(batch, signal_every).saturating_mul(2)
            );
        }
        // Otherwise the room for the next postlist would wait for a completion that the WRs before
        // it do not ask for.
        if batch + signal_every - 1 > window {
            bail!(
                "a window of {window} WRs never has room for a batch of {batch} when one WR in \
                 {signal_every} is signaled; widen it or lower the others"
            );
        }
        if self.stride().saturating_mul(window) > MAX_WINDOW_BYTES {
            bail!(
                "a window of {window} payloads of {} bytes is more than {} MiB; lower one",
                self.payload_bytes,
                MAX_WINDOW_BYTES >> 20
            );
        }
        Ok(())
    }

    /// Bytes from one payload's place to the next.
    fn stride(&self) -> usize {
        self.payload_bytes.next_multiple_of(8)
    }

    /// Fewer messages than this are never measured.
    fn least_messages(&self) -> u64 {
        2 * self.window as u64
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
}

/// What came of a [`PingPong`]; times in nanoseconds, less what reading the clock takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
}

/// One measurement, as the driver tells it to the worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    nic: NicChoice,
    task: Task,
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of a stream.
    Rate(Rate),
    /// Of a ping-pong.
    Latency(Latency),
}

/// A worker process, started when it is first needed and again after a failure.
#[derive(Debug)]
pub struct Runner {
    cores: Cores,
    worker: Exe,
    link: Option<Link>,
}

impl Runner {
    /// One that starts its worker by `worker`.
    #[must_use]
    pub fn new(cores: Cores, worker: Exe) -> Runner {
        Runner {
            cores,
            worker,
            link: None,
        }
    }

    /// Measures once.
    ///
    /// # Errors
    /// When a verb fails, something wrong arrived, or nothing came for 10 s.
    pub fn measure(&mut self, nic: &NicChoice, task: &Task) -> Result<Outcome> {
        pinned(self.cores.requester, || {
            let mut link = match self.link.take() {
                Some(link) => link,
                None => Link::spawn(&self.worker, self.cores.responder)?,
            };
            let outcome = drive(&mut link, nic, task)?;
            // After an error the worker may wait for who knows what: then it is dropped.
            self.link = Some(link);
            Ok(outcome)
        })
    }
}

/// The driver's part, with a worker at the other end of `link`.
fn drive(link: &mut Link, choice: &NicChoice, task: &Task) -> Result<Outcome> {
    let nic = Nic::open(choice)?;
    link.send(&Job::Micro(Order {
        nic: choice.clone(),
        task: *task,
    }))?;
    drive_on(link, &nic, task)
}

/// The same on an open NIC, with a worker that knows its task.
pub(crate) fn drive_on(link: &mut Link, nic: &Nic, task: &Task) -> Result<Outcome> {
    Ok(match task {
        Task::Stream(stream) if stream.verb.is_send() => {
            Outcome::Rate(send::drive(link, nic, stream)?)
        }
        Task::Stream(stream) => Outcome::Rate(one_sided::drive(link, nic, stream)?),
        Task::PingPong(ping) => Outcome::Latency(ping::drive(link, nic, ping)?),
    })
}

/// The worker's part.
///
/// # Errors
/// When a verb fails, or the driver is gone.
pub(crate) fn work(link: &mut Link, order: &Order) -> Result<()> {
    work_on(link, &Nic::open(&order.nic)?, &order.task)
}

/// The same on an open NIC.
pub(crate) fn work_on(link: &mut Link, nic: &Nic, task: &Task) -> Result<()> {
    match task {
        Task::Stream(stream) if stream.verb.is_send() => send::work(link, nic, stream),
        Task::Stream(stream) => one_sided::work(link, nic, stream),
        Task::PingPong(ping) => ping::work(link, nic, ping),
    }
}

/// The aligned word that lies last in a payload.
fn tail(payload_bytes: usize) -> usize {
    payload_bytes.saturating_sub(8) & !7
}

fn largest_divisor(of: usize, at_most: usize) -> usize {
    (1..=at_most)
        .rev()
        .find(|d| of.is_multiple_of(*d))
        .unwrap_or(1)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    (a / gcd(a, b).max(1)).saturating_mul(b).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `task` for an instant on the software NIC, with the worker as a thread.
    fn tiny(task: Task) -> Outcome {
        let nic = NicChoice::first_of("softnic");
        let (mut left, mut right) = Link::pair().unwrap();
        let worker = std::thread::spawn(move || crate::worker::serve(&mut right));
        let outcome = drive(&mut left, &nic, &task);
        drop(left);
        let worked = worker.join().unwrap();
        match (outcome, worked) {
            (Ok(outcome), Ok(())) => outcome,
            (outcome, worked) => panic!("{task:?}: {outcome:?}, worker: {worked:?}"),
        }
    }

    fn stream(verb: Verb, knobs: Knobs) -> Rate {
        let stream = Stream::new(verb, &knobs, 5).unwrap();
        let Outcome::Rate(rate) = tiny(Task::Stream(stream)) else {
            panic!("a stream has a rate");
        };
        assert!(rate.verified_ops >= stream.least_messages(), "{rate:?}");
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
                Verb::UdSend => &[0, 8, 13, 64, 4096],
                Verb::RcSend => &[0, 8, 13, 64, 4096, 1 << 20],
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
        let nic = NicChoice::first_of("softnic");
        let (mut left, mut right) = Link::pair().unwrap();
        let worker = std::thread::spawn(move || crate::worker::serve(&mut right));
        let long = Stream::new(Verb::UdSend, &of(4097), 5).unwrap();
        let refused = drive(&mut left, &nic, &Task::Stream(long)).unwrap_err();
        assert!(refused.to_string().contains("MTU"), "{refused}");
        drop(left);
        assert!(worker.join().unwrap().is_err());
    }

    #[test]
    fn defaults_fit_the_payload() {
        let of = |payload| {
            let s = Stream::new(Verb::RcSend, &of(payload), 1).unwrap();
            (s.window, s.batch, s.signal_every, s.inline)
        };
        assert_eq!(of(8), (256, 16, 16, true));
        assert_eq!(of(64), (256, 16, 16, true));
        assert_eq!(of(4096), (256, 16, 16, false));
        assert_eq!(of(1 << 16), (128, 16, 16, false));
        assert_eq!(of(1 << 20), (8, 4, 4, false));
        assert_eq!(of(1 << 24), (2, 1, 1, false));
    }

    #[test]
    fn a_window_grows_around_what_was_asked_for() {
        let knobs = Knobs {
            batch: Some(300),
            signal_every: Some(200),
            ..Knobs::default()
        };
        let s = Stream::new(Verb::RcWrite, &knobs, 1).unwrap();
        assert_eq!((s.window, s.batch, s.signal_every), (1200, 300, 200));
    }

    #[test]
    fn contradictions_are_refused_with_what_to_change() {
        let refused = |verb, knobs: Knobs| Stream::new(verb, &knobs, 1).unwrap_err().to_string();
        assert!(refused(Verb::RcWrite, of(0)).contains("8 or more"));
        assert!(refused(Verb::RcSend, of(7)).contains("header-only"));
        assert!(refused(Verb::Atomics, of(16)).contains("8 bytes"));
        let window = |batch, window, signal_every| Knobs {
            batch: Some(batch),
            window: Some(window),
            signal_every: Some(signal_every),
            ..Knobs::default()
        };
        assert!(refused(Verb::RcSend, window(16, 40, 8)).contains("no multiple"));
        assert!(refused(Verb::RcSend, window(16, 16, 16)).contains("never has room"));
        assert!(refused(Verb::RcSend, window(1, 10_000, 1)).contains("at most 8192"));
        let inline = Knobs {
            inline: Some(true),
            ..Knobs::default()
        };
        assert!(refused(Verb::RcRead, inline).contains("inline"));
        let long = Knobs {
            payload_bytes: Some(MAX_PAYLOAD_BYTES),
            window: Some(64),
            ..Knobs::default()
        };
        assert!(refused(Verb::RcRead, long).contains("lower one"));
    }

    #[test]
    fn names_are_those_of_json() {
        for verb in Verb::ALL {
            let json = serde_json::to_string(&verb).unwrap();
            assert_eq!(json, format!("\"{}\"", verb.name()));
        }
    }
}
