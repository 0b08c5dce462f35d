//! Ranges of local and remote memory in work requests.

use serde::{Deserialize, Serialize};

use crate::types::{LKey, RKey};

/// A range of a memory region in a WR: a scatter/gather element.
/// [`MemoryRegion::slice`](crate::MemoryRegion::slice) makes and checks it; the NIC checks it
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrSlice {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

impl MrSlice {
    /// Returns the address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a scatter/gather element; empty ones are valid"
    )]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns the L_Key.
    pub fn lkey(&self) -> LKey {
        LKey(self.lkey)
    }

    /// Returns a part of the range, or `None` if the part is not inside.
    #[must_use]
    pub fn subrange(&self, range: std::ops::Range<u32>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len).then_some(Self {
            addr: self.addr + u64::from(range.start),
            len,
            lkey: self.lkey,
        })
    }
}

/// Memory of a peer. One side sends this value to the other, which may then READ, WRITE or use
/// atomics there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteMemory {
    /// The address in the peer's process.
    pub addr: u64,
    /// The number of bytes.
    pub len: u64,
    /// The R_Key.
    pub rkey: RKey,
}

impl RemoteMemory {
    /// Returns the part that starts at `offset`, or `None` if the offset is past the end.
    #[must_use]
    pub fn starting_at(&self, offset: u64) -> Option<Self> {
        Some(Self {
            addr: self.addr.checked_add(offset)?,
            len: self.len.checked_sub(offset)?,
            rkey: self.rkey,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_remote_memory_stay_inside() {
        let m = RemoteMemory {
            addr: 4096,
            len: 64,
            rkey: RKey(1),
        };
        assert_eq!(
            m.starting_at(64),
            Some(RemoteMemory {
                addr: 4160,
                len: 0,
                rkey: RKey(1)
            })
        );
        assert_eq!(m.starting_at(65), None);
    }

    #[test]
    fn parts_of_a_slice_stay_inside() {
        let whole = MrSlice {
            addr: 4096,
            len: 64,
            lkey: 1,
        };
        let part = whole.subrange(16..64).expect("it is inside");
        assert_eq!((part.addr(), part.len(), part.lkey), (4112, 48, 1));
        assert_eq!(part.subrange(48..48).map(|p| p.len()), Some(0));
        assert_eq!(part.subrange(0..49), None);
        assert_eq!(part.subrange(std::ops::Range { start: 2, end: 1 }), None);
    }
}
