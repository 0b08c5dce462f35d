//! DCQCN: the rate limit of a sender after congestion notifications, and the notifications of a receiver (Zhu et al.,
//! SIGCOMM 2015).

/// Constants of the reaction point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnParameters {
    /// Highest rate, in bits per second; also the rate of a sender that has received no notification.
    pub line_rate_bps: f64,
    /// Lowest rate, in bits per second.
    pub min_rate_bps: f64,
    /// Weight of a notification in the congestion estimate alpha.
    pub alpha_gain: f64,
    /// Interval at which alpha decays, in nanoseconds.
    pub alpha_timer_ns: u64,
    /// Interval at which the rate increases, in nanoseconds.
    pub increase_timer_ns: u64,
    /// Number of sent bytes after which the rate increases.
    pub increase_bytes: u64,
    /// Number of fast-recovery steps; each moves the rate halfway to the target rate.
    pub fast_recovery_steps: u32,
    /// Increase of the target rate at each step after fast recovery, in bits per second.
    pub additive_increase_bps: f64,
    /// Increase of the target rate if both timer and byte counter are past fast recovery, in bits per second.
    pub hyper_increase_bps: f64,
}

impl DcqcnParameters {
    /// The constants of the paper (section 5.2), for a line rate of 40 Gb/s.
    pub const SIGCOMM_2015: Self = Self {
        line_rate_bps: 40e9,
        min_rate_bps: 40e6,
        alpha_gain: 1.0 / 256.0,
        alpha_timer_ns: 55_000,
        increase_timer_ns: 55_000,
        increase_bytes: 10_000_000,
        fast_recovery_steps: 5,
        additive_increase_bps: 40e6,
        hyper_increase_bps: 400e6,
    };
}

impl Default for DcqcnParameters {
    fn default() -> Self {
        Self::SIGCOMM_2015
    }
}

/// Time without notification after which a sender returns to the line rate.
const RATE_LIMIT_EXPIRY_NS: u64 = 1_000_000_000;

/// The rate limit of a sender: unlimited until a notification arrives.
#[derive(Clone, Debug)]
pub struct ReactionPoint {
    parameters: DcqcnParameters,
    limit: Option<RateLimitState>,
    next_send_ns: u64,
}

/// The state of a sender between a notification and its recovery.
#[derive(Clone, Debug)]
struct RateLimitState {
    rate_bps: f64,
    target_bps: f64,
    alpha: f64,
    last_cnp_ns: u64,
    alpha_updated_ns: u64,
    increase_timer_start_ns: u64,
    timer_steps: u32,
    bytes_since_increase: u64,
    byte_counter_steps: u32,
}

impl ReactionPoint {
    /// Returns a sender without a rate limit.
    #[must_use]
    pub const fn new(parameters: DcqcnParameters) -> Self {
        Self {
            parameters,
            limit: None,
            next_send_ns: 0,
        }
    }

    /// Returns the rate in bits per second at `now_ns`; `None` if the sender is not limited.
    pub fn rate_limit_bps(&mut self, now_ns: u64) -> Option<f64> {
        self.apply_expired_timers(now_ns);
        self.limit.as_ref().map(|limit| limit.rate_bps)
    }

    /// Returns the time at which the next packet may be sent, if that is after `now_ns`.
    #[must_use]
    pub fn sends_blocked_until_ns(&self, now_ns: u64) -> Option<u64> {
        (self.limit.is_some() && self.next_send_ns > now_ns).then_some(self.next_send_ns)
    }

    /// Records a received notification: the rate falls, the first time by half.
    pub fn on_cnp_received(&mut self, now_ns: u64) {
        self.apply_expired_timers(now_ns);
        let parameters = self.parameters;
        let limit = self.limit.get_or_insert(RateLimitState {
            rate_bps: parameters.line_rate_bps,
            target_bps: parameters.line_rate_bps,
            alpha: 1.0,
            last_cnp_ns: now_ns,
            alpha_updated_ns: now_ns,
            increase_timer_start_ns: now_ns,
            timer_steps: 0,
            bytes_since_increase: 0,
            byte_counter_steps: 0,
        });
        limit.target_bps = limit.rate_bps;
        limit.rate_bps = (limit.rate_bps * (1.0 - limit.alpha / 2.0)).max(parameters.min_rate_bps);
        limit.alpha = (1.0 - parameters.alpha_gain) * limit.alpha + parameters.alpha_gain;
        limit.last_cnp_ns = now_ns;
        limit.alpha_updated_ns = now_ns;
        limit.increase_timer_start_ns = now_ns;
        limit.timer_steps = 0;
        limit.bytes_since_increase = 0;
        limit.byte_counter_steps = 0;
    }

    /// Records a sent packet of `bytes`, which delays the next one if the rate is limited.
    pub fn on_packet_sent(&mut self, bytes: usize, now_ns: u64) {
        if self.limit.is_none() {
            return;
        }
        self.apply_expired_timers(now_ns);
        let Some(limit) = &mut self.limit else { return };
        limit.bytes_since_increase += bytes as u64;
        if limit.bytes_since_increase >= self.parameters.increase_bytes {
            limit.bytes_since_increase = 0;
            limit.byte_counter_steps += 1;
            limit.increase_rate_by_one_step(&self.parameters);
        }
        #[allow(clippy::cast_precision_loss)] // packets are short
        let gap_ns = bytes as f64 * 8e9 / limit.rate_bps;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive
        let gap_ns = gap_ns as u64;
        self.next_send_ns = self.next_send_ns.max(now_ns) + gap_ns;
    }

    /// Applies the timers that have expired by `now_ns`.
    fn apply_expired_timers(&mut self, now_ns: u64) {
        let Some(limit) = &mut self.limit else { return };
        let parameters = &self.parameters;
        let is_forgotten = now_ns.saturating_sub(limit.last_cnp_ns) > RATE_LIMIT_EXPIRY_NS;
        while !is_forgotten
            && now_ns.saturating_sub(limit.alpha_updated_ns) >= parameters.alpha_timer_ns
        {
            limit.alpha_updated_ns += parameters.alpha_timer_ns.max(1);
            limit.alpha *= 1.0 - parameters.alpha_gain;
        }
        while !is_forgotten
            && now_ns.saturating_sub(limit.increase_timer_start_ns) >= parameters.increase_timer_ns
            && limit.rate_bps < parameters.line_rate_bps
        {
            limit.increase_timer_start_ns += parameters.increase_timer_ns.max(1);
            limit.timer_steps += 1;
            limit.increase_rate_by_one_step(parameters);
        }
        if is_forgotten || limit.rate_bps >= parameters.line_rate_bps {
            self.limit = None;
            self.next_send_ns = 0;
        }
    }
}

impl RateLimitState {
    /// Makes one step of recovery: fast, additive or hyper increase (section 5.1).
    fn increase_rate_by_one_step(&mut self, parameters: &DcqcnParameters) {
        let fast = parameters.fast_recovery_steps;
        if self.timer_steps.min(self.byte_counter_steps) > fast {
            self.target_bps += parameters.hyper_increase_bps;
        } else if self.timer_steps.max(self.byte_counter_steps) > fast {
            self.target_bps += parameters.additive_increase_bps;
        }
        self.target_bps = self.target_bps.min(parameters.line_rate_bps);
        self.rate_bps = f64::midpoint(self.rate_bps, self.target_bps);
        // Halving the distance never reaches the line rate, so the last thousandth is skipped.
        if self.rate_bps > parameters.line_rate_bps * 0.999 {
            self.rate_bps = parameters.line_rate_bps;
        }
    }
}

/// Minimum interval between two notifications of a queue pair (section 5.2).
pub const MIN_CNP_INTERVAL_NS: u64 = 50_000;

/// The notification point: decides when a receiver sends a notification.
#[derive(Clone, Copy, Debug, Default)]
pub struct NotificationPoint {
    last_cnp_ns: Option<u64>,
    is_cnp_due: bool,
}

impl NotificationPoint {
    /// Records a received packet that a switch marked with ECN.
    pub fn on_ecn_mark_received(&mut self, now_ns: u64) {
        let is_early = self
            .last_cnp_ns
            .is_some_and(|last| now_ns.saturating_sub(last) < MIN_CNP_INTERVAL_NS);
        if !is_early {
            self.last_cnp_ns = Some(now_ns);
            self.is_cnp_due = true;
        }
    }

    /// Returns true if a notification must be sent.
    #[must_use]
    pub fn is_cnp_due(&self) -> bool {
        self.is_cnp_due
    }

    /// Returns true if a notification must be sent, and clears that state.
    pub fn take_pending_cnp(&mut self) -> bool {
        std::mem::take(&mut self.is_cnp_due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_halves_the_rate_and_five_steps_bring_it_back() {
        let mut point = ReactionPoint::new(DcqcnParameters::SIGCOMM_2015);
        assert_eq!(point.rate_limit_bps(0), None);
        point.on_cnp_received(1000);
        assert_eq!(point.rate_limit_bps(1000), Some(20e9));
        assert_eq!(point.rate_limit_bps(1000 + 55_000), Some(30e9));
        assert_eq!(point.rate_limit_bps(1000 + 2 * 55_000), Some(35e9));
        let after_five = point.rate_limit_bps(1000 + 5 * 55_000);
        assert!(after_five.is_some_and(|rate| rate > 39e9 && rate < 40e9));
        assert_eq!(point.rate_limit_bps(RATE_LIMIT_EXPIRY_NS * 2), None);
    }

    #[test]
    fn packets_are_spaced_by_the_rate() {
        let mut point = ReactionPoint::new(DcqcnParameters::SIGCOMM_2015);
        point.on_packet_sent(4096, 10);
        assert_eq!(point.sends_blocked_until_ns(10), None);
        point.on_cnp_received(10);
        point.on_packet_sent(2500, 10);
        assert_eq!(point.sends_blocked_until_ns(10), Some(1010));
        assert_eq!(point.sends_blocked_until_ns(1010), None);
    }

    #[test]
    fn notifications_under_a_flood_keep_the_lowest_rate() {
        let mut point = ReactionPoint::new(DcqcnParameters::SIGCOMM_2015);
        for _ in 0..10_000 {
            point.on_cnp_received(5);
        }
        assert_eq!(point.rate_limit_bps(5), Some(40e6));
    }

    #[test]
    fn one_notification_in_an_interval() {
        let mut point = NotificationPoint::default();
        let sent = (0..1000u64)
            .filter(|packet| {
                point.on_ecn_mark_received(packet * 1000);
                point.take_pending_cnp()
            })
            .count();
        assert_eq!(sent, 20);
    }
}
