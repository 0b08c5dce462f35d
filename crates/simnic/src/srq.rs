//! A shared receive queue.

use crate::posted_recvs::{PostedRecv, PostedRecvs};
use crate::qp::Qp;

/// A receive queue from which several queue pairs take RECVs.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) posted_recvs: PostedRecvs,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Number of queue pairs that use the queue.
    pub(crate) attached_qp_count: u32,
}

/// Takes the RECV for a message to a queue pair: from its own receive queue, or from its shared one.
#[inline(always)]
pub(crate) fn pop_recv(target: &mut Qp, srqs: &mut [Option<Srq>]) -> Option<PostedRecv> {
    match target.posted_recvs.pop() {
        None => pop_shared_recv(target.srq?, srqs),
        own => own,
    }
}

#[inline(never)]
fn pop_shared_recv(srq: u32, srqs: &mut [Option<Srq>]) -> Option<PostedRecv> {
    srqs.get_mut(srq as usize)?.as_mut()?.posted_recvs.pop()
}
