//! The postlist that a thread builds between `ibv_wr_start` and `ibv_wr_complete`: `ibv_wr_post(3)`.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_abi::*;

/// The state of the extended post API of one queue pair (`ibv_wr_post(3)`).
pub(crate) struct WrBuilder {
    /// True while a thread is between `ibv_wr_start` and `ibv_wr_complete`.
    is_building: AtomicBool,
    postlist: UnsafeCell<BuiltPostlist>,
}

/// The work requests of a postlist, with the SGEs and inline bytes that they refer to.
#[derive(Default)]
pub(crate) struct BuiltPostlist {
    wrs: Vec<WrWithoutPointers>,
    sges: Vec<ibv_sge>,
    inline_bytes: Vec<u8>,
    /// The errno of the program's first mistake; 0 if there was none.
    first_errno: c_int,
}

/// A work request whose pointers are not set yet: the vectors that they will point into may still be reallocated.
struct WrWithoutPointers {
    wr: ibv_send_wr,
    /// Its SGEs, in `BuiltPostlist::sges`.
    sge_range: std::ops::Range<usize>,
    /// Its payload, in `BuiltPostlist::inline`.
    inline_range: Option<std::ops::Range<usize>>,
}

// SAFETY: the pointers in the work requests are the program's; `WrBuilder` passes them on without dereferencing them.
unsafe impl Send for WrBuilder {}
// SAFETY: `list` is reached through `WrBuilder::postlist` alone, whose callers are the thread that has set
// `is_building`.
unsafe impl Sync for WrBuilder {}

impl WrBuilder {
    pub(crate) fn new() -> Self {
        Self {
            is_building: AtomicBool::new(false),
            postlist: UnsafeCell::new(BuiltPostlist::default()),
        }
    }

    /// Acquires the list for this thread until [`empty_and_release`](Self::empty_and_release). Waits while another
    /// thread has the list.
    pub(crate) fn acquire_postlist(&self) {
        while self.is_building.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    /// Returns the list, which belongs to the thread that has called [`acquire_postlist`](Self::acquire_postlist).
    #[inline(always)]
    pub(crate) fn postlist(&self) -> *mut BuiltPostlist {
        self.postlist.get()
    }

    /// Empties the list and releases it to other threads.
    pub(crate) fn empty_and_release(&self, list: &mut BuiltPostlist) {
        list.wrs.clear();
        list.sges.clear();
        list.inline_bytes.clear();
        list.first_errno = 0;
        self.is_building.store(false, Ordering::Release);
    }
}

impl BuiltPostlist {
    /// Sets the pointers of the work requests. Returns the first work request and their number.
    ///
    /// # Errors
    /// The errno of the program's first mistake.
    pub(crate) fn set_pointers(&mut self) -> Result<(*mut ibv_send_wr, usize), c_int> {
        if self.first_errno != 0 {
            return Err(self.first_errno);
        }
        for b in &mut self.wrs {
            if let Some(bytes) = b.inline_range.take() {
                let at = self.inline_bytes[bytes.clone()]
                    .as_ptr()
                    .expose_provenance();
                b.sge_range = self.sges.len()..self.sges.len() + 1;
                self.sges.push(ibv_sge {
                    addr: at as u64,
                    // At most `max_inline_data`, which is checked when it is set.
                    length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    lkey: 0,
                });
            }
        }
        let mut next = std::ptr::null_mut();
        for b in self.wrs.iter_mut().rev() {
            b.wr.sg_list = self.sges[b.sge_range.clone()].as_mut_ptr();
            b.wr.num_sge = c_int::try_from(b.sge_range.len()).unwrap_or(c_int::MAX);
            b.wr.next = next;
            next = &raw mut b.wr;
        }
        Ok((next, self.wrs.len()))
    }

    /// Appends a work request that has no SGEs yet.
    #[inline(always)]
    pub(crate) fn append_wr(&mut self, wr: ibv_send_wr) {
        let end = self.sges.len();
        self.wrs.push(WrWithoutPointers {
            wr,
            sge_range: end..end,
            inline_range: None,
        });
    }

    /// Returns the work request begun last. If there is none, records `EINVAL`: the program called a setter before any
    /// operation.
    #[inline(always)]
    pub(crate) fn last_wr(&mut self) -> Option<&mut ibv_send_wr> {
        if self.wrs.is_empty() {
            self.record_errno(libc::EINVAL);
        }
        self.wrs.last_mut().map(|b| &mut b.wr)
    }

    /// Sets the SGEs of the last work request.
    pub(crate) fn set_sges(&mut self, sges: &[ibv_sge]) {
        let Some(last) = self.wrs.last_mut() else {
            return self.record_errno(libc::EINVAL);
        };
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        last.sge_range = start..self.sges.len();
    }

    /// Appends to the inline payload of the last work request.
    pub(crate) fn append_inline_bytes(&mut self, bytes: &[u8]) {
        let Some(last) = self.wrs.last_mut() else {
            return self.record_errno(libc::EINVAL);
        };
        let end = self.inline_bytes.len() + bytes.len();
        let start = last
            .inline_range
            .take()
            .map_or(self.inline_bytes.len(), |r| r.start);
        last.wr.send_flags |= IBV_SEND_INLINE;
        last.inline_range = Some(start..end);
        self.inline_bytes.extend_from_slice(bytes);
    }

    /// Records a mistake of the program, so that nothing of the list is posted. Only the first one is kept.
    pub(crate) fn record_errno(&mut self, errno: c_int) {
        if self.first_errno == 0 {
            self.first_errno = errno;
        }
    }
}
