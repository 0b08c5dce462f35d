//! Parameters of a measurement, their defaults, and their limits.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::verb::{IMM_SIZED_PAYLOAD_BYTES, Verb};
use crate::open_nic::RegionPageSize;

/// Largest payload, in bytes.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 28;

/// Maximum WRs in a window.
pub const MAX_WINDOW: usize = 8192;

/// Maximum queue pairs of a thread.
pub const MAX_QUEUE_PAIRS_PER_THREAD: usize = 1024;

/// Maximum number of posting threads.
pub const MAX_THREADS: usize = 256;

/// Maximum number of counters for atomics.
pub const MAX_ATOMIC_COUNTERS: usize = 1 << 24;

/// Maximum distance of two counters, in bytes.
pub const MAX_COUNTER_SPACING_BYTES: usize = 1 << 21;

/// Largest payload that is inline by default, in bytes: one cache line.
pub const MAX_DEFAULT_INLINE_BYTES: usize = 64;

/// Maximum payload bytes of a window whose length was not set.
const MAX_DEFAULT_WINDOW_BYTES: usize = 8 << 20;

/// Maximum memory for the windows of a thread, in bytes.
const MAX_WINDOW_BYTES_PER_THREAD: usize = 1 << 30;

/// Role of the measured NIC, which belongs to the started process. The other ends are separate
/// processes. Each of them has its own NIC if the NIC is software or simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasuredRole {
    /// The measured NIC is the requester.
    #[default]
    Outbound,
    /// The measured NIC is the responder of requesters in other processes.
    Inbound,
}

impl MeasuredRole {
    /// Returns the name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MeasuredRole::Outbound => "outbound",
            MeasuredRole::Inbound => "inbound",
        }
    }
}

/// Parameters of a measurement. `None` selects a default that fits the other parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MicroParameters {
    /// Payload bytes of each message; 8 by default.
    pub payload_bytes: Option<usize>,
    /// WRs per doorbell; 16 by default, or fewer if the window is too small.
    pub wrs_per_doorbell: Option<usize>,
    /// Maximum outstanding WRs on each queue pair; 256 by default. The default is smaller for long
    /// payloads, or where `max_reads_in_wqe_cache` allows fewer READs.
    pub window: Option<usize>,
    /// READs that a requester's NIC can have outstanding without losing WQEs from its cache. The
    /// default window of READs stays within it.
    pub max_reads_in_wqe_cache: Option<usize>,
    /// One WR in this many is signaled; 16 by default, or fewer if the window is too small.
    pub signal_every: Option<usize>,
    /// True if the payload is inline; by default it is up to [`MAX_DEFAULT_INLINE_BYTES`].
    pub inline: Option<bool>,
    /// True if a window is posted only when the previous window is done. False if WRs are posted as
    /// room becomes free.
    pub waits_between_windows: bool,
    /// Queue pairs of each thread, which uses them in turn; 1 by default.
    pub queue_pairs_per_thread: Option<usize>,
    /// Posting threads, each with its own thread on the other side; 1 by default, or the number of
    /// processes.
    pub threads: Option<usize>,
    /// Processes of the other side, which share its threads; one per thread by default.
    pub other_side_processes: Option<usize>,
    /// Role of the measured NIC.
    pub measured_role: MeasuredRole,
    /// Counters among which atomics choose at random; 1 by default.
    pub atomic_counters: Option<usize>,
    /// Distance of two counters, in bytes; 8 by default.
    pub counter_spacing_bytes: Option<usize>,
    /// Page size of all registered memory; huge pages where possible by default.
    pub page_size: Option<RegionPageSize>,
    /// True if the target of WRITEs is private memory of its process, which the NIC did not
    /// allocate.
    pub private_target_memory: bool,
}

impl MicroParameters {
    pub(super) fn resolve_inline(&self, verb: Verb, payload_bytes: usize) -> Result<bool> {
        let possible = verb.request_carries_payload() && payload_bytes > 0;
        match self.inline {
            Some(true) if !possible => bail!(
                "{} has no payload of its own that could be inline",
                verb.label()
            ),
            Some(false) if payload_bytes == IMM_SIZED_PAYLOAD_BYTES => bail!(
                "4 bytes have no place of their own in memory; leave out that they are not inline"
            ),
            Some(inline) => Ok(inline),
            None => Ok(possible && payload_bytes <= MAX_DEFAULT_INLINE_BYTES),
        }
    }
}

/// A stream: windows of one verb's WRs, refilled for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbStream {
    /// Verb that is posted.
    pub verb: Verb,
    /// Role of the measured NIC.
    #[serde(rename = "direction")]
    pub measured_role: MeasuredRole,
    /// Payload bytes of each message.
    pub payload_bytes: usize,
    /// WRs per doorbell.
    #[serde(rename = "batch")]
    pub wrs_per_doorbell: usize,
    /// Maximum outstanding WRs on each queue pair, a multiple of `batch` and of `signal_every`.
    pub window: usize,
    /// One WR in this many is signaled.
    pub signal_every: usize,
    /// True if the payload is inline.
    pub inline: bool,
    /// True if a window is posted only when the previous window is done.
    #[serde(rename = "burst")]
    pub waits_between_windows: bool,
    /// Queue pairs of each thread, which get postlists in turn.
    #[serde(rename = "queue_pairs")]
    pub queue_pairs_per_thread: usize,
    /// Threads of each side.
    pub threads: usize,
    /// Processes of the other side.
    #[serde(rename = "processes")]
    pub other_side_processes: usize,
    /// Counters for atomics; each WR chooses one at random.
    #[serde(rename = "addresses")]
    pub atomic_counters: usize,
    /// Distance of two counters, in bytes.
    #[serde(rename = "spacing_bytes")]
    pub counter_spacing_bytes: usize,
    /// Page size of registered memory.
    #[serde(rename = "pages")]
    pub page_size: Option<RegionPageSize>,
    /// True if the target of WRITEs is private memory of its process, which the NIC did not
    /// allocate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "private")]
    pub private_target_memory: bool,
    /// Duration in ms; the first tenth is not measured.
    pub duration_ms: u64,
}

impl VerbStream {
    /// Creates a stream and fills in the parameters that `parameters` leaves open.
    ///
    /// # Errors
    /// When parameters contradict each other. The message says which one to change.
    pub fn new(verb: Verb, parameters: &MicroParameters, duration_ms: u64) -> Result<VerbStream> {
        let payload_bytes = parameters.payload_bytes.unwrap_or(8);
        verb.check_payload_fits_stamp(payload_bytes)?;
        if verb != Verb::Atomics
            && (parameters.atomic_counters.is_some() || parameters.counter_spacing_bytes.is_some())
        {
            bail!(
                "{} uses no counters, so that their number and spacing mean nothing; leave them out",
                verb.label()
            );
        }
        let given = lcm(
            parameters.wrs_per_doorbell.unwrap_or(1),
            parameters.signal_every.unwrap_or(1),
        );
        let threads = parameters
            .threads
            .or(parameters.other_side_processes)
            .unwrap_or(1);
        let processes = parameters.other_side_processes.unwrap_or(threads);
        let queue_pairs = parameters.queue_pairs_per_thread.unwrap_or(1);
        let window = parameters.window.unwrap_or_else(|| {
            let mut fit = (MAX_DEFAULT_WINDOW_BYTES / payload_bytes.max(1)).clamp(2, 256);
            if let (Verb::RcRead, Some(kept)) = (verb, parameters.max_reads_in_wqe_cache) {
                let threads_of_requester = match parameters.measured_role {
                    MeasuredRole::Outbound => threads,
                    MeasuredRole::Inbound => threads.div_ceil(processes.max(1)),
                };
                let each = kept / (threads_of_requester * queue_pairs).max(1);
                fit = fit.min(each.max(2));
            }
            // A power of two, so that the other defaults divide it.
            let fit = 1 << fit.ilog2();
            fit.max(2 * given).next_multiple_of(given)
        });
        let auto = || largest_divisor(window, 16.min(window / 2));
        let stream = VerbStream {
            verb,
            measured_role: parameters.measured_role,
            payload_bytes,
            wrs_per_doorbell: parameters.wrs_per_doorbell.unwrap_or_else(auto),
            window,
            signal_every: parameters.signal_every.unwrap_or_else(auto),
            inline: parameters.resolve_inline(verb, payload_bytes)?,
            waits_between_windows: parameters.waits_between_windows,
            queue_pairs_per_thread: queue_pairs,
            threads,
            other_side_processes: processes,
            atomic_counters: parameters.atomic_counters.unwrap_or(1),
            counter_spacing_bytes: parameters.counter_spacing_bytes.unwrap_or(8),
            page_size: parameters.page_size,
            private_target_memory: parameters.private_target_memory,
            duration_ms,
        };
        stream.check()?;
        Ok(stream)
    }

    fn check(&self) -> Result<()> {
        let VerbStream {
            wrs_per_doorbell: batch,
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
        // The room for the next postlist must depend only on completions that the WRs already
        // posted request.
        if !self.waits_between_windows && batch + signal_every - 1 > window {
            bail!(
                "a window of {window} WRs never has room for a batch of {batch} when one WR in \
                 {signal_every} is signaled; widen it or lower the others"
            );
        }
        for (name, count, most) in [
            (
                "queue pairs",
                self.queue_pairs_per_thread,
                MAX_QUEUE_PAIRS_PER_THREAD,
            ),
            ("threads", self.threads, MAX_THREADS),
            ("processes", self.other_side_processes, MAX_THREADS),
            ("addresses", self.atomic_counters, MAX_ATOMIC_COUNTERS),
        ] {
            if !(1..=most).contains(&count) {
                bail!("there can be 1 to {most} {name}, not {count}");
            }
        }
        if self.other_side_processes > self.threads {
            bail!(
                "{} threads cannot be in {} processes; raise the threads or lower the processes",
                self.threads,
                self.other_side_processes
            );
        }
        if !self.counter_spacing_bytes.is_multiple_of(8)
            || !(8..=MAX_COUNTER_SPACING_BYTES).contains(&self.counter_spacing_bytes)
        {
            bail!(
                "counters are 8 bytes and aligned: the spacing is a multiple of 8 up to \
                 {MAX_COUNTER_SPACING_BYTES}, not {}",
                self.counter_spacing_bytes
            );
        }
        let counters = self
            .counter_spacing_bytes
            .saturating_mul(self.atomic_counters);
        if self.slot_bytes_per_thread().max(counters) > MAX_WINDOW_BYTES_PER_THREAD {
            bail!(
                "{} need more than {} MiB; lower one",
                if counters > MAX_WINDOW_BYTES_PER_THREAD {
                    format!(
                        "{} counters {} bytes apart",
                        self.atomic_counters, self.counter_spacing_bytes
                    )
                } else {
                    format!(
                        "{} queue pairs with a window of {window} payloads of {} bytes",
                        self.queue_pairs_per_thread, self.payload_bytes
                    )
                },
                MAX_WINDOW_BYTES_PER_THREAD >> 20
            );
        }
        Ok(())
    }

    /// Returns true if a requester's counters are used by no other queue pair.
    pub(super) fn has_own_counters(&self) -> bool {
        self.queue_pairs_per_thread == 1 && self.threads == 1
    }

    /// Returns the distance of two payload slots, in bytes.
    pub(super) fn slot_stride_bytes(&self) -> usize {
        self.payload_bytes.next_multiple_of(8)
    }

    /// Returns the payload slots of a thread: a window for each queue pair.
    pub(super) fn slots_per_thread(&self) -> usize {
        self.window * self.queue_pairs_per_thread
    }

    /// Returns the bytes of all payload slots of a thread.
    pub(super) fn slot_bytes_per_thread(&self) -> usize {
        self.slot_stride_bytes()
            .saturating_mul(self.slots_per_thread())
    }

    /// Returns the inline payload bytes of a WR.
    pub(super) fn inline_bytes(&self) -> usize {
        if self.inline { self.payload_bytes } else { 0 }
    }

    /// Returns the postlists that a queue pair gets in one turn, between two polls of its CQ. A
    /// single queue pair gets as many as one completion makes room for; several queue pairs get one
    /// each.
    #[inline]
    pub(super) fn postlists_per_turn(&self) -> usize {
        if self.queue_pairs_per_thread == 1
            && self.signal_every.is_multiple_of(self.wrs_per_doorbell)
        {
            self.signal_every / self.wrs_per_doorbell
        } else {
            1
        }
    }

    /// Returns the WRs of a queue pair's turn.
    #[inline]
    pub(super) fn wrs_per_turn(&self) -> u64 {
        (self.wrs_per_doorbell * self.postlists_per_turn()) as u64
    }

    /// Returns the minimum number of messages on each queue pair.
    pub(super) fn min_messages_per_qp(&self) -> u64 {
        2 * self.window as u64
    }

    /// Returns the number of a queue pair's WRs that must be done before its next turn, when
    /// `posted` WRs are posted.
    #[inline]
    pub(super) fn completions_needed_before_turn(&self, posted: u64) -> u64 {
        if self.waits_between_windows && posted.is_multiple_of(self.window as u64) {
            posted
        } else {
            (posted + self.wrs_per_turn()).saturating_sub(self.window as u64)
        }
    }

    /// Returns true if the next turn of each queue pair, after `posted` WRs, can be its last.
    #[inline]
    pub(super) fn can_next_turn_be_last(&self, posted: u64) -> bool {
        let posted = posted + self.wrs_per_turn();
        // The last WR must be signaled, so that every WR completes. The last burst must be whole.
        let whole = if self.waits_between_windows {
            self.window
        } else {
            self.signal_every
        };
        posted >= self.min_messages_per_qp() && posted.is_multiple_of(whole as u64)
    }
}

fn largest_divisor(of: usize, at_most: usize) -> usize {
    (1..=at_most)
        .rev()
        .find(|d| of.is_multiple_of(*d))
        .unwrap_or(1)
}

pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    (a / gcd(a, b).max(1)).saturating_mul(b).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(payload_bytes: usize) -> MicroParameters {
        MicroParameters {
            payload_bytes: Some(payload_bytes),
            ..MicroParameters::default()
        }
    }

    #[test]
    fn defaults_fit_the_payload() {
        let of = |payload| {
            let s = VerbStream::new(Verb::RcSend, &of(payload), 1).unwrap();
            (s.window, s.wrs_per_doorbell, s.signal_every, s.inline)
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
        let parameters = MicroParameters {
            wrs_per_doorbell: Some(300),
            signal_every: Some(200),
            ..MicroParameters::default()
        };
        let s = VerbStream::new(Verb::RcWrite, &parameters, 1).unwrap();
        assert_eq!(
            (s.window, s.wrs_per_doorbell, s.signal_every),
            (1200, 300, 200)
        );
    }

    #[test]
    fn contradictions_are_refused_with_what_to_change() {
        let refused = |verb, parameters: MicroParameters| {
            VerbStream::new(verb, &parameters, 1)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(Verb::RcWrite, of(0)).contains("8 or more"));
        assert!(refused(Verb::RcSend, of(7)).contains("header-only"));
        assert!(refused(Verb::Atomics, of(16)).contains("8 bytes"));
        let window = |batch, window, signal_every| MicroParameters {
            wrs_per_doorbell: Some(batch),
            window: Some(window),
            signal_every: Some(signal_every),
            ..MicroParameters::default()
        };
        assert!(refused(Verb::RcSend, window(16, 40, 8)).contains("no multiple"));
        assert!(refused(Verb::RcSend, window(16, 16, 16)).contains("never has room"));
        assert!(refused(Verb::RcSend, window(1, 10_000, 1)).contains("at most 8192"));
        let inline = MicroParameters {
            inline: Some(true),
            ..MicroParameters::default()
        };
        assert!(refused(Verb::RcRead, inline).contains("inline"));
        let long = MicroParameters {
            payload_bytes: Some(MAX_PAYLOAD_BYTES),
            window: Some(64),
            ..MicroParameters::default()
        };
        assert!(refused(Verb::RcRead, long).contains("lower one"));
    }

    #[test]
    fn threads_processes_and_counters_fit_each_other() {
        let of = |verb, parameters: &MicroParameters| VerbStream::new(verb, parameters, 1);
        let plain = of(Verb::Atomics, &MicroParameters::default()).unwrap();
        assert_eq!(
            (
                plain.threads,
                plain.other_side_processes,
                plain.queue_pairs_per_thread
            ),
            (1, 1, 1)
        );
        assert_eq!((plain.atomic_counters, plain.counter_spacing_bytes), (1, 8));
        let processes = |threads, processes| MicroParameters {
            threads,
            other_side_processes: processes,
            ..MicroParameters::default()
        };
        for (threads, processes_given, want) in [
            (Some(4), None, (4, 4)),
            (None, Some(3), (3, 3)),
            (Some(4), Some(2), (4, 2)),
        ] {
            let stream = of(Verb::RcRead, &processes(threads, processes_given)).unwrap();
            assert_eq!((stream.threads, stream.other_side_processes), want);
        }
        let refused =
            |verb, parameters: MicroParameters| of(verb, &parameters).unwrap_err().to_string();
        assert!(refused(Verb::RcRead, processes(Some(1), Some(2))).contains("raise the threads"));
        assert!(refused(Verb::RcRead, processes(Some(0), None)).contains("1 to 256 threads"));
        let counters = |addresses, spacing| MicroParameters {
            atomic_counters: Some(addresses),
            counter_spacing_bytes: Some(spacing),
            ..MicroParameters::default()
        };
        assert!(refused(Verb::RcRead, counters(2, 8)).contains("no counters"));
        assert!(refused(Verb::Atomics, counters(2, 12)).contains("multiple of 8"));
        assert!(refused(Verb::Atomics, counters(0, 8)).contains("addresses"));
        assert!(refused(Verb::Atomics, counters(1 << 20, 1 << 20)).contains("MiB"));
    }

    #[test]
    fn a_burst_waits_for_its_whole_window() {
        let parameters = MicroParameters {
            window: Some(8),
            wrs_per_doorbell: Some(2),
            signal_every: Some(8),
            queue_pairs_per_thread: Some(2),
            waits_between_windows: true,
            ..MicroParameters::default()
        };
        let burst = VerbStream::new(Verb::RcRead, &parameters, 1).unwrap();
        let waits: Vec<_> = (0..10)
            .map(|list| burst.completions_needed_before_turn(2 * list))
            .collect();
        assert_eq!(waits, [0, 0, 0, 0, 8, 4, 6, 8, 16, 12]);
        let flows = VerbStream {
            waits_between_windows: false,
            ..burst
        };
        assert_eq!(
            (
                flows.completions_needed_before_turn(8),
                flows.completions_needed_before_turn(6)
            ),
            (2, 0)
        );
    }
}
