//! Timers and counters of retransmission.

use super::config::RequesterConfig;
use crate::rc::rnr_timer::rnr_wait_ns;

/// `rnr_retry` value for unlimited retries (IBTA vol. 1, 9.7.5.2.8).
const RNR_RETRY_UNLIMITED: u8 = 7;

/// A probe waits for the mean round trip plus this many mean deviations (RFC 6298).
const PROBE_WAIT_RTT_DEVIATIONS: u64 = 4;

/// The timer that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryTimer {
    /// The timeout, which causes a retry that counts.
    Timeout,
    /// The probe timer, which causes a retry that does not count.
    Probe,
}

/// Timers and counters of retries.
#[derive(Debug)]
pub(super) struct RetryState {
    pub(super) timeout_ns: Option<u64>,
    retry_cnt: u8,
    retries_left: u8,
    rnr_retry: u8,
    rnr_retries_left: u8,
    /// Start of the current retry, if it has not led to progress yet.
    recovery_start_ns: Option<u64>,
    /// Start of the timeout: the first outstanding packet, the last progress, or the last retry that counts.
    timeout_start_ns: u64,
    /// Start of the wait for a probe: as `timeout_start_ns`, or the last probe.
    probe_wait_start_ns: u64,
    /// True if the last retry does not count, so that the timeout continues.
    is_last_retry_uncounted: bool,
    /// True while a probe is outstanding: a single packet, whose response shows what is lost.
    is_probing: bool,
    /// End of the wait after an RNR NAK; nothing is sent before.
    rnr_wait_end_ns: Option<u64>,
    min_probe_wait_ns: Option<u64>,
    /// Number of probes since a round trip was measured; each doubles the wait for the next.
    probes_since_rtt_measurement: u32,
    /// Mean round trip from a packet to its acknowledgement, and its mean deviation; 0 if not measured.
    mean_rtt_ns: u64,
    rtt_deviation_ns: u64,
    /// Sequence number and send time of the packet whose round trip is being measured.
    rtt_packet_sequence_and_send_ns: Option<(u64, u64)>,
}

impl RetryState {
    pub(super) fn new(config: &RequesterConfig) -> Self {
        Self {
            timeout_ns: config.timeout_ns,
            retry_cnt: config.retry_cnt,
            retries_left: config.retry_cnt,
            rnr_retry: config.rnr_retry,
            rnr_retries_left: config.rnr_retry,
            recovery_start_ns: None,
            timeout_start_ns: 0,
            probe_wait_start_ns: 0,
            is_last_retry_uncounted: false,
            is_probing: false,
            rnr_wait_end_ns: None,
            min_probe_wait_ns: config.min_probe_wait_ns,
            probes_since_rtt_measurement: 0,
            mean_rtt_ns: 0,
            rtt_deviation_ns: 0,
            rtt_packet_sequence_and_send_ns: None,
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

    /// Records a sent packet, and starts the timers if none was outstanding. `asks` is the packet if it asks for an
    /// acknowledgement for the first time.
    pub(super) fn on_packet_sent(&mut self, now_ns: u64, was_outstanding: bool, asks: Option<u64>) {
        if !was_outstanding {
            self.probe_wait_start_ns = now_ns;
            if !std::mem::take(&mut self.is_last_retry_uncounted) {
                self.timeout_start_ns = now_ns;
            }
        }
        if let (None, Some(sequence), None) = (
            self.rtt_packet_sequence_and_send_ns,
            asks,
            self.recovery_start_ns,
        ) {
            self.rtt_packet_sequence_and_send_ns = Some((sequence, now_ns));
        }
    }

    /// Records that everything up to `acked` is acknowledged: resets timers and counters.
    pub(super) fn on_new_acknowledgements(&mut self, now_ns: u64, acked: u64) {
        self.retries_left = self.retry_cnt;
        self.rnr_retries_left = self.rnr_retry;
        self.recovery_start_ns = None;
        self.timeout_start_ns = now_ns;
        self.probe_wait_start_ns = now_ns;
        self.is_last_retry_uncounted = false;
        self.is_probing = false;
        self.rnr_wait_end_ns = None;
        if let Some((sequence, sent_ns)) = self.rtt_packet_sequence_and_send_ns
            && sequence < acked
        {
            self.update_rtt(now_ns.saturating_sub(sent_ns));
            self.rtt_packet_sequence_and_send_ns = None;
            // Until then the wait stays long: an acknowledgement of a retransmitted packet measures no round trip
            // (Karn).
            self.probes_since_rtt_measurement = 0;
        }
    }

    fn update_rtt(&mut self, sample_ns: u64) {
        if self.mean_rtt_ns == 0 {
            self.mean_rtt_ns = sample_ns;
            self.rtt_deviation_ns = sample_ns / 2;
            return;
        }
        let deviation_ns = self.mean_rtt_ns.abs_diff(sample_ns);
        self.rtt_deviation_ns =
            self.rtt_deviation_ns - self.rtt_deviation_ns / 4 + deviation_ns / 4;
        self.mean_rtt_ns = self.mean_rtt_ns - self.mean_rtt_ns / 8 + sample_ns / 8;
    }

    /// Returns the time in which an acknowledgement almost always arrives; 0 if not measured.
    fn max_usual_ack_delay_ns(&self) -> u64 {
        self.mean_rtt_ns + PROBE_WAIT_RTT_DEVIATIONS * self.rtt_deviation_ns
    }

    /// Returns true if a sign of loss may belong to the loss that the last retry repairs. The response to the
    /// retransmission cannot have arrived yet.
    pub(super) fn is_recovering(&self, now_ns: u64) -> bool {
        self.recovery_start_ns.is_some_and(|since| {
            let patience_ns = self.max_usual_ack_delay_ns();
            patience_ns == 0 || now_ns.saturating_sub(since) <= patience_ns
        })
    }

    /// Returns true if the response to a retransmission may still arrive. Each retry without progress doubles that
    /// time.
    pub(super) fn is_response_still_expected(&self, now_ns: u64) -> bool {
        self.recovery_start_ns.is_some_and(|since| {
            let patience_ns = self.max_usual_ack_delay_ns();
            let patience_ns = patience_ns.saturating_mul(self.probe_wait_factor());
            patience_ns == 0 || now_ns.saturating_sub(since) <= patience_ns
        })
    }

    /// Returns the factor by which the wait for a probe has grown.
    fn probe_wait_factor(&self) -> u64 {
        1_u64
            .checked_shl(self.probes_since_rtt_measurement)
            .unwrap_or(u64::MAX)
    }

    /// Begins a retry that counts; returns false if none is left.
    pub(super) fn try_begin_counted_retry(&mut self, now_ns: u64) -> bool {
        let Some(left) = self.retries_left.checked_sub(1) else {
            return false;
        };
        self.retries_left = left;
        self.begin_recovery(now_ns);
        true
    }

    /// Begins a retry that does not count.
    pub(super) fn begin_uncounted_retry(&mut self, now_ns: u64) {
        self.probes_since_rtt_measurement += 1;
        self.begin_recovery(now_ns);
        self.is_last_retry_uncounted = true;
    }

    /// Begins a retry of one packet, which does not count.
    pub(super) fn begin_probe(&mut self, now_ns: u64) {
        self.begin_uncounted_retry(now_ns);
        self.is_probing = true;
    }

    /// Returns true if a probe is outstanding, during which no other packet is sent. The responder may have received
    /// everything, with its response delayed.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing
    }

    fn begin_recovery(&mut self, now_ns: u64) {
        self.recovery_start_ns = Some(now_ns);
        self.is_last_retry_uncounted = false;
        self.is_probing = false;
        self.rtt_packet_sequence_and_send_ns = None;
    }

    /// Begins the wait after an RNR NAK; returns false if the RNR retries are used up.
    pub(super) fn try_begin_rnr_wait(&mut self, now_ns: u64, code: u8) -> bool {
        if self.rnr_retry != RNR_RETRY_UNLIMITED {
            let Some(left) = self.rnr_retries_left.checked_sub(1) else {
                return false;
            };
            self.rnr_retries_left = left;
        }
        self.rnr_wait_end_ns = Some(now_ns + rnr_wait_ns(code));
        self.begin_recovery(now_ns);
        true
    }

    /// Returns the end of the wait after an RNR NAK.
    pub(super) fn rnr_wait_end_ns(&self) -> Option<u64> {
        self.rnr_wait_end_ns
    }

    /// Ends the wait after an RNR NAK if its time has passed; returns true if the wait continues.
    pub(super) fn is_rnr_wait_ongoing(&mut self, now_ns: u64) -> bool {
        self.rnr_wait_end_ns = self.rnr_wait_end_ns.filter(|until| *until > now_ns);
        self.rnr_wait_end_ns.is_some()
    }

    /// Returns the timer that expires first while packets are outstanding, and its time.
    pub(super) fn next_timer(&self) -> Option<(u64, RetryTimer)> {
        let timeout = self
            .timeout_ns
            .map(|timeout| self.timeout_start_ns.saturating_add(timeout));
        let probe = self.min_probe_wait_ns.map(|least| {
            let wait = least.max(self.max_usual_ack_delay_ns());
            self.probe_wait_start_ns
                .saturating_add(wait.saturating_mul(self.probe_wait_factor()))
        });
        match (timeout, probe) {
            (Some(timeout), Some(probe)) if probe < timeout => Some((probe, RetryTimer::Probe)),
            (Some(timeout), _) => Some((timeout, RetryTimer::Timeout)),
            (None, probe) => probe.map(|at| (at, RetryTimer::Probe)),
        }
    }
}
