//! The layout of memory that the two ends write at each other: clear-to-send entries and completion records.

use std::ops::Range;

/// Largest number of receives in one group.
pub const MAX_RECEIVES_PER_GROUP: usize = 8;
/// Requests of one communicator that are not tested to their end, at most: NCCL's 32 times [`MAX_RECEIVES_PER_GROUP`].
pub const MAX_REQUESTS: usize = 32 * MAX_RECEIVES_PER_GROUP;
/// Bytes of a clear-to-send entry.
pub(crate) const CTS_ENTRY_BYTES: usize = 40;
/// Bytes of a slot of the FIFO: room for the entries of one group.
pub(crate) const FIFO_SLOT_BYTES: usize = MAX_RECEIVES_PER_GROUP * CTS_ENTRY_BYTES;
/// Slots of the FIFO. A group holds a request until it has come, so there are never more groups under way than slots.
pub(crate) const FIFO_SLOTS: usize = MAX_REQUESTS;
/// Bytes of a completion record: the sizes of a group, 4 bytes each.
pub(crate) const COMPLETION_RECORD_BYTES: usize = MAX_RECEIVES_PER_GROUP * 4;
/// Payload is divided among queue pairs in multiples of so many bytes.
const STRIPE_GRANULE_BYTES: u64 = 128;

/// A receive that the receiver has posted: the sender may WRITE there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClearToSend {
    /// Address of the receiver's buffer.
    pub addr: u64,
    /// Bytes of the buffer.
    pub buffer_bytes: u32,
    /// R_Key of the buffer.
    pub rkey: u32,
    /// Which send of the group this receive is for.
    pub tag: u32,
    /// Number of receives in the group, 1 to [`MAX_RECEIVES_PER_GROUP`].
    pub receives_in_group: u32,
}

impl ClearToSend {
    /// The entry as bytes, with the number of its group plus one in the last eight.
    pub(crate) fn encode(&self, group: u64) -> [u8; CTS_ENTRY_BYTES] {
        let mut bytes = [0; CTS_ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.buffer_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.tag.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.receives_in_group.to_le_bytes());
        // 24 to 32: reserved.
        bytes[32..].copy_from_slice(&slot_marker(group).to_ne_bytes());
        bytes
    }

    /// The entry in these bytes. The reader has seen the group's number in the slot's last word.
    pub(crate) fn decode(bytes: &[u8; CTS_ENTRY_BYTES]) -> Self {
        let word = |at: usize| {
            let (mut w, from) = ([0; 4], at..at + 4);
            w.copy_from_slice(&bytes[from]);
            u32::from_le_bytes(w)
        };
        let mut addr = [0; 8];
        addr.copy_from_slice(&bytes[..8]);
        Self {
            addr: u64::from_le_bytes(addr),
            buffer_bytes: word(8),
            rkey: word(12),
            tag: word(16),
            receives_in_group: word(20),
        }
    }
}

/// The last word of a slot once this group's entries are in it. Never 0, which is what the memory holds at first.
pub(crate) fn slot_marker(group: u64) -> u64 {
    group + 1
}

/// Returns the slot of a group.
pub(crate) fn slot_index(group: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "below SLOTS")]
    let slot = (group % FIFO_SLOTS as u64) as usize;
    slot
}

/// Returns the offset of entry `part` of a slot. A group ends where its slot ends, the first entry last. So the last
/// eight bytes of the WRITE that brings a group are the same word for every size of group. Those come last on every
/// adapter that lets programs poll on the last byte of a WRITE.
pub(crate) fn cts_entry_offset(slot: usize, part: usize) -> usize {
    (slot + 1) * FIFO_SLOT_BYTES - (part + 1) * CTS_ENTRY_BYTES
}

/// Returns the offset of the word that has the number of a slot's group.
pub(crate) fn marker_offset(slot: usize) -> usize {
    (slot + 1) * FIFO_SLOT_BYTES - 8
}

/// The part of `len` bytes that lane `lane` of `lanes` carries: multiples of 128 bytes but for the last, empty for
/// lanes that have nothing left to carry.
pub(crate) fn stripe_range(len: u32, lanes: usize, lane: usize) -> Range<u32> {
    let (len, lanes, lane) = (u64::from(len), lanes as u64, lane as u64);
    let each = len.div_ceil(lanes).next_multiple_of(STRIPE_GRANULE_BYTES);
    let (start, end) = ((each * lane).min(len), (each * (lane + 1)).min(len));
    #[expect(clippy::cast_possible_truncation, reason = "at most `len`")]
    let range = start as u32..end as u32;
    range
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_comes_back_as_it_was(addr: u64, len: u32, rkey: u32, tag: u32, parts in 1u32..=8, group in 0..u64::MAX) {
            let entry = ClearToSend { addr, buffer_bytes: len, rkey, tag, receives_in_group: parts };
            let bytes = entry.encode(group);
            prop_assert_eq!(ClearToSend::decode(&bytes), entry);
            prop_assert_eq!(&bytes[32..], &(group + 1).to_ne_bytes()[..]);
        }

        #[test]
        fn stripes_cover_the_payload_once_in_order(len: u32, lanes in 1usize..=16) {
            let mut at = 0;
            for lane in 0..lanes {
                let part = stripe_range(len, lanes, lane);
                prop_assert_eq!(part.start, at);
                prop_assert!(part.end == len || part.end.is_multiple_of(128));
                at = part.end;
            }
            prop_assert_eq!(at, len);
        }
    }

    #[test]
    fn every_group_ends_at_the_word_that_is_polled() {
        for slot in [0, 1, FIFO_SLOTS - 1] {
            assert_eq!(
                cts_entry_offset(slot, 0) + CTS_ENTRY_BYTES,
                marker_offset(slot) + 8
            );
            assert_eq!(
                cts_entry_offset(slot, MAX_RECEIVES_PER_GROUP - 1),
                slot * FIFO_SLOT_BYTES
            );
            assert_eq!(marker_offset(slot) % 8, 0);
        }
        assert_eq!(
            cts_entry_offset(FIFO_SLOTS - 1, 0) + CTS_ENTRY_BYTES,
            FIFO_SLOTS * FIFO_SLOT_BYTES
        );
    }
}
