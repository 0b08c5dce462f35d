//! The client's side of READs into a store: checks of bytes that may change while they are copied.
//!
//! An index bucket only tells where to look; the item decides. An item's checksum covers header, key and value, so
//! mixtures of two versions or two items, and dead blocks, are detected. An item that passes the check was the key's at
//! some time during the READ: before another item takes its place, its header is overwritten. The *absence* of a key
//! cannot be detected this way, because items move between buckets. So a client asks the server before it reports an
//! absent key.

use super::index::{SLOTS_PER_BUCKET, home_bucket, position_in_slot, tag_of_hash};
use super::log::{ItemHeader, checksum_of};

/// Bytes of a bucket of the index.
pub(crate) const BUCKET_BYTES: usize = 8 * SLOTS_PER_BUCKET;

/// Returns the first bucket to look at, for `buckets` buckets.
pub(crate) fn home_bucket_of(hash: u64, buckets: u64) -> u64 {
    home_bucket(hash, buckets)
}

/// The positions at which a bucket may lead to the item of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CandidatePositions {
    /// Byte offsets in the log of items with the hash's tag.
    item_offsets: [u64; SLOTS_PER_BUCKET],
    remaining_count: usize,
    /// True if the bucket has no free slot, so that the item may be in the next bucket.
    pub(crate) bucket_is_full: bool,
}

impl CandidatePositions {
    /// Reads a bucket with any contents.
    pub(crate) fn from_bucket(bucket: &[u8], hash: u64) -> Self {
        let mut found = Self {
            bucket_is_full: true,
            ..Self::default()
        };
        for word in bucket.as_chunks::<8>().0.iter().take(SLOTS_PER_BUCKET) {
            let word = u64::from_le_bytes(*word);
            found.bucket_is_full &= word != 0;
            if word >> 48 == tag_of_hash(hash) && word & 0xff_ffff_ffff != 0 {
                found.item_offsets[found.remaining_count] = position_in_slot(word) as u64 * 8;
                found.remaining_count += 1;
            }
        }
        found
    }

    /// Returns the next byte offset to look at.
    pub(crate) fn pop_item_offset(&mut self) -> Option<u64> {
        self.remaining_count = self.remaining_count.checked_sub(1)?;
        Some(self.item_offsets[self.remaining_count])
    }
}

/// The result of decoding bytes of the log for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodedItem<'b> {
    /// The intact item of the key.
    Item {
        version: u64,
        value: &'b [u8],
        /// True if the item has an expiry time, which refers to the server's clock.
        expires: bool,
    },
    /// Another key's item.
    OtherKey,
    /// The bytes are too short: the item, if it is one, has this many bytes.
    NeedsBytes(usize),
    /// Not an item, or an item that is being changed.
    Torn,
}

/// Decodes bytes of the log with any contents, for a reader that looks for `key`.
pub(crate) fn decode_item<'b>(bytes: &'b [u8], key: &[u8], seed: u64) -> DecodedItem<'b> {
    let Some(header) = word_at(bytes, 0).and_then(ItemHeader::decode_if_live) else {
        return DecodedItem::Torn;
    };
    let checked = header.units_without_checksum() * 8;
    let Some(check) = word_at(bytes, checked) else {
        return DecodedItem::NeedsBytes(checked + 8);
    };
    if check != checksum_of(&bytes[..checked], seed) {
        return DecodedItem::Torn;
    }
    let (key_at, value_at) = header.key_and_value_offsets();
    if bytes[key_at..key_at + header.key_bytes] != *key {
        return DecodedItem::OtherKey;
    }
    DecodedItem::Item {
        version: header.version,
        value: &bytes[value_at..value_at + header.value_bytes],
        expires: header.has_expiry_time,
    }
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::{FullPolicy, Partition, PartitionConfig, SetOptions, hash_of, unix_ms};
    use super::*;
    use proptest::prelude::*;
    use verbs::Provider;

    /// Creates a partition whose index and log are registered.
    fn exposed() -> Partition {
        let device = Provider::softnic().device(None).expect("a device");
        let pd = device.open().expect("opens").alloc_pd().expect("a domain");
        let config = PartitionConfig {
            nominal_items: 100,
            log_bytes: 4096,
            full_policy: FullPolicy::Cache,
            clock_ms: unix_ms,
            hash_seed: 7,
        };
        Partition::new_with_optional_pd(&config, Some(&pd)).expect("memory")
    }

    /// Looks up a key as a client does that READs everything at once.
    fn find(p: &Partition, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (index, log) = p.index_and_log_bytes();
        let hash = hash_of(key, 7);
        let buckets = (index.len() / BUCKET_BYTES) as u64;
        let mut bucket = home_bucket_of(hash, buckets);
        for _ in 0..buckets {
            let at = usize::try_from(bucket).expect("small") * BUCKET_BYTES;
            let mut candidates =
                CandidatePositions::from_bucket(&index[at..at + BUCKET_BYTES], hash);
            while let Some(at) = candidates.pop_item_offset() {
                let at = usize::try_from(at).expect("small");
                if let DecodedItem::Item { version, value, .. } = decode_item(&log[at..], key, 7) {
                    return Some((version, value.to_vec()));
                }
            }
            if !candidates.bucket_is_full {
                return None;
            }
            bucket = (bucket + 1) % buckets;
        }
        None
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Items of all lengths are changed in place or anew, moved, evicted and removed. A reader finds exactly the
        /// present items.
        #[test]
        fn readers_find_what_is_there(
            steps in prop::collection::vec((0u8..40, 0usize..60, any::<bool>()), 1..300),
        ) {
            let mut p = exposed();
            for (key, length, put) in steps {
                let key = [key];
                let hash = hash_of(&key, 7);
                if put {
                    p.set(hash, &key, &vec![key[0]; length], SetOptions::default()).expect("a cache");
                } else {
                    p.delete(hash, &key, None).expect("no condition");
                }
                for key in 0..40u8 {
                    let there = p.get(hash_of(&[key], 7), &[key]).map(|e| (e.version, e.value.to_vec()));
                    prop_assert_eq!(find(&p, &[key]), there);
                }
            }
        }

        /// A mixture of two versions, word by word, is one of the two or is detected as torn.
        #[test]
        fn mixtures_are_torn(first in any::<[u8; 24]>(), second in any::<[u8; 24]>(), choice: u8) {
            let mut p = exposed();
            let hash = hash_of(b"key", 7);
            let block = |p: &mut Partition, value| {
                p.set(hash, b"key", value, SetOptions::default()).expect("room");
                p.index_and_log_bytes().1[..48].to_vec()
            };
            let (old, new) = (block(&mut p, &first), block(&mut p, &second));
            let whole = DecodedItem::Item { version: 1, value: &first, expires: false };
            prop_assert_eq!(decode_item(&old, b"key", 7), whole);
            let mixed: Vec<u8> = (0..6)
                .flat_map(|word| if choice >> word & 1 != 0 { &new } else { &old }[word * 8..word * 8 + 8].to_vec())
                .collect();
            let seen = decode_item(&mixed, b"key", 7);
            prop_assert_eq!(seen == DecodedItem::Torn, mixed != old && mixed != new);
            prop_assert_eq!(decode_item(&old[..40], b"key", 7), DecodedItem::NeedsBytes(48));
            let other = decode_item(&old, b"kez", 7);
            prop_assert_eq!(other, DecodedItem::OtherKey);
        }

        #[test]
        fn any_bytes_are_nothing_that_was_put(bytes in prop::collection::vec(any::<u8>(), 0..200), hash: u64) {
            let seen = decode_item(&bytes, b"key", 7);
            prop_assert!(!matches!(seen, DecodedItem::Item { .. } | DecodedItem::OtherKey), "{seen:?}");
            let mut candidates = CandidatePositions::from_bucket(&bytes, hash);
            while candidates.pop_item_offset().is_some() {}
        }
    }
}
