//! The operations that `verbs.h` calls through the context.

use std::ffi::c_int;

use verbs_abi::*;

use super::{on, or_errno};
use crate::memory::Payload;
use crate::post::{MAX_SGE, SendRequest, Sges};
use crate::threads::synchronize;
use crate::world::{Cqe, Recv};

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    synchronize();
    // SAFETY: a queue pair of ours; the list is as `ibv_post_send(3)` says.
    let posted = unsafe {
        on(qp, |world, index| {
            let refuse = |wr: *mut ibv_send_wr| {
                if let Some(place) = bad_wr.as_mut() {
                    *place = wr;
                }
            };
            let mut room = world.send_room(index).inspect_err(|_| refuse(wr))?;
            let mut wqes = std::mem::take(&mut world.building);
            let mut result = Ok(());
            while let Some(this) = wr.as_ref() {
                let built = match read_send(this) {
                    _ if room == 0 => Err(libc::ENOMEM),
                    Some(request) => world.build(index, request),
                    None => Err(libc::EINVAL),
                };
                match built {
                    Ok(wqe) => wqes.push(wqe),
                    Err(errno) => {
                        refuse(wr);
                        result = Err(errno);
                        break;
                    }
                }
                room -= 1;
                wr = this.next;
            }
            world.post(index, &wqes);
            wqes.clear();
            world.building = wqes;
            result
        })
    };
    or_errno(posted)
}

/// A WR in plain values; nothing if its SGEs cannot be.
///
/// # Safety
/// The WR is as `ibv_post_send(3)` says.
#[inline(always)]
unsafe fn read_send(wr: &ibv_send_wr) -> Option<SendRequest> {
    // SAFETY: contract of this function.
    let sges = unsafe { read_sges(wr.sg_list, wr.num_sge) }?;
    let inline = if wr.send_flags & IBV_SEND_INLINE != 0 {
        // SAFETY: inlined data may be anywhere in the program's memory, and is read now.
        Some(unsafe { copy_inline(&sges) }?)
    } else {
        None
    };
    let mut request = SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        // SAFETY: both members are `u32`.
        imm: unsafe { wr.imm.imm_data },
        dest_qpn: 0,
        dest_qkey: 0,
        remote_addr: 0,
        rkey: 0,
        compare_add: 0,
        swap: 0,
        sges,
        inline,
    };
    // SAFETY: the member that belongs to the opcode; all are plain numbers and pointers, and which one a
    // datagram's is its queue pair knows: the bytes are there in each case.
    unsafe {
        match wr.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => {
                request.dest_qpn = wr.wr.ud.remote_qpn;
                request.dest_qkey = wr.wr.ud.remote_qkey;
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                (request.remote_addr, request.rkey) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            _ => (request.remote_addr, request.rkey) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
    }
    Some(request)
}

/// # Safety
/// `list` holds `count` elements.
#[inline(always)]
unsafe fn read_sges(list: *const ibv_sge, count: c_int) -> Option<Sges> {
    let used = usize::try_from(count)
        .ok()
        .filter(|&count| count <= MAX_SGE)?;
    if used > 0 && list.is_null() {
        return None;
    }
    let mut sges = Sges {
        count: u32::try_from(used).ok()?,
        ..Sges::default()
    };
    for (i, item) in sges.items.iter_mut().take(used).enumerate() {
        // SAFETY: contract of this function.
        let sge = unsafe { *list.add(i) };
        *item = (sge.addr, sge.length, sge.lkey);
    }
    Some(sges)
}

/// # Safety
/// The elements lie in readable memory.
#[inline(always)]
unsafe fn copy_inline(sges: &Sges) -> Option<Payload> {
    let used = &sges.items[..sges.count as usize];
    let total: usize = used.iter().map(|&(_, len, _)| len as usize).sum();
    Payload::with(total, |into| {
        let mut rest = into;
        for &(addr, len, _) in used {
            let (part, after) = rest.split_at_mut(len as usize);
            let Ok(addr) = usize::try_from(addr) else {
                return false;
            };
            let from = std::ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: contract of this function.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            rest = after;
        }
        true
    })
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair of ours; the list is as `ibv_post_recv(3)` says.
    let posted = unsafe {
        on(qp, |world, index| {
            while let Some(this) = wr.as_ref() {
                let posted = match read_sges(this.sg_list, this.num_sge) {
                    // One buffer a RECV is what is simulated.
                    Some(sges) if sges.count <= 1 => {
                        let (addr, len, lkey) = sges.items[0];
                        let wr_id = this.wr_id;
                        let recv = Recv {
                            wr_id,
                            addr,
                            len,
                            lkey,
                        };
                        world.post_recv(index, recv)
                    }
                    _ => Err(libc::EINVAL),
                };
                if let Err(errno) = posted {
                    if let Some(place) = bad_wr.as_mut() {
                        *place = wr;
                    }
                    return Err(errno);
                }
                wr = this.next;
            }
            world.catch_up();
            Ok(())
        })
    };
    or_errno(posted)
}

pub(super) unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    libc::EOPNOTSUPP
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(most) = usize::try_from(n) else {
        return -libc::EINVAL;
    };
    synchronize();
    // SAFETY: a CQ of ours; `wc` has `n` places (`ibv_poll_cq(3)`).
    let taken = unsafe {
        on(cq, |world, index| {
            let mut filled = 0;
            let each = |cqe: Cqe| {
                wc.add(filled).write(completion(&cqe));
                filled += 1;
            };
            world.poll(index, most, each).ok_or(libc::EIO)
        })
    };
    match taken {
        Ok(taken) => c_int::try_from(taken).unwrap_or(n),
        Err(errno) => -errno,
    }
}

#[inline]
fn completion(cqe: &Cqe) -> ibv_wc {
    ibv_wc {
        wr_id: cqe.wr_id,
        status: cqe.status.into(),
        opcode: cqe.opcode.into(),
        vendor_err: 0,
        byte_len: cqe.byte_len,
        imm: ibv_wc_imm { imm_data: cqe.imm },
        qp_num: cqe.qpn,
        src_qp: cqe.src_qp,
        wc_flags: if cqe.with_imm { IBV_WC_WITH_IMM } else { 0 },
        pkey_index: 0,
        slid: cqe.slid,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Events are not simulated: who waits polls.
pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: a CQ of ours.
    or_errno(unsafe { on(cq, |_, _| Ok(())) })
}
