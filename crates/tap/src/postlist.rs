//! The lists of work requests that programs post.

use std::ffi::c_int;

use verbs_abi::*;

use crate::send_work_request::SendWorkRequest;

/// A postlist that a program posted, up to the first refused work request.
#[derive(Clone)]
pub(crate) struct PostedList {
    next: *mut ibv_send_wr,
    end: *mut ibv_send_wr,
}

impl PostedList {
    pub(crate) fn new(first: *mut ibv_send_wr, end: *mut ibv_send_wr) -> Self {
        Self { next: first, end }
    }
}

impl Iterator for PostedList {
    type Item = &'static ibv_send_wr;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.end {
            return None;
        }
        // SAFETY: NULL, or a work request of the list that the program passes to this call.
        let this = unsafe { self.next.as_ref() }?;
        self.next = this.next;
        Some(this)
    }
}

impl SendWorkRequest for &ibv_send_wr {
    #[inline(always)]
    fn opcode(&self) -> ibv_wr_opcode {
        self.opcode
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        self.send_flags
    }

    #[inline(always)]
    fn num_sge_and_bytes(&self) -> (u32, u32) {
        // SAFETY: the provider has accepted the work request with this list of elements.
        unsafe { sge_count_and_bytes(self.sg_list, self.num_sge) }
    }

    #[inline(always)]
    fn remote_addr(&self) -> u64 {
        // SAFETY: RDMA and atomics have the remote address, a plain number, at the same offset.
        unsafe { self.wr.rdma.remote_addr }
    }

    #[inline(always)]
    fn ud_destination(&self) -> (*mut ibv_ah, u32) {
        // SAFETY: any bits are a valid value of this union member.
        unsafe { (self.wr.ud.ah, self.wr.ud.remote_qpn) }
    }
}

/// Returns the number of elements of a scatter/gather list, and the sum of their lengths in bytes.
///
/// # Safety
/// The list has `num_sge` elements.
#[inline(always)]
pub(crate) unsafe fn sge_count_and_bytes(sges: *const ibv_sge, num_sge: c_int) -> (u32, u32) {
    if num_sge == 1 && !sges.is_null() {
        // SAFETY: contract of this function.
        return (1, unsafe { sge_length(sges) });
    }
    // SAFETY: as above.
    unsafe { sum_sges(sges, num_sge) }
}

/// Reads the length of an SGE, which may lie in a packed structure.
///
/// # Safety
/// `sge` points to a readable element.
#[inline(always)]
pub(crate) unsafe fn sge_length(sge: *const ibv_sge) -> u32 {
    // SAFETY: contract of this function.
    unsafe { (&raw const (*sge).length).read_unaligned() }
}

/// Implements [`sge_count_and_bytes`] for lists whose length is not 1.
///
/// # Safety
/// The contract of [`sge_count_and_bytes`] applies.
#[inline(never)]
unsafe fn sum_sges(sges: *const ibv_sge, num_sge: c_int) -> (u32, u32) {
    match usize::try_from(num_sge) {
        Ok(many @ 1..) if !sges.is_null() => {
            let lengths = (0..many).map(|i| {
                // SAFETY: contract of this function.
                unsafe { sge_length(sges.add(i)) }
            });
            (many as u32, lengths.fold(0, u32::saturating_add))
        }
        _ => (0, 0),
    }
}

/// Returns where to store the address of a refused work request: the program's `bad_wr`, or `own` if `bad_wr` is NULL.
#[inline(always)]
pub(crate) fn bad_wr_slot<T>(bad_wr: *mut *mut T, own: &mut *mut T) -> *mut *mut T {
    if bad_wr.is_null() { own } else { bad_wr }
}
