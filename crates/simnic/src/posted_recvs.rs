//! The RECVs of a queue pair.

use crate::fifo_queue::FifoQueue;

/// A posted RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedRecv {
    pub(crate) wr_id: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// The RECVs of a queue pair. Programs number RECVs consecutively and use adjacent buffers. Such RECVs share one entry,
/// so that thousands of queue pairs with hundreds of RECVs need little memory.
#[derive(Debug, Default)]
pub(crate) struct PostedRecvs {
    pub(crate) runs: FifoQueue<RecvRun>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRun {
    first: PostedRecv,
    /// The RECV that would continue the run.
    expected_next_recv: PostedRecv,
    /// Distance between the addresses; unused in a run of one RECV.
    addr_stride: u64,
    count: u64,
}

impl PostedRecv {
    /// Returns the RECV that would follow this one.
    #[inline(always)]
    fn following_in_run(self, stride: u64) -> Self {
        Self {
            wr_id: self.wr_id.wrapping_add(1),
            addr: self.addr.wrapping_add(stride),
            ..self
        }
    }
}

impl RecvRun {
    /// Adds a RECV to the run if it continues the run; returns true if it does.
    #[inline(always)]
    fn extend_if_continued_by(&mut self, recv: PostedRecv) -> bool {
        if self.count == 1 {
            self.addr_stride = recv.addr.wrapping_sub(self.first.addr);
            self.expected_next_recv = self.first.following_in_run(self.addr_stride);
        }
        let joins = self.expected_next_recv == recv;
        if joins {
            self.expected_next_recv = recv.following_in_run(self.addr_stride);
            self.count += 1;
        }
        joins
    }
}

/// A list of RECVs that are posted together.
pub(crate) trait RecvList<E> {
    /// Takes the next RECV of the list; `Err` is the reason why the RECV is malformed. Returns `None` at the end.
    fn next(&mut self) -> Option<Result<PostedRecv, E>>;
    /// Takes the next RECV and returns true, if it equals `recv`.
    fn take_if_equal(&mut self, recv: &PostedRecv) -> bool;
}

impl PostedRecvs {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds the RECVs of the list, up to the first that is refused or for which the queue has no room. Fails with the
    /// reason.
    #[inline(always)]
    pub(crate) fn extend<E>(
        &mut self,
        mut recvs: impl RecvList<E>,
        most: usize,
        full: E,
    ) -> Result<(), E> {
        loop {
            // Usually all RECVs continue the last run.
            if let Some(run) = self.runs.back_mut()
                && run.count > 1
            {
                let (mut next, room) = (run.expected_next_recv, most.saturating_sub(self.len));
                let mut more = 0;
                while more < room && recvs.take_if_equal(&next) {
                    next = next.following_in_run(run.addr_stride);
                    more += 1;
                }
                run.expected_next_recv = next;
                run.count += more as u64;
                self.len += more;
            }
            let Some(recv) = recvs.next() else {
                return Ok(());
            };
            if self.len >= most {
                return Err(full);
            }
            let recv = recv?;
            self.len += 1;
            if !self
                .runs
                .back_mut()
                .is_some_and(|run| run.extend_if_continued_by(recv))
            {
                self.runs.push(RecvRun {
                    first: recv,
                    expected_next_recv: recv,
                    addr_stride: 0,
                    count: 1,
                });
            }
        }
    }

    /// Returns the RECV that the next message takes.
    pub(crate) fn front(&self) -> Option<&PostedRecv> {
        self.runs.front().map(|run| &run.first)
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<PostedRecv> {
        let run = self.runs.front_mut()?;
        let recv = run.first;
        self.len -= 1;
        if run.count == 1 {
            self.runs.pop();
        } else {
            run.first = recv.following_in_run(run.addr_stride);
            run.count -= 1;
        }
        Some(recv)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    struct List(VecDeque<PostedRecv>);

    impl RecvList<()> for List {
        fn next(&mut self) -> Option<Result<PostedRecv, ()>> {
            self.0.pop_front().map(Ok)
        }

        fn take_if_equal(&mut self, recv: &PostedRecv) -> bool {
            self.0.pop_front_if(|first| first == recv).is_some()
        }
    }

    proptest! {
        /// With or without runs, RECVs are popped in the order in which they were pushed.
        #[test]
        fn recvs_are_a_queue(steps in prop::collection::vec(prop::option::weighted(0.6, (0u64..3, 0u64..3, 0u32..2)), 0..200)) {
            let (mut recvs, mut model) = (PostedRecvs::default(), VecDeque::new());
            let (mut wr_id, mut addr) = (u64::MAX - 20, 1000);
            let (mut posted, most) = (VecDeque::new(), 20);
            for step in steps {
                if let Some((id, distance, len)) = step {
                    (wr_id, addr) = (wr_id.wrapping_add(id), addr + 64 * distance);
                    let recv = PostedRecv { wr_id, addr, len, lkey: 1 };
                    posted.push_back(recv);
                    continue;
                }
                // All are posted together, as many as there is room for.
                let room = most - model.len();
                let expected = if posted.len() > room { Err(()) } else { Ok(()) };
                model.extend(posted.iter().take(room));
                prop_assert_eq!(recvs.extend(List(std::mem::take(&mut posted)), most, ()), expected);
                prop_assert_eq!(recvs.len(), model.len());
                prop_assert_eq!(recvs.front(), model.front());
                prop_assert_eq!(recvs.pop(), model.pop_front());
                prop_assert_eq!(recvs.len(), model.len());
            }
            while let Some(recv) = model.pop_front() {
                prop_assert_eq!(recvs.pop(), Some(recv));
            }
            prop_assert_eq!(recvs.pop(), None);
        }
    }
}
