//! When requests are sent again, and how often.

use super::config::RequesterConfig;
use crate::rc::rnr::rnr_wait_ns;

/// `rnr_retry` that means for ever (IBTA vol. 1, 9.7.5.2.8).
const RNR_FOR_EVER: u8 = 7;

/// A probe waits for a round trip and so many of its mean deviations (RFC 6298).
const DEVIATIONS: u64 = 4;

/// Which timer has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// The timeout: a retry that counts.
    Timeout,
    /// The probe: a retry that does not count.
    Probe,
}

/// Timers and counters of retries.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) timeout_ns: Option<u64>,
    retry_cnt: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_retries_left: u8,
    /// Since when what is lost is sent again, without progress yet.
    recovering_ns: Option<u64>,
    /// When the timeout began: at the first packet out, at each progress and each retry that counts.
    timer_ns: u64,
    /// When the wait for a probe began: as the timeout, and at each probe.
    probe_timer_ns: u64,
    /// The last retry does not count: the timeout goes on.
    is_uncounted: bool,
    /// A probe is out: one packet, whose answer says what is lost.
    is_probing: bool,
    /// The receiver was not ready: nothing is sent before this time.
    rnr_until: Option<u64>,
    probe_ns: Option<u64>,
    /// Probes since a round trip was measured; each waits twice as long as the one before.
    probes: u32,
    /// Mean time from a packet to its acknowledgement, and mean deviation; 0: not measured.
    round_trip_ns: u64,
    deviation_ns: u64,
    /// A packet that asked for an acknowledgement, and when it was sent.
    measured: Option<(u64, u64)>,
}

impl Retry {
    pub(super) fn new(config: &RequesterConfig) -> Self {
        Self {
            timeout_ns: config.timeout_ns,
            retry_cnt: config.retry_cnt,
            retries_left: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            rnr_retries_left: config.rnr_retry,
            recovering_ns: None,
            timer_ns: 0,
            probe_timer_ns: 0,
            is_uncounted: false,
            is_probing: false,
            rnr_until: None,
            probe_ns: config.probe_ns,
            probes: 0,
            round_trip_ns: 0,
            deviation_ns: 0,
            measured: None,
        }
    }

    pub(super) fn set_retry_cnt(&mut self, retry_cnt: u8) {
        self.retry_cnt = retry_cnt;
        self.retries_left = retry_cnt;
    }

    pub(super) fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.rnr_retry = rnr_retry;
        self.rnr_retries_left = rnr_retry;
    }

    /// A packet was sent; the timer starts if none was out. `asks`: the packet, if it asks for an acknowledgement for
    /// the first time.
    pub(super) fn sent(&mut self, now_ns: u64, was_outstanding: bool, asks: Option<u64>) {
        if !was_outstanding {
            self.probe_timer_ns = now_ns;
            if !std::mem::take(&mut self.is_uncounted) {
                self.timer_ns = now_ns;
            }
        }
        if let (None, Some(sequence), None) = (self.measured, asks, self.recovering_ns) {
            self.measured = Some((sequence, now_ns));
        }
    }

    /// Something new was acknowledged: everything up to `acked`.
    pub(super) fn progressed(&mut self, now_ns: u64, acked: u64) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.recovering_ns = None;
        self.timer_ns = now_ns;
        self.probe_timer_ns = now_ns;
        self.is_uncounted = false;
        self.is_probing = false;
        self.rnr_until = None;
        if let Some((sequence, sent_ns)) = self.measured
            && sequence < acked
        {
            self.measure(now_ns.saturating_sub(sent_ns));
            self.measured = None;
            // Until then the wait stays long: acknowledgements of packets that were sent twice measure nothing (Karn).
            self.probes = 0;
        }
    }

    fn measure(&mut self, sample_ns: u64) {
        if self.round_trip_ns == 0 {
            self.round_trip_ns = sample_ns;
            self.deviation_ns = sample_ns / 2;
            return;
        }
        let deviation_ns = self.round_trip_ns.abs_diff(sample_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + deviation_ns / 4;
        self.round_trip_ns = self.round_trip_ns - self.round_trip_ns / 8 + sample_ns / 8;
    }

    /// The time in which an acknowledgement comes almost always; 0: not measured.
    fn patience_ns(&self) -> u64 {
        self.round_trip_ns + DEVIATIONS * self.deviation_ns
    }

    /// Whether a sign of loss may be one of the loss that the last retry is for: what was sent again since then cannot
    /// have been answered yet.
    pub(super) fn is_recovering(&self, now_ns: u64) -> bool {
        self.recovering_ns.is_some_and(|since| {
            let patience_ns = self.patience_ns();
            patience_ns == 0 || now_ns.saturating_sub(since) <= patience_ns
        })
    }

    /// Whether the answer to what was sent again may still be on its way. Each time without progress it is given twice as
    /// long.
    pub(super) fn is_probe_answered_soon(&self, now_ns: u64) -> bool {
        self.recovering_ns.is_some_and(|since| {
            let patience_ns = self.patience_ns();
            let patience_ns = patience_ns.saturating_mul(self.backoff());
            patience_ns == 0 || now_ns.saturating_sub(since) <= patience_ns
        })
    }

    /// How many times longer than the first a probe waits.
    fn backoff(&self) -> u64 {
        1_u64.checked_shl(self.probes).unwrap_or(u64::MAX)
    }

    /// Begins a retry; false if none is left.
    pub(super) fn begin(&mut self, now_ns: u64) -> bool {
        let Some(left) = self.retries_left.checked_sub(1) else {
            return false;
        };
        self.retries_left = left;
        self.recover(now_ns);
        true
    }

    /// Begins a retry that does not count.
    pub(super) fn begin_uncounted(&mut self, now_ns: u64) {
        self.probes += 1;
        self.recover(now_ns);
        self.is_uncounted = true;
    }

    /// Begins a retry that does not count, of one packet.
    pub(super) fn probe(&mut self, now_ns: u64) {
        self.begin_uncounted(now_ns);
        self.is_probing = true;
    }

    /// Whether only one packet may be out: the responder may have taken everything, and its answer is late.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing
    }

    fn recover(&mut self, now_ns: u64) {
        self.recovering_ns = Some(now_ns);
        self.is_uncounted = false;
        self.is_probing = false;
        self.measured = None;
    }

    /// The receiver is not ready; false if it is not asked again.
    pub(super) fn receiver_not_ready(&mut self, now_ns: u64, code: u8) -> bool {
        if self.rnr_retry != RNR_FOR_EVER {
            let Some(left) = self.rnr_retries_left.checked_sub(1) else {
                return false;
            };
            self.rnr_retries_left = left;
        }
        self.rnr_until = Some(now_ns + rnr_wait_ns(code));
        self.recover(now_ns);
        true
    }

    /// The time until which the receiver is given to get ready.
    pub(super) fn rnr_until(&self) -> Option<u64> {
        self.rnr_until
    }

    /// Ends the wait for the receiver if its time has passed; true if it lasts.
    pub(super) fn is_receiver_awaited(&mut self, now_ns: u64) -> bool {
        self.rnr_until = self.rnr_until.filter(|until| *until > now_ns);
        self.rnr_until.is_some()
    }

    /// The timer that runs out first while packets are out.
    pub(super) fn timer(&self) -> Option<(u64, Expiry)> {
        let timeout = self
            .timeout_ns
            .map(|timeout| self.timer_ns.saturating_add(timeout));
        let probe = self.probe_ns.map(|least| {
            let wait = least.max(self.patience_ns());
            self.probe_timer_ns
                .saturating_add(wait.saturating_mul(self.backoff()))
        });
        match (timeout, probe) {
            (Some(timeout), Some(probe)) if probe < timeout => Some((probe, Expiry::Probe)),
            (Some(timeout), _) => Some((timeout, Expiry::Timeout)),
            (None, probe) => probe.map(|at| (at, Expiry::Probe)),
        }
    }
}
