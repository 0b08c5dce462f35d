//! Tag matching: `ibv_post_srq_ops(3)`.

use std::ffi::c_int;

use nic_core::tag_matching::ListFull;
use verbs_abi::*;

use super::edge::InOut;
use crate::cq::Cq;
use crate::live_handles;
use crate::recv::RecvQueue;
use crate::srq::Srq;

pub(super) fn post_srq_ops(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_ops_wr,
    bad_wr: InOut<'_, *mut ibv_ops_wr>,
) -> Result<(), c_int> {
    let srq = live_handles::find_object::<Srq>(srq).ok_or(libc::EINVAL);
    let result = srq.and_then(|srq| {
        let cq = srq.tag_ops_cq.as_ref().ok_or(libc::EINVAL)?;
        execute_tag_ops(cq, &srq, &mut wr)
    });
    if let Ok(place) = bad_wr.get()
        && result.is_err()
    {
        *place = wr;
    }
    result
}

/// Executes the operations of a list. After an error, `wr` is the one that was refused. The CQ is not polled meanwhile,
/// so a message that an entry matches completes behind the entry's addition.
#[allow(unsafe_code)]
fn execute_tag_ops(cq: &Cq, srq: &Srq, wr: &mut *mut ibv_ops_wr) -> Result<(), c_int> {
    let mut result = Ok(());
    cq.add_completions_to_buffer(|completions, _| {
        let mut queue = srq.recv_queue.lock();
        // SAFETY: NULL or the next of the program's work requests: `ibv_post_srq_ops(3)` for the first, `next` below.
        while let Some(this) = unsafe { wr.as_mut() } {
            match execute_tag_op(&mut queue, this) {
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

/// Executes one operation. Returns its completion, if there is to be one.
#[allow(unsafe_code)]
fn execute_tag_op(queue: &mut RecvQueue, wr: &mut ibv_ops_wr) -> Result<Option<ibv_wc>, c_int> {
    const KNOWN_OP_FLAGS: u32 = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC;
    let max_sge = queue.max_sge();
    let list = queue.tag_list_mut().ok_or(libc::EINVAL)?;
    let flags = wr.flags.cast_unsigned();
    if flags & !KNOWN_OP_FLAGS != 0 {
        return Err(libc::EINVAL);
    }
    if flags & IBV_OPS_TM_SYNC != 0 || wr.opcode == IBV_WR_TAG_SYNC {
        list.set_handled_messages(wr.tm.unexpected_cnt);
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
            // SAFETY: `sg_list` is not NULL unless `n` is 0 (above), and `i` is below `n`, the number of its entries
            // (`ibv_post_srq_ops(3)`); read without regard to alignment.
            let sges: Vec<ibv_sge> = (0..n)
                .map(|i| unsafe { add.sg_list.add(i).read_unaligned() })
                .collect();
            wr.tm.handle = list
                .add_entry(add.recv_wr_id, (add.tag, add.mask), sges.into())
                .map_err(|_: ListFull| libc::ENOMEM)?;
            wc.opcode = IBV_WC_TM_ADD;
        }
        IBV_WR_TAG_DEL => {
            wc.opcode = IBV_WC_TM_DEL;
            if !list.remove_by_handle(wr.tm.handle) {
                // A message has taken the entry in the meantime.
                wc.status = IBV_WC_TM_ERR;
            }
        }
        IBV_WR_TAG_SYNC => wc.opcode = IBV_WC_TM_SYNC,
        _ => return Err(libc::EINVAL),
    }
    if !list.is_synchronised() {
        wc.wc_flags = IBV_WC_TM_SYNC_REQ;
    }
    let wanted = flags & IBV_OPS_SIGNALED != 0 || wc.status != IBV_WC_SUCCESS;
    Ok(wanted.then_some(wc))
}
