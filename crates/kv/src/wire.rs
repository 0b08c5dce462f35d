//! The byte format of requests and answers. All numbers are little-endian.
//!
//! A request:
//!
//! | bytes | meaning |
//! |---|---|
//! | 0 | operation: 1 GET, 2 PUT, 3 DELETE, 4 a part of a long request; plus flags (below) |
//! | 1 | bytes of the key |
//! | 2..4 | bytes of the value; of a part, bytes of the request that it carries |
//! | 4..8 | number of the change in its session, from 1 on; 0 for a GET |
//! | | the version to compare with, 8 bytes, with flag 0x10 |
//! | | milliseconds until the item expires, 8 bytes, with flag 0x20 |
//! | | the key, the value |
//!
//! Where clients change records themselves, they send three other requests, which have only a key. Operation 5 returns
//! the record number of a key; operation 6 also assigns a record if the key has none. Operation 7 releases a record's
//! lock if its lease has expired; the key is the record's number, 8 bytes. The answers to 5 and 6 carry the record
//! number as the version.
//!
//! Flag 0x40 requires that the key is absent, 0x80 that it is present. A request that is longer than a slot is sent in
//! parts. A part's eight header bytes are followed by 4 bytes offset and 4 bytes total length, then its bytes.
//!
//! An answer begins with a word: the status in bits 7..0, flag [`FLAG_ANSWER_CHUNK`] in bit 8, the version in bits
//! 63..24. The value follows. A value that does not fit is sent in several messages with flag `FLAG_ANSWER_CHUNK`. In
//! these the word is followed by 4 bytes total length and 4 bytes offset.

use crate::store::SetCondition;

/// Bytes of a request's header, before optional fields and key.
pub(crate) const REQUEST_HEADER_BYTES: usize = 8;
/// Bytes of an answer's header.
pub(crate) const ANSWER_HEADER_BYTES: usize = 8;
/// Bytes of the header of a value's chunk.
pub(crate) const ANSWER_CHUNK_HEADER_BYTES: usize = 16;
/// Bytes of the header of a request's part.
pub(crate) const REQUEST_PART_HEADER_BYTES: usize = 16;

const OPCODE_GET: u8 = 1;
const OPCODE_PUT: u8 = 2;
const OPCODE_DELETE: u8 = 3;
const OPCODE_REQUEST_PART: u8 = 4;
const OPCODE_LOCATE: u8 = 5;
const OPCODE_CLAIM: u8 = 6;
const OPCODE_RELEASE: u8 = 7;
const FLAG_IF_VERSION: u8 = 0x10;
const FLAG_EXPIRES: u8 = 0x20;
const FLAG_IF_ABSENT: u8 = 0x40;
const FLAG_IF_PRESENT: u8 = 0x80;

/// Flag: the answer is one chunk of several.
pub(crate) const FLAG_ANSWER_CHUNK: u64 = 1 << 8;

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    /// Success; for a GET, the value follows.
    Ok = 0,
    /// The key is absent.
    NotFound = 1,
    /// The condition does not hold; the answer has the present version.
    ConditionNotMet = 2,
    /// The store is full.
    Full = 3,
    /// The key or the value is too long.
    TooLong = 4,
    /// The server does not understand the request, or its design does not serve it.
    BadRequest = 5,
    /// A part arrived. The last part gets the request's answer instead.
    PartReceived = 6,
    /// The lease of the lock has not expired yet.
    LeaseNotExpired = 7,
}

impl Status {
    fn from_byte(byte: u8) -> Option<Self> {
        [
            Self::Ok,
            Self::NotFound,
            Self::ConditionNotMet,
            Self::Full,
            Self::TooLong,
            Self::BadRequest,
            Self::PartReceived,
            Self::LeaseNotExpired,
        ]
        .into_iter()
        .find(|s| *s as u8 == byte)
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op<'a> {
    /// Reads the value of a key.
    Get {
        /// The key.
        key: &'a [u8],
    },
    /// Sets the value of a key.
    Put {
        /// The key.
        key: &'a [u8],
        /// The new value.
        value: &'a [u8],
        /// The condition for setting the value.
        condition: SetCondition,
        /// Milliseconds until the item expires; 0 for never.
        ttl_ms: u64,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: &'a [u8],
        /// If given, the key is removed only if it has this version.
        version: Option<u64>,
    },
}

impl<'a> Op<'a> {
    /// Returns the key of the request.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Self::Get { key } | Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// Returns true if the request can change the store.
    #[inline]
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::Get { .. })
    }

    /// Encodes the request. Key and value must be within the engine's limits.
    #[inline]
    pub(crate) fn encode(&self, seq: u32, into: &mut Vec<u8>) {
        into.clear();
        let mut header = [0; REQUEST_HEADER_BYTES];
        let (mut op, mut value, mut compare, mut ttl) = (OPCODE_GET, &[][..], 0, 0);
        match *self {
            Self::Get { .. } => {}
            Self::Put {
                value: v,
                condition,
                ttl_ms,
                ..
            } => {
                (op, value, ttl) = (OPCODE_PUT, v, ttl_ms);
                match condition {
                    SetCondition::Always => {}
                    SetCondition::Absent => op |= FLAG_IF_ABSENT,
                    SetCondition::Present => op |= FLAG_IF_PRESENT,
                    SetCondition::Version(version) => {
                        (op, compare) = (op | FLAG_IF_VERSION, version)
                    }
                }
                if ttl != 0 {
                    op |= FLAG_EXPIRES;
                }
            }
            Self::Delete { version, .. } => {
                op = OPCODE_DELETE;
                if let Some(version) = version {
                    (op, compare) = (op | FLAG_IF_VERSION, version);
                }
            }
        }
        let key = self.key();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the caller has checked them"
        )]
        {
            (header[0], header[1]) = (op, key.len() as u8);
            header[2..4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        }
        header[4..].copy_from_slice(&seq.to_le_bytes());
        into.extend_from_slice(&header);
        if op & FLAG_IF_VERSION != 0 {
            into.extend_from_slice(&compare.to_le_bytes());
        }
        if op & FLAG_EXPIRES != 0 {
            into.extend_from_slice(&ttl.to_le_bytes());
        }
        into.extend_from_slice(key);
        into.extend_from_slice(value);
    }
}

/// A request about records, from clients that change records themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordRequest<'a> {
    /// Asks for the record of a key.
    Locate(&'a [u8]),
    /// Asks for the record of a key, and assigns one if the key has none.
    Claim(&'a [u8]),
    /// Asks to release the lock of this record if its lease has expired.
    Release(u64),
}

impl RecordRequest<'_> {
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        let number;
        let (op, key) = match self {
            RecordRequest::Locate(key) => (OPCODE_LOCATE, *key),
            RecordRequest::Claim(key) => (OPCODE_CLAIM, *key),
            RecordRequest::Release(record) => {
                number = record.to_le_bytes();
                (OPCODE_RELEASE, &number[..])
            }
        };
        into.clear();
        into.resize(REQUEST_HEADER_BYTES, 0);
        // The caller has checked that keys are short enough.
        (into[0], into[1]) = (op, u8::try_from(key.len()).unwrap_or(u8::MAX));
        into.extend_from_slice(key);
    }
}

/// A decoded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// A complete request.
    Whole { op: Op<'a>, seq: u32 },
    /// A request about records.
    Record(RecordRequest<'a>),
    /// A part of a long request.
    Part {
        offset: usize,
        total: usize,
        bytes: &'a [u8],
    },
}

/// Returns the key of a complete request, for prefetching.
#[inline]
pub(crate) fn key_of_request(bytes: &[u8]) -> Option<&[u8]> {
    let (&op, &key) = (bytes.first()?, bytes.get(1)?);
    if op == OPCODE_REQUEST_PART {
        return None;
    }
    let extra =
        8 * usize::from(op & FLAG_IF_VERSION != 0) + 8 * usize::from(op & FLAG_EXPIRES != 0);
    bytes.get(REQUEST_HEADER_BYTES + extra..REQUEST_HEADER_BYTES + extra + usize::from(key))
}

/// Splits bytes off the front of a slice.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    #[inline]
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(front)
    }

    #[inline]
    fn take_u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    #[inline]
    fn take_u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// Decodes a request from untrusted bytes.
#[inline]
pub(crate) fn decode_request(bytes: &[u8]) -> Option<Request<'_>> {
    let mut r = ByteReader(bytes);
    let head = r.take(4)?;
    let (op, key) = (head[0], usize::from(head[1]));
    let value = usize::from(u16::from_le_bytes([head[2], head[3]]));
    let seq = r.take_u32()?;
    if op == OPCODE_REQUEST_PART {
        let (offset, total) = (r.take_u32()? as usize, r.take_u32()? as usize);
        let bytes = r.take(value)?;
        return r.0.is_empty().then_some(Request::Part {
            offset,
            total,
            bytes,
        });
    }
    let compare = if op & FLAG_IF_VERSION != 0 {
        Some(r.take_u64()?)
    } else {
        None
    };
    let ttl_ms = if op & FLAG_EXPIRES != 0 {
        r.take_u64()?
    } else {
        0
    };
    let key = r.take(key)?;
    let value = r.take(value)?;
    let op = match (op & 0x0f, op & 0xf0) {
        (OPCODE_GET, 0) if value.is_empty() => Op::Get { key },
        (OPCODE_LOCATE | OPCODE_CLAIM | OPCODE_RELEASE, 0) if value.is_empty() => {
            let request = match op & 0x0f {
                OPCODE_LOCATE => RecordRequest::Locate(key),
                OPCODE_CLAIM => RecordRequest::Claim(key),
                _ => RecordRequest::Release(u64::from_le_bytes(key.try_into().ok()?)),
            };
            return r.0.is_empty().then_some(Request::Record(request));
        }
        (OPCODE_PUT, flags) => {
            let condition = match (flags & !FLAG_EXPIRES, compare) {
                (0, _) => SetCondition::Always,
                (FLAG_IF_ABSENT, _) => SetCondition::Absent,
                (FLAG_IF_PRESENT, _) => SetCondition::Present,
                (FLAG_IF_VERSION, Some(version)) => SetCondition::Version(version),
                _ => return None,
            };
            Op::Put {
                key,
                value,
                condition,
                ttl_ms,
            }
        }
        (OPCODE_DELETE, 0 | FLAG_IF_VERSION) if value.is_empty() => Op::Delete {
            key,
            version: compare,
        },
        _ => return None,
    };
    // The sender does not transmit padding, so trailing bytes are an error.
    r.0.is_empty().then_some(Request::Whole { op, seq })
}

/// Returns the header of a part of a request.
pub(crate) fn part_header(
    offset: usize,
    total: usize,
    bytes: usize,
) -> [u8; REQUEST_PART_HEADER_BYTES] {
    let mut header = [0; REQUEST_PART_HEADER_BYTES];
    header[0] = OPCODE_REQUEST_PART;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "requests are below 128 KiB, slots below 64"
    )]
    {
        header[2..4].copy_from_slice(&(bytes as u16).to_le_bytes());
        header[8..12].copy_from_slice(&(offset as u32).to_le_bytes());
        header[12..].copy_from_slice(&(total as u32).to_le_bytes());
    }
    header
}

/// Returns the first word of an answer.
#[inline]
pub(crate) fn first_answer_word(status: Status, version: u64) -> u64 {
    version << 24 | status as u64
}

/// A decoded answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DecodedAnswer<'a> {
    pub(crate) status: Status,
    pub(crate) version_or_record: u64,
    /// Length of the whole value and offset of this chunk, if the value is sent in chunks.
    pub(crate) value_length_and_chunk_offset: Option<(usize, usize)>,
    pub(crate) value: &'a [u8],
}

/// Decodes an answer from untrusted bytes.
#[inline]
pub(crate) fn decode_answer(bytes: &[u8]) -> Option<DecodedAnswer<'_>> {
    let mut r = ByteReader(bytes);
    let word = r.take_u64()?;
    let status = Status::from_byte(word.to_le_bytes()[0])?;
    let chunk = if word & FLAG_ANSWER_CHUNK != 0 {
        Some((r.take_u32()? as usize, r.take_u32()? as usize))
    } else {
        None
    };
    Some(DecodedAnswer {
        status,
        version_or_record: word >> 24,
        value_length_and_chunk_offset: chunk,
        value: r.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn condition() -> impl Strategy<Value = SetCondition> {
        prop_oneof![
            Just(SetCondition::Always),
            Just(SetCondition::Absent),
            Just(SetCondition::Present),
            (0u64..1 << 38).prop_map(SetCondition::Version),
        ]
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            key in prop::collection::vec(any::<u8>(), 0..=255),
            value in prop::collection::vec(any::<u8>(), 0..2_000),
            condition in condition(),
            ttl_ms in prop_oneof![Just(0), any::<u64>()],
            version in prop::option::of(any::<u64>()),
            seq: u32,
        ) {
            let mut bytes = Vec::new();
            let put = Op::Put { key: &key, value: &value, condition, ttl_ms };
            for op in [Op::Get { key: &key }, put, Op::Delete { key: &key, version }] {
                op.encode(seq, &mut bytes);
                prop_assert_eq!(decode_request(&bytes), Some(Request::Whole { op, seq }));
                prop_assert_eq!(key_of_request(&bytes), Some(&key[..]));
                // With a byte more or less, the bytes are not a request.
                prop_assert_eq!(decode_request(&bytes[..bytes.len() - 1]), None);
                bytes.push(0);
                prop_assert_eq!(decode_request(&bytes), None);
            }
        }

        #[test]
        fn any_bytes_are_a_request_or_not(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (decode_request(&bytes), key_of_request(&bytes), decode_answer(&bytes));
        }
    }

    #[test]
    fn what_is_asked_about_records_comes_back() {
        let mut bytes = Vec::new();
        for request in [
            RecordRequest::Locate(b"key"),
            RecordRequest::Claim(b""),
            RecordRequest::Release(77),
        ] {
            request.encode(&mut bytes);
            assert_eq!(decode_request(&bytes), Some(Request::Record(request)));
            bytes.push(0);
            assert_eq!(decode_request(&bytes), None);
        }
    }

    #[test]
    fn parts_and_answers_come_back() {
        let mut part = part_header(100, 70_000, 5).to_vec();
        part.extend_from_slice(b"bytes");
        let decoded = Request::Part {
            offset: 100,
            total: 70_000,
            bytes: b"bytes",
        };
        assert_eq!(decode_request(&part), Some(decoded));
        let mut answer = first_answer_word(Status::ConditionNotMet, 77)
            .to_le_bytes()
            .to_vec();
        answer.extend_from_slice(b"v");
        let reply = DecodedAnswer {
            status: Status::ConditionNotMet,
            version_or_record: 77,
            value_length_and_chunk_offset: None,
            value: b"v",
        };
        assert_eq!(decode_answer(&answer), Some(reply));
        answer[0] = 99;
        assert_eq!(decode_answer(&answer), None);
    }
}
