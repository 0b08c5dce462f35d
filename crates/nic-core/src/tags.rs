//! Tag matching: which entry of a list a message is for (`ibv_post_srq_ops(3)`).
//!
//! A message to a shared receive queue of this kind begins with a tag matching header. A message that matches an entry
//! of the list goes there, without the header. A message that matches none is unexpected and goes, with the header,
//! into the oldest receive WR. A rendezvous message only says where the payload is. The payload is READ, and a message
//! of the kind FIN tells the sender. If the entry has no room for it, the program continues the rendezvous itself
//! (`Documentation/tag_matching.md` of rdma-core, "TM completion processing").

/// A tag matching header (`struct ibv_tmh` of `infiniband/tm_types.h`): the operation, 3 bytes that are reserved, 4 of the
/// application's, and the tag, in network byte order.
pub const TMH_BYTES: usize = 16;

/// A rendezvous header, behind it (`struct ibv_rvh`): address, R_Key and length of the payload, in network byte order.
pub const RVH_BYTES: usize = 16;

/// The longest header that a sender adds.
pub const MAX_HEADER_BYTES: usize = TMH_BYTES + RVH_BYTES;

/// Operations of a tag matching header (`enum ibv_tmh_op`); all others are for programs.
const TMH_RNDV: u8 = 1;
const TMH_FIN: u8 = 2;
const TMH_EAGER: u8 = 3;

/// The list of a shared receive queue; each entry has a buffer of type `B`.
#[derive(Debug)]
pub struct TagList<B> {
    /// In the order in which they were added, which is that of matching.
    entries: Vec<Entry<B>>,
    max_entries: usize,
    last_handle: u32,
    /// Unexpected messages, and how many of them the program has said to have handled. Where they differ the program may
    /// not know yet of a message that an entry is for, so that entries which come now match nothing until they agree.
    unexpected: u32,
    handled: u32,
}

/// An entry of a list.
#[derive(Debug)]
pub struct Entry<B> {
    handle: u32,
    tag: u64,
    mask: u64,
    active: bool,
    /// The `wr_id` of its completion.
    pub wr_id: u64,
    /// Where its message goes.
    pub buffer: B,
}

/// The list has as many entries as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tag matching list is full: remove an entry, or let a message match one")]
pub struct ListFull;

/// The payload that a rendezvous header describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePayload {
    /// Its first byte in the sender's memory.
    pub addr: u64,
    /// The key of its region.
    pub rkey: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// The decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It has no tag: it goes into a receive WR.
    Untagged,
    /// No entry is for it: it goes into a receive WR.
    Unexpected,
    /// It is for an entry.
    Matched(Match),
}

/// A message and the entry that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The entry's place in the list.
    pub at: usize,
    /// The tag of the message.
    pub tag: u64,
    /// The sending application's field of the header.
    pub app: u32,
    /// The delivery of the message.
    pub then: Delivery,
}

/// The delivery of a message that is for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The bytes behind the header go into the entry's buffer.
    Eager,
    /// The payload is READ into the entry's buffer.
    Rendezvous(RemotePayload),
    /// The entry has no room for the payload: it gets the headers, and the program does the rest.
    HeadersOnly,
}

impl<B> TagList<B> {
    /// An empty list for at most `max_entries`.
    #[must_use]
    pub const fn new(max_entries: u32) -> Self {
        Self {
            entries: Vec::new(),
            max_entries: max_entries as usize,
            last_handle: 0,
            unexpected: 0,
            handled: 0,
        }
    }

    /// Entries that it holds at most.
    #[must_use]
    pub const fn max_entries(&self) -> usize {
        self.max_entries
    }

    /// `IBV_WR_TAG_ADD`: adds an entry for messages whose tag has `tag` in the bits of `mask`, and returns its handle.
    ///
    /// # Errors
    /// [`ListFull`].
    pub fn add(&mut self, wr_id: u64, (tag, mask): (u64, u64), buffer: B) -> Result<u32, ListFull> {
        if self.entries.len() >= self.max_entries {
            return Err(ListFull);
        }
        self.last_handle = self.last_handle.wrapping_add(1);
        self.entries.push(Entry {
            handle: self.last_handle,
            tag,
            mask,
            active: self.agrees(),
            wr_id,
            buffer,
        });
        Ok(self.last_handle)
    }

    /// `IBV_WR_TAG_DEL`: false if the entry is not there (any more).
    pub fn remove(&mut self, handle: u32) -> bool {
        let at = self.entries.iter().position(|e| e.handle == handle);
        at.map(|at| self.entries.remove(at)).is_some()
    }

    /// The entry at a place.
    ///
    /// # Panics
    /// There is none: the place is not of a [`Match`] since when nothing was taken or removed.
    #[must_use]
    pub fn entry(&self, at: usize) -> &Entry<B> {
        &self.entries[at]
    }

    /// Takes the entry at a place out of the list.
    ///
    /// # Panics
    /// As for [`entry`](Self::entry).
    pub fn take(&mut self, at: usize) -> Entry<B> {
        self.entries.remove(at)
    }

    /// `IBV_OPS_TM_SYNC`: the program has handled so many unexpected messages.
    pub fn synchronise(&mut self, handled: u32) {
        self.handled = handled;
        if self.agrees() {
            for entry in &mut self.entries {
                entry.active = true;
            }
        }
    }

    /// Does the program know of all unexpected messages?
    #[must_use]
    pub const fn agrees(&self) -> bool {
        self.handled == self.unexpected
    }

    /// An unexpected message went into a receive WR.
    #[cold]
    pub fn note_unexpected(&mut self) {
        self.unexpected = self.unexpected.wrapping_add(1);
    }

    /// Decides about a message that begins with `head`: at least [`MAX_HEADER_BYTES`] of it, or all. `room` says how
    /// many bytes a buffer has.
    pub fn decide(&self, head: &[u8], room: impl FnOnce(&B) -> u64) -> Decision {
        let needed = match head.first() {
            Some(&TMH_EAGER) => TMH_BYTES,
            Some(&TMH_RNDV) => MAX_HEADER_BYTES,
            _ => usize::MAX,
        };
        if head.len() < needed {
            return Decision::Untagged;
        }
        let tag = word(&head[8..]);
        let Some(at) = self.matching(tag) else {
            return Decision::Unexpected;
        };
        let then = if head[0] == TMH_EAGER {
            Delivery::Eager
        } else {
            let rest = &head[TMH_BYTES..];
            let payload = RemotePayload {
                addr: word(rest),
                rkey: half(&rest[8..]),
                len: half(&rest[12..]),
            };
            if u64::from(payload.len) <= room(&self.entries[at].buffer) {
                Delivery::Rendezvous(payload)
            } else {
                Delivery::HeadersOnly
            }
        };
        Decision::Matched(Match {
            at,
            tag,
            app: half(&head[4..]),
            then,
        })
    }

    fn matching(&self, tag: u64) -> Option<usize> {
        let mut entries = self.entries.iter();
        entries.position(|e| e.active && tag & e.mask == e.tag)
    }
}

/// The message that tells the sender of a rendezvous with this header that its payload has been READ.
#[must_use]
pub const fn fin(mut header: [u8; TMH_BYTES]) -> [u8; TMH_BYTES] {
    header[0] = TMH_FIN;
    header
}

fn word(bytes: &[u8]) -> u64 {
    bytes[..8].iter().fold(0, |n, &b| n << 8 | u64::from(b))
}

fn half(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |n, &b| n << 8 | u32::from(b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The header of a message: operation and tag.
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
        let one = list.add(0, (0x34, 0xff), ()).unwrap();
        list.add(0, (0x1234, 0xffff), ()).unwrap();
        assert_eq!(list.matching(0x1234), Some(0));
        assert_eq!(list.matching(0x1235), None);
        assert!(list.remove(one));
        assert!(!list.remove(one));
        assert_eq!(list.matching(0xabcd_1234), Some(0));
        list.add(0, (1, 1), ()).unwrap();
        list.add(0, (2, 2), ()).unwrap();
        assert_eq!(list.add(0, (4, 4), ()), Err(ListFull));
    }

    #[test]
    fn what_comes_behind_an_unexpected_message_waits_for_the_program_to_know_of_it() {
        let mut list = TagList::new(8);
        list.add(0, (1, u64::MAX), ()).unwrap();
        list.note_unexpected();
        list.add(0, (2, u64::MAX), ()).unwrap();
        assert_eq!((list.matching(1), list.matching(2)), (Some(0), None));
        assert!(!list.agrees());
        list.synchronise(1);
        assert_eq!(list.matching(2), Some(1));
    }

    #[test]
    fn a_rendezvous_needs_room_for_its_payload() {
        let mut list = TagList::new(1);
        list.add(9, (5, u64::MAX), 100).unwrap();
        let head = header(TMH_RNDV, 5);
        let payload = RemotePayload {
            addr: 0x1122_3344_5566_7788,
            rkey: 77,
            len: 100,
        };
        let then = |room| match list.decide(&head, |_| room) {
            Decision::Matched(found) => {
                assert_eq!((found.at, found.tag, found.app), (0, 5, 0x0102_0304));
                found.then
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(then(100), Delivery::Rendezvous(payload));
        assert_eq!(then(99), Delivery::HeadersOnly);
        assert_eq!(list.take(0).wr_id, 9);
        assert_eq!(list.decide(&head, |_| 100), Decision::Unexpected);
        assert_eq!(
            fin(header(TMH_RNDV, 5)[..16].try_into().unwrap())[0],
            TMH_FIN
        );
    }

    #[test]
    fn a_header_that_is_cut_short_is_none() {
        let mut list = TagList::new(1);
        list.add(0, (5, u64::MAX), ()).unwrap();
        for (op, whole) in [(TMH_EAGER, TMH_BYTES), (TMH_RNDV, MAX_HEADER_BYTES)] {
            let head = header(op, 5);
            let decide = |len| list.decide(&head[..len], |()| 1000);
            assert!(matches!(decide(whole), Decision::Matched(_)));
            for len in 0..whole {
                assert_eq!(decide(len), Decision::Untagged, "{op} {len}");
            }
        }
        for op in [0, TMH_FIN, 4, 255] {
            assert_eq!(list.decide(&header(op, 5), |()| 0), Decision::Untagged);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A list matches as a plain search does, whatever was added, removed and taken before.
        #[test]
        fn a_list_is_searched_from_the_oldest_on(
            steps in prop::collection::vec((0..4, 0u64..8, 0u64..8), 0..60),
        ) {
            let mut list = TagList::new(10);
            let mut model: Vec<(u32, u64, u64)> = Vec::new();
            for (step, tag, mask) in steps {
                match step {
                    0 | 1 => match list.add(tag, (tag & mask, mask), ()) {
                        Ok(handle) => model.push((handle, tag & mask, mask)),
                        Err(ListFull) => prop_assert_eq!(model.len(), 10),
                    },
                    2 => {
                        let handle = model.get(usize::try_from(mask).unwrap()).map_or(0, |e| e.0);
                        model.retain(|e| e.0 != handle);
                        prop_assert_eq!(list.remove(handle), handle != 0);
                    }
                    _ => {
                        let expected = model.iter().position(|e| tag & e.2 == e.1);
                        match list.decide(&header(TMH_EAGER, tag), |()| 0) {
                            Decision::Matched(found) => {
                                prop_assert_eq!(Some(found.at), expected);
                                list.take(found.at);
                                model.remove(found.at);
                            }
                            other => prop_assert_eq!((other, expected), (Decision::Unexpected, None)),
                        }
                    }
                }
            }
        }

        #[test]
        fn no_message_makes_it_panic(head in prop::collection::vec(any::<u8>(), 0..40), op in 0u8..5) {
            let mut list = TagList::new(1);
            list.add(0, (0, 0), ()).unwrap();
            let mut head = head;
            if let Some(first) = head.first_mut() {
                *first = op;
            }
            list.decide(&head, |()| 7);
        }
    }
}
