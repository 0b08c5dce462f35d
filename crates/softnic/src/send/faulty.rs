//! Work requests under a plan of faults.

use ::faults::{Peer, WorkFacts, operation_of_opcode};

use super::*;
use crate::faults;

/// Asks what is wrong with a work request.
#[cold]
pub(super) fn ask(qp: &Qp, view: &WrView<'_>) -> Option<WorkFault> {
    let peer_qpn = if qp.qp_type.is_connected() {
        qp.shared().dest_qpn.load(Ordering::Relaxed)
    } else if qp.qp_type == QpType::Ud {
        // SAFETY: the union's member for UD; a plain integer.
        unsafe { view.wr.wr.ud.remote_qpn }
    } else {
        0
    };
    let gid = match view.ah {
        Some(ah) => ah.gid,
        None => qp.peer_gid(),
    };
    let facts = WorkFacts {
        operation: operation_of_opcode(view.wr.opcode),
        queue_pair: qp.facts(),
        peer: Peer {
            address: gid.map(faults::address_of_gid),
            qpn: (peer_qpn != 0).then_some(peer_qpn),
        },
    };
    faults::work_request(&facts, view.wr.wr_id)
}

/// What a fault makes of a work request that has waited.
pub(super) enum Obeyed {
    /// It goes on waiting.
    Wait,
    /// It has ended so.
    Done(Outcome),
    /// It is executed now.
    Over,
}

/// What becomes of a work request with a fault when it has waited for `waited_ns`.
#[cold]
pub(super) fn obey(qp: &Qp, fault: WorkFault, waited_ns: u64) -> Obeyed {
    match fault {
        WorkFault::Status(status) => Obeyed::Done(Outcome::Failed(status)),
        // Nobody tells the sender: the message is lost.
        WorkFault::ReceiverNotReady(_) if qp.qp_type != QpType::Rc => {
            Obeyed::Done(Outcome::Done(0))
        }
        WorkFault::ReceiverNotReady(time) => {
            let patience = qp.rnr_patience_ns().unwrap_or(u64::MAX);
            if waited_ns >= time.min(patience) {
                if time > patience {
                    Obeyed::Done(Outcome::Failed(IBV_WC_RNR_RETRY_EXC_ERR))
                } else {
                    Obeyed::Over
                }
            } else {
                Obeyed::Wait
            }
        }
    }
}
