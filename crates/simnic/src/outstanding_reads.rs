//! The READs of a queue pair, and the NIC's cache of their WQEs.

/// The position of a READ among the READs of its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSequence(u64);

/// The READs of a queue pair. New READs evict the WQEs of the oldest READs that the NIC has cached for their responses.
/// Queue pairs with outstanding READs share the cache equally.
#[derive(Debug, Default)]
pub(crate) struct OutstandingReads {
    sent_count: u64,
    outstanding_count: u64,
}

impl OutstandingReads {
    /// Records a new READ. `reading` is the number of queue pairs with outstanding READs on the NIC.
    #[inline]
    pub(crate) fn record_read(&mut self, reading: &mut usize) -> ReadSequence {
        *reading += usize::from(self.outstanding_count == 0);
        self.outstanding_count += 1;
        self.sent_count += 1;
        ReadSequence(self.sent_count)
    }

    /// Records the response to a READ; returns true if its WQE is still in a cache of `capacity` WQEs.
    pub(crate) fn record_response_and_was_cached(
        &mut self,
        slot: ReadSequence,
        reading: &mut usize,
        capacity: usize,
    ) -> bool {
        let share = capacity / (*reading).max(1);
        if self.outstanding_count > 0 {
            self.outstanding_count -= 1;
            *reading -= usize::from(self.outstanding_count == 0);
        }
        self.sent_count.saturating_sub(slot.0) < share.max(1) as u64
    }

    /// Records that outstanding READs will get no response.
    pub(crate) fn forget_all(&mut self, reading: &mut usize) {
        if self.outstanding_count > 0 {
            self.outstanding_count = 0;
            *reading -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_reads_push_out_older_ones_of_their_queue_pair_in_its_share_of_the_cache() {
        let (mut one, mut other, mut reading) =
            (OutstandingReads::default(), OutstandingReads::default(), 0);
        let [a, b, c] = [(); 3].map(|()| one.record_read(&mut reading));
        assert!(
            !one.record_response_and_was_cached(a, &mut reading, 2)
                && one.record_response_and_was_cached(b, &mut reading, 2)
        );
        // With a second queue pair that READs, each has one entry of the cache.
        let d = other.record_read(&mut reading);
        let e = one.record_read(&mut reading);
        assert_eq!(reading, 2);
        assert!(
            !one.record_response_and_was_cached(c, &mut reading, 2)
                && one.record_response_and_was_cached(e, &mut reading, 2)
        );
        assert_eq!(reading, 1);
        other.forget_all(&mut reading);
        assert_eq!(reading, 0);
        assert!(other.record_response_and_was_cached(d, &mut reading, 2));
        assert_eq!(reading, 0);
    }
}
