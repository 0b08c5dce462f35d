//! The protocol between the LMDB server and its client: little-endian, without padding. Answers are
//! in the order of requests.
//!
//! | request | bytes | answer |
//! |---|---|---|
//! | GET | 1, key: u64 | 1, value: u64; or 0 |
//! | PUT | 2, key: u64, value: u64 | 1 |
//! | APPEND: a PUT behind all keys | 3, key: u64, value: u64 | 1; or 0 if the key is not behind all others |
//! | SCAN: entries from a key on | 4, key: u64, entries: u32 | n: u32, n times key: u64 and value: u64 |

use anyhow::{Result, bail, ensure};

/// Maximum entries of a SCAN.
pub(super) const MAX_SCAN_ENTRIES: u32 = 4096;

/// Bytes of the longest answer.
pub(super) const MAX_ANSWER_BYTES: usize = 4 + 16 * MAX_SCAN_ENTRIES as usize;

const GET: u8 = 1;
const PUT: u8 = 2;
const APPEND: u8 = 3;
const SCAN: u8 = 4;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Get { key: u64 },
    Put { key: u64, value: u64 },
    Append { key: u64, value: u64 },
    Scan { from: u64, entries: u32 },
}

impl Request {
    /// Returns true if the request changes the store.
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Put { .. } | Self::Append { .. })
    }

    /// Returns the entries that a SCAN requests, or 0 for other requests.
    #[inline]
    pub(super) fn scan_entries(&self) -> u32 {
        match self {
            Self::Scan { entries, .. } => *entries,
            _ => 0,
        }
    }

    #[inline]
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let mut words = |kind: u8, key: u64, rest: &[u8]| {
            into.push(kind);
            into.extend_from_slice(&key.to_le_bytes());
            into.extend_from_slice(rest);
        };
        match *self {
            Self::Get { key } => words(GET, key, &[]),
            Self::Put { key, value } => words(PUT, key, &value.to_le_bytes()),
            Self::Append { key, value } => words(APPEND, key, &value.to_le_bytes()),
            Self::Scan { from, entries } => words(SCAN, from, &entries.to_le_bytes()),
        }
    }

    /// Decodes the first request in `bytes` and returns it with its length, or `None` while it is
    /// incomplete.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>> {
        let Some(&kind) = bytes.first() else {
            return Ok(None);
        };
        let length = match kind {
            GET => 9,
            PUT | APPEND => 17,
            SCAN => 13,
            _ => bail!("no request begins with {kind}"),
        };
        let Some(bytes) = bytes.get(..length) else {
            return Ok(None);
        };
        let key = u64_at(bytes, 1);
        let request = match kind {
            GET => Self::Get { key },
            PUT => Self::Put {
                key,
                value: u64_at(bytes, 9),
            },
            APPEND => Self::Append {
                key,
                value: u64_at(bytes, 9),
            },
            _ => {
                let entries = u32_at(bytes, 9);
                ensure!(
                    entries <= MAX_SCAN_ENTRIES,
                    "a SCAN of {entries} entries; {MAX_SCAN_ENTRIES} is the most"
                );
                Self::Scan { from: key, entries }
            }
        };
        Ok(Some((request, length)))
    }
}

/// Returns the word at an offset, or 0 behind the end.
#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|w| w.try_into().ok());
    u64::from_le_bytes(word.unwrap_or_default())
}

/// Returns the half word at an offset, or 0 behind the end.
#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|w| w.try_into().ok());
    u32::from_le_bytes(word.unwrap_or_default())
}

/// Appends the answer to a GET.
#[inline]
pub(super) fn encode_get_answer(value: Option<u64>, into: &mut Vec<u8>) {
    match value {
        Some(value) => {
            into.push(1);
            into.extend_from_slice(&value.to_le_bytes());
        }
        None => into.push(0),
    }
}

/// Decodes the answer to a GET and returns it with its length, or `None` while it is incomplete.
#[inline]
pub(super) fn decode_get_answer(bytes: &[u8]) -> Option<(Option<u64>, usize)> {
    match bytes.first()? {
        0 => Some((None, 1)),
        _ if bytes.len() < 9 => None,
        _ => Some((Some(u64_at(bytes, 1)), 9)),
    }
}

/// Decodes the answer to a SCAN and returns its entries and its length, or `None` while it is
/// incomplete.
#[inline]
pub(super) fn decode_scan_answer(
    bytes: &[u8],
) -> Option<(impl Iterator<Item = (u64, u64)>, usize)> {
    let length = 4 + 16 * u32_at(bytes.get(..4)?, 0) as usize;
    let entries = bytes.get(4..length)?.chunks_exact(16);
    Some((entries.map(|e| (u64_at(e, 0), u64_at(e, 8))), length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        let two =
            |of: fn(u64, u64) -> Request| any::<(u64, u64)>().prop_map(move |(k, v)| of(k, v));
        prop_oneof![
            any::<u64>().prop_map(|key| Request::Get { key }),
            two(|key, value| Request::Put { key, value }),
            two(|key, value| Request::Append { key, value }),
            (any::<u64>(), 0..=MAX_SCAN_ENTRIES)
                .prop_map(|(from, entries)| Request::Scan { from, entries }),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_out_as_they_went_in(all in prop::collection::vec(request(), 1..20), cut in 0usize..400) {
            let mut bytes = Vec::new();
            all.iter().for_each(|r| r.encode(&mut bytes));
            let whole = bytes.len();
            bytes.truncate(cut);
            let (mut at, mut seen) = (0, Vec::new());
            while let Some((request, length)) = Request::decode(&bytes[at..]).expect("good") {
                                seen.push(request);
                at += length;
            }
            prop_assert_eq!(&all[..seen.len()], &seen[..]);
            prop_assert_eq!(seen.len() == all.len(), cut >= whole);
        }

        #[test]
        fn any_bytes_are_requests_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(Some((request, length))) = Request::decode(&bytes) {
                let mut again = Vec::new();
                request.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
        }

        #[test]
        fn answers_are_whole_or_not_yet_there(bytes in prop::collection::vec(any::<u8>(), 0..80), value: Option<u64>) {
            if let Some((_, length)) = decode_get_answer(&bytes) {
                prop_assert!(length <= bytes.len());
            }
            if let Some((entries, length)) = decode_scan_answer(&bytes) {
                prop_assert_eq!(length, 4 + 16 * entries.count());
            }
            let mut answer = Vec::new();
            encode_get_answer(value, &mut answer);
            prop_assert_eq!(decode_get_answer(&answer), Some((value, answer.len())));
        }
    }

    #[test]
    fn long_scans_and_other_kinds_are_refused() {
        let mut scan = Vec::new();
        let (from, entries) = (0, MAX_SCAN_ENTRIES + 1);
        Request::Scan { from, entries }.encode(&mut scan);
        assert!(Request::decode(&scan).is_err());
        assert!(Request::decode(&[0]).is_err() && Request::decode(&[5]).is_err());
    }
}
