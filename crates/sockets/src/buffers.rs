//! The memory that a program passes to read into or write from.

use std::ffi::c_void;
use std::marker::PhantomData;

use libc::iovec;

/// Buffers of a program, in order, of which a part may be used already.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    parts: *const iovec,
    count: usize,
    /// Bytes at the beginning that are used.
    skip: usize,
    /// Bytes of all of them, without those.
    len: usize,
    lives: PhantomData<&'a [iovec]>,
}

impl<'a> Buffers<'a> {
    /// The buffers of a vector.
    ///
    /// # Safety
    /// Each is valid for reads, and for writes if something is to be received, for `'a`; nobody else uses them.
    pub unsafe fn new(parts: &'a [iovec]) -> Self {
        Self {
            parts: parts.as_ptr(),
            count: parts.len(),
            skip: 0,
            len: parts
                .iter()
                .map(|part| part.iov_len)
                .fold(0, usize::saturating_add),
            lives: PhantomData,
        }
    }

    /// Bytes of all of them.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Those bytes of them that come after the first `skip`.
    pub(crate) fn from(mut self, skip: usize) -> Self {
        self.skip += skip;
        self.len = self.len.saturating_sub(skip);
        self
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces of `len` bytes from `skip` on.
    pub(crate) fn pieces(
        self,
        skip: usize,
        len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> + 'a {
        let (mut skip, mut left) = (self.skip + skip, len);
        (0..self.count).filter_map(move |i| {
            // SAFETY: one of the vector's parts, which lives for `'a`.
            let part = unsafe { *self.parts.add(i) };
            let from = skip.min(part.iov_len);
            skip -= from;
            let n = (part.iov_len - from).min(left);
            left -= n;
            // SAFETY: within the part.
            (n > 0).then(|| (unsafe { part.iov_base.cast::<u8>().add(from) }, n))
        })
    }

    /// Copies bytes out of them, from `skip` on, to `to`.
    pub(crate) fn copy_to(self, skip: usize, to: &mut [u8]) {
        let mut at = 0;
        for (from, n) in self.pieces(skip, to.len()) {
            // SAFETY: `from` is valid for reads of `n` bytes (`new`), and `to` has so many left.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr().add(at), n) };
            at += n;
        }
    }

    /// The parts of `len` bytes from `skip` on, as a vector.
    pub(crate) fn vector(self, skip: usize, len: usize) -> Vec<iovec> {
        self.pieces(skip, len)
            .map(|(base, iov_len)| iovec {
                iov_base: base.cast::<c_void>(),
                iov_len,
            })
            .collect()
    }
}
