//! Posting of work requests: `ibv_post_send` and its variants.

use super::*;

/// Posts a list of work requests, as `ibv_post_send`, under the lock of the send queue.
///
/// # Safety
/// `wr` is null or the first of a list of work requests as `ibv_post_send(3)` describes it.
#[inline(always)]
pub(crate) unsafe fn post_send(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe { post_send_list::<false, false>(qp, &mut sq, wr, bad_wr) }
}

/// [`post_send`] on a queue pair that sends to XRC shared receive queues.
///
/// # Safety
/// As for [`post_send`].
#[cold]
pub(crate) unsafe fn post_send_xrc(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe { post_send_list::<true, false>(qp, &mut sq, wr, bad_wr) }
}

/// [`post_send`] under a fault plan.
///
/// # Safety
/// As for [`post_send`].
#[cold]
pub(crate) unsafe fn post_send_under_faults(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let mut sq = qp.sq.lock();
    // SAFETY: contract of this function.
    unsafe {
        if matches!(qp.xrc_role, XrcRole::Send) {
            post_send_list::<true, true>(qp, &mut sq, wr, bad_wr)
        } else {
            post_send_list::<false, true>(qp, &mut sq, wr, bad_wr)
        }
    }
}

/// Posts a list of `count` WRs if there is room for all of them.
///
/// # Safety
/// As for [`post_send`].
pub(crate) unsafe fn post_send_all_or_none<const XRC: bool, const FAULTS: bool>(
    qp: &Qp,
    wr: *mut ibv_send_wr,
    count: usize,
) -> i32 {
    let mut sq = qp.sq.lock();
    if sq.max_wr - (sq.posted_wr_count - sq.freed_wr_count) < count as u64 {
        return libc::ENOMEM;
    }
    let bad_wr = std::ptr::null_mut();
    // SAFETY: contract of this function.
    unsafe { post_send_list::<XRC, FAULTS>(qp, &mut sq, wr, bad_wr) }
}

/// Posts a list of WRs to a send queue that the caller has locked.
///
/// # Safety
/// As for [`post_send`].
#[inline(always)]
unsafe fn post_send_list<const XRC: bool, const FAULTS: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> i32 {
    let state = qp.state();
    let mut result = 0;
    let held_back = !sq.deferred_wrs.is_empty();
    let ordered_before = sq.last_ordered_write_end;
    if !matches!(
        state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
    ) {
        result =
            why::einval_because(|| format!("the queue pair is in {state}, and sends from RTS on"));
    } else {
        // SAFETY: contract of this function.
        while !wr.is_null() {
            if !XRC
                && !FAULTS
                && state == QpState::Rts
                && !sq.is_stopped_by_failure
                && sq.deferred_wrs.is_empty()
            {
                // SAFETY: as above; not null.
                wr = unsafe { run_fast_path::execute_run(qp, sq, wr) };
            }
            // SAFETY: as above.
            let Some(this) = (unsafe { wr.as_ref() }) else {
                break;
            };
            if XRC {
                note_xrc_srq(sq, this);
            }
            // SAFETY: as above.
            if let Err(errno) = unsafe { post_one_send::<FAULTS>(qp, sq, this, state) } {
                result = errno;
                break;
            }
            wr = this.next;
        }
    }
    if result == libc::EINVAL {
        // SAFETY: as above.
        let wr_id = unsafe { wr.as_ref() }.map_or(0, |wr| wr.wr_id);
        let queue = format_args!("queue pair {:#x}", qp.qpn);
        why::report_refused_post("ibv_post_send", &queue, wr_id);
    }
    if result != 0 && !bad_wr.is_null() {
        // SAFETY: a place for the failed WR (contract of `ibv_post_send`).
        unsafe { *bad_wr = wr };
    }
    // The work is stored before the receiver can see any message. The receiver may answer, and our engine check this
    // word, before this thread continues. An engine that found no work would sleep, and nothing would wake it again.
    let work = sq.work_for_next_poll();
    if qp.send_poll_work.load(Ordering::Relaxed) != work as u8 {
        qp.send_poll_work.store(work as u8, Ordering::Relaxed);
    }
    publish_rings_and_transmit_packets(qp, sq);
    if work != SendWork::None && qp.send_cq.is_armed() {
        publish_before_sleep(qp, sq);
    }
    if (!held_back && !sq.deferred_wrs.is_empty())
        || sq.packet_requester.is_some()
        || sq.last_ordered_write_end != ordered_before
    {
        // The engine tries deferred WRs again, retransmits lost packets, and wakes a receiver to execute the WRITEs
        // left to it. It does so even if the program does not poll.
        qp.nic.wake_engine_unless_ticking();
    }
    result
}

/// Checks one WR, then executes, defers or flushes it.
///
/// # Safety
/// As for [`post_send`].
#[inline(never)]
unsafe fn post_one_send<const FAULTS: bool>(
    qp: &Qp,
    sq: &mut SendQueue,
    wr: &ibv_send_wr,
    state: QpState,
) -> Result<(), i32> {
    if sq.posted_wr_count - sq.freed_wr_count >= sq.max_wr {
        return Err(libc::ENOMEM);
    }
    if qp.accepted_wr_opcodes.checked_shr(wr.opcode).unwrap_or(0) & 1 == 0 {
        return Err(why::einval_because(|| {
            format!(
                "{:?} queue pairs of this device have no opcode {}",
                qp.qp_type, wr.opcode
            )
        }));
    }
    let count = usize::try_from(wr.num_sge).map_err(|_| libc::EINVAL)?;
    if count > sq.max_sge {
        let max = sq.max_sge;
        return Err(why::einval_because(|| {
            format!("num_sge is {count}, and max_send_sge {max}")
        }));
    }
    let mut copies = AlignedSges::none();
    let sges = if count == 0 {
        &[]
    } else if wr.sg_list.is_null() {
        return Err(libc::EINVAL);
    } else {
        // SAFETY: `sg_list` has `num_sge` entries (contract).
        unsafe { copies.align_sges(wr.sg_list, count) }
    };
    let inline = wr.send_flags & IBV_SEND_INLINE != 0;
    if inline {
        let total: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
        // The 8 bytes of an atomic write are in the work request itself, whatever `max_inline_data` is.
        let fits = (total <= sq.max_inline_bytes as u64 && carries_payload(wr.opcode))
            || (wr.opcode == IBV_WR_ATOMIC_WRITE && total == 8);
        if !fits {
            let max = sq.max_inline_bytes;
            if !carries_payload(wr.opcode) && wr.opcode != IBV_WR_ATOMIC_WRITE {
                return Err(why::einval_because(
                    || "IBV_SEND_INLINE is for SENDs and WRITEs: this opcode gathers no payload",
                ));
            }
            return Err(why::einval_because(|| {
                format!("IBV_SEND_INLINE with {total} bytes, and max_inline_data is {max}")
            }));
        }
    }
    let ah = if qp.qp_type == QpType::Ud {
        // SAFETY: the handle of an address handle that the program has not destroyed (contract).
        let ah = unsafe { Ah::from_handle(wr.wr.ud.ah) }.ok_or(libc::EINVAL)?;
        if ah.pd_number != qp.pd_number {
            return Err(why::einval_because(
                || "the address handle is of another protection domain",
            ));
        }
        Some(ah)
    } else {
        None
    };
    let bind = if wr.opcode == IBV_WR_BIND_MW {
        // SAFETY: handles that the program has not destroyed (contract).
        unsafe { bind_request(wr) }
    } else {
        None
    };
    let view = WrView {
        wr,
        sges,
        gathered_payload: None,
        ah,
        bind_request: bind,
        is_followed_by_message: wr.opcode == IBV_WR_RDMA_WRITE
            && sq.pending_wqes.has_wrs_pending_at_receiver()
            // SAFETY: contract of this function.
            && unsafe { does_message_follow_soon(wr) },
    };
    let seq = sq.posted_wr_count;
    sq.posted_wr_count += 1;
    sq.unpublished_traffic.exclude_wr();
    let signaled = sq.sq_sig_all || wr.send_flags & IBV_SEND_SIGNALED != 0;
    if sq.is_stopped_by_failure || state == QpState::Err {
        sq.is_stopped_by_failure = true;
        let flushed = SendWqe {
            wr_id: wr.wr_id,
            seq,
            status: code_as_byte(IBV_WC_WR_FLUSH_ERR),
            signaled: true,
            ..SendWqe::default()
        };
        // Completions keep the order of the WRs, so a flushed WR may wait behind a pending SEND.
        if !sq.deferred_wrs.is_empty() {
            // SAFETY: as above.
            unsafe { defer_wr(qp, sq, &view, seq, None) };
        } else if sq.pending_wqes.is_empty() {
            sq.finished_wrs.push(flushed);
        } else {
            sq.pending_wqes.push(flushed);
        }
        return Ok(());
    }
    let fault = if FAULTS {
        decide_wr_fault(qp, &view)
    } else {
        None
    };
    if !sq.deferred_wrs.is_empty() || state == QpState::Sqd {
        // SAFETY: as above.
        unsafe { defer_wr(qp, sq, &view, seq, fault) };
        return Ok(());
    }
    if FAULTS {
        match fault {
            None => {}
            Some(WorkRequestFault::Status(status)) => {
                why::note_cause(FailureCause::InjectedFault);
                record_result(qp, sq, wr, seq, signaled, &ExecutionResult::Failed(status));
                return Ok(());
            }
            Some(WorkRequestFault::ReceiverNotReady(_)) => {
                // SAFETY: as above.
                unsafe { defer_wr(qp, sq, &view, seq, fault) };
                return Ok(());
            }
        }
    }
    match execute_wr(qp, sq, &view) {
        ExecutionResult::NotPossibleYet => {
            // SAFETY: as above.
            unsafe { defer_wr(qp, sq, &view, seq, None) };
        }
        outcome => record_result(qp, sq, wr, seq, signaled, &outcome),
    }
    Ok(())
}

/// Defers a WR, with copies of everything that it points to.
///
/// # Safety
/// As for [`post_send`]; `view` is of one of its WRs.
#[cold]
unsafe fn defer_wr(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    seq: u64,
    fault: Option<WorkRequestFault>,
) {
    // SAFETY: `post_one_send` has checked the handle.
    let ah = unsafe { Ah::retain_for_wr(view.wr, view.ah.is_some()) };
    let payload = read_payload_now_if_reusable(qp, &mut sq.local_regions, view);
    sq.deferred_wrs.push_back(DeferredWr {
        wr: *view.wr,
        sges: view.sges.to_vec(),
        early_payload: payload,
        seq,
        retry_wait: WaitTimer::NOT_WAITING,
        wake_after_ns: UNRELIABLE_WAKE_AFTER_NS,
        ah,
        bind_request: view.bind_request,
        fault,
    });
    if let Some(out) = &sq.peer_ring {
        out.tell_receiver_of_deferred_wrs(qp.nic, true);
    }
}

/// Reads the payload of a deferred WR if it has to be read now.
///
/// The program may reuse the memory of inline data after the post. Some programs also reuse the memory of a datagram
/// that an adapter would have sent: eRPC sends again from the same memory after a timeout of its own. The memory of a
/// deferred WR on RC or UC belongs to the NIC until the WR completes.
///
/// Returns `None` for a payload that is too long or cannot be read: the WR fails when it is executed.
fn read_payload_now_if_reusable(
    qp: &Qp,
    local: &mut RegionCache,
    view: &WrView<'_>,
) -> Option<Vec<u8>> {
    let most = match qp.qp_type {
        // `post_one_send` has checked the length against `max_inline_data`.
        _ if view.wr.send_flags & IBV_SEND_INLINE != 0 => u64::MAX,
        QpType::Ud => UD_MAX_PAYLOAD_BYTES as u64,
        QpType::RawPacket => raw::MAX_FRAME_BYTES as u64,
        _ => return None,
    };
    let total: u64 = view.sges.iter().map(|s| u64::from(s.length)).sum();
    if total > most {
        return None;
    }
    let mut bytes = vec![0; total as usize];
    let mut at = 0;
    for_each_payload_part(qp, local, view, |src, len| {
        let part = bytes.get_mut(at..at + len).ok_or(IBV_WC_LOC_LEN_ERR)?;
        at += len;
        // SAFETY: `part` has `len` bytes of our own.
        unsafe { shm::mem::copy(part.as_mut_ptr(), src, len) }
            .map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)
    })
    .ok()?;
    Some(bytes)
}
