//! Choice of the WRs that are signaled.

use verbs::{Postlist, Transport};

/// Marks one WR in `every`, counted through the postlists of a queue pair.
pub(super) struct SelectiveSignaling {
    wrs_per_signal: usize,
    postlist_len: usize,
    /// Index of the next signaled WR, counted from the first WR of the next postlist.
    next_signaled_index: usize,
}

impl SelectiveSignaling {
    pub(super) fn new(batch: usize, every: usize) -> SelectiveSignaling {
        SelectiveSignaling {
            wrs_per_signal: every,
            postlist_len: batch,
            next_signaled_index: every - 1,
        }
    }

    /// Returns true if every postlist has its signaled WRs at the same indexes.
    pub(super) fn has_fixed_indexes(&self) -> bool {
        self.postlist_len.is_multiple_of(self.wrs_per_signal)
    }

    /// Marks the signaled WRs of the next postlist.
    #[inline]
    pub(super) fn mark_signaled_wrs<T: Transport>(&mut self, list: &mut Postlist<T>) {
        self.for_each_signaled(|place| list.set_signaled(place, true));
    }

    #[inline]
    fn for_each_signaled(&mut self, mut mark: impl FnMut(usize)) {
        let mut place = self.next_signaled_index;
        while place < self.postlist_len {
            mark(place);
            place += self.wrs_per_signal;
        }
        self.next_signaled_index = place - self.postlist_len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_is_signaled() {
        for (batch, every) in [(1, 1), (1, 4), (2, 8), (16, 16), (3, 2), (5, 7), (16, 1)] {
            let mut signals = SelectiveSignaling::new(batch, every);
            let mut marked = Vec::new();
            for list in 0..20 {
                signals.for_each_signaled(|place| marked.push(list * batch + place));
            }
            let want: Vec<_> = (every - 1..20 * batch).step_by(every).collect();
            assert_eq!(marked, want, "{batch} {every}");
        }
    }
}
