//! The protocol between the LMDB server and its client: little-endian, without padding. All keys of a store have one
//! length, and so have all values. Answers are in the order of requests.
//!
//! | request | bytes | answer |
//! |---|---|---|
//! | GET | 1, key | 1, value; or 0 |
//! | PUT | 2, key, value | 1 |
//! | APPEND: a PUT behind all keys | 3, key, value | 1; or 0 if the key is not behind all others |
//! | SCAN: entries from a key on | 4, key, entries: u32 | n: u32, n times key and value |

use anyhow::{Result, bail, ensure};

use super::serve_job::EntrySizes;

/// Maximum entries of a SCAN.
pub(super) const MAX_SCAN_ENTRIES: u32 = 4096;

const GET: u8 = 1;
const PUT: u8 = 2;
const APPEND: u8 = 3;
const SCAN: u8 = 4;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'b> {
    Get { key: &'b [u8] },
    Put { key: &'b [u8], value: &'b [u8] },
    Append { key: &'b [u8], value: &'b [u8] },
    Scan { from: &'b [u8], entries: u32 },
}

impl<'b> Request<'b> {
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
        let mut parts = |kind: u8, key: &[u8], rest: &[u8]| {
            into.push(kind);
            into.extend_from_slice(key);
            into.extend_from_slice(rest);
        };
        match *self {
            Self::Get { key } => parts(GET, key, &[]),
            Self::Put { key, value } => parts(PUT, key, value),
            Self::Append { key, value } => parts(APPEND, key, value),
            Self::Scan { from, entries } => parts(SCAN, from, &entries.to_le_bytes()),
        }
    }

    /// Decodes the first request in `bytes` and returns it with its length, or `None` while it is
    /// incomplete.
    #[inline]
    pub(super) fn decode(bytes: &'b [u8], sizes: EntrySizes) -> Result<Option<(Self, usize)>> {
        let Some(&kind) = bytes.first() else {
            return Ok(None);
        };
        let length_behind_key = match kind {
            GET => 0,
            PUT | APPEND => sizes.value_bytes,
            SCAN => 4,
            _ => bail!("no request begins with {kind}"),
        };
        let length = 1 + sizes.key_bytes + length_behind_key;
        let Some(bytes) = bytes.get(..length) else {
            return Ok(None);
        };
        let (key, value) = bytes[1..].split_at(sizes.key_bytes);
        let request = match kind {
            GET => Self::Get { key },
            PUT => Self::Put { key, value },
            APPEND => Self::Append { key, value },
            _ => {
                let entries = u32_at_start(value);
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

/// Returns the bytes of the longest answer.
pub(super) fn max_answer_bytes(sizes: EntrySizes) -> usize {
    4 + sizes.entry_bytes() * MAX_SCAN_ENTRIES as usize
}

/// Returns the first 4 bytes as a number, or 0 if there are fewer.
#[inline]
fn u32_at_start(bytes: &[u8]) -> u32 {
    let word = bytes.first_chunk().copied();
    u32::from_le_bytes(word.unwrap_or_default())
}

/// Appends the answer to a GET.
#[inline]
pub(super) fn encode_get_answer(value: Option<&[u8]>, into: &mut Vec<u8>) {
    match value {
        Some(value) => {
            into.push(1);
            into.extend_from_slice(value);
        }
        None => into.push(0),
    }
}

/// Decodes the answer to a GET and returns it with its length, or `None` while it is incomplete.
#[inline]
pub(super) fn decode_get_answer(bytes: &[u8], sizes: EntrySizes) -> Option<(Option<&[u8]>, usize)> {
    let length = 1 + sizes.value_bytes;
    match bytes.first()? {
        0 => Some((None, 1)),
        _ => Some((Some(bytes.get(1..length)?), length)),
    }
}

/// A key and its value.
pub(super) type EntryRef<'b> = (&'b [u8], &'b [u8]);

/// Decodes the answer to a SCAN and returns its entries and its length, or `None` while it is
/// incomplete.
#[inline]
pub(super) fn decode_scan_answer(
    bytes: &[u8],
    sizes: EntrySizes,
) -> Option<(impl Iterator<Item = EntryRef<'_>>, usize)> {
    let length = 4 + sizes.entry_bytes() * u32_at_start(bytes.get(..4)?) as usize;
    let entries = bytes.get(4..length)?.chunks_exact(sizes.entry_bytes());
    let entries = entries.map(move |entry| entry.split_at(sizes.key_bytes));
    Some((entries, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A request that owns its bytes.
    #[derive(Clone, Debug)]
    struct OwnedRequest {
        kind: u8,
        key: Vec<u8>,
        value: Vec<u8>,
        entries: u32,
    }

    impl OwnedRequest {
        fn as_request(&self) -> Request<'_> {
            let (key, value) = (&self.key[..], &self.value[..]);
            match self.kind {
                GET => Request::Get { key },
                PUT => Request::Put { key, value },
                APPEND => Request::Append { key, value },
                _ => Request::Scan {
                    from: key,
                    entries: self.entries,
                },
            }
        }
    }

    fn sizes() -> impl Strategy<Value = EntrySizes> {
        (1usize..40, 1usize..40).prop_map(|(key_bytes, value_bytes)| EntrySizes {
            key_bytes,
            value_bytes,
        })
    }

    fn requests() -> impl Strategy<Value = (EntrySizes, Vec<OwnedRequest>)> {
        let all = |sizes: EntrySizes| {
            let bytes = |count| prop::collection::vec(any::<u8>(), count);
            let (key, value) = (bytes(sizes.key_bytes), bytes(sizes.value_bytes));
            let one = (GET..=SCAN, key, value, 0..=MAX_SCAN_ENTRIES).prop_map(
                |(kind, key, value, entries)| OwnedRequest {
                    kind,
                    key,
                    value,
                    entries,
                },
            );
            (Just(sizes), prop::collection::vec(one, 1..20))
        };
        sizes().prop_flat_map(all)
    }

    proptest! {
        #[test]
        fn requests_come_out_as_they_went_in((sizes, all) in requests(), cut in 0usize..1700) {
            let mut bytes = Vec::new();
            all.iter().for_each(|r| r.as_request().encode(&mut bytes));
            let whole = bytes.len();
            bytes.truncate(cut);
            let (mut at, mut seen) = (0, 0);
            while let Some((request, length)) = Request::decode(&bytes[at..], sizes).expect("good") {
                prop_assert_eq!(request, all[seen].as_request());
                seen += 1;
                at += length;
            }
            prop_assert_eq!(seen == all.len(), cut >= whole);
        }

        #[test]
        fn any_bytes_are_requests_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), sizes in sizes()) {
            if let Ok(Some((request, length))) = Request::decode(&bytes, sizes) {
                let mut again = Vec::new();
                request.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
        }

        #[test]
        fn answers_are_whole_or_not_yet_there(bytes in prop::collection::vec(any::<u8>(), 0..200), sizes in sizes(), found: bool) {
            if let Some((_, length)) = decode_get_answer(&bytes, sizes) {
                prop_assert!(length <= bytes.len());
            }
            if let Some((entries, length)) = decode_scan_answer(&bytes, sizes) {
                prop_assert_eq!(length, 4 + sizes.entry_bytes() * entries.count());
            }
            let value = vec![7; sizes.value_bytes];
            let value = found.then_some(&value[..]);
            let mut answer = Vec::new();
            encode_get_answer(value, &mut answer);
            prop_assert_eq!(decode_get_answer(&answer, sizes), Some((value, answer.len())));
        }
    }

    #[test]
    fn long_scans_and_other_kinds_are_refused() {
        let (mut scan, sizes) = (Vec::new(), EntrySizes::OF_INTEGERS);
        let (from, entries) = (&[0; 8][..], MAX_SCAN_ENTRIES + 1);
        Request::Scan { from, entries }.encode(&mut scan);
        assert!(Request::decode(&scan, sizes).is_err());
        assert!(Request::decode(&[0], sizes).is_err() && Request::decode(&[5], sizes).is_err());
    }
}
