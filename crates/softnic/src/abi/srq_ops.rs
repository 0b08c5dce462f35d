//! Tag matching: `ibv_post_srq_ops(3)`, and shared receive queues for it.

use std::ffi::c_int;

use verbs_abi::*;

use super::domain::borrow_pd;
use super::objects::new_srq;
use super::*;
use crate::cq::Cq;
use crate::device;
use crate::recv::RecvQueue;
use crate::srq::Srq;

/// `ibv_create_srq_ex` of a shared receive queue for tag matching.
///
/// # Safety
/// The handles in `attr` are ours, or NULL.
pub(super) unsafe fn create_srq(attr: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq, c_int> {
    const NEEDED: u32 = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
    let caps = attr.tm_cap;
    if attr.comp_mask & NEEDED != NEEDED
        || caps.max_num_tags == 0
        || caps.max_num_tags > device::MAX_TAGS
        || caps.max_ops > device::MAX_TAG_OPS
    {
        return Err(libc::EINVAL);
    }
    // SAFETY: contract of this function.
    let (pd, cq) = unsafe { (borrow_pd(attr.pd), share::<Cq, _>(attr.cq)) };
    let (pd, cq) = pd.zip(cq).ok_or(libc::EINVAL)?;
    new_srq(
        pd,
        attr.srq_context,
        attr.attr,
        None,
        Some((cq, caps.max_num_tags)),
    )
}

pub(super) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_ops_wr,
    bad_wr: *mut *mut ibv_ops_wr,
) -> c_int {
    // SAFETY: a handle of ours.
    let srq = unsafe { borrow::<Srq, _>(srq) };
    let result = match srq.and_then(|srq| srq.tags_cq.as_ref().zip(Some(srq))) {
        // SAFETY: contract of `ibv_post_srq_ops`.
        Some((cq, srq)) => unsafe { post(cq, srq, &mut wr) },
        None => Err(libc::EINVAL),
    };
    // SAFETY: NULL, or a place for the work request that was refused.
    if let Some(place) = unsafe { bad_wr.as_mut() }
        && result.is_err()
    {
        *place = wr;
    }
    or_errno(result)
}

/// Does the operations of a list; after an error, `wr` is the one that was refused. Nobody polls meanwhile: a message that an
/// entry matches completes behind its addition.
///
/// # Safety
/// A list of the program's work requests, which ends with NULL (`ibv_post_srq_ops(3)`).
unsafe fn post(cq: &Cq, srq: &Srq, wr: &mut *mut ibv_ops_wr) -> Result<(), c_int> {
    let mut result = Ok(());
    cq.deliver_all(|completions, _| {
        let mut queue = srq.queue.lock();
        // SAFETY: contract of this function.
        while let Some(this) = unsafe { wr.as_mut() } {
            // SAFETY: as above.
            match unsafe { apply(&mut queue, this) } {
                Ok(wc) => completions.extend(wc),
                Err(errno) => {
                    result = Err(errno);
                    return;
                }
            }
            *wr = this.next;
        }
    });
    result
}

/// Does one operation; its completion, if there is to be one.
///
/// # Safety
/// The SGEs of `wr` are there.
unsafe fn apply(queue: &mut RecvQueue, wr: &mut ibv_ops_wr) -> Result<Option<ibv_wc>, c_int> {
    const FLAGS: u32 = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
    let max_sge = queue.max_sge();
    let list = queue.tags_mut().ok_or(libc::EINVAL)?;
    let flags = wr.flags.cast_unsigned();
    if flags & !FLAGS != 0 {
        return Err(libc::EINVAL);
    }
    if flags & IBV_OPS_TM_SYNC != 0 || wr.opcode == IBV_WR_TAG_SYNC {
        list.synchronise(wr.tm.unexpected_cnt);
    }
    let mut wc = ibv_wc {
        wr_id: wr.wr_id,
        ..ibv_wc::zeroed()
    };
    match wr.opcode {
        IBV_WR_TAG_ADD => {
            let add = wr.tm.add;
            let n = usize::try_from(add.num_sge).map_err(|_| libc::EINVAL)?;
            if n > max_sge || (n > 0 && add.sg_list.is_null()) {
                return Err(libc::EINVAL);
            }
            // SAFETY: as many SGEs of the program's (contract), which may lie anywhere.
            let sges: Vec<ibv_sge> = (0..n)
                .map(|i| unsafe { add.sg_list.add(i).read_unaligned() })
                .collect();
            wr.tm.handle = list.add(&add, &sges)?;
            wc.opcode = IBV_WC_TM_ADD;
        }
        IBV_WR_TAG_DEL => {
            wc.opcode = IBV_WC_TM_DEL;
            if !list.remove(wr.tm.handle) {
                // A message has taken it in the meantime.
                wc.status = IBV_WC_TM_ERR;
            }
        }
        IBV_WR_TAG_SYNC => wc.opcode = IBV_WC_TM_SYNC,
        _ => return Err(libc::EINVAL),
    }
    if !list.agrees() {
        wc.wc_flags = IBV_WC_TM_SYNC_REQ;
    }
    let wanted = flags & IBV_OPS_SIGNALED != 0 || wc.status != IBV_WC_SUCCESS;
    Ok(wanted.then_some(wc))
}
