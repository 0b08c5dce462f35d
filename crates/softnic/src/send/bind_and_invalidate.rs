//! Work requests that need no peer: binding and invalidating memory windows.

use super::*;

/// Returns true if a work request with this opcode needs no peer.
#[inline]
pub(super) fn needs_no_peer(opcode: ibv_wr_opcode) -> bool {
    matches!(opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV)
}

/// Binds or invalidates a memory window.
#[cold]
pub(super) fn bind_or_invalidate_window(qp: &Qp, view: &WrView<'_>) -> ExecutionResult {
    let nic = qp.nic;
    if view.wr.opcode == IBV_WR_BIND_MW {
        let bound = view.bind_request.is_some_and(|bind| {
            nic.key_table
                .bind_window(&nic.fabric, (qp.pd_number, qp.qpn), &bind)
        });
        return if bound {
            ExecutionResult::Done(0)
        } else {
            ExecutionResult::Failed(IBV_WC_MW_BIND_ERR)
        };
    }
    // SAFETY: the union's member for this opcode; a plain integer.
    let key = unsafe { view.wr.imm.invalidate_rkey };
    if nic.key_table.invalidate_window(&nic.fabric, qp.qpn, key) {
        ExecutionResult::Done(0)
    } else {
        // "Local QP operation error: an internal QP consistency error was detected" covers an invalidation that
        // is not allowed (IBTA vol. 1, 10.10.2.2); so does Soft-RoCE (`rxe_do_local_ops`).
        ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR)
    }
}
