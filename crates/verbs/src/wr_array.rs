//! The arrays that contain work requests, and functions for posting a part of one.

#![allow(unsafe_code)]

use std::ops::{Bound, RangeBounds};

use crate::error::PostError;

/// A heap array that is accessed only through pointers, so that the NIC's pointers into it stay
/// valid when the owner moves.
pub(crate) struct StableArray<T> {
    pub(crate) ptr: *mut T,
    pub(crate) len: usize,
}

impl<T> StableArray<T> {
    pub(crate) fn new(len: usize, make: impl FnMut(usize) -> T) -> Self {
        let boxed: Box<[T]> = (0..len).map(make).collect();
        Self {
            ptr: Box::into_raw(boxed).cast(),
            len,
        }
    }

    /// Returns an element.
    ///
    /// # Safety
    /// `i < len`, and nothing else borrows the element.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the callers hold the list exclusively")]
    pub(crate) unsafe fn at(&self, i: usize) -> &mut T {
        debug_assert!(i < self.len);
        // SAFETY: the caller's guarantee; allocated in `new`, freed in `drop`.
        unsafe { &mut *self.ptr.add(i) }
    }

    /// Returns the elements of a range.
    ///
    /// # Safety
    /// `start + len` is at most the array's length, and nothing else borrows the elements.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the callers hold the list exclusively")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [T] {
        debug_assert!(start + len <= self.len);
        // SAFETY: as in `at`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), len) }
    }
}

impl<T> Drop for StableArray<T> {
    fn drop(&mut self) {
        // SAFETY: from Box::into_raw of a boxed slice of this length. After ibv_post_send has
        // returned, the NIC has no pointer into it (the WRs are copied into its queue:
        // ibv_post_send(3)).
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.ptr, self.len)) });
    }
}

/// Returns the bounds of a range, clipped to a list of length `len`.
#[inline]
pub(crate) fn clipped_bounds(range: &impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&s) => s,
        Bound::Excluded(&s) => s + 1,
        Bound::Unbounded => 0,
    };
    let stop = match range.end_bound() {
        Bound::Included(&e) => e + 1,
        Bound::Excluded(&e) => e,
        Bound::Unbounded => len,
    };
    assert!(
        start <= stop && stop <= len,
        "WRs {start}..{stop} of a list of {len}"
    );
    (start, stop)
}

/// Returns the error of a refused post; `bad` is the address from the provider, which may be wrong.
#[cold]
pub(crate) fn post_error(
    verb: &'static str,
    ret: i32,
    bad: usize,
    base: usize,
    size: usize,
    start: usize,
) -> PostError {
    let index = bad.checked_sub(base).map_or(start, |d| d / size).max(start);
    PostError::from_ret(verb, ret, index)
}
