//! Parts of memory as work requests name them, here and at a peer.

use serde::{Deserialize, Serialize};

use crate::types::{LKey, RKey};

/// A part of a memory region as a WR names it: a scatter/gather element. Made by [`MemoryRegion::slice`](crate::MemoryRegion::slice),
/// which checks it; the NIC checks it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MrSlice {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) lkey: u32,
}

impl MrSlice {
    /// The address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// The number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a scatter/gather element; empty ones are valid"
    )]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The L_Key.
    pub fn lkey(&self) -> LKey {
        LKey(self.lkey)
    }

    /// A part of it, or nothing if that is not inside.
    #[must_use]
    pub fn part(&self, range: std::ops::Range<u32>) -> Option<Self> {
        let len = range.end.checked_sub(range.start)?;
        (range.end <= self.len).then_some(Self {
            addr: self.addr + u64::from(range.start),
            len,
            lkey: self.lkey,
        })
    }
}

/// Memory of a peer: what one side sends to the other so that it may READ, WRITE or use atomics there.
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
    /// The part that starts at `offset`, or nothing if that is past the end.
    #[must_use]
    pub fn at(&self, offset: u64) -> Option<Self> {
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
            m.at(64),
            Some(RemoteMemory {
                addr: 4160,
                len: 0,
                rkey: RKey(1)
            })
        );
        assert_eq!(m.at(65), None);
    }

    #[test]
    fn parts_of_a_slice_stay_inside() {
        let whole = MrSlice {
            addr: 4096,
            len: 64,
            lkey: 1,
        };
        let part = whole.part(16..64).expect("it is inside");
        assert_eq!((part.addr(), part.len(), part.lkey), (4112, 48, 1));
        assert_eq!(part.part(48..48).map(|p| p.len()), Some(0));
        assert_eq!(part.part(0..49), None);
        assert_eq!(part.part(std::ops::Range { start: 2, end: 1 }), None);
    }
}
