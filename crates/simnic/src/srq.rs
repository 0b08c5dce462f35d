//! A shared receive queue.

use crate::qp::Qp;
use crate::recvs::{PostedRecv, PostedRecvs, RecvList};
use crate::world::Simulation;

/// A receive queue from which several queue pairs take RECVs.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) recvs: PostedRecvs,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Number of queue pairs that use the queue.
    pub(crate) qp_count: u32,
}

/// Takes the RECV for a message to a queue pair: from its own receive queue, or from its shared one.
#[inline(always)]
pub(crate) fn pop_recv(target: &mut Qp, srqs: &mut [Option<Srq>]) -> Option<PostedRecv> {
    match target.recvs.pop() {
        None => pop_shared_recv(target.srq?, srqs),
        own => own,
    }
}

#[inline(never)]
fn pop_shared_recv(srq: u32, srqs: &mut [Option<Srq>]) -> Option<PostedRecv> {
    srqs.get_mut(srq as usize)?.as_mut()?.recvs.pop()
}

impl Simulation {
    /// Posts the RECVs of the list to a shared receive queue, up to the first that is refused. Fails with the errno of
    /// the refusal.
    pub(crate) fn post_shared_recvs(
        &mut self,
        index: u32,
        recvs: impl RecvList<i32>,
    ) -> Result<(), i32> {
        let Some(Some(srq)) = self.srqs.get_mut(index as usize) else {
            return Err(libc::EINVAL);
        };
        let before = srq.recvs.len();
        let result = srq.recvs.extend(recvs, srq.max_wr as usize, libc::ENOMEM);
        let posted = (srq.recvs.len() - before) as u64;
        self.advance_clock(self.current_place_costs().post_recv * posted);
        self.apply_due_writes();
        result
    }
}
