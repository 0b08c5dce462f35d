//! The two ends of a ping-pong: messages, their check, and the loops of both sides.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::link::WorkerLink;
use crate::poll_timeout::DEFAULT_EVENT_TIMEOUT_NS;
use crate::resource_usage::ResourceUsage;

/// Bytes of a request, and of an answer.
pub const PING_PONG_MESSAGE_BYTES: usize = 64;

/// A request or an answer: all eight 64-bit words hold the same number.
pub(super) type Message = [u8; PING_PONG_MESSAGE_BYTES];

/// The number of the request that ends the ping-pong.
const LAST_REQUEST_NUMBER: u64 = u64::MAX >> 1;

/// Round trips between two reads of the clock.
const ROUND_TRIPS_PER_CLOCK_READ: u64 = 16;

/// One side of a connection, which sleeps until a message arrives.
pub(super) trait SleepingEndpoint {
    /// Sends a message.
    fn send(&mut self, message: &Message) -> Result<()>;
    /// Waits for the next message.
    fn receive(&mut self) -> Result<Message>;
}

/// Result of measuring one transport.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundTripResult {
    /// Round trips that were made and checked, including the warm-up.
    pub round_trips: u64,
    /// Round trips per second.
    #[serde(rename = "per_second")]
    pub round_trips_per_s: f64,
    /// CPU time of all threads of both processes, in microseconds per round trip.
    #[serde(rename = "cpu_us")]
    pub cpu_us_per_round_trip: f64,
    /// Voluntary sleeps of all threads of both processes, per round trip.
    #[serde(rename = "sleeps")]
    pub sleeps_per_round_trip: f64,
}

fn message_of_number(number: u64) -> Message {
    let mut message = [0; PING_PONG_MESSAGE_BYTES];
    for word in message.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    message
}

/// Returns the number of a message. Fails if the words differ.
fn message_number(message: &Message) -> Result<u64> {
    let (words, _) = message.as_chunks::<8>();
    let number = words.first().map_or(0, |word| u64::from_le_bytes(*word));
    ensure!(
        words.iter().all(|word| u64::from_le_bytes(*word) == number),
        "the words of message {number:#x} differ"
    );
    Ok(number)
}

fn make_round_trip(end: &mut impl SleepingEndpoint, number: u64) -> Result<()> {
    end.send(&message_of_number(number))?;
    let answer = message_number(&end.receive()?)?;
    ensure!(
        answer == !number,
        "request {number:#x} was answered with {answer:#x}"
    );
    Ok(())
}

/// Opens an end with `open` and makes round trips for `duration`, after a warm-up of an eighth of
/// that time.
pub(super) fn measure_round_trips<E: SleepingEndpoint, A>(
    link: &mut WorkerLink,
    open: impl FnOnce(&mut WorkerLink, &A) -> Result<E>,
    with: &A,
    duration: Duration,
) -> Result<RoundTripResult> {
    let mut end = open(link, with)?;
    let worker = link.worker_pid();
    let used = || -> Result<(u64, u64)> {
        let own = ResourceUsage::of_process(std::process::id())?;
        let other = worker.map(ResourceUsage::of_process).transpose()?;
        let (cpu_ns, sleeps) =
            other.map_or((0, 0), |usage| (usage.cpu_ns, usage.voluntary_switches));
        Ok((own.cpu_ns + cpu_ns, own.voluntary_switches + sleeps))
    };
    let mut next = 0;
    let mut exchange_for = |time: Duration| -> Result<(u64, Duration)> {
        let (first, begin) = (next, Instant::now());
        loop {
            for _ in 0..ROUND_TRIPS_PER_CLOCK_READ {
                make_round_trip(&mut end, next)?;
                next += 1;
            }
            let elapsed = begin.elapsed();
            if elapsed >= time {
                return Ok((next - first, elapsed));
            }
        }
    };
    exchange_for(duration / 8)?;
    let before = used()?;
    let (timed, elapsed) = exchange_for(duration)?;
    let after = used()?;
    make_round_trip(&mut end, LAST_REQUEST_NUMBER)?;
    let answered: u64 = link.recv()?;
    ensure!(
        answered == next + 1,
        "{answered} requests were answered, of {}",
        next + 1
    );
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let (timed, number) = (timed as f64, |count: u64| count as f64);
    // A count can decrease: a thread that ends takes its counts out of the sum.
    let each = |before: u64, after: u64| number(after.saturating_sub(before)) / timed;
    Ok(RoundTripResult {
        round_trips: answered,
        round_trips_per_s: timed / elapsed.as_secs_f64(),
        cpu_us_per_round_trip: each(before.0, after.0) / 1e3,
        sleeps_per_round_trip: each(before.1, after.1),
    })
}

/// Answers requests up to the last one. Returns the number of answered requests.
pub(super) fn answer_until_last_request(end: &mut dyn SleepingEndpoint) -> Result<u64> {
    let mut answered = 0;
    loop {
        let number = message_number(&end.receive()?)?;
        if number != LAST_REQUEST_NUMBER && number != answered {
            bail!("request {number:#x} came in the place of {answered:#x}");
        }
        end.send(&message_of_number(!number))?;
        answered += 1;
        if number == LAST_REQUEST_NUMBER {
            return Ok(answered);
        }
    }
}

/// An epoll descriptor that watches one other descriptor.
pub(super) struct SingleFdEpoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl SingleFdEpoll {
    pub(super) fn new(fd: impl AsFd) -> Result<SingleFdEpoll> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .context("cannot make an epoll descriptor")?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, fd, data, epoll::EventFlags::IN).context("cannot watch a descriptor")?;
        Ok(SingleFdEpoll {
            epoll,
            events: Vec::with_capacity(1),
        })
    }

    /// Sleeps until the descriptor is readable.
    pub(super) fn sleep_until_readable(&mut self) -> Result<()> {
        let timeout = Timespec {
            tv_sec: (DEFAULT_EVENT_TIMEOUT_NS / 1_000_000_000).cast_signed(),
            tv_nsec: 0,
        };
        loop {
            self.events.clear();
            let room = spare_capacity(&mut self.events);
            match epoll::wait(&self.epoll, room, Some(&timeout)) {
                Ok(0) => bail!("no message came for {} s", timeout.tv_sec),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for a descriptor"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end that receives prepared messages, the last one first.
    struct PreparedMessages(Vec<Message>);

    impl SleepingEndpoint for PreparedMessages {
        fn send(&mut self, _: &Message) -> Result<()> {
            Ok(())
        }

        fn receive(&mut self) -> Result<Message> {
            self.0.pop().context("no more")
        }
    }

    #[test]
    fn wrong_answers_and_requests_are_refused() {
        assert!(make_round_trip(&mut PreparedMessages(vec![message_of_number(!7)]), 7).is_ok());
        assert!(make_round_trip(&mut PreparedMessages(vec![message_of_number(7)]), 7).is_err());
        let mut torn = message_of_number(!7);
        torn[PING_PONG_MESSAGE_BYTES - 1] ^= 1;
        let refused = make_round_trip(&mut PreparedMessages(vec![torn]), 7)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("differ"), "{refused}");

        let requests = |numbers: &[u64]| {
            PreparedMessages(
                numbers
                    .iter()
                    .rev()
                    .map(|n| message_of_number(*n))
                    .collect(),
            )
        };
        assert_eq!(
            answer_until_last_request(&mut requests(&[0, 1, LAST_REQUEST_NUMBER])).unwrap(),
            3
        );
        assert!(answer_until_last_request(&mut requests(&[0, 2, LAST_REQUEST_NUMBER])).is_err());
    }
}
