//! The READs of a queue pair, and the cache in which a NIC keeps their WQEs.

/// The place of a READ's WQE among those of its queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSlot(u64);

/// A queue pair's READs: new ones push out the WQEs of the oldest that the NIC has kept for their answers. Queue pairs that
/// READ share its cache alike.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    sent: u64,
    outstanding: u64,
}

impl Reads {
    /// One more, of a NIC on which so many queue pairs have READs outstanding.
    #[inline]
    pub(crate) fn begin(&mut self, reading: &mut usize) -> CacheSlot {
        *reading += usize::from(self.outstanding == 0);
        self.outstanding += 1;
        self.sent += 1;
        CacheSlot(self.sent)
    }

    /// The answer of one has come: whether its WQE is still in a cache of so many.
    pub(crate) fn end(&mut self, slot: CacheSlot, reading: &mut usize, capacity: usize) -> bool {
        let share = capacity / (*reading).max(1);
        if self.outstanding > 0 {
            self.outstanding -= 1;
            *reading -= usize::from(self.outstanding == 0);
        }
        self.sent.saturating_sub(slot.0) < share.max(1) as u64
    }

    /// Nothing that is outstanding will have an answer.
    pub(crate) fn forget(&mut self, reading: &mut usize) {
        if self.outstanding > 0 {
            self.outstanding = 0;
            *reading -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_reads_push_out_older_ones_of_their_queue_pair_in_its_share_of_the_cache() {
        let (mut one, mut other, mut reading) = (Reads::default(), Reads::default(), 0);
        let [a, b, c] = [(); 3].map(|()| one.begin(&mut reading));
        assert!(!one.end(a, &mut reading, 2) && one.end(b, &mut reading, 2));
        // With another one that READs, one place is left to each.
        let d = other.begin(&mut reading);
        let e = one.begin(&mut reading);
        assert_eq!(reading, 2);
        assert!(!one.end(c, &mut reading, 2) && one.end(e, &mut reading, 2));
        assert_eq!(reading, 1);
        other.forget(&mut reading);
        assert_eq!(reading, 0);
        assert!(other.end(d, &mut reading, 2));
        assert_eq!(reading, 0);
    }
}
