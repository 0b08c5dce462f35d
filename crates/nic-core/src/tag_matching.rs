//! Tag matching: selects the list entry for a message (`ibv_post_srq_ops(3)`).
//!
//! A message to a tag matching shared receive queue begins with a tag matching header. If the message matches an entry
//! of the list, it is written to the entry's buffer, without the header. Otherwise the message is unexpected, and is
//! written with the header to the oldest receive work request. A rendezvous message contains only the address of the
//! payload. The NIC READs the payload, and then informs the sender by a FIN message. If the entry's buffer is too
//! small, the program continues the rendezvous itself (`Documentation/tag_matching.md` of rdma-core, "TM completion
//! processing").

/// Bytes of a tag matching header (`struct ibv_tmh` of `infiniband/tm_types.h`). It contains the operation, 3 reserved
/// bytes, 4 bytes of the application, and the tag, in network byte order.
pub const TMH_BYTES: usize = 16;

/// Bytes of a rendezvous header (`struct ibv_rvh`), which follows a tag matching header. It contains address, R_Key
/// and length of the payload, in network byte order.
pub const RVH_BYTES: usize = 16;

/// Largest number of header bytes that a sender puts before a message's payload.
pub const MAX_HEADER_BYTES: usize = TMH_BYTES + RVH_BYTES;

/// Operation codes of a tag matching header (`enum ibv_tmh_op`); programs use other values.
const TMH_RNDV: u8 = 1;
const TMH_FIN: u8 = 2;
const TMH_EAGER: u8 = 3;

/// The list of a tag matching shared receive queue; each entry has a buffer of type `B`.
#[derive(Debug)]
pub struct TagList<B> {
    /// Entries in the order of their addition, which is the order of matching.
    entries: Vec<TagEntry<B>>,
    max_entries: usize,
    last_handle: u32,
    /// Number of unexpected messages; `handled` is the number that the program has reported as handled. While the two
    /// numbers differ, the program may not know of a message that a new entry would match. Entries that are added
    /// meanwhile are inactive until the numbers agree.
    unexpected_message_count: u32,
    handled_message_count: u32,
}

/// An entry of a list.
#[derive(Debug)]
pub struct TagEntry<B> {
    handle: u32,
    tag: u64,
    mask: u64,
    is_active: bool,
    /// `wr_id` of the entry's completion.
    pub wr_id: u64,
    /// Buffer for the message.
    pub buffer: B,
}

/// Error: the list has its maximum number of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag matching list is full: remove an entry, or let a message match one")]
pub struct ListFull;

/// The payload that a rendezvous header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePayload {
    /// Address of the first byte in the sender's memory.
    pub addr: u64,
    /// R_Key of the memory region.
    pub rkey: u32,
    /// Length in bytes.
    pub len: u32,
}

/// The decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagDecision {
    /// The message has no tag and is written to a receive work request.
    Untagged,
    /// The message matches no entry and is written to a receive work request.
    Unexpected,
    /// The message matches an entry.
    Matched(TagMatch),
}

/// A message and its matching entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagMatch {
    /// Index of the entry in the list.
    pub entry_index: usize,
    /// Tag of the message.
    pub tag: u64,
    /// The sending application's field of the header.
    pub app_ctx: u32,
    /// The way in which the message is delivered to the entry's buffer.
    pub delivery: MatchedDelivery,
}

/// The delivery of a message that matches an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchedDelivery {
    /// The bytes after the header are written to the entry's buffer.
    Eager,
    /// The payload is READ into the entry's buffer.
    Rendezvous(RemotePayload),
    /// The entry's buffer is too small for the payload. The buffer gets the headers, and the program fetches the
    /// payload.
    HeadersOnly,
}

impl<B> TagList<B> {
    /// Makes an empty list of at most `max_entries`.
    #[must_use]
    pub const fn new(max_entries: u32) -> Self {
        Self {
            entries: Vec::new(),
            max_entries: max_entries as usize,
            last_handle: 0,
            unexpected_message_count: 0,
            handled_message_count: 0,
        }
    }

    /// Returns the largest number of entries.
    #[must_use]
    pub const fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// Adds an entry for messages whose tag equals `tag` in the bits of `mask`, and returns its handle
    /// (`IBV_WR_TAG_ADD`).
    ///
    /// # Errors
    /// [`ListFull`] if the list has its maximum number of entries.
    pub fn add_entry(
        &mut self,
        wr_id: u64,
        (tag, mask): (u64, u64),
        buffer: B,
    ) -> Result<u32, ListFull> {
        if self.entries.len() >= self.max_entries {
            return Err(ListFull);
        }
        self.last_handle = self.last_handle.wrapping_add(1);
        self.entries.push(TagEntry {
            handle: self.last_handle,
            tag,
            mask,
            is_active: self.is_synchronised(),
            wr_id,
            buffer,
        });
        Ok(self.last_handle)
    }

    /// Removes the entry with the handle `handle` (`IBV_WR_TAG_DEL`); returns false if the list does not have this
    /// entry.
    pub fn remove_by_handle(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|e| e.handle == handle);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    /// Returns the entry at an index.
    ///
    /// # Panics
    /// Panics if the index is out of range. An index of a [`TagMatch`] is valid until an entry is taken or removed.
    #[must_use]
    pub fn entry_at(&self, at: usize) -> &TagEntry<B> {
        &self.entries[at]
    }

    /// Removes and returns the entry at an index.
    ///
    /// # Panics
    /// Panics as [`entry`](Self::entry_at) does.
    pub fn remove_entry_at(&mut self, at: usize) -> TagEntry<B> {
        self.entries.remove(at)
    }

    /// Records the number of unexpected messages that the program has handled (`IBV_OPS_TM_SYNC`).
    pub fn set_handled_messages(&mut self, handled: u32) {
        self.handled_message_count = handled;
        if self.is_synchronised() {
            for entry in &mut self.entries {
                entry.is_active = true;
            }
        }
    }

    /// Returns true if the program has handled all unexpected messages.
    #[must_use]
    pub const fn is_synchronised(&self) -> bool {
        self.handled_message_count == self.unexpected_message_count
    }

    /// Records that an unexpected message was written to a receive work request.
    #[cold]
    pub fn count_unexpected_message(&mut self) {
        self.unexpected_message_count = self.unexpected_message_count.wrapping_add(1);
    }

    /// Selects the delivery of a message. `head` has the first [`MAX_HEADER_BYTES`] bytes of the message, or all bytes
    /// of a shorter message. `room` returns the size of a buffer in bytes.
    pub fn decide_delivery(&self, head: &[u8], room: impl FnOnce(&B) -> u64) -> TagDecision {
        let needed = match head.first() {
            Some(&TMH_EAGER) => TMH_BYTES,
            Some(&TMH_RNDV) => MAX_HEADER_BYTES,
            _ => usize::MAX,
        };
        if head.len() < needed {
            return TagDecision::Untagged;
        }
        let tag = read_be_u64(&head[8..]);
        let Some(at) = self.find_matching_entry(tag) else {
            return TagDecision::Unexpected;
        };
        let then = if head[0] == TMH_EAGER {
            MatchedDelivery::Eager
        } else {
            let rest = &head[TMH_BYTES..];
            let payload = RemotePayload {
                addr: read_be_u64(rest),
                rkey: read_be_u32(&rest[8..]),
                len: read_be_u32(&rest[12..]),
            };
            if u64::from(payload.len) <= room(&self.entries[at].buffer) {
                MatchedDelivery::Rendezvous(payload)
            } else {
                MatchedDelivery::HeadersOnly
            }
        };
        TagDecision::Matched(TagMatch {
            entry_index: at,
            tag,
            app_ctx: read_be_u32(&head[4..]),
            delivery: then,
        })
    }

    fn find_matching_entry(&self, tag: u64) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|e| e.is_active && tag & e.mask == e.tag)
    }
}

/// Returns the FIN message of the rendezvous with this header; FIN tells the sender that the payload has been READ.
#[must_use]
pub const fn build_fin_message(mut header: [u8; TMH_BYTES]) -> [u8; TMH_BYTES] {
    header[0] = TMH_FIN;
    header
}

fn read_be_u64(bytes: &[u8]) -> u64 {
    bytes[..8].iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn read_be_u32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |n, &b| n << 8 | u32::from(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Makes the header of a message with an operation and a tag.
    fn header(op: u8, tag: u64) -> [u8; MAX_HEADER_BYTES] {
        let mut head = [0; MAX_HEADER_BYTES];
        head[0] = op;
        head[4..8].copy_from_slice(&[1, 2, 3, 4]);
        head[8..16].copy_from_slice(&tag.to_be_bytes());
        head[16..24].copy_from_slice(&0x1122_3344_5566_7788u64.to_be_bytes());
        head[24..28].copy_from_slice(&77u32.to_be_bytes());
        head[28..32].copy_from_slice(&100u32.to_be_bytes());
        head
    }

    #[test]
    fn the_first_that_was_added_matches() {
        let mut list = TagList::new(3);
        let one = list.add_entry(0, (0x34, 0xff), ()).unwrap();
        list.add_entry(0, (0x1234, 0xffff), ()).unwrap();
        assert_eq!(list.find_matching_entry(0x1234), Some(0));
        assert_eq!(list.find_matching_entry(0x1235), None);
        assert!(list.remove_by_handle(one));
        assert!(!list.remove_by_handle(one));
        assert_eq!(list.find_matching_entry(0xabcd_1234), Some(0));
        list.add_entry(0, (1, 1), ()).unwrap();
        list.add_entry(0, (2, 2), ()).unwrap();
        assert_eq!(list.add_entry(0, (4, 4), ()), Err(ListFull));
    }

    #[test]
    fn what_comes_behind_an_unexpected_message_waits_for_the_program_to_know_of_it() {
        let mut list = TagList::new(8);
        list.add_entry(0, (1, u64::MAX), ()).unwrap();
        list.count_unexpected_message();
        list.add_entry(0, (2, u64::MAX), ()).unwrap();
        assert_eq!(
            (list.find_matching_entry(1), list.find_matching_entry(2)),
            (Some(0), None)
        );
        assert!(!list.is_synchronised());
        list.set_handled_messages(1);
        assert_eq!(list.find_matching_entry(2), Some(1));
    }

    #[test]
    fn a_rendezvous_needs_room_for_its_payload() {
        let mut list = TagList::new(1);
        list.add_entry(9, (5, u64::MAX), 100).unwrap();
        let head = header(TMH_RNDV, 5);
        let payload = RemotePayload {
            addr: 0x1122_3344_5566_7788,
            rkey: 77,
            len: 100,
        };
        let then = |room| match list.decide_delivery(&head, |_| room) {
            TagDecision::Matched(found) => {
                assert_eq!(
                    (found.entry_index, found.tag, found.app_ctx),
                    (0, 5, 0x0102_0304)
                );
                found.delivery
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(then(100), MatchedDelivery::Rendezvous(payload));
        assert_eq!(then(99), MatchedDelivery::HeadersOnly);
        assert_eq!(list.remove_entry_at(0).wr_id, 9);
        assert_eq!(
            list.decide_delivery(&head, |_| 100),
            TagDecision::Unexpected
        );
        assert_eq!(
            build_fin_message(header(TMH_RNDV, 5)[..16].try_into().unwrap())[0],
            TMH_FIN
        );
    }

    #[test]
    fn a_header_that_is_cut_short_is_none() {
        let mut list = TagList::new(1);
        list.add_entry(0, (5, u64::MAX), ()).unwrap();
        for (op, whole) in [(TMH_EAGER, TMH_BYTES), (TMH_RNDV, MAX_HEADER_BYTES)] {
            let head = header(op, 5);
            let decide = |len| list.decide_delivery(&head[..len], |()| 1000);
            assert!(matches!(decide(whole), TagDecision::Matched(_)));
            for len in 0..whole {
                assert_eq!(decide(len), TagDecision::Untagged, "{op} {len}");
            }
        }
        for op in [0, TMH_FIN, 4, 255] {
            assert_eq!(
                list.decide_delivery(&header(op, 5), |()| 0),
                TagDecision::Untagged
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A list finds the same entry as a simple search from the oldest entry on, after any additions and removals.
        #[test]
        fn a_list_is_searched_from_the_oldest_on(
            steps in prop::collection::vec((0..4, 0u64..8, 0u64..8), 0..60),
        ) {
            let mut list = TagList::new(10);
            let mut model: Vec<(u32, u64, u64)> = Vec::new();
            for (step, tag, mask) in steps {
                match step {
                    0 | 1 => match list.add_entry(tag, (tag & mask, mask), ()) {
                        Ok(handle) => model.push((handle, tag & mask, mask)),
                        Err(ListFull) => prop_assert_eq!(model.len(), 10),
                    },
                    2 => {
                        let handle = model.get(usize::try_from(mask).unwrap()).map_or(0, |e| e.0);
                        model.retain(|e| e.0 != handle);
                        prop_assert_eq!(list.remove_by_handle(handle), handle != 0);
                    }
                    _ => {
                        let expected = model.iter().position(|e| tag & e.2 == e.1);
                        match list.decide_delivery(&header(TMH_EAGER, tag), |()| 0) {
                            TagDecision::Matched(found) => {
                                prop_assert_eq!(Some(found.entry_index), expected);
                                list.remove_entry_at(found.entry_index);
                                model.remove(found.entry_index);
                            }
                            other => prop_assert_eq!((other, expected), (TagDecision::Unexpected, None)),
                        }
                    }
                }
            }
        }

        #[test]
        fn no_message_makes_it_panic(head in prop::collection::vec(any::<u8>(), 0..40), op in 0u8..5) {
            let mut list = TagList::new(1);
            list.add_entry(0, (0, 0), ()).unwrap();
            let mut head = head;
            if let Some(first) = head.first_mut() {
                *first = op;
            }
            list.decide_delivery(&head, |()| 7);
        }
    }
}
