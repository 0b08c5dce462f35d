//! Choice of the WRs that are signaled.

use verbs::{Postlist, Transport};

/// Marks one WR in `every`, counted through the postlists of a queue pair.
pub(super) struct SelectiveSignaling {
    every: usize,
    batch: usize,
    /// Index of the next signaled WR, counted from the first WR of the next postlist.
    next: usize,
}

impl SelectiveSignaling {
    pub(super) fn new(batch: usize, every: usize) -> SelectiveSignaling {
        SelectiveSignaling {
            every,
            batch,
            next: every - 1,
        }
    }

    /// Returns true if every postlist has its signaled WRs at the same indexes.
    pub(super) fn are_fixed(&self) -> bool {
        self.batch.is_multiple_of(self.every)
    }

    /// Marks the signaled WRs of the next postlist.
    #[inline]
    pub(super) fn mark<T: Transport>(&mut self, list: &mut Postlist<T>) {
        self.for_each_signaled(|place| list.set_signaled(place, true));
    }

    #[inline]
    fn for_each_signaled(&mut self, mut mark: impl FnMut(usize)) {
        let mut place = self.next;
        while place < self.batch {
            mark(place);
            place += self.every;
        }
        self.next = place - self.batch;
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
