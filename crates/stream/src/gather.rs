//! Sequential copying from several buffers.

use std::io::IoSlice;

/// Remaining buffers of a vectored write.
pub(crate) struct Gather<'p, 'b> {
    parts: &'p [IoSlice<'b>],
    /// Bytes of the first part that were copied.
    offset: usize,
    remaining_bytes: usize,
    taken_bytes: usize,
}

impl<'p, 'b> Gather<'p, 'b> {
    pub(crate) fn new(parts: &'p [IoSlice<'b>]) -> Self {
        Self {
            parts,
            offset: 0,
            remaining_bytes: parts.iter().map(|part| part.len()).sum(),
            taken_bytes: 0,
        }
    }

    pub(crate) fn remaining_bytes(&self) -> usize {
        self.remaining_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.remaining_bytes == 0
    }

    pub(crate) fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }

    /// Fills `into` with the next bytes. At least `into.len()` bytes must remain.
    pub(crate) fn copy_to(&mut self, into: &mut [u8]) {
        let mut filled = 0;
        while filled < into.len() {
            let Some((first, rest)) = self.parts.split_first() else {
                break;
            };
            let left = &first[self.offset..];
            let now = left.len().min(into.len() - filled);
            into[filled..filled + now].copy_from_slice(&left[..now]);
            filled += now;
            self.offset += now;
            if self.offset == first.len() {
                (self.parts, self.offset) = (rest, 0);
            }
        }
        self.remaining_bytes -= filled;
        self.taken_bytes += filled;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cross_the_borders_of_parts() {
        let parts = [b"ab".as_slice(), b"", b"cdef", b"g"].map(IoSlice::new);
        let mut gather = Gather::new(&parts);
        let mut got = Vec::new();
        for len in [1, 2, 3, 1] {
            let mut piece = vec![0; len];
            gather.copy_to(&mut piece);
            got.push(piece);
        }
        assert_eq!(got, [&b"a"[..], b"bc", b"def", b"g"]);
        assert!(gather.is_empty());
        assert_eq!(gather.taken_bytes(), 7);
    }
}
