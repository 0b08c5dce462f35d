//! The operations that `verbs.h` calls through the context.

use std::ffi::c_int;

use verbs_abi::*;

use super::handle::{on_known, or_errno};
use crate::cq::Cqe;
use crate::memory::Payload;
use crate::post::{Datagram, MAX_SGE, SendRequest};
use crate::recvs::{Recv, RecvList};
use crate::threads::synchronize;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    synchronize();
    // SAFETY: a queue pair of ours; the list is as `ibv_post_send(3)` says.
    let posted = unsafe {
        on_known((*qp).context, (*qp).handle, |world, index| {
            let refuse = |wr: *mut ibv_send_wr| {
                if let Some(place) = bad_wr.as_mut() {
                    *place = wr;
                }
            };
            let mut list = world.postlist(index).inspect_err(|_| refuse(wr))?;
            let mut result = Ok(());
            while let Some(this) = wr.as_ref() {
                if list.room > 0
                    && let Some(datagram) = as_datagram(this)
                    && world.build_like(index, &mut list, &datagram)
                {
                    wr = this.next;
                    continue;
                }
                let built = match read_send(this) {
                    _ if list.room == 0 => Err(libc::ENOMEM),
                    Some(request) => {
                        let inlined = |length| copy_inline(request.sges, length);
                        world.build(index, &mut list, &request, inlined)
                    }
                    None => Err(libc::EINVAL),
                };
                if let Err(errno) = built {
                    refuse(wr);
                    result = Err(errno);
                    break;
                }
                wr = this.next;
            }
            world.post(index, list);
            result
        })
    };
    or_errno(posted)
}

/// A WR without payload as a datagram; whether it is one its queue pair knows.
#[inline(always)]
fn as_datagram(wr: &ibv_send_wr) -> Option<Datagram> {
    if wr.num_sge != 0 {
        return None;
    }
    // SAFETY: all members of the unions are plain numbers and pointers.
    let (imm, ud) = unsafe { (wr.imm.imm_data, wr.wr.ud) };
    Some(Datagram {
        opcode: wr.opcode,
        flags: wr.send_flags,
        wr_id: wr.wr_id,
        imm,
        dest_qpn: ud.remote_qpn,
        key: ud.remote_qkey,
    })
}

/// A WR in plain values; nothing if its SGEs cannot be.
///
/// # Safety
/// The WR is as `ibv_post_send(3)` says.
#[inline(always)]
unsafe fn read_send(wr: &ibv_send_wr) -> Option<SendRequest<'_>> {
    let mut request = SendRequest {
        wr_id: wr.wr_id,
        opcode: wr.opcode,
        flags: wr.send_flags,
        // SAFETY: both members are `u32`.
        imm: unsafe { wr.imm.imm_data },
        dest_qpn: 0,
        key: 0,
        remote_addr: 0,
        compare_add: 0,
        swap: 0,
        // SAFETY: contract of this function.
        sges: unsafe { read_sges(wr.sg_list, wr.num_sge) }?,
    };
    // SAFETY: the member that belongs to the opcode; all are plain numbers and pointers, and which one a
    // datagram's is its queue pair knows: the bytes are there in each case.
    unsafe {
        match wr.opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => {
                request.dest_qpn = wr.wr.ud.remote_qpn;
                request.key = wr.wr.ud.remote_qkey;
            }
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                let atomic = wr.wr.atomic;
                (request.remote_addr, request.key) = (atomic.remote_addr, atomic.rkey);
                (request.compare_add, request.swap) = (atomic.compare_add, atomic.swap);
            }
            _ => (request.remote_addr, request.key) = (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey),
        }
    }
    Some(request)
}

/// # Safety
/// `list` holds `count` elements that nobody changes for so long.
#[inline(always)]
unsafe fn read_sges<'a>(list: *const ibv_sge, count: c_int) -> Option<&'a [ibv_sge]> {
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= MAX_SGE)?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: contract of this function.
    (!list.is_null()).then(|| unsafe { std::slice::from_raw_parts(list, count) })
}

/// # Safety
/// The elements lie in readable memory, and have this length together.
#[inline(always)]
unsafe fn copy_inline(sges: &[ibv_sge], length: usize) -> Option<Payload> {
    if let ([sge], 8) = (sges, length) {
        let from = usize::try_from(sge.addr).ok()?;
        let from = std::ptr::with_exposed_provenance::<[u8; 8]>(from);
        // SAFETY: contract of this function, as below; bytes need no alignment.
        return Some(Payload::word(unsafe { from.read() }));
    }
    Payload::with(length, |into| {
        let mut rest = into;
        for sge in sges {
            let (part, after) = rest.split_at_mut(sge.length as usize);
            let Ok(addr) = usize::try_from(sge.addr) else {
                return false;
            };
            let from = std::ptr::with_exposed_provenance::<u8>(addr);
            // SAFETY: contract of this function; inlined data may be anywhere in the program's memory.
            unsafe { std::ptr::copy_nonoverlapping(from, part.as_mut_ptr(), part.len()) };
            rest = after;
        }
        true
    })
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: a queue pair of ours; the list is as `ibv_post_recv(3)` says.
    let posted = unsafe {
        on_known((*qp).context, (*qp).handle, |world, index| {
            let mut recvs = Recvs { next: wr, last: wr };
            world.post_recvs(index, &mut recvs).inspect_err(|_| {
                if let Some(place) = bad_wr.as_mut() {
                    *place = recvs.last;
                }
            })
        })
    };
    or_errno(posted)
}

/// A list as `ibv_post_recv(3)` says, while it is posted.
struct Recvs {
    next: *mut ibv_recv_wr,
    /// The one that was taken last.
    last: *mut ibv_recv_wr,
}

impl RecvList<c_int> for &mut Recvs {
    #[inline(always)]
    fn next(&mut self) -> Option<Result<Recv, c_int>> {
        self.last = self.next;
        // SAFETY: the caller of `post_recv` gave such a list.
        unsafe {
            let this = self.next.as_ref()?;
            self.next = this.next;
            Some(read_recv(this).ok_or(libc::EINVAL))
        }
    }

    #[inline(always)]
    fn skip(&mut self, recv: &Recv) -> bool {
        // SAFETY: the caller of `post_recv` gave such a list, and one SGE is there if the WR says so and its address
        // is not NULL.
        unsafe {
            let Some(this) = self.next.as_ref().filter(|this| this.num_sge == 1) else {
                return false;
            };
            let is_next = this.sg_list.as_ref().is_some_and(|sge| {
                this.wr_id == recv.wr_id
                    && sge.addr == recv.addr
                    && sge.length == recv.len
                    && sge.lkey == recv.lkey
            });
            if is_next {
                self.next = this.next;
            }
            is_next
        }
    }
}

/// A RECV in plain values; nothing if it has more than one buffer, which is not simulated.
///
/// # Safety
/// The WR is as `ibv_post_recv(3)` says.
#[inline(always)]
unsafe fn read_recv(wr: &ibv_recv_wr) -> Option<Recv> {
    // SAFETY: contract of this function.
    let sges = unsafe { read_sges(wr.sg_list, wr.num_sge) }?;
    let (addr, len, lkey) = match sges {
        [] => (0, 0, 0),
        [sge] => (sge.addr, sge.length, sge.lkey),
        _ => return None,
    };
    Some(Recv {
        wr_id: wr.wr_id,
        addr,
        len,
        lkey,
    })
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
        on_known((*cq).context, (*cq).handle, |world, index| {
            let mut place = wc;
            let each = |cqe: &Cqe| {
                place.write(completion(cqe));
                place = place.add(1);
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
    or_errno(unsafe { on_known((*cq).context, (*cq).handle, |_, _| Ok(())) })
}
