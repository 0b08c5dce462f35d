//! Messages through bare rings between two processes: the limit of verbs between the same cores.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub use super::bare_exchange_parameters::{BareExchangeParameters, BareMessageExchange};
use super::bare_ring::{
    EIGHT_BYTE_RECORD_WORDS, HEADER_ONLY_RECORD_WORDS, MAX_MESSAGES_PER_LIST, Producer, Receiver,
    Ring, SendList, WINDOW, ring_words,
};
use super::mapping::{SharedWords, SharedWordsLocation};
use crate::clock::{mops, now_ns};
use crate::job::Job;
use crate::link::WorkerLink;
use crate::micro::timer::{OperationMeter, RunTimer, TimedOperations};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Exchanges between two readings of the clock in a ping-pong.
const EXCHANGES_PER_CLOCK_READ: u64 = 64;

/// Result of an exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BareExchangeResult {
    /// Rate in 10^6 messages or round trips per second. For a ping-pong, half of a round trip in
    /// nanoseconds.
    pub mops_or_latency_ns: f64,
    /// Messages that were checked at the counting end.
    pub verified_ops: u64,
}

/// Counts of one end.
#[derive(Debug, Serialize, Deserialize)]
struct OneEndCounts {
    #[serde(rename = "received")]
    received_messages: u64,
    #[serde(rename = "ops")]
    measured_ops: u64,
    elapsed_ns: u64,
    #[serde(rename = "wrong")]
    wrong_data: Option<String>,
}

impl OneEndCounts {
    fn new<const WORDS: usize>(
        receiver: &Receiver<'_, WORDS>,
        meter: &OperationMeter,
    ) -> OneEndCounts {
        let TimedOperations { ops, elapsed_ns } =
            meter.operations_since_warm_up(receiver.next_expected_message, now_ns());
        OneEndCounts {
            received_messages: receiver.next_expected_message,
            measured_ops: ops,
            elapsed_ns,
            wrong_data: receiver.first_wrong_message.clone(),
        }
    }

    /// # Errors
    /// When a message was wrong, or the number of messages differs from `sent`.
    fn check_all_received(&self, sent: u64) -> Result<()> {
        if let Some(wrong) = &self.wrong_data {
            bail!("a bare ring carried {wrong}");
        }
        ensure!(
            self.received_messages == sent,
            "{} of {sent} messages came through a bare ring",
            self.received_messages
        );
        Ok(())
    }
}

/// Exchanges messages with the worker.
///
/// # Errors
/// When memory cannot be shared, the worker is gone, or a message is wrong.
pub fn run_driver_side(
    link: &mut WorkerLink,
    bare: BareExchangeParameters,
) -> Result<BareExchangeResult> {
    ensure!(
        (1..=MAX_MESSAGES_PER_LIST).contains(&bare.messages_per_list),
        "a list of a bare ring has 1 to {MAX_MESSAGES_PER_LIST} messages"
    );
    link.send(&Job::Bare(bare))?;
    let at: SharedWordsLocation = link.recv()?;
    let words = SharedWords::open(&at)?;
    if bare.has_payload {
        exchange_as_driver::<EIGHT_BYTE_RECORD_WORDS>(link, &words, bare)
    } else {
        exchange_as_driver::<HEADER_ONLY_RECORD_WORDS>(link, &words, bare)
    }
}

/// Runs the worker's end.
///
/// # Errors
/// When memory cannot be allocated or the driver is gone.
pub fn run_worker_side(link: &mut WorkerLink, bare: BareExchangeParameters) -> Result<()> {
    let record_words = if bare.has_payload {
        EIGHT_BYTE_RECORD_WORDS
    } else {
        HEADER_ONLY_RECORD_WORDS
    };
    let words = SharedWords::create(2 * ring_words(record_words))?;
    for word in words.words() {
        // Touch the pages before the timed run.
        word.store(0, std::sync::atomic::Ordering::Relaxed);
    }
    link.send(&words.location()?)?;
    if bare.has_payload {
        exchange_as_worker::<EIGHT_BYTE_RECORD_WORDS>(link, &words, bare)
    } else {
        exchange_as_worker::<HEADER_ONLY_RECORD_WORDS>(link, &words, bare)
    }
}

/// Returns the ring from the driver to the worker, and the ring back.
fn rings_to_and_from_worker<const WORDS: usize>(
    words: &SharedWords,
) -> Result<[Ring<'_, WORDS>; 2]> {
    let (there, back) = words.words().split_at(ring_words(WORDS));
    Ok([Ring::new(there)?, Ring::new(back)?])
}

fn exchange_as_driver<const WORDS: usize>(
    link: &mut WorkerLink,
    words: &SharedWords,
    bare: BareExchangeParameters,
) -> Result<BareExchangeResult> {
    let [there, back] = rings_to_and_from_worker::<WORDS>(words)?;
    let (mut producer, mut receiver) = (Producer::new(there), Receiver::new(back));
    link.barrier()?;
    let (sent, counts) = match bare.exchange {
        BareMessageExchange::Stream => {
            let sent = send_one_way(&mut producer, bare)?;
            (sent, link.recv::<OneEndCounts>()?)
        }
        BareMessageExchange::PingPong => ping_pong(&mut producer, &mut receiver, bare)?,
        BareMessageExchange::Rpc => run_request_window(&mut producer, &mut receiver, bare)?,
    };
    counts.check_all_received(sent)?;
    if bare.exchange != BareMessageExchange::Stream {
        link.recv::<OneEndCounts>()?.check_all_received(sent)?;
    }
    let rate = mops(counts.measured_ops, counts.elapsed_ns);
    Ok(BareExchangeResult {
        mops_or_latency_ns: match bare.exchange {
            BareMessageExchange::PingPong => 1e3 / rate / 2.0,
            BareMessageExchange::Stream | BareMessageExchange::Rpc => rate,
        },
        verified_ops: counts.received_messages,
    })
}

fn exchange_as_worker<const WORDS: usize>(
    link: &mut WorkerLink,
    words: &SharedWords,
    bare: BareExchangeParameters,
) -> Result<()> {
    let [there, back] = rings_to_and_from_worker::<WORDS>(words)?;
    let (mut producer, mut receiver) = (Producer::new(back), Receiver::new(there));
    link.barrier()?;
    let counts = match bare.exchange {
        BareMessageExchange::Stream => receive_one_way(&mut receiver, bare)?,
        BareMessageExchange::PingPong => {
            answer_until_last(&mut producer, &mut receiver, 1, PollTimeout::without_pause)?
        }
        BareMessageExchange::Rpc => {
            answer_until_last(&mut producer, &mut receiver, WINDOW, PollTimeout::new)?
        }
    };
    link.send(&counts)
}

/// Waits until the next `count` messages fit the window.
#[inline]
fn wait_for_room<const WORDS: usize>(
    producer: &mut Producer<'_, WORDS>,
    count: usize,
) -> Result<()> {
    if producer.has_room(count) {
        return Ok(());
    }
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    loop {
        producer.poll_completions()?;
        if producer.has_room(count) {
            return Ok(());
        }
        timeout.fail_if_over_after_empty_poll("the consumer of a bare ring")?;
    }
}

/// Sends messages one way for the configured time. Returns their number.
fn send_one_way<const WORDS: usize>(
    producer: &mut Producer<'_, WORDS>,
    bare: BareExchangeParameters,
) -> Result<u64> {
    let mut wrs = SendList::<WORDS>::new();
    let mut timer = RunTimer::new(bare.duration_ms);
    let mut sent = 0;
    let mut last = false;
    while !last {
        last = timer.is_over() && sent >= 2 * WINDOW as u64;
        wait_for_room(producer, bare.messages_per_list)?;
        wrs.fill_wrs(sent, bare.messages_per_list, last);
        producer.post(&wrs, bare.messages_per_list);
        sent += bare.messages_per_list as u64;
    }
    Ok(sent)
}

/// Receives messages of one way up to the last, and measures their rate.
fn receive_one_way<const WORDS: usize>(
    receiver: &mut Receiver<'_, WORDS>,
    bare: BareExchangeParameters,
) -> Result<OneEndCounts> {
    let mut meter = OperationMeter::new(bare.duration_ms);
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    while !receiver.has_ended {
        if receiver.poll_and_check(WINDOW) == 0 {
            timeout.fail_if_over_after_empty_poll("messages of a bare ring")?;
            continue;
        }
        timeout.reset();
        if receiver.repost_recvs_if_chunk_is_full() {
            meter.note_total_done_operations(receiver.next_expected_message);
        }
    }
    Ok(OneEndCounts::new(receiver, &meter))
}

/// Sends one message at a time and waits for its answer, for the configured time.
fn ping_pong<const WORDS: usize>(
    producer: &mut Producer<'_, WORDS>,
    receiver: &mut Receiver<'_, WORDS>,
    bare: BareExchangeParameters,
) -> Result<(u64, OneEndCounts)> {
    let mut wrs = SendList::<WORDS>::new();
    let (mut timer, mut meter) = (
        RunTimer::new(bare.duration_ms),
        OperationMeter::new(bare.duration_ms),
    );
    let mut sent = 0;
    meter.note_total_done_operations(0);
    while !receiver.has_ended {
        let last =
            sent % EXCHANGES_PER_CLOCK_READ == EXCHANGES_PER_CLOCK_READ - 1 && timer.is_over();
        wait_for_room(producer, 1)?;
        wrs.fill_wrs(sent, 1, last);
        producer.post(&wrs, 1);
        sent += 1;
        let mut timeout = PollTimeout::without_pause(DEFAULT_EVENT_TIMEOUT_NS);
        while receiver.poll_and_check(1) == 0 {
            timeout.fail_if_over_after_empty_poll("the answer through a bare ring")?;
        }
        receiver.repost_recvs_if_chunk_is_full();
        if sent % EXCHANGES_PER_CLOCK_READ == 0 {
            meter.note_total_done_operations(sent);
        }
    }
    Ok((sent, OneEndCounts::new(receiver, &meter)))
}

/// Keeps a window of requests outstanding for the configured time.
fn run_request_window<const WORDS: usize>(
    producer: &mut Producer<'_, WORDS>,
    receiver: &mut Receiver<'_, WORDS>,
    bare: BareExchangeParameters,
) -> Result<(u64, OneEndCounts)> {
    let mut wrs = SendList::<WORDS>::new();
    let (mut timer, mut meter) = (
        RunTimer::new(bare.duration_ms),
        OperationMeter::new(bare.duration_ms),
    );
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    let mut sent = 0;
    let mut last = false;
    while !receiver.has_ended {
        // Do not wait for room: the server may be waiting until this end takes answers.
        if !last
            && sent + bare.messages_per_list as u64
                <= receiver.next_expected_message + WINDOW as u64
        {
            if !producer.has_room(bare.messages_per_list) {
                producer.poll_completions()?;
            }
            if producer.has_room(bare.messages_per_list) {
                last = timer.is_over() && sent >= 2 * WINDOW as u64;
                wrs.fill_wrs(sent, bare.messages_per_list, last);
                producer.post(&wrs, bare.messages_per_list);
                sent += bare.messages_per_list as u64;
            }
        }
        if receiver.poll_and_check(WINDOW) == 0 {
            timeout.fail_if_over_after_empty_poll("answers through a bare ring")?;
            continue;
        }
        timeout.reset();
        if receiver.repost_recvs_if_chunk_is_full() {
            meter.note_total_done_operations(receiver.next_expected_message);
        }
    }
    Ok((sent, OneEndCounts::new(receiver, &meter)))
}

/// Answers each message with its number, up to the last one. Takes up to `at_once` messages per
/// poll.
fn answer_until_last<const WORDS: usize>(
    producer: &mut Producer<'_, WORDS>,
    receiver: &mut Receiver<'_, WORDS>,
    at_once: usize,
    timeout: impl Fn(u64) -> PollTimeout,
) -> Result<OneEndCounts> {
    let mut wrs = SendList::<WORDS>::new();
    let mut timeout = timeout(DEFAULT_EVENT_TIMEOUT_NS);
    let mut sent = 0;
    while !receiver.has_ended {
        if receiver.poll_and_check(at_once) == 0 {
            timeout.fail_if_over_after_empty_poll("requests through a bare ring")?;
            continue;
        }
        timeout.reset();
        while sent < receiver.next_expected_message {
            let count =
                usize::try_from(receiver.next_expected_message - sent)?.min(MAX_MESSAGES_PER_LIST);
            wait_for_room(producer, count)?;
            let end = sent + count as u64;
            wrs.fill_wrs(
                sent,
                count,
                receiver.has_ended && end == receiver.next_expected_message,
            );
            producer.post(&wrs, count);
            sent = end;
        }
        receiver.repost_recvs_if_chunk_is_full();
    }
    Ok(OneEndCounts::new(receiver, &OperationMeter::new(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exchange_is_checked_to_its_last_message() {
        for exchange in [
            BareMessageExchange::Stream,
            BareMessageExchange::PingPong,
            BareMessageExchange::Rpc,
        ] {
            for (has_payload, list) in [(false, 1), (false, 16), (true, 1), (true, 16), (true, 5)] {
                let (mut left, mut right) = WorkerLink::pair().unwrap();
                let worker = std::thread::spawn(move || match right.recv()? {
                    Job::Bare(bare) => run_worker_side(&mut right, bare),
                    job => bail!("{job:?} is no ring"),
                });
                let bare = BareExchangeParameters {
                    exchange,
                    has_payload,
                    messages_per_list: list,
                    duration_ms: 3,
                };
                let figure = run_driver_side(&mut left, bare).unwrap();
                worker.join().unwrap().unwrap();
                assert!(
                    figure.mops_or_latency_ns > 0.0 && figure.mops_or_latency_ns.is_finite(),
                    "{bare:?}"
                );
                let least = if exchange == BareMessageExchange::PingPong {
                    EXCHANGES_PER_CLOCK_READ
                } else {
                    2 * WINDOW as u64
                };
                assert!(figure.verified_ops >= least, "{bare:?}: {figure:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_a_list_is_refused() {
        let (mut left, _right) = WorkerLink::pair().unwrap();
        let bare = BareExchangeParameters {
            exchange: BareMessageExchange::Stream,
            has_payload: false,
            messages_per_list: 17,
            duration_ms: 1,
        };
        assert!(
            run_driver_side(&mut left, bare)
                .unwrap_err()
                .to_string()
                .contains("1 to 16")
        );
    }
}
