//! The RECVs of a queue pair.

use crate::line::Line;

/// A posted RECV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recv {
    pub(crate) wr_id: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

/// The RECVs of a queue pair. Programs number them in order and place their buffers side by side: such ones are one
/// entry, so that thousands of queue pairs with hundreds of RECVs each do not need memory for all of them.
#[derive(Debug, Default)]
pub(crate) struct Recvs {
    pub(crate) runs: Line<Run>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    first: Recv,
    /// What follows.
    next: Recv,
    /// From each address to the next; of one alone none.
    stride: u64,
    count: u64,
}

impl Recv {
    /// The one behind it.
    #[inline(always)]
    fn following(self, stride: u64) -> Self {
        Self {
            wr_id: self.wr_id.wrapping_add(1),
            addr: self.addr.wrapping_add(stride),
            ..self
        }
    }
}

impl Run {
    /// Takes a RECV that follows, if it is one.
    #[inline(always)]
    fn join(&mut self, recv: Recv) -> bool {
        if self.count == 1 {
            self.stride = recv.addr.wrapping_sub(self.first.addr);
            self.next = self.first.following(self.stride);
        }
        let joins = self.next == recv;
        if joins {
            self.next = recv.following(self.stride);
            self.count += 1;
        }
        joins
    }
}

/// RECVs that are posted together.
pub(crate) trait RecvList<E> {
    /// The next one, or why it is none.
    fn next(&mut self) -> Option<Result<Recv, E>>;
    /// Goes on behind the next one, if it is this.
    fn skip(&mut self, recv: &Recv) -> bool;
}

impl Recvs {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds RECVs up to the first that is refused, which is one behind `most` of them if none is before it; says why.
    #[inline(always)]
    pub(crate) fn extend<E>(
        &mut self,
        mut recvs: impl RecvList<E>,
        most: usize,
        full: E,
    ) -> Result<(), E> {
        loop {
            // Mostly all go on with the last run.
            if let Some(run) = self.runs.back_mut()
                && run.count > 1
            {
                let (mut next, room) = (run.next, most.saturating_sub(self.len));
                let mut more = 0;
                while more < room && recvs.skip(&next) {
                    next = next.following(run.stride);
                    more += 1;
                }
                run.next = next;
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
            if !self.runs.back_mut().is_some_and(|run| run.join(recv)) {
                self.runs.push(Run {
                    first: recv,
                    next: recv,
                    stride: 0,
                    count: 1,
                });
            }
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Recv> {
        let run = self.runs.front_mut()?;
        let recv = run.first;
        self.len -= 1;
        if run.count == 1 {
            self.runs.pop();
        } else {
            run.first = recv.following(run.stride);
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

    struct List(VecDeque<Recv>);

    impl RecvList<()> for List {
        fn next(&mut self) -> Option<Result<Recv, ()>> {
            self.0.pop_front().map(Ok)
        }

        fn skip(&mut self, recv: &Recv) -> bool {
            self.0.pop_front_if(|first| first == recv).is_some()
        }
    }

    proptest! {
        /// Runs or not, RECVs come out as they went in.
        #[test]
        fn recvs_are_a_queue(steps in prop::collection::vec(prop::option::weighted(0.6, (0u64..3, 0u64..3, 0u32..2)), 0..200)) {
            let (mut recvs, mut model) = (Recvs::default(), VecDeque::new());
            let (mut wr_id, mut addr) = (u64::MAX - 20, 1000);
            let (mut posted, most) = (VecDeque::new(), 20);
            for step in steps {
                if let Some((id, distance, len)) = step {
                    (wr_id, addr) = (wr_id.wrapping_add(id), addr + 64 * distance);
                    let recv = Recv { wr_id, addr, len, lkey: 1 };
                    posted.push_back(recv);
                    continue;
                }
                // Together, as many as there is room for.
                let room = most - model.len();
                let expected = if posted.len() > room { Err(()) } else { Ok(()) };
                model.extend(posted.iter().take(room));
                prop_assert_eq!(recvs.extend(List(std::mem::take(&mut posted)), most, ()), expected);
                prop_assert_eq!(recvs.len(), model.len());
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
