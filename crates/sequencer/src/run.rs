//! A client's run: keeps a lane's window full and measures, over one or more sessions.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use verbs::{Waiter, time};

use crate::lanes::{Lane, LaneResults};
use crate::{ClientConfig, FailureCounts, RunLimit, WindowPolicy};

/// The reason why a session ended.
pub(crate) enum SessionEnd {
    RunFinished,
    /// No error, but the run continues in a new session.
    ContinueInNewSession,
    NumbersUsedUp,
    Failed {
        lost: usize,
        why: String,
    },
}

/// A run over one or more sessions.
#[repr(C)]
pub(crate) struct ClientRun {
    target_number_count: u64,
    max_postlist_len: usize,
    /// Smallest room in the window for which requests are sent while answers arrive.
    min_sendable_requests: usize,
    waits_for_all_answers: bool,
    /// End of the run in nanoseconds, as [`time::now_ns`].
    run_deadline_ns: Option<u64>,
    /// Returns true if the run is to end earlier.
    should_end: fn() -> bool,
    answer_timeout_ns: u64,
    pub(crate) doorbell_count: u64,
    pub(crate) last_answer_time_ns: u64,
    pub(crate) latency: LatencyRecorder,
    pub(crate) start_time_ns: u64,
    pub(crate) failures: FailureCounts,
}

/// Number of doorbells after which the run looks whether it is to end earlier.
const DOORBELLS_PER_END_CHECK: u64 = 256;

/// Cap for latencies in nanoseconds: a minute.
const MAX_LATENCY_NS: u64 = 60_000_000_000;

/// A histogram with a buffer of recent latencies. With hundreds of clients on a simulated NIC the histogram is not in
/// any cache, so several latencies are added at once.
#[repr(C)]
pub(crate) struct LatencyRecorder {
    buffered_count: usize,
    buffered_ns: [u64; BUFFERED_LATENCIES],
    histogram: Histogram<u64>,
}

/// Number of buffered latencies.
const BUFFERED_LATENCIES: usize = 8;

impl LatencyRecorder {
    fn new(digits: u8) -> Self {
        Self {
            buffered_ns: [0; BUFFERED_LATENCIES],
            buffered_count: 0,
            histogram: Histogram::new(digits).expect("checked with the configuration"),
        }
    }

    /// Adds a latency in nanoseconds.
    #[inline]
    fn add(&mut self, nanos: u64) {
        self.buffered_ns[self.buffered_count] = nanos;
        self.buffered_count += 1;
        if self.buffered_count == BUFFERED_LATENCIES {
            self.move_buffered_to_histogram();
        }
    }

    #[inline(never)]
    fn move_buffered_to_histogram(&mut self) {
        for &nanos in &self.buffered_ns[..self.buffered_count] {
            // The cap limits the histogram's size: ten thousand simulated clients each have one.
            self.histogram += nanos.min(MAX_LATENCY_NS);
        }
        self.buffered_count = 0;
    }

    /// Returns the histogram of all latencies.
    pub(crate) fn into_histogram(mut self) -> Histogram<u64> {
        self.move_buffered_to_histogram();
        self.histogram
    }
}

impl ClientRun {
    /// Makes a run that ends with `until`, or when `should_end` returns true, if that is earlier.
    pub(crate) fn new(until: RunLimit, should_end: fn() -> bool, config: &ClientConfig) -> Self {
        let started = time::now_ns();
        let (count, end) = match until {
            RunLimit::Count(n) => (n, None),
            // A duration that overflows means no time limit.
            RunLimit::DurationMs(ms) => {
                (u64::MAX, ms.saturating_mul(1_000_000).checked_add(started))
            }
        };
        Self {
            target_number_count: count,
            run_deadline_ns: end,
            should_end,
            max_postlist_len: config.batch.min(config.window),
            min_sendable_requests: match config.window_policy {
                WindowPolicy::FullPostlists => config.batch.min(config.window),
                WindowPolicy::AsAnswered | WindowPolicy::StopAndGo => 1,
            },
            waits_for_all_answers: config.window_policy == WindowPolicy::StopAndGo,
            answer_timeout_ns: u64::try_from(config.answer_timeout().as_nanos())
                .unwrap_or(u64::MAX),
            start_time_ns: started,
            last_answer_time_ns: started,
            latency: LatencyRecorder::new(config.latency_digits),
            doorbell_count: 0,
            failures: FailureCounts::default(),
        }
    }

    pub(crate) fn is_finished(&self, got: u64) -> bool {
        got >= self.target_number_count
            || self
                .run_deadline_ns
                .is_some_and(|end| time::now_ns() >= end)
            || (self.should_end)()
    }

    /// Returns the number of requests that the lane may send now.
    #[inline]
    fn sendable_requests<L: Lane>(&self, lane: &L) -> usize {
        if self.waits_for_all_answers && lane.unanswered_requests() > 0 {
            0
        } else {
            lane.room_in_window()
        }
    }

    /// Keeps the lane's window full until the run is over. The clock is read once per postlist.
    ///
    /// The function is not inlined, so that its stack frame is small: with hundreds of simulated clients, none is in
    /// the caches.
    #[inline(never)]
    pub(crate) fn keep_window_full_until_end<L: Lane>(
        &mut self,
        lane: &mut L,
        results: &mut LaneResults,
    ) -> SessionEnd {
        let broken = |lane: &L, why: &dyn std::fmt::Display| SessionEnd::Failed {
            lost: lane.unanswered_requests(),
            why: why.to_string(),
        };
        let (mut sent, mut answered) = (0u64, 0u64);
        // Outstanding postlists: the number of requests sent including the postlist, and the time.
        let mut marks: VecDeque<(u64, u64)> = VecDeque::with_capacity(lane.room_in_window() + 1);
        let mut waiter = Waiter::never_sleeping().with_spins_and_yields(128, u32::MAX - 128);
        let (mut stopping, mut progress, mut since) = (false, false, time::now_ns());
        let refused = results.refused_request_count;
        let (mut fresh, mut overdue) = (None, false);
        loop {
            if !stopping {
                let left = self.target_number_count
                    - results.received_number_count
                    - lane.unanswered_requests() as u64;
                let mut room = self
                    .sendable_requests(lane)
                    .min(usize::try_from(left).unwrap_or(usize::MAX));
                // While answers arrive, only full postlists are sent; after some empty polls, shorter ones too.
                while room >= self.min_sendable_requests || (room > 0 && waiter.misses() >= 16) {
                    let n = room.min(self.max_postlist_len);
                    if let Err(e) = lane.send(n, results.one_past_largest_number) {
                        return broken(lane, &e);
                    }
                    self.doorbell_count += 1;
                    sent += n as u64;
                    // The time of the previous poll is accurate enough.
                    let now = fresh.take().unwrap_or_else(time::now_ns);
                    marks.push_back((sent, now));
                    stopping = self.run_deadline_ns.is_some_and(|end| now >= end)
                        || (self.doorbell_count.is_multiple_of(DOORBELLS_PER_END_CHECK)
                            && (self.should_end)());
                    // Without stop-and-go, answers are polled between two postlists.
                    room = if self.waits_for_all_answers {
                        room - n
                    } else {
                        0
                    };
                }
            }
            let got = match lane.poll(results) {
                Ok(got) => got,
                Err(e) => return broken(lane, &e),
            };
            if got > 0 {
                waiter.reset();
                progress = true;
                answered += got as u64;
                if marks.front().is_some_and(|m| m.0 <= answered) {
                    self.last_answer_time_ns = time::now_ns();
                    fresh = Some(self.last_answer_time_ns);
                    while let Some((_, at)) = marks.pop_front_if(|m| m.0 <= answered) {
                        self.latency
                            .add(self.last_answer_time_ns.saturating_sub(at));
                    }
                }
                stopping |= results.refused_request_count > refused;
                continue;
            }
            if lane.unanswered_requests() == 0 {
                if results.refused_request_count > refused {
                    return SessionEnd::NumbersUsedUp;
                }
                if stopping || results.received_number_count >= self.target_number_count {
                    return SessionEnd::RunFinished;
                }
                if lane.needs_new_session() {
                    return SessionEnd::ContinueInNewSession;
                }
            }
            fresh = None;
            // No request can be sent until an answer arrives, so the waiter polls until the next deadline.
            if !progress
                && (stopping || self.sendable_requests(lane) == 0)
                && lane.unanswered_requests() > 0
                && lane.polls_only_cq()
            {
                let late = since.saturating_add(self.answer_timeout_ns);
                let end = self.run_deadline_ns.filter(|_| !stopping);
                waiter.idle_polling_cq_until(end.map_or(late, |end| end.min(late)));
            } else {
                waiter.idle();
            }
            // Reading the clock costs as much as a poll, and less than a yield.
            if waiter.misses().is_multiple_of(256) || !waiter.is_spinning() || overdue {
                let now = time::now_ns();
                stopping |=
                    self.run_deadline_ns.is_some_and(|end| now >= end) || (self.should_end)();
                if std::mem::take(&mut progress) {
                    since = now;
                    overdue = false;
                } else if now.saturating_sub(since) > self.answer_timeout_ns {
                    if overdue {
                        return broken(lane, &"no answer came before the deadline");
                    }
                    // The answer may have arrived while this thread was not scheduled: poll once more.
                    overdue = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rpc::RpcError;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(20);

    /// A lane with a window of one request, whose thread is descheduled.
    struct Unscheduled {
        began: Instant,
        polls: u32,
        outstanding: usize,
        /// Runs in each poll; returns true if the answer has arrived.
        poll: fn(&Self) -> bool,
    }

    impl Unscheduled {
        fn new(poll: fn(&Self) -> bool) -> Self {
            Self {
                began: Instant::now(),
                polls: 0,
                outstanding: 0,
                poll,
            }
        }

        fn run(&mut self) -> SessionEnd {
            let config = ClientConfig {
                answer_timeout_ms: 20,
                window: 1,
                batch: 1,
                ..ClientConfig::default()
            };
            ClientRun::new(RunLimit::Count(1), || false, &config)
                .keep_window_full_until_end(self, &mut LaneResults::default())
        }
    }

    impl Lane for Unscheduled {
        fn room_in_window(&self) -> usize {
            1 - self.outstanding
        }

        fn unanswered_requests(&self) -> usize {
            self.outstanding
        }

        fn send(&mut self, count: usize, _: u64) -> Result<(), RpcError> {
            self.outstanding += count;
            Ok(())
        }

        fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
            self.polls += 1;
            if self.outstanding == 0 || !(self.poll)(self) {
                return Ok(0);
            }
            self.outstanding = 0;
            results.received_number_count += 1;
            Ok(1)
        }
    }

    #[test]
    fn an_answer_that_came_while_the_thread_did_not_run_counts() {
        let mut lane = Unscheduled::new(|lane| {
            let is_there = lane.began.elapsed() > DEADLINE;
            if lane.polls.is_multiple_of(256) {
                sleep(2 * DEADLINE);
            }
            is_there
        });
        assert!(matches!(lane.run(), SessionEnd::RunFinished));
    }

    #[test]
    fn the_deadline_is_seen_where_each_wait_takes_long() {
        let mut lane = Unscheduled::new(|lane| {
            if lane.polls > 128 {
                sleep(DEADLINE / 10);
            }
            false
        });
        assert!(matches!(lane.run(), SessionEnd::Failed { lost: 1, .. }));
        assert!(lane.polls < 256, "{} polls", lane.polls);
    }

    /// A lane that answers at most three requests per poll, and records the outstanding requests and the count at each
    /// send.
    struct Answering {
        window: usize,
        outstanding: usize,
        sends: Vec<(usize, usize)>,
    }

    impl Lane for Answering {
        fn room_in_window(&self) -> usize {
            self.window - self.outstanding
        }

        fn unanswered_requests(&self) -> usize {
            self.outstanding
        }

        fn send(&mut self, count: usize, _: u64) -> Result<(), RpcError> {
            self.sends.push((self.outstanding, count));
            self.outstanding += count;
            Ok(())
        }

        fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
            let came = self.outstanding.min(3);
            self.outstanding -= came;
            results.received_number_count += came as u64;
            Ok(came)
        }
    }

    /// Returns for each send the outstanding requests and the number sent, with a window of 8.
    fn sends(policy: WindowPolicy, batch: usize) -> Vec<(usize, usize)> {
        let config = ClientConfig {
            window: 8,
            batch,
            window_policy: policy,
            ..ClientConfig::default()
        };
        let mut lane = Answering {
            window: 8,
            outstanding: 0,
            sends: Vec::new(),
        };
        let mut results = LaneResults::default();
        let end = ClientRun::new(RunLimit::Count(16), || false, &config)
            .keep_window_full_until_end(&mut lane, &mut results);
        assert!(matches!(end, SessionEnd::RunFinished) && results.received_number_count == 16);
        lane.sends
    }

    #[test]
    fn the_policy_says_when_how_many_requests_are_sent() {
        use WindowPolicy::{AsAnswered, FullPostlists, StopAndGo};
        // Three answers leave too little room for a postlist of four; six leave enough.
        assert_eq!(sends(FullPostlists, 4)[..2], [(0, 4), (1, 4)]);
        assert_eq!(sends(AsAnswered, 8)[..3], [(0, 8), (5, 3), (5, 3)]);
        // Whole windows are sent when nothing is outstanding, in postlists of four or one.
        assert_eq!(sends(StopAndGo, 4), [(0, 4), (4, 4), (0, 4), (4, 4)]);
        let singly: Vec<_> = (0..8).chain(0..8).map(|n| (n, 1)).collect();
        assert_eq!(sends(StopAndGo, 1), singly);
    }
}
