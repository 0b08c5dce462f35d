//! The byte format of requests and answers. All numbers are little-endian.
//!
//! A request has 16 or 24 bytes:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | operation: 1 GET, 2 PUT, 3 INSERT, 4 UPDATE, 5 DELETE, 6 SCAN, 7 SCAN up to an end; between servers 8 FREEZE, 9 THAW, 10 CEDE, 11 TAKE; 12 LOAD |
//! | 1 | tree |
//! | 2..4 | SCAN: largest number of entries; CEDE: the server that takes the range; TAKE: the server that has it |
//! | 4..8 | number of the change in its session, from 1 on; SCAN: number of messages that the answer may take |
//! | 8..16 | key |
//! | 16..24 | PUT, INSERT, UPDATE: value; otherwise the end of the range, if the range has one |
//!
//! An answer begins with a word: status in bits 7..0, flag [`FLAG_FOUND`] in bit 8, flag [`FLAG_MORE`] in bit 9. If a
//! GET found its key, the value follows. In a SCAN's messages, bits 31..16 hold the number of the message's first
//! entry, and bits 47..32 the number of all entries of the answer. The key at which to continue follows, then the
//! entries, 16 bytes each. The answer to LOAD has the same form. An answer with status `Moved` has the first key, the
//! end (flag `FLAG_MORE`) and the owner of the range. The answer to CEDE has the version of the handover in bits
//! 63..16.

use crate::tree::{MovedRange, PutCondition, RangeOwner};

/// Bytes of the longest request.
pub(crate) const MAX_REQUEST_BYTES: usize = 24;
/// Bytes of a SCAN message's header, before its entries.
pub(crate) const SCAN_HEADER_BYTES: usize = 16;
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 16;
/// Largest number of messages in the answer to one SCAN.
pub(crate) const MAX_SCAN_MESSAGES: u32 = 16;

/// Flag: the key was present.
pub(crate) const FLAG_FOUND: u64 = 1 << 8;
/// Flag: more entries may follow.
pub(crate) const FLAG_MORE: u64 = 1 << 9;

const OPCODE_GET: u8 = 1;
const OPCODE_PUT: u8 = 2;
const OPCODE_INSERT: u8 = 3;
const OPCODE_UPDATE: u8 = 4;
const OPCODE_DELETE: u8 = 5;
const OPCODE_SCAN: u8 = 6;
const OPCODE_SCAN_BELOW_END: u8 = 7;
const OPCODE_FREEZE: u8 = 8;
const OPCODE_THAW: u8 = 9;
const OPCODE_CEDE: u8 = 10;
const OPCODE_TAKE: u8 = 11;
const OPCODE_READ_SERVER_LOAD: u8 = 12;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Success, or a change whose condition did not hold: [`FLAG_FOUND`] tells whether the key was present.
    Ok = 0,
    /// The server has no memory for the request.
    StoreFull = 1,
    /// A client has held a node's lock for too long: the requester should retry.
    Busy = 2,
    /// The key belongs to another server.
    Moved = 3,
    /// The server does not understand the request.
    MalformedOrRefused = 4,
}

impl Status {
    fn of(word: u64) -> Option<Self> {
        [
            Self::Ok,
            Self::StoreFull,
            Self::Busy,
            Self::Moved,
            Self::MalformedOrRefused,
        ]
        .into_iter()
        .find(|s| *s as u64 == word & 0xff)
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads the value of a key.
    Get {
        /// The key.
        key: u64,
    },
    /// Sets the value of a key.
    Put {
        /// The key.
        key: u64,
        /// The value.
        value: u64,
        /// The condition for setting the value.
        when: PutCondition,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: u64,
    },
    /// Reads entries in ascending order of their keys.
    Scan {
        /// The lower bound of the keys, inclusive.
        from: u64,
        /// The upper bound of the keys, exclusive, if any.
        end: Option<u64>,
        /// The largest number of entries.
        limit: u32,
    },
    /// Executes one step of a handover of a range of keys between servers.
    Handover {
        /// The step.
        step: HandoverStep,
        /// The first key.
        from: u64,
        /// The upper bound of the range, exclusive, if any.
        end: Option<u64>,
    },
    /// Reads a server's load counters and key sample: see [`ServerLoad`](crate::balance::ServerLoad).
    ReadServerLoad,
}

/// A step of a handover: see [`crate::tree`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandoverStep {
    /// Makes the range read-only at its owner.
    Freeze,
    /// Allows changes of the range again.
    Thaw,
    /// Assigns the range to the server with this number.
    Cede {
        /// The number.
        to: u16,
    },
    /// Asks the addressed server to take the range from the server with this number.
    Take {
        /// The number.
        giver: u16,
    },
}

impl Op {
    /// Returns the key by which the request is routed to a server; 0 for [`Op::ReadServerLoad`].
    #[inline]
    pub fn key(&self) -> u64 {
        match *self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key } => key,
            Self::Scan { from, .. } | Self::Handover { from, .. } => from,
            Self::ReadServerLoad => 0,
        }
    }

    /// Returns true if the request changes the tree or the ownership of keys.
    #[inline]
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Put { .. } | Self::Delete { .. } | Self::Handover { .. }
        )
    }

    /// Encodes the request and returns its length. `number` is the number of the change, or for a SCAN the number of
    /// messages.
    #[inline]
    pub(crate) fn encode(&self, tree: u8, number: u32) -> ([u8; MAX_REQUEST_BYTES], usize) {
        let mut bytes = [0; MAX_REQUEST_BYTES];
        let (op, last) = match *self {
            Self::Get { .. } => (OPCODE_GET, None),
            Self::Put { value, when, .. } => {
                let op = match when {
                    PutCondition::Always => OPCODE_PUT,
                    PutCondition::Absent => OPCODE_INSERT,
                    PutCondition::Present => OPCODE_UPDATE,
                };
                (op, Some(value))
            }
            Self::Delete { .. } => (OPCODE_DELETE, None),
            Self::Scan { end, .. } => (
                if end.is_some() {
                    OPCODE_SCAN_BELOW_END
                } else {
                    OPCODE_SCAN
                },
                end,
            ),
            Self::Handover { step, end, .. } => {
                let op = match step {
                    HandoverStep::Freeze => OPCODE_FREEZE,
                    HandoverStep::Thaw => OPCODE_THAW,
                    HandoverStep::Cede { .. } => OPCODE_CEDE,
                    HandoverStep::Take { .. } => OPCODE_TAKE,
                };
                (op, end)
            }
            Self::ReadServerLoad => (OPCODE_READ_SERVER_LOAD, None),
        };
        bytes[0] = op;
        bytes[1] = tree;
        let small = match *self {
            Self::Scan { limit, .. } => u16::try_from(limit).unwrap_or(u16::MAX),
            Self::Handover {
                step: HandoverStep::Cede { to: server } | HandoverStep::Take { giver: server },
                ..
            } => server,
            _ => 0,
        };
        bytes[2..4].copy_from_slice(&small.to_le_bytes());
        bytes[4..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key().to_le_bytes());
        if let Some(last) = last {
            bytes[16..24].copy_from_slice(&last.to_le_bytes());
        }
        (bytes, if last.is_some() { 24 } else { 16 })
    }

    /// Decodes a request, its tree and its number. Returns `None` if the bytes are malformed.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u8, u32)> {
        let (&[op, tree, l0, l1, n0, n1, n2, n3], rest) = bytes.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_first_chunk::<8>()?;
        let key = u64::from_le_bytes(*key);
        let last = rest.first_chunk::<8>().map(|b| u64::from_le_bytes(*b));
        let small = u16::from_le_bytes([l0, l1]);
        let limit = small.into();
        let handover = |step| Self::Handover {
            step,
            from: key,
            end: last,
        };
        let put = |when| last.map(|value| Self::Put { key, value, when });
        let op = match op {
            OPCODE_GET => Self::Get { key },
            OPCODE_PUT => put(PutCondition::Always)?,
            OPCODE_INSERT => put(PutCondition::Absent)?,
            OPCODE_UPDATE => put(PutCondition::Present)?,
            OPCODE_DELETE => Self::Delete { key },
            OPCODE_SCAN => Self::Scan {
                from: key,
                end: None,
                limit,
            },
            OPCODE_SCAN_BELOW_END => Self::Scan {
                from: key,
                end: Some(last?),
                limit,
            },
            OPCODE_FREEZE => handover(HandoverStep::Freeze),
            OPCODE_THAW => handover(HandoverStep::Thaw),
            OPCODE_CEDE => handover(HandoverStep::Cede { to: small }),
            OPCODE_TAKE => handover(HandoverStep::Take { giver: small }),
            OPCODE_READ_SERVER_LOAD => Self::ReadServerLoad,
            _ => return None,
        };
        Some((op, tree, u32::from_le_bytes([n0, n1, n2, n3])))
    }
}

/// Returns the key and the tree of a request, so that a worker can start its walk before decoding the request.
#[inline]
pub(crate) fn key_and_tree_of(bytes: &[u8]) -> Option<(u64, u8)> {
    let key = bytes.get(8..)?.first_chunk::<8>()?;
    Some((u64::from_le_bytes(*key), bytes[1]))
}

/// Returns the first word of an answer.
#[inline]
pub(crate) fn answer_first_word(status: Status, found: bool) -> u64 {
    status as u64 | if found { FLAG_FOUND } else { 0 }
}

/// Returns the first word of an answer that carries a version, below 2^48.
pub(crate) fn first_word_with_version(status: Status, version: u64) -> u64 {
    status as u64 | version << 16
}

/// Extracts the version from a [`first_word_with_version`].
pub(crate) fn version_in_first_word(word: u64) -> u64 {
    word >> 16
}

/// Encodes an answer with status `Moved`.
pub(crate) fn encode_moved_answer(moved: &MovedRange) -> [u8; 32] {
    let more = if moved.end.is_some() { FLAG_MORE } else { 0 };
    let words = [
        Status::Moved as u64 | more,
        moved.from,
        moved.end.unwrap_or(0),
        moved.owner.encode_word(),
    ];
    let mut bytes = [0; 32];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the first word of a SCAN message: the number of its first entry, the count of all entries, and [`FLAG_MORE`].
pub(crate) fn scan_message_first_word(first: usize, count: usize, more: bool) -> u64 {
    let flag = if more { FLAG_MORE } else { 0 };
    flag | (first as u64 & 0xffff) << 16 | (count as u64 & 0xffff) << 32
}

/// A decoded answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    pub(crate) first_word: u64,
    pub(crate) status: Status,
    pub(crate) found: bool,
    pub(crate) has_more_entries: bool,
    /// The number of the first entry in this message.
    pub(crate) first_entry_number: usize,
    pub(crate) total_entries: usize,
    /// The value, or the key at which to continue.
    pub(crate) value_or_next_key: u64,
    /// The bytes after `number`: the entries of a SCAN.
    pub(crate) entry_bytes: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Decodes a message; returns `None` if it is malformed.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*word);
        let (number, rest) = match rest.split_first_chunk::<8>() {
            Some((number, rest)) => (u64::from_le_bytes(*number), rest),
            None => (0, rest),
        };
        Some(Self {
            first_word: word,
            status: Status::of(word)?,
            found: word & FLAG_FOUND != 0,
            has_more_entries: word & FLAG_MORE != 0,
            first_entry_number: (word >> 16 & 0xffff) as usize,
            total_entries: (word >> 32 & 0xffff) as usize,
            value_or_next_key: number,
            entry_bytes: rest,
        })
    }

    /// Returns the range of keys that moved and its owner, from an answer with [`Status::Moved`].
    pub(crate) fn moved_range(&self) -> MovedRange {
        let number = |at: usize| {
            let bytes = self
                .entry_bytes
                .get(at..)
                .and_then(|b| b.first_chunk::<8>());
            bytes.map_or(0, |b| u64::from_le_bytes(*b))
        };
        MovedRange {
            from: self.value_or_next_key,
            end: self.has_more_entries.then(|| number(0)),
            owner: RangeOwner::decode_word(number(8)),
        }
    }

    /// Returns the entries of a SCAN message.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u64, u64)> {
        let (entries, _) = self.entry_bytes.as_chunks::<ENTRY_BYTES>();
        entries.iter().map(|entry| {
            let (key, value) = entry.split_at(8);
            let number = |b: &[u8]| u64::from_le_bytes(b.try_into().expect("eight bytes"));
            (number(key), number(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ops() -> impl Strategy<Value = Op> {
        let when = prop_oneof![
            Just(PutCondition::Always),
            Just(PutCondition::Absent),
            Just(PutCondition::Present)
        ];
        prop_oneof![
            any::<u64>().prop_map(|key| Op::Get { key }),
            (any::<u64>(), any::<u64>(), when).prop_map(|(key, value, when)| Op::Put {
                key,
                value,
                when
            }),
            any::<u64>().prop_map(|key| Op::Delete { key }),
            (any::<u64>(), any::<Option<u64>>(), 0u32..65536)
                .prop_map(|(from, end, limit)| Op::Scan { from, end, limit }),
            (0u8..4, any::<u16>(), any::<u64>(), any::<Option<u64>>()).prop_map(
                |(step, server, from, end)| {
                    let step = match step {
                        0 => HandoverStep::Freeze,
                        1 => HandoverStep::Thaw,
                        2 => HandoverStep::Cede { to: server },
                        _ => HandoverStep::Take { giver: server },
                    };
                    Op::Handover { step, from, end }
                }
            ),
            Just(Op::ReadServerLoad),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_as_they_went(op in ops(), tree: u8, number: u32) {
            let (bytes, length) = op.encode(tree, number);
            prop_assert_eq!(Op::decode(&bytes[..length]), Some((op, tree, number)));
            prop_assert_eq!(key_and_tree_of(&bytes[..length]), Some((op.key(), tree)));
        }

        #[test]
        fn who_has_keys_is_told(from: u64, end: Option<u64>, server: u16, version in 0u64..1 << 48) {
            let moved = MovedRange { from, end, owner: RangeOwner { server, version } };
            let bytes = encode_moved_answer(&moved);
            let answer = Answer::decode(&bytes).expect("an answer");
            prop_assert_eq!(answer.status, Status::Moved);
            prop_assert_eq!(answer.moved_range(), moved);
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Op::decode(&bytes);
            let _ = key_and_tree_of(&bytes);
            if let Some(answer) = Answer::decode(&bytes) {
                prop_assert!(answer.entries().count() <= bytes.len() / ENTRY_BYTES);
                let _ = answer.moved_range();
            }
        }

        #[test]
        fn the_word_of_a_scan_says_where_its_entries_belong(first in 0usize..65536, count in 0usize..65536, more: bool) {
            let mut bytes = scan_message_first_word(first, count, more).to_le_bytes().to_vec();
            bytes.extend(7u64.to_le_bytes());
            bytes.extend([1; ENTRY_BYTES]);
            let answer = Answer::decode(&bytes).expect("an answer");
            prop_assert_eq!((answer.first_entry_number, answer.total_entries, answer.has_more_entries, answer.value_or_next_key), (first, count, more, 7));
            prop_assert_eq!(answer.entries().count(), 1);
        }
    }
}
