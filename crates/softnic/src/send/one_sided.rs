//! RDMA WRITE, READ and atomics: executed by the requester, with the checks that the responder would make.

use super::*;
use crate::why::{MemorySide, NamedMemoryRange};
use nic_core::rights::{Access, OwningPdOrQp, PermittedRange, QpMemoryRights, authorize, flag};

// `nic-core` and the C interface use the same bits for access rights.
const _: () = {
    assert!(flag::LOCAL_WRITE == IBV_ACCESS_LOCAL_WRITE.cast_unsigned());
    assert!(flag::REMOTE_WRITE == IBV_ACCESS_REMOTE_WRITE.cast_unsigned());
    assert!(flag::REMOTE_READ == IBV_ACCESS_REMOTE_READ.cast_unsigned());
    assert!(flag::REMOTE_ATOMIC == IBV_ACCESS_REMOTE_ATOMIC.cast_unsigned());
    assert!(flag::FLUSH_GLOBAL == IBV_ACCESS_FLUSH_GLOBAL.cast_unsigned());
    assert!(flag::FLUSH_PERSISTENT == IBV_ACCESS_FLUSH_PERSISTENT.cast_unsigned());
};

/// The queue pair that a request is addressed to.
pub(crate) struct TargetQp<'a> {
    /// The process that has the queue pair.
    pub(crate) peer: &'a Arc<Peer>,
    /// Index of the queue pair in its process.
    pub(crate) qp_index: usize,
    /// Number of the shared receive queue that the request names (XRC), else 0.
    pub(crate) srqn: u32,
}

impl TargetQp<'_> {
    /// Makes the queue pair, a reliable one, fail because of a request that it refuses with `status`. `epoch` is the
    /// queue pair's when the request was sent.
    #[cold]
    fn fail_for_refused_request(&self, epoch: u32, status: ibv_wc_status) {
        let event = if status == IBV_WC_REM_ACCESS_ERR {
            IBV_EVENT_QP_ACCESS_ERR
        } else {
            IBV_EVENT_QP_REQ_ERR
        };
        if let Some(dest) = self.peer.segment.qp(self.qp_index) {
            dest.report_refused_request(epoch, event);
            self.peer.wake_engine();
        }
    }

    /// Returns the queue pair's number.
    fn qpn(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 24 bits
        let qpn = (self.peer.slot << QP_INDEX_BITS | self.qp_index) as u32;
        qpn
    }
}

/// The reason why a one-sided WR may not access the remote side that it names.
#[derive(Clone, Copy)]
pub(crate) enum RemoteAccessDenied {
    /// The responder refuses it: NAK-Remote Access Error (IBTA vol. 1, 9.7.5.2.4).
    RemoteAccessError,
    /// The responder's process has ended.
    ResponderProcessEnded,
    /// The queue pair does not exist.
    NoQueuePair,
}

/// Checks the remote side of a one-sided WR. Returns the region, the permitted range and the region's pin.
#[inline]
pub(crate) fn authorize_remote_region<'c>(
    nic: &'static Nic,
    to: &TargetQp<'_>,
    remote: &'c mut RegionCache,
    (addr, rkey): (u64, u32),
    len: u64,
    access: Access,
) -> Result<
    (
        &'c shm::mem::AccessibleRegion,
        PermittedRange,
        shm::keys::RegionPin,
    ),
    RemoteAccessDenied,
> {
    let dest = to.peer.segment.qp(to.qp_index);
    let dest = dest.ok_or(RemoteAccessDenied::NoQueuePair)?;
    let domain = required_pd_number(to, dest).unwrap_or(OwningPdOrQp::NO_DOMAIN);
    let found = remote.get_pinned(nic, to.peer, rkey, || domain);
    let (region, pin) = match found {
        Ok(found) => found,
        Err(KeyError::MemoryUnreachable) if to.peer.kernel_says_ended() => {
            return Err(RemoteAccessDenied::ResponderProcessEnded);
        }
        Err(error) => {
            let bytes = NamedMemoryRange {
                addr,
                len,
                key: rkey,
            };
            why::note_cause(error.failure_cause(MemorySide::Remote, bytes));
            return Err(RemoteAccessDenied::RemoteAccessError);
        }
    };
    let responder = responder_memory_rights(to, dest, domain);
    let at = authorize(&region.rights, (addr, len), access, &responder).map_err(|denied| {
        let bytes = NamedMemoryRange {
            addr,
            len,
            key: rkey,
        };
        let side = MemorySide::Remote;
        why::note_cause(FailureCause::of_denied_access(
            denied,
            side,
            bytes,
            access,
            &region.rights,
        ));
        RemoteAccessDenied::RemoteAccessError
    })?;
    if at.is_in_whole_address_space_region()
        && region.is_of_this_process
        && !is_own_memory_mapped(addr, len, access)
    {
        why::note_cause(FailureCause::MemoryInaccessible {
            side: MemorySide::Remote,
        });
        return Err(RemoteAccessDenied::RemoteAccessError);
    }
    Ok((region, at, pin))
}

/// Describes the queue pair that requests go to, in the protection domain with the number `domain`.
#[inline(always)]
pub(super) fn responder_memory_rights(
    to: &TargetQp<'_>,
    dest: &QpShared,
    domain: u32,
) -> QpMemoryRights {
    QpMemoryRights {
        requester_access: dest.access.load(Ordering::Relaxed),
        pd_number: domain,
        qpn: to.qpn(),
    }
}

/// Returns the outcome of a WR that may not access the remote side that it names.
#[cold]
fn denied_result(qp: &Qp, out: &OutboundShmRing, why: RemoteAccessDenied) -> ExecutionResult {
    match why {
        RemoteAccessDenied::RemoteAccessError => {
            fail_refused_request(qp, out, IBV_WC_REM_ACCESS_ERR)
        }
        RemoteAccessDenied::ResponderProcessEnded => dead_peer_result(qp, &out.peer),
        RemoteAccessDenied::NoQueuePair => ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR),
    }
}

/// Returns the outcome of a denied WR that carries its payload. The requester's NIC checks the L_Keys when it builds
/// the request. If those are wrong too, the responder never sees the request.
#[cold]
fn denied_result_with_payload(
    qp: &Qp,
    out: &OutboundShmRing,
    local: &mut RegionCache,
    view: &WrView<'_>,
    why: RemoteAccessDenied,
) -> ExecutionResult {
    match for_each_payload_part(qp, local, view, |_, _| Ok(())) {
        Ok(()) => denied_result(qp, out, why),
        Err(status) => ExecutionResult::Failed(status),
    }
}

/// Returns true if this process has memory in a range of a region of the whole address space, for a peer in the same
/// process. For a peer in another process, the system call makes this check.
#[cold]
fn is_own_memory_mapped(addr: u64, len: u64, access: Access) -> bool {
    shm::mem::prefault(addr, len, access != Access::RemoteRead)
}

/// Returns the number, in the peer's process, of the protection domain that requests to `dest` must be in.
#[inline]
pub(crate) fn required_pd_number(to: &TargetQp<'_>, dest: &QpShared) -> Option<u32> {
    let domain = dest.xrc_domain.load(Ordering::Relaxed);
    if domain == 0 {
        return Some(dest.pd.load(Ordering::Relaxed));
    }
    pd_number_of_xrc_srq(to, domain)
}

#[cold]
fn pd_number_of_xrc_srq(to: &TargetQp<'_>, domain: u32) -> Option<u32> {
    // "The protection domain of the XRC SRQ that the request names" (IBTA vol. 1, A14.4.4).
    let srq = to.peer.segment.find_srq(to.srqn as usize % MAX_XRC_SRQS)?;
    (srq.xrc_domain.load(Ordering::Acquire) == domain).then(|| srq.pd.load(Ordering::Relaxed))
}

/// Returns the outcome of a request that the responder refuses. On RC both sides fail; on UC the request is dropped
/// (IBTA vol. 1, 9.9.3).
///
/// A queue pair that is reset or moved to ERR while this thread checks a request refuses nothing: it is silent.
#[cold]
pub(super) fn fail_refused_request(
    qp: &Qp,
    out: &OutboundShmRing,
    status: ibv_wc_status,
) -> ExecutionResult {
    if qp.qp_type != QpType::Rc {
        why::report_refused_request(qp.qpn, "lost a request, since its transport is unreliable");
        return ExecutionResult::Done(0);
    }
    // With the fence in `Qp::reset`: attributes and rights of a queue pair that has been reset show that it was reset.
    fence(Ordering::Acquire);
    let dest = out.peer.segment.qp(out.dest_qp_index);
    if !dest.is_some_and(|dest| is_connected_to(dest, out, qp.qpn)) {
        // The work request does not fail for the cause that its check has noted.
        why::take_last_cause();
        return ExecutionResult::NotPossibleYet;
    }
    out.target_qp()
        .fail_for_refused_request(out.dest_epoch, status);
    ExecutionResult::Failed(status)
}

/// Returns the outcome of a WR after a copy to or from the peer's memory failed.
#[cold]
pub(super) fn copy_failed_result(qp: &Qp, out: &OutboundShmRing) -> ExecutionResult {
    if out.peer.kernel_says_ended() {
        dead_peer_result(qp, &out.peer)
    } else {
        why::note_cause(FailureCause::MemoryInaccessible {
            side: MemorySide::Remote,
        });
        fail_refused_request(qp, out, IBV_WC_REM_ACCESS_ERR)
    }
}

/// Executes an RDMA WRITE.
#[inline]
pub(super) fn execute_write(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> Result<ExecutionResult, ExecutionResult> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(fail_too_long(total, crate::device::MAX_MSG_SZ));
    }
    if total == 0 {
        // "An RDMA WRITE of zero length needs no valid R_Key" (IBTA vol. 1, C9-88).
        return Ok(ExecutionResult::Done(0));
    }
    let Some(out) = &sq.peer_ring else {
        return Ok(ExecutionResult::NotPossibleYet);
    };
    // SAFETY: the union's member for this opcode; plain integers.
    let (addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, mut left, _pin) = authorize_remote_region(
        qp.nic,
        &out.target_qp(),
        &mut sq.peer_regions,
        (addr, rkey),
        total,
        Access::RemoteWrite,
    )
    .map_err(|why| denied_result_with_payload(qp, out, &mut sq.local_regions, view, why))?;
    let mut fault = false;
    let copied = for_each_payload_part(qp, &mut sq.local_regions, view, |src, len| {
        let (at, rest) = left.split_at(len as u64);
        left = rest;
        // SAFETY: `at` is of this region, which is pinned, and no longer than the part.
        let written = unsafe { region.write(at, src) };
        written.map_err(|MemoryFault| {
            fault = is_readable(src, len);
            IBV_WC_LOC_PROT_ERR
        })
    });
    if fault {
        return Err(copy_failed_result(qp, out));
    }
    copied.map_err(ExecutionResult::Failed)?;
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(ExecutionResult::Done(total as u32))
}

/// Executes an RDMA WRITE with immediate: the WRITE, then a record for the immediate.
pub(super) fn execute_write_with_imm(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> ExecutionResult {
    match sq
        .peer_ring
        .as_mut()
        .map(|out| out.ring_producer.has_room(0))
    {
        Some(Ok(true)) => {}
        Some(Ok(false)) | None => return ExecutionResult::NotPossibleYet,
        Some(Err(_)) => return ExecutionResult::Failed(IBV_WC_REM_OP_ERR),
    }
    let len = match execute_write(qp, sq, view) {
        Ok(ExecutionResult::Done(len)) => len,
        Ok(other) | Err(other) => return other,
    };
    let Some(out) = &mut sq.peer_ring else {
        return ExecutionResult::NotPossibleYet;
    };
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        out.open_list_has_solicited = true;
    }
    // SAFETY: reads the immediate of the union, which is plain bytes.
    let imm = unsafe { view.wr.imm.imm_data };
    let _ = out.ring_producer.place_for_payload(0);
    out.ring_producer.add_to_postlist(
        make_record_header(RecordKind::WriteWithImm, flags, imm, len, out.current_srqn),
        0,
    );
    ExecutionResult::InRing(out.ring_producer.write_position())
}

/// Executes an RDMA READ into memory of the protection domain `pd`.
pub(super) fn execute_read(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    pd: u32,
) -> Result<ExecutionResult, ExecutionResult> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > u64::from(crate::device::MAX_MSG_SZ) {
        return Err(fail_too_long(total, crate::device::MAX_MSG_SZ));
    }
    let Some(out) = &sq.peer_ring else {
        return Ok(ExecutionResult::NotPossibleYet);
    };
    check_read_and_atomic_resources(qp, out)?;
    if total == 0 {
        return Ok(ExecutionResult::Done(0));
    }
    // SAFETY: the union's member for this opcode; plain integers.
    let (addr, rkey) = unsafe { (view.wr.wr.rdma.remote_addr, view.wr.wr.rdma.rkey) };
    let (region, mut left, _pin) = authorize_remote_region(
        qp.nic,
        &out.target_qp(),
        &mut sq.peer_regions,
        (addr, rkey),
        total,
        Access::RemoteRead,
    )
    .map_err(|why| denied_result(qp, out, why))?;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let Ok((local, to, _pin)) = check_and_pin_sge(qp.nic, &mut sq.local_regions, pd, sge, true)
        else {
            return Err(ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR));
        };
        let (from, rest) = left.split_at(sge.length.into());
        left = rest;
        let Some(dst) = local.mapped_address(to) else {
            if !local.is_null() {
                read_to_unmapped_or_tell_if_local_failed((region, from), (local, to)).map_err(
                    |here| {
                        if here {
                            ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR)
                        } else {
                            copy_failed_result(qp, out)
                        }
                    },
                )?;
            }
            continue;
        };
        // SAFETY: both are permitted and pinned, and the SGE is at least as long.
        if unsafe { region.read(from, dst) }.is_err() {
            return Err(if probe_writable(dst, sge.length as usize) {
                copy_failed_result(qp, out)
            } else {
                ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR)
            });
        }
    }
    #[allow(clippy::cast_possible_truncation)] // at most 2^30
    Ok(ExecutionResult::Done(total as u32))
}

/// READs into an SGE whose region belongs to another process and is not mapped. Both regions are pinned. The error is
/// true if the SGE could not be reached, and false if the remote memory could not.
#[cold]
pub(crate) fn read_to_unmapped_or_tell_if_local_failed(
    (region, mut from): (&shm::mem::AccessibleRegion, PermittedRange),
    (local, mut to): (&shm::mem::AccessibleRegion, PermittedRange),
) -> Result<(), bool> {
    let mut buffer = [0; BOUNCE_BUFFER_BYTES];
    while !from.is_empty() {
        let (source, sources) = from.split_at(BOUNCE_BUFFER_BYTES as u64);
        let (target, targets) = to.split_at(BOUNCE_BUFFER_BYTES as u64);
        // SAFETY: the buffer has `BOUNCE_BUFFER_BYTES` bytes, and no piece is longer; both pieces lie in pinned regions
        // (contract).
        unsafe {
            region
                .read(source, buffer.as_mut_ptr())
                .map_err(|_| false)?;
            local.write(target, buffer.as_ptr()).map_err(|_| true)?;
        }
        (from, to) = (sources, targets);
    }
    Ok(())
}

/// Checks the initiator depth here and the responder resources of the peer, which READs and atomics need.
#[inline]
pub(super) fn check_read_and_atomic_resources(
    qp: &Qp,
    out: &OutboundShmRing,
) -> Result<(), ExecutionResult> {
    if qp.max_rd_atomic.load(Ordering::Relaxed) == 0 {
        why::note_cause(FailureCause::NoReadOrAtomicResources {
            side: MemorySide::Local,
        });
        return Err(ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR));
    }
    let dest = out.peer.segment.qp(out.dest_qp_index);
    if dest.is_none_or(|d| d.max_dest_rd_atomic.load(Ordering::Relaxed) == 0) {
        why::note_cause(FailureCause::NoReadOrAtomicResources {
            side: MemorySide::Remote,
        });
        return Err(fail_refused_request(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    Ok(())
}

/// Checks the operand of an atomic. Operands are 8 bytes; "the virtual address in the ATOMIC Command Request packet
/// shall be naturally aligned", or the responder answers NAK-Invalid Request (IBTA vol. 1, 9.4.5).
fn check_atomic_operand(
    qp: &Qp,
    out: &OutboundShmRing,
    view: &WrView<'_>,
    remote_addr: u64,
) -> Result<(), ExecutionResult> {
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total != 8 {
        why::note_cause(FailureCause::WrongOperandLength(total));
        return Err(ExecutionResult::Failed(IBV_WC_LOC_LEN_ERR));
    }
    if !remote_addr.is_multiple_of(8) {
        why::note_cause(FailureCause::Unaligned(remote_addr));
        return Err(fail_refused_request(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    Ok(())
}

/// Executes a compare-and-swap or a fetch-and-add.
pub(super) fn execute_atomic(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> Result<ExecutionResult, ExecutionResult> {
    let Some(out) = &sq.peer_ring else {
        return Ok(ExecutionResult::NotPossibleYet);
    };
    check_read_and_atomic_resources(qp, out)?;
    // SAFETY: the union's member for these opcodes; plain integers.
    let a = unsafe { view.wr.wr.atomic };
    check_atomic_operand(qp, out, view, a.remote_addr)?;
    let op = if view.wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD {
        AtomicOp::FetchAdd(a.compare_add)
    } else {
        AtomicOp::CompareSwap {
            expect: a.compare_add,
            swap: a.swap,
        }
    };
    let old = {
        let (region, at, _pin) = authorize_remote_region(
            qp.nic,
            &out.target_qp(),
            &mut sq.peer_regions,
            (a.remote_addr, a.rkey),
            8,
            Access::RemoteAtomic,
        )
        .map_err(|why| denied_result(qp, out, why))?;
        // The atomic is not executed unless its result can be stored.
        for sge in view.sges.iter().filter(|s| s.length != 0) {
            if check_and_pin_sge(qp.nic, &mut sq.local_regions, qp.pd_number, sge, true).is_err() {
                return Err(ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR));
            }
        }
        region.apply_atomic(&out.peer, at, op)
    };
    let Ok(old) = old else {
        return Err(copy_failed_result(qp, out));
    };
    let bytes = old.to_ne_bytes();
    let mut done = 0;
    for sge in view.sges.iter().filter(|s| s.length != 0) {
        let Ok((local, at, _pin)) =
            check_and_pin_sge(qp.nic, &mut sq.local_regions, qp.pd_number, sge, true)
        else {
            return Err(ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR));
        };
        // SAFETY: the SGEs add up to 8 bytes; the region is pinned.
        if unsafe { local.write(at, bytes[done..].as_ptr()) }.is_err() {
            return Err(ExecutionResult::Failed(IBV_WC_LOC_PROT_ERR));
        }
        done += sge.length as usize;
    }
    Ok(ExecutionResult::Done(8))
}

/// Executes an atomic write: 8 bytes that no reader sees in parts (IBTA annex A19).
#[cold]
pub(super) fn execute_atomic_write(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> Result<ExecutionResult, ExecutionResult> {
    let Some(out) = &sq.peer_ring else {
        return Ok(ExecutionResult::NotPossibleYet);
    };
    check_read_and_atomic_resources(qp, out)?;
    // SAFETY: the union's member for this opcode; plain integers.
    let to = unsafe { view.wr.wr.rdma };
    check_atomic_operand(qp, out, view, to.remote_addr)?;
    let mut bytes = [0u8; 8];
    let mut at = bytes.as_mut_ptr();
    for_each_payload_part(qp, &mut sq.local_regions, view, |src, len| {
        // SAFETY: the parts add up to the 8 bytes of the array.
        unsafe { shm::mem::copy(at, src, len) }.map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)?;
        at = at.wrapping_add(len);
        Ok(())
    })
    .map_err(ExecutionResult::Failed)?;
    let written = {
        let (region, at, _pin) = authorize_remote_region(
            qp.nic,
            &out.target_qp(),
            &mut sq.peer_regions,
            (to.remote_addr, to.rkey),
            8,
            Access::RemoteWrite,
        )
        .map_err(|why| denied_result(qp, out, why))?;
        let op = AtomicOp::Store(u64::from_ne_bytes(bytes));
        region.apply_atomic(&out.peer, at, op)
    };
    match written {
        Ok(_) => Ok(ExecutionResult::Done(8)),
        Err(_) => Err(copy_failed_result(qp, out)),
    }
}

/// Executes a FLUSH: makes earlier writes visible to all readers of the memory (IBTA annex A19). Every WRITE is visible
/// as soon as it has been executed, so only the responder's checks remain.
#[cold]
pub(super) fn execute_flush(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> Result<ExecutionResult, ExecutionResult> {
    let Some(out) = &sq.peer_ring else {
        return Ok(ExecutionResult::NotPossibleYet);
    };
    check_read_and_atomic_resources(qp, out)?;
    // SAFETY: the union's member that `FlushRange::to_atomic_operands` made; plain integers.
    let FlushRange {
        remote_addr,
        rkey,
        len,
        placement,
        covers_whole_region: whole_region,
    } = FlushRange::from_atomic_operands(unsafe { view.wr.wr.atomic });
    if placement & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) != 0 || placement == 0 {
        return Err(fail_refused_request(qp, out, IBV_WC_REM_INV_REQ_ERR));
    }
    // Memory of a process does not survive the process, so no region has this right.
    if placement & IBV_FLUSH_PERSISTENT != 0 {
        return Err(fail_refused_request(qp, out, IBV_WC_REM_ACCESS_ERR));
    }
    let (addr, len) = if whole_region {
        let dest = out.peer.segment.qp(out.dest_qp_index);
        let domain = || {
            dest.and_then(|dest| required_pd_number(&out.target_qp(), dest))
                .unwrap_or(OwningPdOrQp::NO_DOMAIN)
        };
        match sq.peer_regions.get_pinned(qp.nic, &out.peer, rkey, domain) {
            Ok((region, _pin)) => (region.rights.start, region.rights.len),
            Err(_) => return Err(fail_refused_request(qp, out, IBV_WC_REM_ACCESS_ERR)),
        }
    } else {
        (remote_addr, len)
    };
    let access = Access::FlushGlobal;
    authorize_remote_region(
        qp.nic,
        &out.target_qp(),
        &mut sq.peer_regions,
        (addr, rkey),
        len,
        access,
    )
    .map_err(|why| denied_result(qp, out, why))?;
    std::sync::atomic::fence(Ordering::SeqCst);
    Ok(ExecutionResult::Done(0))
}

/// The range of a FLUSH. `ibv_send_wr` has no operands for FLUSH, which only the extended API posts, so the operands of
/// atomics carry the range.
pub(crate) struct FlushRange {
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    pub(crate) len: u64,
    /// `IBV_FLUSH_*` of `enum ibv_placement_type`.
    pub(crate) placement: u8,
    /// True if the range is the whole region; `remote_addr` and `len` are then ignored.
    pub(crate) covers_whole_region: bool,
}

impl FlushRange {
    /// Encodes the range as the atomic operands of a work request.
    pub(crate) fn to_atomic_operands(&self) -> ibv_send_wr_wr_atomic {
        ibv_send_wr_wr_atomic {
            remote_addr: self.remote_addr,
            compare_add: self.len,
            swap: u64::from(self.placement) << 1 | u64::from(self.covers_whole_region),
            rkey: self.rkey,
        }
    }

    pub(super) fn from_atomic_operands(operands: ibv_send_wr_wr_atomic) -> Self {
        Self {
            rkey: operands.rkey,
            remote_addr: operands.remote_addr,
            len: operands.compare_add,
            placement: u8::try_from(operands.swap >> 1).unwrap_or(0),
            covers_whole_region: operands.swap & 1 != 0,
        }
    }
}
