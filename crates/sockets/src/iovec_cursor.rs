//! The memory that a program passes to a read or a write.

use std::ffi::c_void;
use std::marker::PhantomData;

use libc::iovec;

/// A position in the program's I/O vector: bytes before the position were already sent or filled.
#[derive(Clone, Copy)]
pub struct IovecCursor<'a> {
    parts: *const iovec,
    part_count: usize,
    /// Number of bytes before the position.
    consumed_bytes: usize,
    /// Number of remaining bytes.
    remaining_bytes: usize,
    lifetime: PhantomData<&'a [iovec]>,
}

impl<'a> IovecCursor<'a> {
    /// Creates a view of the buffers of an I/O vector.
    ///
    /// # Safety
    /// Each buffer must be valid for reads, and for writes if data is to be received, for `'a`. No other code may use
    /// the buffers meanwhile.
    pub unsafe fn new(parts: &'a [iovec]) -> Self {
        Self {
            parts: parts.as_ptr(),
            part_count: parts.len(),
            consumed_bytes: 0,
            remaining_bytes: parts
                .iter()
                .map(|part| part.iov_len)
                .fold(0, usize::saturating_add),
            lifetime: PhantomData,
        }
    }

    /// Returns the number of remaining bytes.
    pub fn len(&self) -> usize {
        self.remaining_bytes
    }

    /// Returns the buffers without their first `skip` remaining bytes.
    pub(crate) fn skip_bytes(mut self, skip: usize) -> Self {
        self.consumed_bytes += skip;
        self.remaining_bytes = self.remaining_bytes.saturating_sub(skip);
        self
    }

    /// Returns true if no byte remains.
    pub fn is_empty(&self) -> bool {
        self.remaining_bytes == 0
    }

    /// Returns the pieces of memory that hold `len` bytes from `skip` on.
    pub(crate) fn pieces(
        self,
        skip: usize,
        len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> + 'a {
        let (mut skip, mut left) = (self.consumed_bytes + skip, len);
        (0..self.part_count).filter_map(move |i| {
            // SAFETY: `i` is below the number of parts, and the vector lives for `'a`.
            let part = unsafe { *self.parts.add(i) };
            let from = skip.min(part.iov_len);
            skip -= from;
            let n = (part.iov_len - from).min(left);
            left -= n;
            // SAFETY: `skip_bytes` is within the part.
            (n > 0).then(|| (unsafe { part.iov_base.cast::<u8>().add(from) }, n))
        })
    }

    /// Copies bytes from the buffers, from `skip` on, to `to`.
    pub(crate) fn copy_to(self, skip: usize, to: &mut [u8]) {
        let mut at = 0;
        for (from, n) in self.pieces(skip, to.len()) {
            // SAFETY: `skip_bytes` is valid for reads of `n` bytes (`new`), and `to` has so many left.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(at), n) };
            at += n;
        }
    }

    /// Returns the pieces of `len` bytes from `skip` on as an I/O vector.
    pub(crate) fn iovecs_of_range(self, skip: usize, len: usize) -> Vec<iovec> {
        self.pieces(skip, len)
            .map(|(base, iov_len)| iovec {
                iov_base: base.cast::<c_void>(),
                iov_len,
            })
            .collect()
    }
}
