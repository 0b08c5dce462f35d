//! The sending side of queue pairs that reach their peers by messages: requests out of work requests, and their
//! answers.

use super::*;
use nic_core::retry::answer_patience_ns;
use nic_core::rights::{Access, Owner};

use crate::multicast::{self, MULTICAST_QPN};
use crate::path::message::{Message, Op, Psn};
use crate::path::requester::Destination;

/// Makes a work request of a connected queue pair a request.
pub(super) fn execute(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    if matches!(view.wr.opcode, IBV_WR_BIND_MW | IBV_WR_LOCAL_INV) {
        return local_operation(qp, view);
    }
    let (Some(network), Some(requester)) = (&qp.nic.network, &sq.requester) else {
        return Outcome::Later;
    };
    if view.wr.send_flags & IBV_SEND_FENCE != 0 && requester.awaits_result() {
        return Outcome::Later;
    }
    // A responder executes requests in order (IBTA vol. 1, 9.5): what touches memory waits until the SENDs in front of
    // it have reached theirs.
    let op = op_of(view.wr.opcode);
    let is_send = matches!(op, Op::Send | Op::SendWithImm | Op::SendWithInv);
    let done = requester.done();
    if !is_send && sq.pending.has_sends() {
        take_consumed(sq, done);
        if sq.pending.has_sends() {
            return Outcome::Later;
        }
    }
    let Some(requester) = &sq.requester else {
        return Outcome::Later;
    };
    let mut request = Message::new(op, qp.qpn, requester.dest_qpn(), requester.next_psn());
    let len = match describe(qp, sq, view, &mut request) {
        Ok(len) => len,
        Err(status) => return Outcome::Failed(status),
    };
    let Some(requester) = &mut sq.requester else {
        return Outcome::Later;
    };
    if qp.qp_type != QpType::Rc {
        network.send(request.encode());
        return Outcome::Done(len);
    }
    let result = request.op.has_result().then(|| Destination {
        pd: qp.pd,
        // An atomic write and a flush have an answer, and nothing to be placed.
        sges: if matches!(request.op, Op::AtomicWrite | Op::Flush) {
            Box::default()
        } else {
            view.sges.into()
        },
    });
    let (end, bytes) = requester.submit(&request, result, now_ns());
    network.send(bytes);
    Outcome::InFlight(end, len)
}

fn op_of(opcode: ibv_wr_opcode) -> Op {
    match opcode {
        IBV_WR_SEND_WITH_IMM => Op::SendWithImm,
        IBV_WR_SEND_WITH_INV => Op::SendWithInv,
        IBV_WR_RDMA_WRITE => Op::Write,
        IBV_WR_RDMA_WRITE_WITH_IMM => Op::WriteWithImm,
        IBV_WR_RDMA_READ => Op::Read,
        IBV_WR_ATOMIC_CMP_AND_SWP => Op::CompareSwap,
        IBV_WR_ATOMIC_FETCH_AND_ADD => Op::FetchAdd,
        IBV_WR_ATOMIC_WRITE => Op::AtomicWrite,
        IBV_WR_FLUSH => Op::Flush,
        _ => Op::Send,
    }
}

/// Fills in what the work request says; the byte count of its completion.
///
/// # Errors
/// The status of a work request that fails at the requester.
fn describe(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    request: &mut Message,
) -> Result<u32, ibv_wc_status> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(IBV_WC_LOC_LEN_ERR);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    let len = total as u32;
    let has_result = request.op.has_result();
    if has_result && qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        return Err(IBV_WC_LOC_QP_OP_ERR);
    }
    request.solicited = view.wr.send_flags & IBV_SEND_SOLICITED != 0;
    if let Some(requester) = &sq.requester {
        request.rnr_retry = requester.rnr_retry();
    }
    // SAFETY: members of the unions for these opcodes; plain integers, and initialised as such by the program.
    let (imm, rdma, atomic) = unsafe { (view.wr.imm.imm_data, view.wr.wr.rdma, view.wr.wr.atomic) };
    match request.op {
        Op::Send => {}
        Op::SendWithImm | Op::SendWithInv => request.imm = imm,
        Op::CompareSwap | Op::FetchAdd | Op::Flush => {
            (request.addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
            request.operands = [atomic.compare_add, atomic.swap];
        }
        _ => {
            (request.addr, request.rkey, request.len) = (rdma.remote_addr, rdma.rkey, len);
            request.imm = if request.op == Op::WriteWithImm {
                imm
            } else {
                0
            };
        }
    }
    match request.op {
        Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite if total != 8 => {
            return Err(IBV_WC_LOC_LEN_ERR);
        }
        // The buffers of results are looked at when there is a result.
        Op::CompareSwap | Op::FetchAdd | Op::Read => {}
        Op::Flush => return Ok(0),
        _ => request.payload = payload(qp, sq, view, total as usize)?,
    }
    Ok(len)
}

/// A copy of the payload of a work request.
fn payload(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    total: usize,
) -> Result<Vec<u8>, ibv_wc_status> {
    let mut bytes = vec![0; total];
    let mut dst = bytes.as_mut_ptr();
    for_each_part(qp, &mut sq.local, view, |src, len| {
        // SAFETY: the parts add up to `total`, the length of `bytes`; `for_each_part` has checked `src`.
        unsafe { shm::mem::copy(dst, src, len) }.map_err(|Fault| IBV_WC_LOC_PROT_ERR)?;
        dst = dst.wrapping_add(len);
        Ok(())
    })?;
    Ok(bytes)
}

/// SEND on UD: to one queue pair, or to all members of a group.
pub(super) fn datagram(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    let (Some(network), Some(ah)) = (&qp.nic.network, view.ah) else {
        return Outcome::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    let total: usize = view.sges.iter().map(|s| s.length as usize).sum();
    if total > UD_MAX_PAYLOAD {
        return Outcome::Failed(IBV_WC_LOC_LEN_ERR);
    }
    // SAFETY: members of the unions for UD and immediates; plain integers.
    let (ud, imm) = unsafe { (view.wr.wr.ud, view.wr.imm.imm_data) };
    let with_imm = view.wr.opcode == IBV_WR_SEND_WITH_IMM;
    let op = if with_imm { Op::SendWithImm } else { Op::Send };
    let payload = match payload(qp, sq, view, total) {
        Ok(payload) => payload,
        Err(status) => return Outcome::Failed(status),
    };
    let datagram = Message {
        solicited: view.wr.send_flags & IBV_SEND_SOLICITED != 0,
        imm: if with_imm { imm } else { 0 },
        // "If the high-order bit of the Q_Key is set, the one of the queue pair is used" (IBTA 10.2.5).
        qkey: if ud.remote_qkey >> 31 != 0 {
            qp.qkey.load(Ordering::Relaxed)
        } else {
            ud.remote_qkey
        },
        path: ah.path,
        grh: ah.grh.unwrap_or([0; 40]),
        payload,
        ..Message::new(op, qp.qpn, ud.remote_qpn, Psn::new(0))
    };
    let to = match ah.group {
        Some(group) if ud.remote_qpn == MULTICAST_QPN => members(qp, group),
        _ if ah.reachable => vec![ud.remote_qpn],
        _ => Vec::new(),
    };
    for dest_qpn in to {
        let copy = Message {
            dest_qpn,
            ..datagram.clone()
        };
        network.send(copy.encode());
    }
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    Outcome::Done(len)
}

/// Numbers of the queue pairs of a group that a datagram of `qp` goes to.
fn members(qp: &Qp, group: multicast::Group) -> Vec<u32> {
    let block_self = qp.block_self.load(Ordering::Relaxed);
    multicast::members(qp.nic.me(), group)
        .filter(|&index| !(block_self && index == qp.index))
        .map(|index| qp.nic.qpn(index))
        .collect()
}

/// Takes the answer to a request of `qp`.
pub(crate) fn take_answer(qp: &Qp, answer: &Message) {
    let mut sq = qp.sq.lock();
    let sq = &mut *sq;
    let Some(requester) = &mut sq.requester else {
        return;
    };
    if requester.dest_qpn() != answer.src_qpn {
        return;
    }
    let destination = requester.on_answer(answer, now_ns());
    if let Some(to) = destination {
        let is_placed = place(qp, &mut sq.local, &to, &answer.payload);
        let end = if is_placed {
            Ok(())
        } else {
            Err(IBV_WC_LOC_PROT_ERR)
        };
        if let Some(requester) = &mut sq.requester {
            requester.finish(answer.psn, end);
        }
    }
    qp.send_cq.nudge();
}

/// Places a result in the SGEs that it is for; false if they cannot be written.
fn place(qp: &Qp, local: &mut RegionCache, to: &Destination, result: &[u8]) -> bool {
    let mut rest = result;
    for sge in to.sges.iter().filter(|s| s.length != 0) {
        let Some((part, behind)) = rest.split_at_checked(sge.length as usize) else {
            return false;
        };
        rest = behind;
        let Ok((region, at, _pin)) = checked_sge(qp.nic, local, to.pd, sge, true) else {
            return false;
        };
        // SAFETY: `part` is as long as the SGE that `checked_sge` permitted; the region is pinned.
        if unsafe { region.write(at, part.as_ptr()) }.is_err() {
            return false;
        }
    }
    true
}

/// Notes what is done; what is overdue is sent again. True if something waits for a deadline.
pub(super) fn progress(qp: &Qp, sq: &mut SendQueue) -> bool {
    let (Some(network), Some(requester)) = (&qp.nic.network, &mut sq.requester) else {
        return false;
    };
    let now = now_ns();
    let (timeout, retry_cnt) = qp.timeout();
    let patience = answer_patience_ns(timeout, retry_cnt);
    let is_given_up = patience.is_some_and(|ns| requester.is_given_up(ns, retry_cnt, now));
    if !is_given_up {
        for request in requester.overdue(now) {
            network.send(request);
        }
    }
    let failure = is_given_up.then_some(IBV_WC_RETRY_EXC_ERR);
    let (done, failure) = (requester.done(), requester.failure().or(failure));
    settle_front(qp, sq, done);
    if sq.pending.is_empty() || sq.stopped {
        return false;
    }
    if let Some(status) = failure {
        fail_now(qp, sq, status);
        return false;
    }
    true
}

/// Executes a request of a peer to one of this process's queue pairs; the payload of its result.
///
/// # Errors
/// The status of the refusal.
pub(crate) fn execute_request(
    qp: &Qp,
    target: &Target<'_>,
    regions: &mut RegionCache,
    request: &Message,
) -> Result<Vec<u8>, ibv_wc_status> {
    let shared = qp.shared();
    if request.op.has_result() && shared.max_dest_rd_atomic.load(Ordering::Relaxed) == 0 {
        return Err(IBV_WC_REM_INV_REQ_ERR);
    }
    let is_word = matches!(request.op, Op::CompareSwap | Op::FetchAdd | Op::AtomicWrite);
    if is_word && !request.addr.is_multiple_of(8) {
        return Err(IBV_WC_REM_INV_REQ_ERR);
    }
    if request.op == Op::Flush {
        return flush(qp, target, regions, request);
    }
    let (access, len) = match request.op {
        Op::Read => (Access::RemoteRead, u64::from(request.len)),
        Op::CompareSwap | Op::FetchAdd => (Access::RemoteAtomic, 8),
        _ => (Access::RemoteWrite, request.payload.len() as u64),
    };
    if len == 0 {
        return Ok(Vec::new());
    }
    let refused = |_| IBV_WC_REM_ACCESS_ERR;
    let (region, at, _pin) = remote_region(
        qp.nic,
        target,
        regions,
        (request.addr, request.rkey),
        len,
        access,
    )
    .map_err(refused)?;
    let [first, second] = request.operands;
    let op = match request.op {
        Op::Read => {
            let mut bytes = vec![0; request.len as usize];
            // SAFETY: `bytes` is as long as `at`, which is of this region; the region is pinned.
            unsafe { region.read(at, bytes.as_mut_ptr()) }
                .map_err(|Fault| IBV_WC_REM_ACCESS_ERR)?;
            return Ok(bytes);
        }
        Op::FetchAdd => AtomicOp::FetchAdd(first),
        Op::CompareSwap => AtomicOp::CompareSwap {
            expect: first,
            swap: second,
        },
        Op::AtomicWrite => {
            let word = request
                .payload
                .first_chunk()
                .ok_or(IBV_WC_REM_INV_REQ_ERR)?;
            AtomicOp::Store(u64::from_ne_bytes(*word))
        }
        _ => {
            // SAFETY: the payload is as long as `at`, which is of this region; the region is pinned.
            unsafe { region.write(at, request.payload.as_ptr()) }
                .map_err(|Fault| IBV_WC_REM_ACCESS_ERR)?;
            return Ok(Vec::new());
        }
    };
    let old = region
        .atomic(target.peer, at, op)
        .map_err(|Fault| IBV_WC_REM_ACCESS_ERR)?;
    Ok(old.to_ne_bytes().to_vec())
}

/// Executes a FLUSH: what was written before is visible already, so what is left are the checks.
fn flush(
    qp: &Qp,
    target: &Target<'_>,
    regions: &mut RegionCache,
    request: &Message,
) -> Result<Vec<u8>, ibv_wc_status> {
    let range = FlushRange::of(ibv_send_wr_wr_atomic {
        remote_addr: request.addr,
        compare_add: request.operands[0],
        swap: request.operands[1],
        rkey: request.rkey,
    });
    // Memory of processes does not survive them: no region allows persistence.
    if range.placement != IBV_FLUSH_GLOBAL {
        return Err(IBV_WC_REM_ACCESS_ERR);
    }
    let nic = qp.nic;
    let (addr, len) = if range.whole_region {
        let domain = || domain_of(target, qp.shared()).unwrap_or(Owner::NO_DOMAIN);
        let found = regions.get(nic, target.peer, range.rkey, domain);
        let (region, _pin) = found.map_err(|_| IBV_WC_REM_ACCESS_ERR)?;
        (region.rights.start, region.rights.len)
    } else {
        (range.remote_addr, range.len)
    };
    let access = Access::FlushGlobal;
    remote_region(nic, target, regions, (addr, range.rkey), len, access)
        .map_err(|_| IBV_WC_REM_ACCESS_ERR)?;
    Ok(Vec::new())
}
