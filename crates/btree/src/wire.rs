//! The byte format of requests and answers. All numbers are little-endian.
//!
//! A key or value that is a number has 8 bytes. A byte string has its length in 2 bytes, then its bytes. A request:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | operation: 1 GET, 2 PUT, 3 INSERT, 4 UPDATE, 5 DELETE, 6 SCAN, 7 SCAN up to an end; between servers 8 FREEZE, 9 THAW, 10 CEDE, 11 TAKE; 12 LOAD |
//! | 1 | tree |
//! | 2..4 | SCAN: largest number of entries; CEDE: the server that takes the range; TAKE: the server that has it |
//! | 4..8 | number of the change in its session, from 1 on; SCAN: number of messages that the answer may take |
//! | from 8 on | key |
//! | then | PUT, INSERT, UPDATE: value; otherwise the end of the range, if the range has one |
//!
//! An answer begins with a word: status in bits 7..0, flag [`FLAG_FOUND`] in bit 8, flag [`FLAG_MORE_ENTRIES`] in bit
//! 9. If a GET found its key, the value follows. In a SCAN's messages, bits 31..16 hold the number of the message's
//! first entry, and bits 47..32 the number of all entries of the answer. The key at which to continue follows, then the
//! entries: key and value of each. The answer to LOAD has the same form. An answer with status `Moved` has the first
//! key, the end (an empty one without flag `FLAG_MORE_ENTRIES`) and the owner of the range. The answer to CEDE has the
//! version of the handover in bits 63..16.

use crate::key_or_value::private::{Sizes, Stored};
use crate::key_or_value::{KeyOrValue, TooLongError};
use crate::tree::{MovedRange, PutCondition, RangeOwner};

/// Bytes of a request in front of its key.
const REQUEST_HEADER_BYTES: usize = 8;
/// Largest number of messages in the answer to one SCAN.
pub(crate) const MAX_SCAN_MESSAGES: u32 = 16;

/// Returns the bytes of the longest answer that a client receives. A SCAN of a hundred numbers fits into one message.
pub(crate) fn max_answer_bytes<T: KeyOrValue>() -> usize {
    if T::IS_NUMBER { 1664 } else { 4096 }
}

/// Returns the largest number of messages in the answer to LOAD.
pub(crate) fn max_load_report_messages<T: KeyOrValue>() -> u32 {
    if T::IS_NUMBER { 1 } else { MAX_SCAN_MESSAGES }
}

/// Flag: the key was present.
pub(crate) const FLAG_FOUND: u64 = 1 << 8;
/// Flag: more entries may follow.
pub(crate) const FLAG_MORE_ENTRIES: u64 = 1 << 9;

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
    fn from_first_word(word: u64) -> Option<Self> {
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
pub enum Operation<T: KeyOrValue = u64> {
    /// Reads the value of a key.
    Get {
        /// The key.
        key: T,
    },
    /// Sets the value of a key.
    Put {
        /// The key.
        key: T,
        /// The value.
        value: T,
        /// The condition for setting the value.
        when: PutCondition,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: T,
    },
    /// Reads entries in ascending order of their keys.
    Scan {
        /// The lower bound of the keys, inclusive.
        from: T,
        /// The upper bound of the keys, exclusive, if any.
        end: Option<T>,
        /// The largest number of entries.
        limit: u32,
    },
    /// Executes one step of a handover of a range of keys between servers.
    Handover {
        /// The step.
        step: HandoverStep,
        /// The first key.
        from: T,
        /// The upper bound of the range, exclusive, if any.
        end: Option<T>,
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

impl<T: KeyOrValue> Operation<T> {
    /// Returns the key by which the request is routed to a server; the least one for [`Operation::ReadServerLoad`].
    #[inline]
    pub fn key(&self) -> T {
        match *self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key } => key,
            Self::Scan { from, .. } | Self::Handover { from, .. } => from,
            Self::ReadServerLoad => T::default(),
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

    /// Checks that keys and value fit into a tree with these sizes.
    #[inline]
    pub(crate) fn check_lengths(&self, sizes: T::Sizes) -> Result<(), TooLongError> {
        self.key().check_key(sizes)?;
        match *self {
            Self::Put { value, .. } => value.check_value(sizes),
            Self::Scan { end, .. } | Self::Handover { end, .. } => {
                end.map_or(Ok(()), |end| end.check_key(sizes))
            }
            _ => Ok(()),
        }
    }

    /// Encodes the request and returns its length. `number` is the number of the change, or for a SCAN the number of
    /// messages.
    #[inline]
    pub(crate) fn encode(&self, tree: u8, number: u32) -> (T::MessageBuffer, usize) {
        let mut buffer = T::message_buffer();
        let bytes = buffer.as_mut();
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
        let mut length = REQUEST_HEADER_BYTES;
        length += self.key().encode(&mut bytes[length..]);
        if let Some(last) = last {
            length += last.encode(&mut bytes[length..]);
        }
        (buffer, length)
    }

    /// Decodes a request, its tree and its number. Returns `None` if the bytes are malformed.
    #[inline]
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u8, u32)> {
        let (&[op, tree, l0, l1, n0, n1, n2, n3], rest) = bytes.split_first_chunk::<8>()?;
        let mut rest = rest;
        let key = T::decode(&mut rest)?;
        let last = T::decode(&mut rest);
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
pub(crate) fn key_and_tree_of_request<T: KeyOrValue>(bytes: &[u8]) -> Option<(T, u8)> {
    let key = T::decode(&mut bytes.get(REQUEST_HEADER_BYTES..)?)?;
    Some((key, bytes[1]))
}

/// Returns true if the request is a SCAN.
#[inline]
pub(crate) fn is_scan_request(bytes: &[u8]) -> bool {
    matches!(bytes.first(), Some(&(OPCODE_SCAN | OPCODE_SCAN_BELOW_END)))
}

/// Returns the bytes of the longest request for a tree with these sizes, rounded up to the words of a request slot.
pub(crate) fn max_request_bytes(sizes: impl Sizes) -> usize {
    let (key, value) = sizes.max_encoded_bytes();
    (REQUEST_HEADER_BYTES + key + key.max(value)).next_multiple_of(8)
}

/// Returns the number of entries that fit into a SCAN's message of `message_bytes` bytes, whatever their lengths.
#[inline]
pub(crate) fn entries_per_message(message_bytes: usize, sizes: impl Sizes) -> usize {
    entries_that_fit(message_bytes, sizes.max_encoded_bytes())
}

/// Returns the number of entries with keys and values of up to these encoded bytes that fit into a message.
#[inline]
pub(crate) fn entries_that_fit(message_bytes: usize, (key, value): (usize, usize)) -> usize {
    message_bytes.saturating_sub(8 + key) / (key + value)
}

/// Returns the bytes of a number in the answer to LOAD.
pub(crate) fn encoded_number_bytes<T: KeyOrValue>() -> usize {
    if T::IS_NUMBER { 8 } else { 10 }
}

/// Returns the bytes that every message must have room for: an answer to GET, an answer with status `Moved`, and a SCAN
/// of one entry.
pub(crate) fn min_message_bytes(sizes: impl Sizes) -> usize {
    let (key, value) = sizes.max_encoded_bytes();
    let moved = 8 + 2 * key + 8;
    moved.max(8 + key + key + value)
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
pub(crate) fn encode_moved_answer<T: KeyOrValue>(moved: &MovedRange<T>) -> Vec<u8> {
    let more = if moved.end_key.is_some() {
        FLAG_MORE_ENTRIES
    } else {
        0
    };
    let mut bytes = (Status::Moved as u64 | more).to_le_bytes().to_vec();
    moved.first_key.append_to(&mut bytes);
    moved.end_key.unwrap_or_default().append_to(&mut bytes);
    bytes.extend(moved.owner.encode_word().to_le_bytes());
    bytes
}

/// Returns the first word of a SCAN message: the number of its first entry, the count of all entries, and
/// [`FLAG_MORE_ENTRIES`].
pub(crate) fn scan_message_first_word(first: usize, count: usize, more: bool) -> u64 {
    let flag = if more { FLAG_MORE_ENTRIES } else { 0 };
    flag | (first as u64 & 0xffff) << 16 | (count as u64 & 0xffff) << 32
}

/// A decoded answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer<'a, T: KeyOrValue = u64> {
    pub(crate) first_word: u64,
    pub(crate) status: Status,
    pub(crate) found: bool,
    pub(crate) has_more_entries: bool,
    /// The number of the first entry in this message.
    pub(crate) first_entry_number: usize,
    pub(crate) total_entries: usize,
    /// The value, or the key at which to continue.
    pub(crate) value_or_next_key: T,
    /// The bytes after it: the entries of a SCAN.
    pub(crate) encoded_entries: &'a [u8],
}

impl<'a, T: KeyOrValue> Answer<'a, T> {
    /// Decodes a message; returns `None` if it is malformed.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        let word = u64::from_le_bytes(*word);
        let mut rest = rest;
        let value_or_next_key = T::decode(&mut rest).unwrap_or_default();
        Some(Self {
            first_word: word,
            status: Status::from_first_word(word)?,
            found: word & FLAG_FOUND != 0,
            has_more_entries: word & FLAG_MORE_ENTRIES != 0,
            first_entry_number: (word >> 16 & 0xffff) as usize,
            total_entries: (word >> 32 & 0xffff) as usize,
            value_or_next_key,
            encoded_entries: rest,
        })
    }

    /// Returns the range of keys that moved and its owner, from an answer with [`Status::Moved`].
    pub(crate) fn moved_range(&self) -> MovedRange<T> {
        let mut rest = self.encoded_entries;
        let end = T::decode(&mut rest).unwrap_or_default();
        let owner = u64::decode(&mut rest).unwrap_or_default();
        MovedRange {
            first_key: self.value_or_next_key,
            end_key: self.has_more_entries.then_some(end),
            owner: RangeOwner::decode_word(owner),
        }
    }

    /// Copies the entries of a SCAN message to `places`, as many as there are places. Returns the number of entries.
    pub(crate) fn copy_entries_to(&self, places: &mut [(T, T)]) -> usize {
        T::decode_entries(self.encoded_entries, places)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::key_or_value::{ByteString, NumberSizes, StringSizes};

    fn ops() -> impl Strategy<Value = Operation<u64>> {
        let when = prop_oneof![
            Just(PutCondition::Always),
            Just(PutCondition::Absent),
            Just(PutCondition::Present)
        ];
        prop_oneof![
            any::<u64>().prop_map(|key| Operation::Get { key }),
            (any::<u64>(), any::<u64>(), when).prop_map(|(key, value, when)| Operation::Put {
                key,
                value,
                when
            }),
            any::<u64>().prop_map(|key| Operation::Delete { key }),
            (any::<u64>(), any::<Option<u64>>(), 0u32..65536)
                .prop_map(|(from, end, limit)| Operation::Scan { from, end, limit }),
            (0u8..4, any::<u16>(), any::<u64>(), any::<Option<u64>>()).prop_map(
                |(step, server, from, end)| {
                    let step = match step {
                        0 => HandoverStep::Freeze,
                        1 => HandoverStep::Thaw,
                        2 => HandoverStep::Cede { to: server },
                        _ => HandoverStep::Take { giver: server },
                    };
                    Operation::Handover { step, from, end }
                }
            ),
            Just(Operation::ReadServerLoad),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_as_they_went(op in ops(), tree: u8, number: u32) {
            let (bytes, length) = op.encode(tree, number);
            prop_assert!(length <= max_request_bytes(NumberSizes));
            prop_assert_eq!(Operation::decode(&bytes[..length]), Some((op, tree, number)));
            prop_assert_eq!(key_and_tree_of_request(&bytes[..length]), Some((op.key(), tree)));
        }

        #[test]
        fn requests_with_byte_strings_come_as_they_went(
            key in vec(any::<u8>(), 0..257), other in vec(any::<u8>(), 0..257), kind in 0u8..5, tree: u8, number: u32,
        ) {
            let sizes = StringSizes { key_bytes: key.len().max(other.len()).max(1), value_bytes: other.len().max(1) };
            let [key, other] = [key, other].map(|bytes| ByteString::new(&bytes).expect("short enough"));
            let op = match kind {
                0 => Operation::Get { key },
                1 => Operation::Put { key, value: other, when: PutCondition::Always },
                2 => Operation::Delete { key },
                3 => Operation::Scan { from: key, end: None, limit: 7 },
                _ => Operation::Scan { from: key, end: Some(other), limit: 7 },
            };
            prop_assert!(op.check_lengths(sizes).is_ok());
            let (bytes, length) = op.encode(tree, number);
            prop_assert!(length <= max_request_bytes(sizes));
            prop_assert_eq!(Operation::decode(&bytes[..length]), Some((op, tree, number)));
            prop_assert_eq!(key_and_tree_of_request(&bytes[..length]), Some((key, tree)));
            let shorter = StringSizes { key_bytes: key.len().saturating_sub(1), ..sizes };
            prop_assert_eq!(op.check_lengths(shorter).is_err(), !key.is_empty() || kind == 4 && !other.is_empty());
        }

        #[test]
        fn who_has_keys_is_told(from: u64, end: Option<u64>, server: u16, version in 0u64..1 << 48) {
            let moved = MovedRange { first_key: from, end_key: end, owner: RangeOwner { server_number: server, version } };
            let bytes = encode_moved_answer(&moved);
            let answer = Answer::decode(&bytes).expect("an answer");
            prop_assert_eq!(answer.status, Status::Moved);
            prop_assert_eq!(answer.moved_range(), moved);
            let [from, string_end] = [from, end.unwrap_or(7)].map(ByteString::from_number);
            let moved = MovedRange { first_key: from, end_key: end.map(|_| string_end), owner: moved.owner };
            let bytes = encode_moved_answer(&moved);
            let answer = Answer::decode(&bytes).expect("an answer");
            prop_assert_eq!(answer.moved_range(), moved);
        }

        #[test]
        fn any_bytes_are_read(bytes in vec(any::<u8>(), 0..80)) {
            let _ = Operation::<u64>::decode(&bytes);
            let _ = key_and_tree_of_request::<u64>(&bytes);
            if let Some(answer) = Answer::<u64>::decode(&bytes) {
                let mut places = vec![(0, 0); bytes.len()];
                prop_assert!(answer.copy_entries_to(&mut places) <= bytes.len() / 16);
                let _ = answer.moved_range();
            }
        }

        #[test]
        fn the_word_of_a_scan_says_where_its_entries_belong(first in 0usize..65536, count in 0usize..65536, more: bool) {
            let mut bytes = scan_message_first_word(first, count, more).to_le_bytes().to_vec();
            bytes.extend(7u64.to_le_bytes());
            bytes.extend([1; 16]);
            let answer = Answer::<u64>::decode(&bytes).expect("an answer");
            prop_assert_eq!((answer.first_entry_number, answer.total_entries, answer.has_more_entries, answer.value_or_next_key), (first, count, more, 7));
            let mut places = [(0, 0); 2];
            prop_assert_eq!(answer.copy_entries_to(&mut places), 1);
            let number = 0x0101_0101_0101_0101;
            prop_assert_eq!(places, [(number, number), (0, 0)]);
        }
    }
}
