//! The time after which a requester gives up: local ACK timeouts and receiver-not-ready NAKs.
//!
//! Times are nanoseconds of any monotonic clock; `now` is an argument.

use crate::qp_state::{ack_timeout_ns, rnr_timer_ns};

/// `rnr_retry` value for unlimited retries: IBTA vol. 1, 9.7.5.2.8.
pub const RNR_RETRY_FOREVER: u32 = 7;

/// The start time of a requester's wait, if a wait is in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitTimer {
    start_ns: Option<u64>,
}

impl WaitTimer {
    /// State of a requester that is not waiting.
    pub const NOT_WAITING: Self = Self { start_ns: None };

    /// Starts a wait unless a wait is in progress; returns the nanoseconds since its start.
    #[inline]
    pub fn start_or_elapsed_ns(&mut self, now: u64) -> u64 {
        now.saturating_sub(*self.start_ns.get_or_insert(now))
    }

    /// Ends the wait.
    #[inline(always)]
    pub fn end_wait(&mut self) {
        self.start_ns = None;
    }
}

/// Shortest timeout with a peer whose process lives, in nanoseconds: code 14, which most programs ask for.
///
/// An adapter answers without a processor core. A thread of the peer's process needs one, and waits for it for tens of
/// milliseconds on a busy host. By packets, lost ones do not wait for the timeout, since the requester probes before.
///
/// Adapters have such a limit, too. Programs ask for less (the crate `ibverbs-rs`: code 4, 65 µs), and send while the
/// peer is still on its way to RTR.
const MIN_LIVE_PEER_TIMEOUT_NS: u64 = 4096 << 14;

/// Returns the time in nanoseconds that one answer of a live peer may take with this code of `timeout`. `None` means no
/// limit.
#[must_use]
pub fn live_peer_timeout_ns(timeout: u8) -> Option<u64> {
    ack_timeout_ns(timeout).map(|ns| ns.max(MIN_LIVE_PEER_TIMEOUT_NS))
}

/// Returns the nanoseconds that a reliable requester waits for a response before it fails. `timeout_ns` is the time that
/// one answer may take; `None` means no limit. "The timeout has passed `retry_cnt + 1` times" (IBTA vol. 1, 9.7.6.1.3).
#[must_use]
pub fn total_response_wait_ns(timeout_ns: Option<u64>, retry_cnt: u8) -> Option<u64> {
    timeout_ns.map(|timeout| timeout * (u64::from(retry_cnt) + 1))
}

/// Returns the nanoseconds that a reliable requester waits for the responder to post a receive. Returns `None` for
/// `rnr_retry` 7, which means no limit. `timer` is the responder's RNR NAK timer, coded.
///
/// A requester with `rnr_retry` 0 waits as long as a requester with 1 retry. On a wire, the response to a program's
/// message takes longer than the program needs to post its next RECV, and some programs (fio) rely on this. A NIC in
/// memory delivers the response at once.
#[must_use]
pub fn total_rnr_wait_ns(rnr_retry: u32, timer: u8) -> Option<u64> {
    (rnr_retry < RNR_RETRY_FOREVER).then(|| u64::from(rnr_retry.max(1)) * rnr_timer_ns(timer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_borne_for_the_first_try_and_each_retry() {
        let timeout = ack_timeout_ns(14);
        for retries in 0..8 {
            let patience = timeout.unwrap() * (u64::from(retries) + 1);
            assert_eq!(total_response_wait_ns(timeout, retries), Some(patience));
        }
        assert_eq!(total_response_wait_ns(ack_timeout_ns(0), 0), None);
        // The longest time does not overflow a `u64`.
        assert!(total_response_wait_ns(ack_timeout_ns(31), 7).is_some());
    }

    #[test]
    fn a_live_peer_has_time_whatever_the_program_asks_for() {
        assert_eq!(live_peer_timeout_ns(0), None);
        for code in 1..=14 {
            assert_eq!(live_peer_timeout_ns(code), ack_timeout_ns(14));
        }
        assert_eq!(live_peer_timeout_ns(15), ack_timeout_ns(15));
    }

    #[test]
    fn a_receiver_that_is_not_ready_is_waited_for() {
        let timer = rnr_timer_ns(12);
        assert_eq!(total_rnr_wait_ns(0, 12), Some(timer));
        for retries in 1..7 {
            assert_eq!(
                total_rnr_wait_ns(retries, 12),
                Some(timer * u64::from(retries))
            );
        }
        for forever in [7, 8, u32::MAX] {
            assert_eq!(total_rnr_wait_ns(forever, 12), None);
        }
    }

    #[test]
    fn waiting_counts_from_its_first_time() {
        let mut waiting = WaitTimer::NOT_WAITING;
        assert_eq!(waiting.start_or_elapsed_ns(100), 0);
        assert_eq!(waiting.start_or_elapsed_ns(130), 30);
        // A clock that is slightly behind on another processor gives a waiting time of 0.
        assert_eq!(waiting.start_or_elapsed_ns(90), 0);
        waiting.end_wait();
        assert_eq!(waiting.start_or_elapsed_ns(200), 0);
    }
}
