//! The use of a send queue by the receiver of a rendezvous message, without a work request.

use super::*;
use nic_core::tag_matching::RemotePayload;

/// READs the payload of a rendezvous message into `sges` of the protection domain `pd`, unless it `is_read`. Then sends
/// the message `fin` to the sender. Returns false if that is not possible yet. The SGEs have room for the payload.
///
/// # Errors
/// The status of a READ that fails.
#[cold]
pub(crate) fn read_rendezvous_payload_and_send_fin(
    qp: &Qp,
    (pd, sges): (u32, &[ibv_sge]),
    payload: RemotePayload,
    is_read: &mut bool,
    fin: &[u8],
) -> Result<bool, ibv_wc_status> {
    if qp.state() != QpState::Rts {
        return Ok(false);
    }
    let sq = &mut *qp.sq.lock();
    if !*is_read {
        let mut wr = ibv_send_wr::zeroed();
        wr.opcode = IBV_WR_RDMA_READ;
        wr.wr.rdma.remote_addr = payload.addr;
        wr.wr.rdma.rkey = payload.rkey;
        let mut left = payload.len;
        let sges: Vec<ibv_sge> = sges
            .iter()
            .map(|sge| {
                let length = sge.length.min(left);
                left -= length;
                ibv_sge { length, ..*sge }
            })
            .collect();
        let view = WrView {
            wr: &wr,
            sges: &sges,
            gathered_payload: None,
            ah: None,
            bind_request: None,
            is_followed_by_message: false,
        };
        match execute_read(qp, sq, &view, pd) {
            Ok(ExecutionResult::NotPossibleYet) => return Ok(false),
            // The sender's queue pair is not connected any more.
            Err(ExecutionResult::NotPossibleYet) => {
                why::note_cause(why_peer_is_silent(qp, sq));
                return Err(IBV_WC_RETRY_EXC_ERR);
            }
            Err(ExecutionResult::Failed(status)) => return Err(status),
            Ok(_) | Err(_) => *is_read = true,
        }
    }
    let Some(out) = &mut sq.peer_ring else {
        return Ok(false);
    };
    match out.ring_producer.has_room(fin.len()) {
        Ok(true) => {}
        Ok(false) => return Ok(false),
        Err(_) => return Err(IBV_WC_REM_OP_ERR),
    }
    let place = out.ring_producer.place_for_payload(fin.len());
    // SAFETY: the place has `fin.len()` bytes; no other process sees them yet.
    unsafe { std::ptr::copy_nonoverlapping(fin.as_ptr(), place.as_mut_ptr(), fin.len()) };
    #[allow(clippy::cast_possible_truncation)] // 16
    let len = fin.len() as u32;
    out.ring_producer.add_to_postlist(
        make_record_header(
            RecordKind::Send,
            FLAG_RECEIVER_SEND_COMPLETES_FIRST,
            0,
            len,
            0,
        ),
        fin.len(),
    );
    out.publish_postlist(qp.nic);
    Ok(true)
}
