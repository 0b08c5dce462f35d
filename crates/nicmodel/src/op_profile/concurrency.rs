//! Queue pairs, threads, outstanding operations and locks that a program used at a time.

use std::collections::BTreeMap;

use super::{
    OperationProfile, QueuePair, TimeSpan, count_to_f64, round_to_u32_at_least_1, saturating_sum,
};

impl OperationProfile {
    /// Effective number of queue pairs in use at a time: equally busy queue pairs with the load of the busiest would
    /// do the same work. At least 1.
    pub fn effective_queue_pairs(&self) -> u32 {
        let mut busy = BusyQueuePairs::default();
        for (begins, qp) in self.queue_pair_starts_and_ends() {
            busy.begin_or_end_use(qp.posted_operations(), begins);
        }
        busy.max_effective_count
    }

    /// Effective number of receiving queue pairs: equally busy queue pairs with the load of the busiest would receive
    /// as much. At least 1.
    pub(super) fn effective_receiving_qps(&self) -> u32 {
        let each = self.queue_pairs.iter();
        let each = each.map(|qp| saturating_sum(qp.received.iter().map(|counted| counted.count)));
        let busiest = each.clone().max().unwrap_or(0).max(1);
        round_to_u32_at_least_1(count_to_f64(saturating_sum(each)) / count_to_f64(busiest)).max(1)
    }

    /// Most queue pairs that were in use at a time.
    pub fn max_concurrent_queue_pairs(&self) -> u32 {
        max_overlapping(self.posting_queue_pairs().map(|qp| qp.post_time_span))
    }

    /// Starts (`true`) and ends (`false`) of the use of queue pairs, in order of time.
    fn queue_pair_starts_and_ends(&self) -> Vec<(bool, &QueuePair)> {
        starts_and_ends(self.posting_queue_pairs().map(|qp| (qp.post_time_span, qp)))
    }

    /// Returns true if no queue pair ever had a second operation outstanding, so that round trips determine the rate.
    pub fn waits_after_each_operation(&self) -> bool {
        let mut active = self.posting_queue_pairs().peekable();
        active.peek().is_some() && active.all(|qp| qp.max_outstanding == 1)
    }

    /// Most operations outstanding at a time on all queue pairs. `None` if nothing was posted, or if outstanding
    /// operations were not counted.
    pub fn max_outstanding(&self) -> Option<f64> {
        let counted = self.posting_queue_pairs().all(|qp| qp.max_outstanding > 0);
        let all = saturating_sum(
            self.posting_queue_pairs()
                .map(|qp| u64::from(qp.max_outstanding)),
        );
        // The queue pairs may have been in use one after the other.
        let at_a_time = f64::from(self.max_concurrent_queue_pairs());
        let share = at_a_time / count_to_f64(self.posting_queue_pairs().count() as u64);
        (counted && all > 0).then(|| (count_to_f64(all) * share).max(1.0))
    }

    /// Threads that posted to send queues at a time; at least 1. If nothing was posted, threads that received.
    pub fn max_concurrent_posters(&self) -> u32 {
        let only_receives = self.posted_operations() == 0;
        let working = self.threads.iter().filter(|thread| {
            thread.posts > 0 || only_receives && (thread.recv_posts > 0 || thread.completions > 0)
        });
        max_overlapping(working.map(|thread| thread.post_time_span)).max(1)
    }

    /// Effective number of locks of the atomics of all queue pairs: equally busy locks with the load of the busiest
    /// would serve the same atomics. `None` without atomics.
    pub fn effective_atomic_locks(&self) -> Option<u32> {
        let mut count_by_slot = BTreeMap::<u32, u64>::new();
        for slot in self
            .queue_pairs
            .iter()
            .flat_map(|qp| &qp.atomics_by_low_address_bits)
        {
            let count = count_by_slot.entry(slot.low_address_bits).or_default();
            *count = count.saturating_add(slot.count);
        }
        let busiest = *count_by_slot
            .values()
            .max()
            .filter(|busiest| **busiest > 0)?;
        let all = saturating_sum(count_by_slot.into_values());
        Some(round_to_u32_at_least_1(
            count_to_f64(all) / count_to_f64(busiest),
        ))
    }
}

/// Returns the starts (`true`) and ends (`false`) of spans in order of time. An unknown span lasts the whole time.
fn starts_and_ends<T: Copy>(all: impl Iterator<Item = (Option<TimeSpan>, T)>) -> Vec<(bool, T)> {
    let mut turns: Vec<_> = all
        .flat_map(|(span, one)| {
            let (first, last) = span.map_or((0, u64::MAX), |span| (span.first_ns, span.last_ns));
            // At equal times a start precedes an end, and no span ends before its start.
            [(first, false, one), (last.max(first), true, one)]
        })
        .collect();
    turns.sort_by_key(|(at, ends, _)| (*at, *ends));
    let turns = turns.into_iter();
    turns.map(|(_, ends, one)| (!ends, one)).collect()
}

/// Returns the most spans that overlap at a time.
fn max_overlapping(spans: impl Iterator<Item = Option<TimeSpan>>) -> u32 {
    let (mut now, mut most) = (0u32, 0);
    for (begins, ()) in starts_and_ends(spans.map(|span| (span, ()))) {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

/// The queue pairs in use at a time, by their number of operations.
struct BusyQueuePairs {
    queue_pair_count_by_operations: BTreeMap<u64, u64>,
    total_operations: u64,
    max_effective_count: u32,
}

impl Default for BusyQueuePairs {
    fn default() -> Self {
        Self {
            queue_pair_count_by_operations: BTreeMap::new(),
            total_operations: 0,
            max_effective_count: 1,
        }
    }
}

impl BusyQueuePairs {
    fn begin_or_end_use(&mut self, work: u64, begins: bool) {
        let count = self.queue_pair_count_by_operations.entry(work).or_default();
        if begins {
            *count += 1;
            self.total_operations = self.total_operations.saturating_add(work);
            let busiest = self
                .queue_pair_count_by_operations
                .last_key_value()
                .map_or(1, |(work, _)| *work);
            let even = round_to_u32_at_least_1(
                count_to_f64(self.total_operations) / count_to_f64(busiest.max(1)),
            );
            self.max_effective_count = self.max_effective_count.max(even);
        } else {
            *count -= 1;
            if *count == 0 {
                self.queue_pair_count_by_operations.remove(&work);
            }
            self.total_operations = self.total_operations.saturating_sub(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sends;
    use super::super::{AtomicSlotCount, Thread};
    use super::*;
    use crate::profile::builtin_profile;
    use crate::verb::Transport;

    #[test]
    fn what_comes_one_after_the_other_is_not_there_together() {
        let cib = builtin_profile("cib").expect("built in");
        let span = |first_ns, last_ns| Some(TimeSpan { first_ns, last_ns });
        let of = |spans: &[Option<TimeSpan>]| {
            let mut profile = sends(60, 1600, 100);
            let qp = profile.queue_pairs[0].clone();
            profile.queue_pairs = spans
                .iter()
                .map(|posted| QueuePair {
                    post_time_span: *posted,
                    ..qp.clone()
                })
                .collect();
            profile.threads = spans
                .iter()
                .map(|posted| Thread {
                    posts: 1,
                    post_time_span: *posted,
                    ..Thread::default()
                })
                .collect();
            profile
        };
        let count = |profile: &OperationProfile| {
            (
                profile.effective_queue_pairs(),
                profile.max_concurrent_queue_pairs(),
                profile.max_concurrent_posters(),
            )
        };
        let one = of(&[span(0, 10)]);
        let rounds = of(&[span(0, 10), span(11, 20), span(21, 30)]);
        assert_eq!((count(&one), count(&rounds)), ((1, 1, 1), (1, 1, 1)));
        let rate = |profile: &OperationProfile| {
            let predicted = profile.predict(cib).expect("possible");
            predicted.expect("sent").rate_mops
        };
        assert!((rate(&one) - rate(&rounds)).abs() < 1e-9);
        assert_eq!(
            count(&of(&[span(0, 10), span(10, 20), span(15, 30)])),
            (2, 2, 2)
        );
        assert_eq!(count(&of(&[None, span(0, 10), span(20, 30)])), (2, 2, 2));
        assert_eq!(count(&of(&[None, None, None])), (3, 3, 3));
        // A queue pair with few operations beside one with many.
        let mut uneven = of(&[span(0, 10), span(0, 10), span(11, 20)]);
        uneven.queue_pairs[1].sent[0].count = 1;
        assert_eq!(count(&uneven), (1, 2, 2));
    }

    #[test]
    fn uneven_locks_count_as_fewer() {
        let slot = |slot, count| AtomicSlotCount {
            low_address_bits: slot,
            count,
        };
        let mut profile = OperationProfile::default();
        assert_eq!(profile.effective_atomic_locks(), None);
        let mut qp = QueuePair::new(1, Transport::Rc);
        qp.atomics_by_low_address_bits = vec![slot(0, 50), slot(8, 25), slot(16, 25)];
        profile.queue_pairs.push(qp);
        assert_eq!(profile.effective_atomic_locks(), Some(2));
    }
}
