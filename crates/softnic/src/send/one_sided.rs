//! RDMA WRITE, READ and atomics: executed by the requester, with the checks that the responder would make.

use super::*;

/// The remote side of a one-sided WR, checked.
#[inline]
pub(super) fn remote_region<'c>(
    qp: &Qp,
    out: &OutRing,
    remote: &'c mut RegionCache,
    (addr, rkey): (u64, u32),
    len: u64,
    access: ibv_access_flags,
) -> Result<(&'c crate::mem::Region, crate::keys::Pin), Outcome> {
    let access = access.cast_unsigned();
    let dest = out
        .peer
        .segment
        .qp(out.dest_index)
        .ok_or(Outcome::Failed(IBV_WC_LOC_QP_OP_ERR))?;
    if dest.access.load(Ordering::Relaxed) & access == 0 {
        return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR));
    }
    let found = remote.get(qp.nic, &out.peer, rkey);
    let (region, pin) = match found {
        Ok(found) => found,
        Err(KeyError::Fault) if out.peer.has_ended() => return Err(dead(qp)),
        Err(_) => return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR)),
    };
    if region.access & access == 0
        || region.pd != dest.pd.load(Ordering::Relaxed)
        || !region.contains(addr, len)
    {
        return Err(refused(qp, out, IBV_WC_REM_ACCESS_ERR));
    }
    Ok((region, pin))
}

/// The responder refuses a request: both sides hear of it (RC), or it is dropped (UC, IBTA vol. 1, 9.9.3).
#[cold]
pub(super) fn refused(qp: &Qp, out: &OutRing, status: ibv_wc_status) -> Outcome {
    if qp.qp_type != QpType::Rc {
        return Outcome::Done(0);
    }
    let event = if status == IBV_WC_REM_ACCESS_ERR {
        IBV_EVENT_QP_ACCESS_ERR
    } else {
        IBV_EVENT_QP_REQ_ERR
    };
    if let Some(dest) = out.peer.segment.qp(out.dest_index) {
        dest.remote_error.store(1 + event, Ordering::Release);
        out.peer.wake();
    }
    Outcome::Failed(status)
}

/// A copy to or from a peer's memory failed.
#[cold]
pub(super) fn unreachable_memory(qp: &Qp, out: &OutRing) -> Outcome {
    if out.peer.has_ended() {
        dead(qp)
    } else {
        refused(qp, out, IBV_WC_REM_ACCESS_ERR)
    }
}

/// RDMA WRITE.
#[inline]
pub(super) fn write(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    if total == 0 {
        // "An RDMA WRITE of zero length needs no valid R_Key" (IBTA vol. 1, C9-88).
        return Ok(Outcome::Done(0));
    }
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    // SAFETY: the union's member for this opcode; plain integers.
    let (mut addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, _pin) = remote_region(
        qp,
        out,
        &mut sq.remote,
        (addr, rkey),
        total,
        IBV_ACCESS_REMOTE_WRITE,
    )?;
    let mut fault = false;
    let copied = for_each_part(qp, &mut sq.local, view, |src, len| {
        // SAFETY: `src` is readable; the parts add up to `total`, which the pinned region has at `addr`.
        fault |= unsafe { region.write(addr, src, len) }.is_err();
        addr += len as u64;
        if fault {
            Err(IBV_WC_REM_ACCESS_ERR)
        } else {
            Ok(())
        }
    });
    if fault {
        return Err(unreachable_memory(qp, out));
    }
    copied.map_err(Outcome::Failed)?;
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(Outcome::Done(total as u32))
}

/// RDMA WRITE with immediate: the WRITE, and a record for the immediate.
pub(super) fn write_with_imm(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Outcome {
    match sq.out.as_mut().map(|out| out.producer.has_room(0)) {
        Some(Ok(true)) => {}
        Some(Ok(false)) | None => return Outcome::Later,
        Some(Err(_)) => return Outcome::Failed(IBV_WC_REM_OP_ERR),
    }
    let len = match write(qp, sq, view) {
        Ok(Outcome::Done(len)) => len,
        Ok(other) | Err(other) => return other,
    };
    let Some(out) = &mut sq.out else {
        return Outcome::Later;
    };
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        out.solicited = true;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { view.wr.imm.imm_data };
    let _ = out.producer.place(0);
    out.producer
        .commit(header(Kind::WriteWithImm, flags, imm, len, 0), 0);
    Outcome::InRing(out.producer.pos())
}

/// RDMA READ.
pub(super) fn read(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    check_read_resources(qp, out)?;
    if total == 0 {
        return Ok(Outcome::Done(0));
    }
    // SAFETY: the union's member for this opcode; plain integers.
    let (mut addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, _pin) = remote_region(
        qp,
        out,
        &mut sq.remote,
        (addr, rkey),
        total,
        IBV_ACCESS_REMOTE_READ,
    )?;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let Some((local, _pin)) = checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        let Some(dst) = local.direct(sge.addr) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        // SAFETY: both ranges are checked and pinned.
        if unsafe { region.read(addr, dst, sge.length as usize) }.is_err() {
            return Err(unreachable_memory(qp, out));
        }
        addr += u64::from(sge.length);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(Outcome::Done(total as u32))
}

/// READs and atomics need initiator depth here and responder resources there.
#[inline]
pub(super) fn check_read_resources(qp: &Qp, out: &OutRing) -> Result<(), Outcome> {
    if qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        return Err(Outcome::Failed(IBV_WC_LOC_QP_OP_ERR));
    }
    let dest = out.peer.segment.qp(out.dest_index);
    if dest.is_none_or(|d| d.max_dest_rd_atomic.load(Ordering::Relaxed) == 0) {
        return Err(refused(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    Ok(())
}

/// Compare-and-swap and fetch-and-add.
pub(super) fn atomic(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> Result<Outcome, Outcome> {
    let Some(out) = &sq.out else {
        return Ok(Outcome::Later);
    };
    check_read_resources(qp, out)?;
    // SAFETY: the union's member for these opcodes; plain integers.
    let a = unsafe { view.wr.wr.atomic };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total != 8 {
        return Err(Outcome::Failed(IBV_WC_LOC_LEN_ERR));
    }
    if !a.remote_addr.is_multiple_of(8) {
        // IBTA vol. 1, C9-??: "the virtual address shall be naturally aligned"; NAK-Invalid Request.
        return Err(refused(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        if checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true).is_none() {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        }
    }
    let op = if view.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        AtomicOp::FetchAdd(a.compare_add)
    } else {
        AtomicOp::CompareSwap {
            expect: a.compare_add,
            swap: a.swap,
        }
    };
    let old = {
        let (region, _pin) = remote_region(
            qp,
            out,
            &mut sq.remote,
            (a.remote_addr, a.rkey),
            8,
            IBV_ACCESS_REMOTE_ATOMIC,
        )?;
        region.atomic(&out.peer, a.remote_addr, op)
    };
    let Ok(old) = old else {
        return Err(unreachable_memory(qp, out));
    };
    let bytes = old.to_ne_bytes();
    let mut done = 0;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let n = sge.length as usize;
        let Some((local, _pin)) = checked_sge(qp.nic, &mut sq.local, qp.pd, sge, true) else {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        };
        // SAFETY: the SGEs add up to 8 bytes; the region is checked and pinned.
        if unsafe { local.write(sge.addr, bytes[done..].as_ptr(), n) }.is_err() {
            return Err(Outcome::Failed(IBV_WC_LOC_PROT_ERR));
        }
        done += n;
    }
    Ok(Outcome::Done(8))
}
